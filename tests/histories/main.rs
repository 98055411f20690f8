//! Runs long histories of concurrent calls on each store of tollgate, checks them, and prints the results.
//! `make histories` runs it.
//!
//! ```text
//! histories [--calls 1000000] [--clients 32] [--seed 1] [--only memory|redis|two-redis|cluster] [--faults] [--server FILE]
//! histories --seams [--only bursts|refunds|buckets|skews|stops|losses|returns] [--server FILE]
//! histories --logs [--server FILE]
//! ```
//!
//! `--faults` breaks Redis repeatedly during the run. `--server` tests another build. `--seams` prints tables of
//! scenarios instead, each of which shows a defect of former builds. `--logs` runs servers whose log cannot be written.

#![expect(unreachable_pub, reason = "a test program has no outside")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how it fails, and a table is what it is for"
)]

use std::process::ExitCode;

#[expect(dead_code, reason = "most of it is for the other tests")]
#[path = "../it"]
mod it {
    pub mod support;
}

mod logs;
mod losses;
mod seams;

use it::support::{
    histories::{Place, Plan, run},
    tollgate,
};

/// Bound on the violations printed for each store.
const SHOWN: usize = 20;

fn main() -> ExitCode {
    let mut plan = Plan {
        place: Place::Memory,
        calls: 1_000_000,
        clients: 32,
        seed: 1,
        has_faults: false,
    };
    let (mut only, mut are_seams, mut are_logs) = (None, false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("the option has a value");
        match arg.as_str() {
            "--calls" => plan.calls = value().parse().unwrap(),
            "--clients" => plan.clients = value().parse().unwrap(),
            "--seed" => plan.seed = value().parse().unwrap(),
            "--only" => only = Some(value()),
            "--server" => tollgate::test_build(value().into()),
            "--faults" => plan.has_faults = true,
            "--seams" => are_seams = true,
            "--logs" => are_logs = true,
            other => panic!("`{other}` is none of the options"),
        }
    }
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    if are_seams {
        runtime().block_on(seams::print(only.as_deref()));
        return ExitCode::SUCCESS;
    }
    if are_logs {
        return match logs::print(runtime) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        };
    }
    println!("seed {}", plan.seed);
    println!("| place | calls | counters | admitted | without a decision | violations |");
    println!("|---|---|---|---|---|---|");
    let mut is_good = true;
    for place in [Place::Memory, Place::Redis, Place::TwoRedis, Place::Cluster] {
        if only.as_ref().is_some_and(|only| *only != place.to_string()) {
            continue;
        }
        // Faults are those of Redis servers.
        if plan.has_faults && place == Place::Memory {
            continue;
        }
        let outcome = runtime().block_on(run(Plan { place, ..plan }));
        println!(
            "| {place} | {} | {} | {} | {} | {} |",
            outcome.calls,
            outcome.counters,
            outcome.admitted,
            outcome.unknown,
            outcome.violations.len()
        );
        for violation in outcome.violations.iter().take(SHOWN) {
            println!("  {violation}");
        }
        is_good &= outcome.violations.is_empty();
    }
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
