//! See `tickbridge_fuzz::tokens`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tickbridge_fuzz::tokens::check(input));
