//! See `tickbridge_fuzz::payloads`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tickbridge_fuzz::payloads::check(input));
