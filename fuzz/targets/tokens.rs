#![no_main]

#[expect(dead_code, reason = "the other laws have targets of their own")]
#[path = "../../tests/it/fuzz/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::tokens(bytes));
