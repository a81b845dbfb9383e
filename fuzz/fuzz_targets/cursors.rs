//! See `tickbridge_fuzz::cursors`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tickbridge_fuzz::cursors::check(input));
