//! Memory per counter and per connection, the time until the first answer, and the time of answers while rules are
//! loaded.

use std::{
    fmt::Write as _,
    path::Path,
    slice, thread,
    time::{Duration, Instant},
};

use crate::{
    Options,
    cases::{self, Keys, Shape},
    load::{self, Callers},
    processes::{Process, Redis},
};

/// Descriptors with counters, two each.
const DESCRIPTORS: u32 = 200_000;

/// Idle open connections.
const CONNECTIONS: usize = 500;

/// Number of loads of rules, and the time between them, in which they are found, read and freed.
const LOADS: u32 = 5;
const LOAD_EVERY: Duration = Duration::from_secs(2);

/// Prints one line for each figure.
pub fn print(options: &Options) -> anyhow::Result<()> {
    let tollgate = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let rules = cases::rules(cases::TWO_PERIODS);
    let workers = format!("--workers={}", options.workers);
    let start = |rules: &str, more: &[String]| {
        let arguments = [slice::from_ref(&workers), more].concat();
        Process::tollgate(tollgate, rules, &arguments)
    };

    let memory = start(&rules, &["--max-counters=1000000".to_owned()])?;
    load::once(memory.address)?;
    let at_start = memory.pid().resident_bytes()?;
    println!(
        "\nresident memory at start: {:.1} MB",
        at_start as f64 / 1e6
    );
    ask_for_all(&memory)?;
    let grown = memory.pid().resident_bytes()? - at_start;
    println!(
        "memory mode, a descriptor with two counters: {:.0} bytes",
        grown as f64 / f64::from(DESCRIPTORS)
    );

    let mut redis = Redis::start()?;
    let url = format!("--redis-url=redis://{}", redis.address);
    let counting = start(&rules, &[url, "--redis-timeout=5s".to_owned()])?;
    load::once(counting.address)?;
    let before = redis.counted()?;
    ask_for_all(&counting)?;
    let after = redis.counted()?;
    println!(
        "Redis mode, a counter in Redis: {:.0} bytes",
        (after.used_bytes - before.used_bytes) as f64 / (after.keys - before.keys) as f64
    );

    let server = start(&rules, &[])?;
    load::once(server.address)?;
    let before = server.pid().resident_bytes()?;
    let connections = load::idle(server.address, CONNECTIONS)?;
    let grown = server.pid().resident_bytes()?.saturating_sub(before);
    println!(
        "an idle connection: {:.1} kB",
        grown as f64 / connections.len() as f64 / 1e3
    );

    for count in [1, 1_000, 100_000] {
        let rules = many_rules(count)?;
        let mut times = Vec::new();
        for _ in 0..options.repeats {
            let began = Instant::now();
            let server = start(&rules, &[])?;
            load::once(server.address)?;
            let spent = server.pid().cpu_secs()?;
            times.push((began.elapsed().as_secs_f64(), spent));
        }
        times.sort_by(|one, other| one.1.total_cmp(&other.1));
        let (elapsed, spent) = times[times.len() / 2];
        println!(
            "start to first answer with {count} rules: {:.0} ms, of which {:.0} ms of processor time",
            elapsed * 1e3,
            spent * 1e3
        );
    }
    reloads(start(&many_rules(100_000)?, &[])?)
}

/// Times of answers while 100,000 rules are loaded repeatedly, and without loading.
fn reloads(server: Process) -> anyhow::Result<()> {
    let mut rules = many_rules(100_000)?;
    for is_loading in [false, true] {
        let shape = Shape {
            streams: 2,
            connections: 2,
            ..Shape::default()
        };
        let callers = Callers::start(server.address, shape, true, None)?;
        callers.warm_up();
        let before = server.pid().cpu_secs()?;
        callers.measure();
        for load in 0..LOADS {
            if is_loading {
                writeln!(
                    rules,
                    "  - {{key: load, value: l{load}, rate_limits: [1/day]}}"
                )?;
                server.replace_rules(&rules)?;
            }
            thread::sleep(LOAD_EVERY);
        }
        let spent = server.pid().cpu_secs()? - before;
        let answers = callers.stop()?;
        let millis = |share| answers.latencies.quantile_micros(share) / 1e3;
        println!(
            "100000 rules, loaded {} times in {} s, 2 calls at a time: {} answers, p99 {:.2} ms, p99.9 {:.2} ms, \
             longest {:.1} ms, {spent:.1} s of processor time",
            if is_loading { LOADS } else { 0 },
            (LOAD_EVERY * LOADS).as_secs(),
            answers.counts.all(),
            millis(0.99),
            millis(0.999),
            millis(1.0),
        );
    }
    Ok(())
}

fn ask_for_all(server: &Process) -> anyhow::Result<()> {
    let shape = Shape {
        keys: Keys::Spread(DESCRIPTORS),
        hits: 0,
        ..Shape::default()
    };
    let callers = Callers::start(server.address, shape, true, None)?;
    callers.warm_up();
    callers.stop().map(drop)
}

/// So many rules with exact values, besides the one for the callers.
fn many_rules(count: usize) -> anyhow::Result<String> {
    let mut rules = cases::rules(cases::TWO_PERIODS);
    for number in 1..count {
        writeln!(
            rules,
            "  - {{key: plan, value: p{number}, rate_limit: {{unit: hour, requests_per_unit: 100}}}}"
        )?;
    }
    Ok(rules)
}
