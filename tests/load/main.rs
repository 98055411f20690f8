//! Runs what is in `tests/it/support` at full size, and prints the results as tables: histories of concurrent calls, every
//! way to break Redis, and every attack. `make histories`, `make chaos` and `make attack` run it.
//!
//! ```text
//! load histories [--calls 1000000] [--clients 32] [--seed 1] [--only memory|redis|two-redis|cluster] [--faults]
//! load histories --clocks [--secs 300] [--seed 1] [--only memory|redis]
//! load histories --leases [--calls 20000] [--seed 1] [--only redis|sentinel|cluster|two-redis]
//! load histories --logs
//! load chaos [--deadline 50ms] [--lasts 5s] [--period 10ms] [--only TEXT] [--slowest] [--write FILE] [-- TOLLGATE-ARGS…]
//! load attack [--only TEXT] [--write FILE]
//! ```
//!
//! `--faults` breaks Redis repeatedly during a history. `--clocks` steps the clocks of tollgate and of Redis instead.
//! `--leases` compares reservations, their ends and losses of Redis with a model, counter by counter. `--logs` runs servers
//! whose log cannot be written. `--only` takes the scenarios and attacks whose names contain the text. `--server FILE` tests
//! another build, and `--write` puts the table between the two marks of a page.

#![expect(unreachable_pub, reason = "a test program has no outside")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how it fails, and a table is what it is for"
)]

use std::{
    fmt::Write as _,
    fs,
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Runtime;

#[expect(dead_code, reason = "most of it is for the other tests")]
#[path = "../it"]
mod it {
    pub mod support;
}

use it::support::{
    attack::{self, Size},
    chaos, doors, flood, histories,
    leases::{self, LeasePlan, stores::LeaseStore},
    steps::{self, ClockPlan, Clocks, Rate},
    storm::PERIOD,
    tollgate,
    unwritable_log::{LogFault, LogForm, UnwritableLog},
};

/// The limits of histories over clocks that step.
const LIMITS: &[Rate] = &[Rate { hits: 10, secs: 1 }, Rate { hits: 50, secs: 10 }];

/// The calls of a history. Those of leases lose Redis again and again, and make about a hundred calls a second.
const CALLS: usize = 1_000_000;
const LEASE_CALLS: usize = 20_000;

/// Bound on the violations printed for each store.
const SHOWN: usize = 20;

/// How often each kind of an unwritable log is run with each form.
const RUNS: usize = 20;

/// The command line.
struct Options {
    calls: Option<usize>,
    clients: usize,
    seed: u64,
    only: Option<String>,
    has_faults: bool,
    /// `--clocks`, `--leases` or `--logs`.
    kind: String,
    clocks_last: Duration,
    chaos: chaos::Plan,
    /// Whether to list the slowest answers too.
    slowest: bool,
    write: Option<PathBuf>,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Self {
        let mut options = Self {
            calls: None,
            clients: 32,
            seed: 1,
            only: None,
            has_faults: false,
            kind: String::new(),
            clocks_last: Duration::from_secs(300),
            chaos: chaos::Plan {
                deadline: Duration::from_millis(50),
                lasts: Duration::from_secs(5),
                period: PERIOD,
                args: Vec::new(),
            },
            slowest: false,
            write: None,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().expect("the option has a value");
            match arg.as_str() {
                "--calls" => options.calls = Some(value().parse().unwrap()),
                "--clients" => options.clients = value().parse().unwrap(),
                "--seed" => options.seed = value().parse().unwrap(),
                "--secs" => options.clocks_last = Duration::from_secs(value().parse().unwrap()),
                "--only" => options.only = Some(value()),
                "--faults" => options.has_faults = true,
                "--clocks" | "--leases" | "--logs" => options.kind = arg,
                "--server" => tollgate::test_build(value().into()),
                "--deadline" => options.chaos.deadline = duration(&value()),
                "--lasts" => options.chaos.lasts = duration(&value()),
                "--period" => options.chaos.period = duration(&value()),
                "--slowest" => options.slowest = true,
                "--write" => options.write = Some(value().into()),
                "--" => options.chaos.args = args.by_ref().collect(),
                other => panic!("`{other}` is none of the options"),
            }
        }
        options
    }

    /// Whether this is the place of `--only`.
    fn is_place(&self, place: &impl ToString) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| *only == place.to_string())
    }

    /// Whether the name contains the text of `--only`.
    fn is_named(&self, name: &str) -> bool {
        let only = self.only.as_deref();
        only.is_none_or(|only| name.contains(only))
    }

    /// Prints a table, and puts it into the page of `--write`.
    fn report(&self, table: &str) {
        const BEGIN: &str = "<!-- table -->\n";
        const END: &str = "<!-- end of table -->";
        println!("\n{table}");
        let Some(path) = &self.write else { return };
        let page = fs::read_to_string(path).unwrap();
        let (before, rest) = page
            .split_once(BEGIN)
            .expect("a mark where the table begins");
        let (_, after) = rest.split_once(END).expect("a mark where the table ends");
        fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    }
}

