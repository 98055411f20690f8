//! The accuracy of each algorithm: sends synthetic traffic through all of them, in simulated time, and through an
//! exact log.
//!
//! ```text
//! cargo bench --bench accuracy -- [--requests N] [--sources N] [--seed N] [--charts FOLDER]
//! ```

#![expect(clippy::print_stdout, reason = "a program that prints figures")]

use std::{
    collections::VecDeque,
    fs,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use clap::Parser;
use tollgate::{
    Algorithm, Batch, Charge, CounterStates, Entry, Hits, Identity, IncrementSpec, Limit,
    MemoryStore, Period, Timestamp, Unit,
};

mod chart;
mod traffic;

use traffic::{Shape, Traffic};

/// An edge of windows.
const START_MILLIS: u64 = 1_795_230_000_000;
const PERIOD_MILLIS: u64 = 60_000;

/// Expired counters are dropped after this many requests.
const SWEEP_AFTER: u64 = 100_000;

#[derive(Debug, Parser)]
struct Arguments {
    /// Requests of each shape of traffic.
    #[arg(long, default_value_t = 10_000_000)]
    requests: u64,
    /// Number of sources that send the requests.
    #[arg(long, default_value_t = NonZeroUsize::new(270_000).expect("it is not 0"))]
    sources: NonZeroUsize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the charts into this folder.
    #[arg(long)]
    charts: Option<PathBuf>,
    /// Cargo passes this flag to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// An algorithm under test.
#[derive(Clone, Debug)]
struct Contestant {
    name: &'static str,
    algorithm: Algorithm,
    /// Whether its state estimates the number of hits in the last period.
    tells_rate: bool,
}

/// All algorithms that limit a rate, as they count `limit` requests.
fn contestants(limit: u64) -> Vec<Contestant> {
    let all = Algorithm::one_of_each(limit).filter(|one| *one != Algorithm::Concurrency);
    let small_bucket = Algorithm::TokenBucket { burst: limit / 10 };
    let all = all.chain([small_bucket]).map(|algorithm| Contestant {
        name: match algorithm {
            Algorithm::FirstHit => "fixed_window, first_hit",
            Algorithm::TokenBucket { burst } if burst < limit => "token_bucket, burst 1/10",
            _ => algorithm.name(),
        },
        tells_rate: matches!(
            algorithm,
            Algorithm::FixedWindow
                | Algorithm::FirstHit
                | Algorithm::SlidingWindow
                | Algorithm::SlidingLog
        ),
        algorithm,
    });
    all.collect()
}

fn main() {
    let arguments = Arguments::parse();
    if let Some(folder) = &arguments.charts {
        let path = folder.join("algorithms-edge-burst.svg");
        fs::write(&path, chart::edge_burst()).expect("the folder of the charts can be written");
    }
    println!(
        "{} requests of {} sources, seed {}",
        arguments.requests, arguments.sources, arguments.seed
    );
    let mut found = replay_all(&arguments).into_iter();
    let rates = thread::scope(|scope| {
        let arguments = &arguments;
        Shape::ALL
            .map(|shape| scope.spawn(move || rate_of_all(shape, arguments)))
            .map(|thread| thread.join().expect("it does not panic"))
    });
    for (shape, rate) in Shape::ALL.into_iter().zip(rates) {
        let contestants = contestants(shape.limit().into());
        let found: Vec<Found> = found.by_ref().take(contestants.len()).collect();
        let exact = contestants
            .iter()
            .position(|contestant| contestant.algorithm == Algorithm::SlidingLog);
        let exact = found[exact.expect("the exact log is among them")];
        print(shape, &contestants, &found, exact);
        println!(
            "  sliding_window over all requests, refused ones too: {:.4} % wrong decisions, {:.2} % mean error",
            share(rate.wrongly_admitted + rate.wrongly_refused, rate.requests),
            100.0 * rate.errors / real(rate.judged.max(1)),
        );
    }
}

/// The results of each contestant for each shape, in order. They run in parallel.
fn replay_all(arguments: &Arguments) -> Vec<Found> {
    let work: Vec<(Shape, Contestant)> = Shape::ALL
        .into_iter()
        .flat_map(|shape| {
            let contestants = contestants(shape.limit().into());
            contestants.into_iter().map(move |one| (shape, one))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(vec![Found::default(); work.len()]);
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    let Some((shape, contestant)) = work.get(index) else {
                        return;
                    };
                    let result = replay(*shape, contestant, arguments);
                    found.lock().expect("no holder panics")[index] = result;
                }
            });
        }
    });
    found.into_inner().expect("no holder panics")
}

/// Counts of the outcomes.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    requests: u64,
    admitted: u64,
    /// Admitted, although an exact log of these requests refuses them.
    wrongly_admitted: u64,
    /// Refused, although it admits them.
    wrongly_refused: u64,
    /// Errors of the estimated number of hits in the last period: the sum, each relative to the true number, and how
    /// many there were.
    errors: f64,
    judged: u64,
    /// The largest number of requests admitted in any period.
    most: usize,
}

fn replay(shape: Shape, contestant: &Contestant, arguments: &Arguments) -> Found {
    let sources = arguments.sources.get();
    let limit = Limit {
        algorithm: contestant.algorithm.clone(),
        ..Limit::fixed(shape.limit().into(), Unit::Minute)
    };
    let counter = Simulated::new(limit);
    let mut logs = vec![Logs::default(); sources];
    let mut found = Found::default();
    for arrival in Traffic::new(shape, arguments.requests, sources, arguments.seed) {
        if found.requests % SWEEP_AFTER == 0 {
            counter.store.sweep(Timestamp::from_millis(arrival.at));
        }
        let reported = counter.hit(arrival.source, arrival.at);
        found.judge(
            &mut logs[arrival.source],
            shape.limit() as usize,
            arrival.at,
            reported,
        );
    }
    found
}

