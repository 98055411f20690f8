//! Runs long histories of concurrent calls on each store of tollgate, checks them, and prints the results.
//! `make histories` runs it.
//!
//! ```text
//! histories [--calls 1000000] [--clients 32] [--seed 1] [--only memory|redis|two-redis|cluster] [--faults] [--server FILE]
//! histories --clocks [--secs 300] [--seed 1] [--only memory|redis] [--server FILE]
//! histories --leases [--calls 20000] [--seed 1] [--only redis|sentinel|cluster|two-redis] [--server FILE]
//! histories --seams [--only bursts|refunds|buckets|skews|steps|stops|losses|returns] [--server FILE]
//! histories --logs [--server FILE]
//! ```
//!
//! `--faults` breaks Redis repeatedly during the run. `--clocks` steps the clocks of tollgate and of Redis instead.
//! `--leases` compares reservations, their ends and losses of Redis with a model, counter by counter. `--server` tests another build. `--seams` prints tables of scenarios instead, each of which shows a defect of former
//! builds. `--logs` runs servers whose log cannot be written.

#![expect(unreachable_pub, reason = "a test program has no outside")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how it fails, and a table is what it is for"
)]

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

#[expect(dead_code, reason = "most of it is for the other tests")]
#[path = "../it"]
mod it {
    pub mod support;
}

mod logs;
mod losses;
mod seams;
mod step_tables;

use it::support::{
    histories::{Place, Plan, run},
    leases::{self, LeasePlan, stores::LeaseStore},
    steps::{self, ClockPlan, Clocks, Rate},
    tollgate,
};

/// The limits of histories over clocks that step.
const LIMITS: &[Rate] = &[Rate { hits: 10, secs: 1 }, Rate { hits: 50, secs: 10 }];

/// The calls of a history. Those of leases lose Redis again and again, and make about a hundred calls a second.
const CALLS: usize = 1_000_000;
const LEASE_CALLS: usize = 20_000;

/// Bound on the violations printed for each store.
const SHOWN: usize = 20;

fn main() -> ExitCode {
    let mut plan = Plan {
        place: Place::Memory,
        calls: CALLS,
        clients: 32,
        seed: 1,
        has_faults: false,
    };
    let mut clock_plan = ClockPlan {
        clocks: Clocks::Memory,
        lasts: Duration::from_secs(300),
        limits: LIMITS,
        seed: 1,
    };
    let mut calls = None;
    let (mut only, mut are_seams, mut are_clocks, mut are_logs) = (None, false, false, false);
    let mut are_leases = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("the option has a value");
        match arg.as_str() {
            "--calls" => calls = Some(value().parse().unwrap()),
            "--clients" => plan.clients = value().parse().unwrap(),
            "--seed" => {
                plan.seed = value().parse().unwrap();
                clock_plan.seed = plan.seed;
            }
            "--secs" => clock_plan.lasts = Duration::from_secs(value().parse().unwrap()),
            "--clocks" => are_clocks = true,
            "--only" => only = Some(value()),
            "--server" => tollgate::test_build(value().into()),
            "--faults" => plan.has_faults = true,
            "--seams" => are_seams = true,
            "--logs" => are_logs = true,
            "--leases" => are_leases = true,
            other => panic!("`{other}` is none of the options"),
        }
    }
    plan.calls = calls.unwrap_or(if are_leases { LEASE_CALLS } else { CALLS });
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
    if are_clocks {
        return runtime().block_on(step_clocks(clock_plan, only.as_deref()));
    }
    if are_leases {
        runtime().block_on(reserve(plan, only.as_deref()));
        return ExitCode::SUCCESS;
    }
    println!(
        "| place | calls | counters | admitted | resets | losses | without a decision | violations |"
    );
    println!("|---|---|---|---|---|---|---|---|");
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
            "| {place} | {} | {} | {} | {} | {} | {} | {} |",
            outcome.calls,
            outcome.counters,
            outcome.admitted,
            outcome.resets,
            outcome.losses,
            outcome.unknown,
            outcome.violations.len()
        );
        is_good &= is_without(&outcome.violations);
    }
    exit_code(is_good)
}

/// The histories of reservations. A counter that is not as in the model ends the program.
async fn reserve(Plan { calls, seed, .. }: Plan, only: Option<&str>) {
    use LeaseStore::{Cluster, Redis, Sentinel, TwoRedis};
    for store in [Redis, Sentinel, Cluster, TwoRedis] {
        if only.is_none_or(|only| only == store.to_string()) {
            let began = Instant::now();
            let steps = leases::run(LeasePlan { store, calls, seed }).await;
            println!("{store}, {:.0} s: {steps:?}", began.elapsed().as_secs_f64());
        }
    }
}

/// The histories over clocks that step.
async fn step_clocks(plan: ClockPlan, only: Option<&str>) -> ExitCode {
    println!("| clocks | steps | calls | admitted | without a decision | violations |");
    println!("|---|---|---|---|---|---|");
    let mut is_good = true;
    for clocks in [Clocks::Memory, Clocks::Redis] {
        if only.is_some_and(|only| only != clocks.to_string()) {
            continue;
        }
        let outcome = steps::run(ClockPlan { clocks, ..plan }).await;
        println!(
            "| {clocks} | {} | {} | {} | {} | {} |",
            outcome.steps,
            outcome.calls,
            outcome.admitted,
            outcome.unknown,
            outcome.violations.len()
        );
        is_good &= is_without(&outcome.violations);
    }
    exit_code(is_good)
}

/// Whether there are no violations. Prints the first ones.
fn is_without(violations: &[String]) -> bool {
    for violation in violations.iter().take(SHOWN) {
        println!("  {violation}");
    }
    violations.is_empty()
}

fn exit_code(is_good: bool) -> ExitCode {
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
