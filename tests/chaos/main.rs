//! Breaks Redis, and the network to it, in every way in `tests/it/support/chaos.rs`, and prints the results as one
//! table. `make chaos` runs it.
//!
//! ```text
//! chaos [--deadline 50ms] [--lasts 5s] [--period 10ms] [--only TEXT] [--slowest] [--write FILE] [-- TOLLGATE-ARGS…]
//! chaos --soak MINUTES [--topology single|sentinel|cluster] [-- TOLLGATE-ARGS…]
//! ```

#![expect(unreachable_pub, reason = "a test program has no outside")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how it fails, and a table is what it is for"
)]

use std::{fmt::Write as _, path::PathBuf, time::Duration};

#[expect(dead_code, reason = "most of it is for the other tests")]
#[path = "../it"]
mod it {
    pub mod support;
}

mod soak;
mod table;

use it::support::{
    chaos::{Outcome, Plan, scenarios},
    storm::PERIOD,
};

/// The command line.
struct Options {
    plan: Plan,
    only: Option<String>,
    /// Whether to list the slowest answers too.
    slowest: bool,
    write: Option<PathBuf>,
    soak: Option<Duration>,
    topology: String,
}

fn options() -> Options {
    let mut options = Options {
        plan: Plan {
            deadline: Duration::from_millis(50),
            lasts: Duration::from_secs(5),
            period: PERIOD,
            args: Vec::new(),
        },
        only: None,
        slowest: false,
        write: None,
        soak: None,
        topology: "single".to_owned(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("the option has a value");
        match arg.as_str() {
            "--deadline" => options.plan.deadline = duration(&value()),
            "--lasts" => options.plan.lasts = duration(&value()),
            "--period" => options.plan.period = duration(&value()),
            "--slowest" => options.slowest = true,
            "--only" => options.only = Some(value()),
            "--write" => options.write = Some(value().into()),
            "--soak" => {
                let minutes: f64 = value().parse().expect("a number of minutes");
                options.soak = Some(Duration::from_secs_f64(minutes * 60.0));
            }
            "--topology" => options.topology = value(),
            "--" => options.plan.args = args.by_ref().collect(),
            other => panic!("`{other}` is none of the options"),
        }
    }
    options
}

/// `50ms` or `5s`
fn duration(text: &str) -> Duration {
    let parsed = match text.strip_suffix("ms") {
        Some(millis) => millis.parse().map(Duration::from_millis),
        None => text.trim_end_matches('s').parse().map(Duration::from_secs),
    };
    parsed.expect("a number of ms or s")
}

fn main() {
    let options = options();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    if let Some(time) = options.soak {
        let topology = soak::Topology::start(&options.topology);
        return runtime.block_on(soak::soak(topology, time, &options.plan));
    }
    let mut outcomes = Vec::new();
    for (name, scenario) in scenarios() {
        if options
            .only
            .as_ref()
            .is_some_and(|only| !name.contains(only.as_str()))
        {
            continue;
        }
        println!("{name} …");
        let outcome = runtime.block_on(scenario(options.plan.clone()));
        if options.slowest {
            for (when, seen) in &outcome.slowest {
                println!(
                    "asked after {:.1} ms: {:.2} ms, {:?}{}",
                    millis(*when),
                    millis(seen.took),
                    seen.what,
                    if seen.is_degraded {
                        ", without Redis"
                    } else {
                        ""
                    }
                );
            }
        }
        outcomes.push(outcome);
    }
    let text = table(&outcomes);
    println!("\n{text}");
    if let Some(path) = options.write {
        table::replace(&path, &text);
    }
}

/// One line per scenario.
fn table(outcomes: &[Outcome]) -> String {
    let mut table = "\
| what breaks | not by Redis, % | longest, ms | first, ms | others, ms | hits off | exact again, ms |
|---|---|---|---|---|---|---|
"
    .to_owned();
    for outcome in outcomes {
        let _ = writeln!(table, "{outcome}");
    }
    table
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
