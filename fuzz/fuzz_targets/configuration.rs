//! See `tickbridge_fuzz::configuration`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tickbridge_fuzz::configuration::check(input));
