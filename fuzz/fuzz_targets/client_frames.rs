//! See `tickbridge_fuzz::client_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tickbridge_fuzz::client_frames::check(input));
