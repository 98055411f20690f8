//! The harness of the long evidence: histories of calls, every way to break Redis, and every attack, with their results
//! as tables. `make histories`, `make chaos` and `make attack` run it.
//!
//! ```text
//! load histories [--calls 1000000] [--seed 1] [--only memory|redis|cluster] [--faults]
//! load histories --clocks [--seed 1] [--only memory|redis]
//! load histories --leases [--calls 20000] [--seed 1] [--only redis|cluster]
//! load histories --logs
//! load chaos [--only TEXT] [--write FILE]
//! load attack [--only TEXT] [--write FILE]
//! ```
//!
//! `--faults` breaks Redis repeatedly during a history. `--clocks` steps the clocks of tollgate and of Redis instead.
//! `--leases` compares reservations, their ends and losses of Redis with a model, counter by counter. `--logs` runs
//! servers whose log cannot be written. `--only` takes the scenarios and attacks whose names contain the text.
//! `--write` puts the table between the two marks of a page.

#![expect(unreachable_pub, reason = "a test program has no outside")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how it fails, and a table is what it is for"
)]

use std::{
    fmt::{Display, Write as _},
    fs,
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Runtime;

mod attack;
mod doors;
mod flood;
mod histories;
#[expect(dead_code, reason = "most of it is for the other tests")]
#[path = "../it"]
mod it {
    pub mod support;
}
mod leases;
mod model;
mod stores;

use it::support::{
    chaos::{self, Outcome},
    steps::{self, ClockPlan, Clocks, Rate},
    unwritable_log::{LogFault, LogForm, UnwritableLog},
};
use stores::Place;

/// The calls of a history. Those of leases lose Redis again and again, and make about a hundred calls a second.
const CALLS: usize = 1_000_000;
const LEASE_CALLS: usize = 20_000;

const CLOCKS_LAST: Duration = Duration::from_secs(300);
const LIMITS: &[Rate] = &[Rate { hits: 10, secs: 1 }, Rate { hits: 50, secs: 10 }];

/// How often a server with each kind of an unwritable log is run in each form of the log.
const RUNS: usize = 20;

/// Bound on the violations printed for each store.
const SHOWN: usize = 20;

#[derive(Default)]
struct Options {
    calls: Option<usize>,
    seed: Option<u64>,
    only: Option<String>,
    /// `--faults`, `--clocks`, `--leases` or `--logs`.
    kind: String,
    write: Option<PathBuf>,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Self {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            let mut value = || args.next().expect("the option has a value");
            match arg.as_str() {
                "--calls" => options.calls = Some(value().parse().unwrap()),
                "--seed" => options.seed = Some(value().parse().unwrap()),
                "--only" => options.only = Some(value()),
                "--faults" | "--clocks" | "--leases" | "--logs" => options.kind = arg,
                "--write" => options.write = Some(value().into()),
                other => panic!("`{other}` is none of the options"),
            }
        }
        options
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    fn is_place(&self, place: &str) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| only == place)
    }

    fn is_named(&self, name: &str) -> bool {
        let only = self.only.as_deref();
        only.is_none_or(|only| name.contains(only))
    }

    /// Puts the text between the marks of the page of `--write`.
    fn write(&self, text: &str) {
        const BEGIN: &str = "<!-- table -->\n";
        const END: &str = "<!-- end of table -->";
        let Some(path) = &self.write else { return };
        let page = fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once(BEGIN).expect("a mark where it begins");
        let (_, after) = rest.split_once(END).expect("a mark where it ends");
        fs::write(path, format!("{before}{BEGIN}{text}{END}{after}")).unwrap();
    }
}

/// The results so far, which are also printed row by row, and whether they are as they should be.
struct Report {
    text: String,
    is_good: bool,
}

impl Report {
    fn new(columns: &str) -> Self {
        let mut report = Self {
            text: String::new(),
            is_good: true,
        };
        report.table(columns);
        report
    }

    fn table(&mut self, columns: &str) {
        self.line(&format!("| {columns} |"));
        let count = columns.split(" | ").count();
        self.line(&format!("|{}", "---|".repeat(count)));
    }

    fn line(&mut self, line: &dyn Display) {
        println!("{line}");
        let _ = writeln!(self.text, "{line}");
    }

