//! See `tickbridge_fuzz::client_messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tickbridge_fuzz::client_messages::check(input));
