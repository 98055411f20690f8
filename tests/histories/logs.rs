//! Servers whose log cannot be written, each kind again and again.

use std::thread;

use super::it::support::unwritable_log::{LogFault, LogForm, UnwritableLog};

/// How often each kind is run with each form of the log.
const RUNS: usize = 20;

/// Runs all kinds and prints how often nothing stopped; returns whether that was always so.
pub fn print(runtime: impl Fn() -> tokio::runtime::Runtime + Sync) -> bool {
    let runs = |fault, form| {
        let once = || runtime().block_on(UnwritableLog { fault, form }.run());
        let failures: Vec<_> = (0..RUNS).filter_map(|_| once().err()).collect();
        (fault, form, failures)
    };
    println!("| standard error | log | runs in which nothing stopped |");
    println!("|---|---|---|");
    thread::scope(|scope| {
        let kinds = LogFault::ALL
            .map(|fault| scope.spawn(move || LogForm::ALL.map(|form| runs(fault, form))));
        let mut is_good = true;
        for (fault, form, failures) in kinds.into_iter().flat_map(|kind| kind.join().unwrap()) {
            println!(
                "| {fault} | {form:?} | {} of {RUNS} |",
                RUNS - failures.len()
            );
            if let Some(failure) = failures.first() {
                println!("  {failure:#}");
            }
            is_good &= failures.is_empty();
        }
        is_good
    })
}