/// `50ms` or `5s`
fn duration(text: &str) -> Duration {
    let parsed = match text.strip_suffix("ms") {
        Some(millis) => millis.parse().map(Duration::from_millis),
        None => text.trim_end_matches('s').parse().map(Duration::from_secs),
    };
    parsed.expect("a number of ms or s")
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let what = args.next();
    let options = Options::read(args);
    let is_good = match (what.as_deref(), &*options.kind) {
        (Some("chaos"), _) => break_redis(&options),
        (Some("attack"), _) => attack(&options),
        (Some("histories"), "--logs") => write_no_log(),
        (Some("histories"), "--clocks") => step_clocks(&options),
        (Some("histories"), "--leases") => reserve(&options),
        (Some("histories"), _) => call(&options),
        other => panic!("{other:?} is neither `histories`, `chaos` nor `attack`"),
    };
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// Histories of calls.
fn call(options: &Options) -> bool {
    use histories::{Place, Plan};
    println!("seed {}", options.seed);
    println!(
        "| place | calls | counters | admitted | resets | losses | without a decision | violations |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut is_good = true;
    for place in [Place::Memory, Place::Redis, Place::TwoRedis, Place::Cluster] {
        // Faults are those of Redis servers.
        if !options.is_place(&place) || options.has_faults && place == Place::Memory {
            continue;
        }
        let outcome = runtime().block_on(histories::run(Plan {
            place,
            calls: options.calls.unwrap_or(CALLS),
            clients: options.clients,
            seed: options.seed,
            has_faults: options.has_faults,
        }));
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
    is_good
}

/// Histories of reservations. A counter that is not as in the model ends the program.
fn reserve(options: &Options) -> bool {
    use LeaseStore::{Cluster, Redis, Sentinel, TwoRedis};
    let (calls, seed) = (options.calls.unwrap_or(LEASE_CALLS), options.seed);
    println!("seed {seed}");
    for store in [Redis, Sentinel, Cluster, TwoRedis] {
        if options.is_place(&store) {
            let began = Instant::now();
            let steps = runtime().block_on(leases::run(LeasePlan { store, calls, seed }));
            println!("{store}, {:.0} s: {steps:?}", began.elapsed().as_secs_f64());
        }
    }
    true
}

/// Histories over clocks that step.
fn step_clocks(options: &Options) -> bool {
    println!("seed {}", options.seed);
    println!("| clocks | steps | calls | admitted | without a decision | violations |");
    println!("|---|---|---|---|---|---|");
    let mut is_good = true;
    for clocks in [Clocks::Memory, Clocks::Redis] {
        if !options.is_place(&clocks) {
            continue;
        }
        let outcome = runtime().block_on(steps::run(ClockPlan {
            clocks,
            lasts: options.clocks_last,
            limits: LIMITS,
            seed: options.seed,
        }));
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
    is_good
}

/// Whether there are no violations. Prints the first ones.
fn is_without(violations: &[String]) -> bool {
    for violation in violations.iter().take(SHOWN) {
        println!("  {violation}");
    }
    violations.is_empty()
}

/// Servers whose log cannot be written, each kind again and again: whether nothing ever stopped.
fn write_no_log() -> bool {
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
            let good = RUNS - failures.len();
            println!("| {fault} | {form:?} | {good} of {RUNS} |");
            if let Some(failure) = failures.first() {
                println!("  {failure:#}");
            }
            is_good &= failures.is_empty();
        }
        is_good
    })
}

/// Breaks Redis, and the network to it, in every way.
fn break_redis(options: &Options) -> bool {
    let mut table = "\
| what breaks | not by Redis, % | longest, ms | first, ms | others, ms | hits off | exact again, ms |
|---|---|---|---|---|---|---|
"
    .to_owned();
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    for name in chaos::SCENARIOS {
        if !options.is_named(name) {
            continue;
        }
        println!("{name} …");
        let outcome = runtime().block_on(chaos::run(name, options.chaos.clone()));
        for (when, seen) in outcome.slowest.iter().filter(|_| options.slowest) {
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
        let _ = writeln!(table, "{outcome}");
    }
    options.report(&table);
    true
}

/// Attacks the ports in every way, and by way of Redis and the control plane.
fn attack(options: &Options) -> bool {
    // Attackers need as many files as the attacked servers.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let mut text = "\
| attack | before | health, ms | connections, ms | calls, ms | memory, MB | drain, s |
|---|---|---|---|---|---|---|
"
    .to_owned();
    for attack in attack::all() {
        if !options.is_named(attack.name) {
            continue;
        }
        println!("{} …", attack.name);
        let outcome = attack.run(Size(100));
        let (held, failures) = (outcome.calls_while_held, outcome.failures);
        println!("{outcome}, {held:?} while held, {failures} unanswered");
        let _ = writeln!(text, "| {} | {} | {outcome} |", attack.name, attack.before);
    }
    text += "
By way of Redis, the control plane, a resolver and a collector:

| attack | before | effect |
|---|---|---|
";
    for attack in doors::all() {
        if !options.is_named(attack.name) {
            continue;
        }
        println!("{} …", attack.name);
        let effect = attack.run(Size(100));
        println!("{}", effect.text);
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            attack.name, attack.before, effect.text
        );
    }
    if options.is_named("a flood of new values") {
        println!("a flood of new values …");
        let outcome = Runtime::new()
            .unwrap()
            .block_on(flood::run(10_000_000, 100_000));
        let _ = writeln!(
            text,
            "\nA flood in memory, with `--max-counters 100000`. {outcome}."
        );
    }
    options.report(&text);
    true
}
