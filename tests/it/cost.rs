//! The cost of a request does not grow with the counters that clients have made. Valgrind counts instructions, so
//! that no time is measured: this program runs one of its own tests again under it.

use std::{env, fs, process::Command, sync::Arc};

use tempfile::TempDir;
use tollgate::{
    Deadline, LeaseBook, Limiter, MemoryStore, Metrics, Modes, NearRatio, RequestClock, Returns,
    RuleFiles, RuleOptions, RuleSource, Rules, Service, Tracer, wire::Extras,
};

use crate::support::{ask::*, tool};

/// How many periods the descriptor has, and how many requests follow, for the run under valgrind.
const WORK: &str = "TOLLGATE_TEST_WORK";

/// The descriptors of one request, each with a period of its own.
const OF_EACH: u32 = 100;

const WINDOWS: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limits: [1000/month, 1000/year]\n";

/// A service that counts in memory, of as many counters at most, without a server around it.
fn service(max_counters: usize) -> Service<Arc<MemoryStore>> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, WINDOWS).unwrap();
    let loaded = RuleFiles::read(&RuleSource::Paths(vec![file])).compile(RuleOptions::default());
    let metrics = Arc::new(Metrics::new(NearRatio::default(), 10));
    let rules = Rules::default();
    rules.swap(loaded.unwrap().matcher, &metrics);
    let store = Arc::new(MemoryStore::new(max_counters));
    Service {
        limiter: Limiter {
            decision_log: Default::default(),
            talkers: Default::default(),
            leases: LeaseBook::of_memory(),
            returns: Returns::new(Arc::default()),
            rules,
            store,
            modes: Modes::default(),
            metrics: metrics.recorder(0),
        },
        extras: Extras::default(),
        tracer: Tracer::default(),
        clock: RequestClock::default(),
    }
}

/// A request that hits the periods with these numbers, all of one descriptor. Each is centuries long.
fn periods(numbers: impl Iterator<Item = u32>) -> RateLimitRequest {
    const MONTH: i32 = 5;
    let one = |number| {
        let mut one = with_limit(&[("k", "v")], 1_000, MONTH);
        one.limit.as_mut().unwrap().unit_multiplier = Some(5_000 + number);
        one
    };
    request("d", numbers.map(one).collect())
}

/// Makes a counter for each of `all` periods of one descriptor, and hits some of them by each of `requests`.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the test program is no part of tollgate, and a variable is what it has for itself"
)]
fn each_period_of_a_descriptor_has_a_counter() {
    let work = env::var(WORK).unwrap_or_else(|_| "1000 10".to_owned());
    let (all, requests) = work.split_once(' ').expect("two numbers");
    let [all, requests]: [u32; 2] = [all, requests].map(|number| number.parse().unwrap());
    let service = service(1_000_000);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let answer = |message: &RateLimitRequest| {
        let deadline = Deadline::of_store();
        let answered = runtime.block_on(service.answer(message, &deadline));
        let statuses = answered.unwrap().statuses;
        assert_eq!(statuses.len(), message.descriptors.len());
    };
    for first in (1..=all).step_by(OF_EACH as usize) {
        let last = all.min(first + OF_EACH - 1);
        answer(&periods(first..=last));
    }
    assert_eq!(service.limiter.store.live_counters(), all as usize);
    // Far apart, and made before: a request adds none.
    let some = periods((0..OF_EACH).map(|nth| 1 + (nth * 7919) % all));
    for _ in 0..requests {
        answer(&some);
    }
    assert_eq!(service.limiter.store.live_counters(), all as usize);
}

/// The instructions of a start, of the making of `all` periods of one descriptor, and of `requests`.
fn instructions(all: u32, requests: u32) -> u64 {
    let run = Command::new(tool("valgrind"))
        .args(["--tool=cachegrind", "--cache-sim=no"])
        .arg("--cachegrind-out-file=/dev/null")
        .arg(env::current_exe().unwrap())
        .args(["--exact", "cost::each_period_of_a_descriptor_has_a_counter"])
        .env(WORK, format!("{all} {requests}"))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{log}");
    let counted = log.lines().find_map(|line| line.split_once(" refs:"));
    let (_, counted) = counted.unwrap_or_else(|| panic!("no count in {log}"));
    counted.trim().replace(',', "").parse().unwrap()
}

#[test]
fn a_request_costs_as_much_whatever_the_periods_of_its_descriptor() {
    const REQUESTS: u32 = 300;
    let each = |all| {
        let made = instructions(all, 0);
        instructions(all, REQUESTS).saturating_sub(made) / u64::from(REQUESTS * OF_EACH)
    };
    let costs = [1, 100, 1_000, 20_000].map(|all| (all, each(all)));
    eprintln!("instructions of a descriptor, by the number of its periods: {costs:?}");
    let [_, (_, few), ..] = costs;
    assert!(few > 100, "{costs:?}");
    // Tables are fuller or emptier; a list that is searched would be two hundred times as long.
    for (all, cost) in costs {
        assert!(cost <= few + few / 2, "{all} periods: {costs:?}");
    }
}
