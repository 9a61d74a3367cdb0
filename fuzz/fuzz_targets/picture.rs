#![no_main]

use std::sync::Once;

static QUIET: Once = Once::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // The reader's panics are caught, as they are in a run; the fuzzer's hook would end it at
    // once. What gets out of the reader still ends the fuzzer.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    turnflow_fuzz::picture(data);
});
