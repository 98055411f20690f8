#![no_main]

use std::{env, sync::LazyLock};

#[expect(dead_code, reason = "the laws are found by their names")]
#[path = "../../tests/it/fuzz/targets.rs"]
mod targets;

/// The law that `LAW` names.
static LAW: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    #[expect(
        clippy::disallowed_methods,
        reason = "libFuzzer has the command line for itself"
    )]
    let name = env::var("LAW").expect("LAW names a law");
    let mut all = targets::ALL.iter();
    let found = all.find(|(law, _)| *law == name);
    found.expect("there is such a law").1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (*LAW)(bytes));