/// The error of a sliding window that estimates the rate of all requests, admitted or not. Cloudflare measured its
/// own counter in this way.
fn rate_of_all(shape: Shape, arguments: &Arguments) -> Found {
    let sources = arguments.sources.get();
    let counter = Simulated::new(Limit {
        algorithm: Algorithm::SlidingWindow,
        ..Limit::fixed(u32::MAX.into(), Unit::Minute)
    });
    let mut logs = vec![VecDeque::new(); sources];
    let mut found = Found::default();
    for arrival in Traffic::new(shape, arguments.requests, sources, arguments.seed) {
        let reported = counter.hit(arrival.source, arrival.at);
        let log = &mut logs[arrival.source];
        let truth = held(log, arrival.at) as u64;
        log.push_back(arrival.at);
        let limit = u64::from(shape.limit());
        found.requests += 1;
        found.wrongly_admitted += u64::from(reported.before < limit && truth >= limit);
        found.wrongly_refused += u64::from(reported.before >= limit && truth < limit);
        found.compare(reported.before, truth);
    }
    found
}

/// The logs of one source.
#[derive(Clone, Debug, Default)]
struct Logs {
    /// Requests that the algorithm admitted in the last period.
    admitted: VecDeque<u64>,
    /// Requests that an exact log would have admitted.
    exact: VecDeque<u64>,
}

/// Drops entries older than a period; returns the number of the others.
fn held(log: &mut VecDeque<u64>, now: u64) -> usize {
    while log.front().is_some_and(|at| at + PERIOD_MILLIS <= now) {
        log.pop_front();
    }
    log.len()
}

impl Found {
    fn judge(&mut self, logs: &mut Logs, limit: usize, now: u64, reported: Reported) {
        self.requests += 1;
        let has_room = held(&mut logs.exact, now) < limit;
        if has_room {
            logs.exact.push_back(now);
        }
        match (reported.is_admitted, has_room) {
            (true, false) => self.wrongly_admitted += 1,
            (false, true) => self.wrongly_refused += 1,
            _ => {}
        }
        let truth = held(&mut logs.admitted, now) as u64;
        self.compare(reported.before, truth);
        if reported.is_admitted {
            self.admitted += 1;
            logs.admitted.push_back(now);
            self.most = self.most.max(logs.admitted.len());
        }
    }

    /// Compares an estimate with the true number.
    fn compare(&mut self, reported: u64, truth: u64) {
        if truth > 0 {
            self.judged += 1;
            self.errors += (real(reported) - real(truth)).abs() / real(truth);
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "statistics: counts are far from what a float cannot tell apart"
)]
fn real(count: u64) -> f64 {
    count as f64
}

/// Counters of one limit in a store, in simulated time.
struct Simulated {
    store: MemoryStore,
    limit: Limit,
}

/// The store's result for one hit.
#[derive(Clone, Copy, Debug)]
struct Reported {
    is_admitted: bool,
    /// The estimate before the hit.
    before: u64,
}

impl Simulated {
    fn new(limit: Limit) -> Self {
        Self {
            store: MemoryStore::new(usize::MAX),
            limit,
        }
    }

    fn hit(&self, source: usize, at: u64) -> Reported {
        let now = Timestamp::from_millis(at);
        let value = source.to_be_bytes();
        let entry = Entry {
            key: b"source",
            value: &value,
        };
        let mut identity = Identity::default();
        identity.set(b"accuracy", &[entry], &[]);
        let counting = IncrementSpec::charged(Hits::ONE, Charge::Within);
        let mut batch = Batch::default();
        batch.push(&identity, &self.limit, now, counting);
        let mut counts = CounterStates::default();
        self.store.apply_into(&mut counts, &batch, now);
        let count = counts[0];
        Reported {
            is_admitted: count.is_charged,
            before: count.after - u64::from(count.is_charged),
        }
    }
}

fn print(shape: Shape, contestants: &[Contestant], found: &[Found], exact: Found) {
    let refused = exact.requests - exact.admitted;
    println!(
        "\n{}; the exact log refuses {:.1} %",
        shape.about(),
        share(refused, exact.requests)
    );
    println!(
        "  {:24} {:>11} {:>11} {:>12} {:>12} {:>14}",
        "", "wrongly", "wrongly", "mean error", "admitted", "most in any"
    );
    println!(
        "  {:24} {:>11} {:>11} {:>12} {:>12} {:>14}",
        "algorithm", "admitted", "refused", "of the rate", "to exact", "period to limit"
    );
    for (contestant, found) in contestants.iter().zip(found) {
        let error = if contestant.tells_rate {
            format!("{:.2} %", 100.0 * found.errors / real(found.judged.max(1)))
        } else {
            "-".to_owned()
        };
        println!(
            "  {:24} {:>9.4} % {:>9.4} % {:>12} {:>10.2} % {:>12.0} %",
            contestant.name,
            share(found.wrongly_admitted, found.requests),
            share(found.wrongly_refused, found.requests),
            error,
            share(found.admitted, exact.admitted),
            share(found.most as u64, shape.limit().into()),
        );
    }
}

/// A share in per cent.
fn share(part: u64, whole: u64) -> f64 {
    100.0 * real(part) / real(whole.max(1))
}

/// A period of so many seconds.
fn seconds(count: u32) -> Period {
    let count = std::num::NonZeroU32::new(count).expect("a period is not empty");
    Period::new(Unit::Second, count).expect("a short one")
}
