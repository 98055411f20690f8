//! Every algorithm in real time: eight clients of four replicas on one Redis, which loses its scripts halfway. A
//! request was admitted between its sending and its answer; admissions that nothing within these bounds explains are
//! too many.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ::tollgate::now;
use tokio::task::JoinSet;

use crate::support::{
    GRAIN_MILLIS,
    ask::{Client, connect, descriptor, is_ok, request, send, with_hits},
    redis::Redis,
    tollgate,
};

const REPLICAS: usize = 4;
const CLIENTS: usize = 8;

/// Duration of the load: several windows of a second.
const LOAD: Duration = Duration::from_millis(2_500);

/// Every limit, per second.
const LIMIT: usize = 20;
const BURST: usize = 5;

/// A limit per 10,000 years, which no load reaches.
const PLENTY: i64 = 1_000_000;

const RULES: &str = "
domain: d
descriptors:
  - { key: fixed_window, rate_limit: { unit: second, requests_per_unit: 20 } }
  - { key: first_hit, rate_limit: { unit: second, requests_per_unit: 20, window: first_hit } }
  - { key: sliding_window, rate_limit: { unit: second, requests_per_unit: 20, algorithm: sliding_window } }
  - { key: sliding_log, rate_limit: { unit: second, requests_per_unit: 20, algorithm: sliding_log } }
  - { key: token_bucket, rate_limit: { unit: second, requests_per_unit: 20, algorithm: token_bucket, burst: 5 } }
  - key: two_limits
    count: admitted
    rate_limits:
      - { unit: second, requests_per_unit: 20, algorithm: sliding_log }
      - 1000000/10000years
  - { key: fast, count: admitted, rate_limit: { unit: second, requests_per_unit: 20, algorithm: token_bucket } }
  - { key: slow, count: admitted, rate_limits: [1000000/10000years] }
";

/// The descriptors of each kind of request, by their only keys.
const KINDS: [&[&str]; 7] = [
    &["fixed_window"],
    &["first_hit"],
    &["sliding_window"],
    &["sliding_log"],
    &["token_bucket"],
    &["two_limits"],
    &["fast", "slow"],
];

/// A request that passed. Times are milliseconds since the epoch.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    sent: u64,
    received: u64,
}

#[derive(Debug, Default)]
struct Log {
    admitted: Vec<Admitted>,
    refused: usize,
}

#[tokio::test]
async fn thirty_two_ways_to_one_redis_admit_no_more_than_one_would() {
    let redis = Redis::start();
    let servers: Vec<_> = (0..REPLICAS)
        .map(|_| tollgate::with_rules(RULES).redis(&redis).start())
        .collect();
    let mut asking = JoinSet::new();
    let until = Instant::now() + LOAD;
    for client in 0..CLIENTS {
        let mut handles = Vec::new();
        for server in &servers {
            handles.push(connect(server.grpc).await);
        }
        // Each client begins with another replica.
        handles.rotate_left(client % REPLICAS);
        for kind in KINDS {
            let handles = handles.clone();
            asking.spawn(async move { (kind[0], ask_until(handles, kind, until).await) });
        }
    }
    for _ in 0..3 {
        tokio::time::sleep(LOAD / 4).await;
        redis.cli(&["SCRIPT", "FLUSH"]);
    }
    let mut logs: BTreeMap<&str, Log> = BTreeMap::new();
    for (kind, log) in asking.join_all().await {
        let all = logs.entry(kind).or_default();
        all.admitted.extend(log.admitted);
        all.refused += log.refused;
    }
    for (kind, log) in &logs {
        let admitted = log.admitted.len();
        // Otherwise there was no load, or no service.
        assert!(log.refused > 0, "{kind} refused nothing");
        assert!(admitted >= LIMIT, "{kind} admitted only {admitted}");
    }
    check_windows("fixed_window", &logs["fixed_window"]);
    check_weighted(&logs["sliding_window"]);
    check_windows("sliding_window", &logs["sliding_window"]);
    check_log("sliding_log", &logs["sliding_log"]);
    check_log("two_limits", &logs["two_limits"]);
    check_bucket("token_bucket", &logs["token_bucket"], BURST);
    check_bucket("fast", &logs["fast"], LIMIT);
    check_first_hits(&logs["first_hit"]);

    let charged = |key: &str| {
        let key = redis
            .keys()
            .into_iter()
            .find(|name| name.contains(key) && name.ends_with("@0"))
            .unwrap();
        redis.number(&["GET", &key])
    };
    let passed = |kind: &str| i64::try_from(logs[kind].admitted.len()).unwrap();
    assert_eq!(charged("two_limits"), passed("two_limits"));
    let look = with_hits(&[("slow", "v")], 0);
    let mut client = connect(servers[0].grpc).await;
    let reported = send(&mut client, request("d", vec![look])).await.unwrap();
    let remaining = reported.statuses[0].limit_remaining;
    assert_eq!(i64::from(remaining), PLENTY - passed("fast"));
}

