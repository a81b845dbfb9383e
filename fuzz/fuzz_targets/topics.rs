//! See `tickbridge_fuzz::topics`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tickbridge_fuzz::topics::check(input));