    fn row(&mut self, cells: &dyn Display, violations: &[String]) {
        self.line(&format!("| {cells} |"));
        for violation in violations.iter().take(SHOWN) {
            println!("  {violation}");
        }
        self.is_good &= violations.is_empty();
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let what = args.next();
    let options = Options::read(args);
    let report = match (what.as_deref(), &*options.kind) {
        (Some("chaos"), _) => break_redis(&options),
        (Some("attack"), _) => attack(&options),
        (Some("histories"), "--clocks") => step_clocks(&options),
        (Some("histories"), "--leases") => reserve(&options),
        (Some("histories"), "--logs") => write_no_log(),
        (Some("histories"), _) => call(&options),
        other => panic!("{other:?} is neither `histories`, `chaos` nor `attack`"),
    };
    options.write(&report.text);
    ExitCode::from(u8::from(!report.is_good))
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

fn call(options: &Options) -> Report {
    histories::check_the_checker();
    println!("seed {}", options.seed());
    let mut report = Report::new(histories::COLUMNS);
    let has_faults = options.kind == "--faults";
    for place in Place::ALL {
        // Faults are those of Redis servers.
        if !options.is_place(place.name()) || has_faults && place == Place::Memory {
            continue;
        }
        let plan = histories::Plan {
            place,
            calls: options.calls.unwrap_or(CALLS),
            seed: options.seed(),
            has_faults,
        };
        let (row, violations) = runtime().block_on(histories::run(plan));
        report.row(&row, &violations);
    }
    report
}

/// Histories of reservations. A counter that is not as in the model ends the program.
fn reserve(options: &Options) -> Report {
    println!("seed {}", options.seed());
    let mut report = Report::new("place | seconds | steps");
    for place in [Place::Redis, Place::Cluster] {
        if options.is_place(place.name()) {
            let (calls, seed) = (options.calls.unwrap_or(LEASE_CALLS), options.seed());
            let began = Instant::now();
            let steps = runtime().block_on(leases::run(place, calls, seed));
            let (place, secs) = (place.name(), began.elapsed().as_secs());
            report.row(&format!("{place} | {secs} | {steps:?}"), &[]);
        }
    }
    report
}

fn step_clocks(options: &Options) -> Report {
    println!("seed {}", options.seed());
    let mut report = Report::new("clocks | steps | calls | admitted | without a decision");
    for (clocks, name) in [(Clocks::Memory, "memory"), (Clocks::Redis, "redis")] {
        if !options.is_place(name) {
            continue;
        }
        let outcome = runtime().block_on(steps::run(ClockPlan {
            clocks,
            lasts: CLOCKS_LAST,
            limits: LIMITS,
            seed: options.seed(),
        }));
        let (calls, admitted, unknown) = (outcome.calls, outcome.admitted, outcome.unknown);
        let cells = format!(
            "{name} | {} | {calls} | {admitted} | {unknown}",
            outcome.steps
        );
        report.row(&cells, &outcome.violations);
    }
    report
}

/// Servers whose log cannot be written, each kind again and again: nothing ever stops.
fn write_no_log() -> Report {
    let mut report = Report::new("standard error | log | runs in which nothing stopped");
    let failures = |fault, form| {
        let run = |_| runtime().block_on(UnwritableLog { fault, form }.run());
        let failures = (0..RUNS).map(run).filter_map(Result::err);
        Vec::from_iter(failures.map(|error| format!("{error:#}")))
    };
    thread::scope(|scope| {
        let runs = |fault| LogForm::ALL.map(|form| (form, failures(fault, form)));
        let all = LogFault::ALL.map(|fault| (fault, scope.spawn(move || runs(fault))));
        for (fault, runs) in all {
            for (form, failures) in runs.join().unwrap() {
                let good = RUNS - failures.len();
                report.row(&format!("{fault} | {form:?} | {good} of {RUNS}"), &failures);
            }
        }
    });
    report
}

fn break_redis(options: &Options) -> Report {
    let mut report = Report::new(
        "what breaks | not by Redis, % | longest, ms | first, ms | others, ms | hits off | exact again, ms",
    );
    let plan = chaos::Plan {
        deadline: Duration::from_millis(50),
        lasts: Duration::from_secs(5),
        period: Duration::from_millis(10),
        args: Vec::new(),
    };
    for name in chaos::SCENARIOS {
        if options.is_named(name) {
            let outcome = runtime().block_on(chaos::run(name, plan.clone()));
            report.row(&outcome, &lacking(&outcome));
        }
    }
    report
}

/// A report of a scenario that did what none may do. Calls may lack a Redis that is there only if it was later than the
/// default deadline.
fn lacking(outcome: &Outcome) -> Vec<String> {
    let percent = match outcome.name {
        chaos::LATE_REPLIES_ENVOY | chaos::STALL_ENVOY => 5.0,
        chaos::STALL => 2.0,
        name if chaos::redis_is_there(name) => 0.05,
        _ => 100.1,
    };
    let lacks = (outcome.errors + outcome.degraded) as f64 * 100.0 / outcome.answers as f64;
    let was_late = (outcome.redis_took).is_some_and(|took| took > Duration::from_millis(100));
    let secs = if outcome.name == chaos::MOVED { 1 } else { 12 };
    let is_bad = lacks >= percent && !was_late
        || outcome.off_afterwards != 0
        || outcome.recovery > Duration::from_secs(secs);
    Vec::from_iter(is_bad.then(|| format!("{outcome:?}")))
}

fn attack(options: &Options) -> Report {
    // Attackers need as many files as the attacked servers.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let mut report = Report::new(attack::COLUMNS);
    for attack in attack::all() {
        if options.is_named(attack.name) {
            let outcome = attack.run();
            let cells = format!("{} | {} | {}", attack.name, attack.before, outcome.cells());
            report.row(&cells, &outcome.violations());
        }
    }
    report.line(&"\nBy way of Redis, the control plane, a resolver and a collector:\n");
    report.table("attack | before | effect");
    for (name, before, carry_out) in doors::all() {
        if options.is_named(name) {
            let effect = carry_out();
            let harm = Vec::from_iter((!effect.is_harmless).then(|| name.to_owned()));
            report.row(&format!("{name} | {before} | {}", effect.text), &harm);
        }
    }
    if options.is_named("a flood of new values") {
        let flood = flood::run(10_000_000, 100_000);
        let (text, is_harmless) = Runtime::new().unwrap().block_on(flood);
        report.line(&format!(
            "\nA flood in memory, with `--max-counters 100000`. {text}."
        ));
        report.is_good &= is_harmless;
    }
    report
}