/// Calls one replica after the other, without a pause.
async fn ask_until(mut handles: Vec<Client>, kind: &[&str], until: Instant) -> Log {
    let mut log = Log::default();
    let descriptors: Vec<_> = kind.iter().map(|key| descriptor(&[(key, "v")])).collect();
    for turn in (0..REPLICAS).cycle() {
        if Instant::now() >= until {
            break;
        }
        let sent = now().millis();
        let reply = send(&mut handles[turn], request("d", descriptors.clone())).await;
        let received = now().millis();
        if is_ok(&reply) {
            log.admitted.push(Admitted { sent, received });
        } else {
            log.refused += 1;
        }
    }
    log
}

const SECOND: u64 = 1_000;

/// The windows of a second, each with the requests certainly admitted in it.
fn windows(log: &Log) -> BTreeMap<u64, Vec<Admitted>> {
    let mut windows: BTreeMap<u64, Vec<Admitted>> = BTreeMap::new();
    for one in &log.admitted {
        if one.sent / SECOND == one.received / SECOND {
            windows.entry(one.sent / SECOND).or_default().push(*one);
        }
    }
    windows
}

fn check_windows(kind: &str, log: &Log) {
    for (window, admitted) in windows(log) {
        let count = admitted.len();
        assert!(count <= LIMIT, "{kind}: {count} in window {window}");
    }
}

/// At any time, the requests admitted in a window plus the share of the window before that the last period overlaps
/// are within the limit.
fn check_weighted(log: &Log) {
    let windows = windows(log);
    for (window, admitted) in &windows {
        let Some(older) = window.checked_sub(1).and_then(|index| windows.get(&index)) else {
            continue;
        };
        let mut received: Vec<u64> = admitted.iter().map(|one| one.received % SECOND).collect();
        received.sort_unstable();
        for (before, at) in received.iter().enumerate() {
            let share = older.len() as u64 * (SECOND - at) / SECOND;
            let held = before as u64 + 1 + share;
            assert!(held <= LIMIT as u64, "{held} at {at} ms of window {window}");
        }
    }
}

/// For each admitted request, counting from its sending: the times by which the requests certainly admitted after it,
/// and itself, were answered.
fn spans(log: &Log) -> impl Iterator<Item = Vec<u64>> {
    log.admitted.iter().map(|first| {
        let later = log.admitted.iter().filter(|one| one.sent >= first.sent);
        let mut spans: Vec<u64> = later.map(|one| one.received - first.sent).collect();
        spans.sort_unstable();
        spans
    })
}

/// At most the limit within less than a period, at any start.
fn check_log(kind: &str, log: &Log) {
    for spans in spans(log) {
        let count = spans.partition_point(|span| span + GRAIN_MILLIS < SECOND);
        assert!(count <= LIMIT, "{kind}: {count} within a period");
    }
}

/// At most the burst plus the new tokens, between any two times.
fn check_bucket(kind: &str, log: &Log, burst: usize) {
    for spans in spans(log) {
        for (before, span) in spans.iter().enumerate() {
            let flown = (span + GRAIN_MILLIS) * LIMIT as u64 / SECOND;
            let most = burst as u64 + flown;
            let count = before as u64 + 1;
            assert!(count <= most, "{kind}: {count} within {span} ms");
        }
    }
}

/// Windows last at least a period, and none begins before the first hit.
fn check_first_hits(log: &Log) {
    let first = log.admitted.iter().map(|one| one.sent).min().unwrap();
    for one in &log.admitted {
        let span = one.received - first;
        let until = log
            .admitted
            .iter()
            .filter(|other| other.received <= one.received);
        let count = until.count();
        let begun = usize::try_from((span + GRAIN_MILLIS) / SECOND).unwrap() + 1;
        assert!(
            count <= LIMIT * begun,
            "{count} within {span} ms of the first"
        );
    }
    for spans in spans(log) {
        let count = spans.partition_point(|span| span + GRAIN_MILLIS < SECOND);
        assert!(count <= 2 * LIMIT, "{count} within a period");
    }
}
