#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| turnflow_fuzz::replies(data));
