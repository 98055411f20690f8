//! `/snapshot`: the totals of the server at a moment, as JSON.
//!
//! It is written when someone asks, on the blocking pool, and at most once a second: those who ask within a second
//! share one. Whoever wants rates takes the differences of two.

use std::{
    cmp::Reverse,
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    foundation::{ascii_json::ascii_json, histogram::TimerValues, lock::lock},
    observe::metrics::{CallCount, LoadHistory, Metrics, process::resident_bytes},
    service::{
        admin::{
            json::json_headers,
            page::{PIECE_BYTES, PageWriter},
            statistics::Statistics,
        },
        grpc,
        limiter::Rules,
    },
    store::{loss::LostLimits, redis::stats::RedisStats},
};

/// Least time between two snapshots.
const INTERVAL: Duration = Duration::from_secs(1);

/// Most bytes of rules in a snapshot: more than a thousand with paths of usual length.
const MAX_RULE_BYTES: usize = 128 << 10;

/// The source of snapshots for all readers.
#[derive(Clone)]
pub(crate) struct Snapshots(Arc<SnapshotSource>);

struct SnapshotSource {
    rules: Rules,
    statistics: Statistics,
    components: Components,
    began: Instant,
    last: Mutex<Option<Written>>,
}

/// The last snapshot.
struct Written {
    at: Instant,
    text: Arc<str>,
    /// The durations of all calls until then.
    response_time: TimerValues,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotDocument<'a> {
    at_millis: u64,
    up_millis: u128,
    totals: Value,
    latency: Value,
    store: Value,
    resident_bytes: u64,
    counters: usize,
    loads: Value,
    /// The answers that clients get because of lost stores.
    loss: Vec<String>,
    components: Vec<Value>,
    omitted_rules: usize,
    rules: Vec<RuleTotal<'a>>,
}

/// The hits on a rule since the start, those of them over a limit, the descriptors that the store did not decide, and
/// the hits refused by `on_store_loss`, and for lack of room for a counter.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleTotal<'a> {
    rule: &'a str,
    hits: u64,
    over: u64,
    without_store: u64,
    refused_by_loss: u64,
    without_room: u64,
}

impl Snapshots {
    pub(crate) fn new(rules: Rules, statistics: Statistics, components: Components) -> Self {
        Self(Arc::new(SnapshotSource {
            rules,
            statistics,
            components,
            began: Instant::now(),
            last: Mutex::default(),
        }))
    }

    /// Sends a snapshot that is at most a second old.
    pub(super) fn page(self) -> Response {
        let blocking = self.0.statistics.blocking.clone();
        let page = blocking.page(move || {
            let text = self.0.text();
            let (bytes, mut sent) = (text.len(), 0);
            let writer: PageWriter = Box::new(move |page| {
                let end = bytes.min(sent + PIECE_BYTES);
                page.push_str(&text[sent..end]);
                sent = end;
                end < bytes
            });
            writer
        });
        (json_headers(), page).into_response()
    }
}

impl SnapshotSource {
    fn text(&self) -> Arc<str> {
        let mut last = lock(&self.last);
        if let Some(last) = &*last
            && last.at.elapsed() < INTERVAL
        {
            return last.text.clone();
        }
        let new = self.write(last.as_ref());
        let text = new.text.clone();
        *last = Some(new);
        text
    }

    fn write(&self, before: Option<&Written>) -> Written {
        let Statistics {
            metrics, memory, ..
        } = &self.statistics;
        let at = Instant::now();
        let calls = metrics.call_totals();
        let (latency, began) = match before {
            Some(before) => (calls.response_time.since(&before.response_time), before.at),
            None => (calls.response_time.clone(), self.began),
        };
        let count = |which| calls.of(which);
        let micros = |share| latency.quantile(share);
        let rules = self.rules.current();
        let mut totals = rules.as_ref().map_or_else(Vec::new, |set| {
            let hit = set.matcher.rules().iter().filter_map(|rule| {
                let [hits, over, without_store, refused_by_loss, without_room, ..] =
                    set.stats.totals(rule.id)?;
                Some(RuleTotal {
                    rule: &rule.path,
                    hits,
                    over,
                    without_store,
                    refused_by_loss,
                    without_room,
                })
            });
            hit.collect()
        });
        let omitted_rules = keep_fitting(&mut totals);
        let components = (self.components)().into_iter();
        let text = ascii_json(&SnapshotDocument {
            at_millis: grpc::now().millis(),
            up_millis: at.duration_since(self.began).as_millis(),
            totals: json!({
                "calls": count(CallCount::Calls),
                "ok": count(CallCount::Ok),
                "overLimit": count(CallCount::OverLimit),
                "degraded": metrics.loss.degraded.load(Relaxed),
                "badRequests": count(CallCount::BadRequests),
                "storeFailures": count(CallCount::StoreFailures),
                "late": count(CallCount::LateCalls),
                "withoutLimit": count(CallCount::WithoutLimit),
            }),
            latency: json!({
                "lengthMillis": u64::try_from(at.duration_since(began).as_millis()).unwrap_or(u64::MAX),
                "p50Micros": micros(0.5),
                "p90Micros": micros(0.9),
                "p99Micros": micros(0.99),
                "p999Micros": micros(0.999),
            }),
            store: store(metrics),
            resident_bytes: resident_bytes().unwrap_or_default(),
            counters: memory.as_ref().map_or(0, |store| store.live_counters()),
            loads: loads(&metrics.config.history()),
            loss: loss(metrics),
            components: components
                .map(|(name, state)| json!({ "name": name, "state": state }))
                .collect(),
            omitted_rules,
            rules: totals,
        });
        Written {
            at,
            text: text.into(),
            response_time: calls.response_time,
        }
    }
}

/// Sorts `rules` by their hits, and removes those that do not fit into a snapshot. Returns how many these are.
fn keep_fitting(rules: &mut Vec<RuleTotal<'_>>) -> usize {
    let (all, mut bytes) = (rules.len(), 0);
    rules.sort_by_key(|rule| Reverse(rule.hits));
    let fitting = rules.iter().take_while(|rule| {
        bytes += ascii_json(*rule).len() + 1;
        bytes <= MAX_RULE_BYTES
    });
    rules.truncate(fitting.count());
    all - rules.len()
}

/// The servers of all stores.
fn store(metrics: &Metrics) -> Value {
    let nodes = [&metrics.redis, &metrics.redis_per_second].map(|stats| stats.nodes());
    let nodes = nodes.iter().flatten();
    json!({
        "storesLost": metrics.stores_lost(),
        "nodes": nodes.clone().count(),
        "nodesLost": nodes.clone().filter(|node| node.failure.is_some()).count(),
        "nodesSlow": nodes.filter(|node| node.is_slow).count(),
    })
}

/// The answers that clients get from each store that has lost a node.
fn loss(metrics: &Metrics) -> Vec<String> {
    let all = match metrics.redis_per_second.nodes().is_empty() {
        true => LostLimits::All,
        false => LostLimits::Longer,
    };
    let stores = [
        (&metrics.redis, all),
        (&metrics.redis_per_second, LostLimits::PerSecond),
    ];
    let is_lost = |stats: &RedisStats| stats.nodes().iter().any(|node| node.failure.is_some());
    let lost = stores.into_iter().filter(|(stats, _)| is_lost(stats));
    lost.map(|(_, limits)| metrics.loss.effect(limits))
        .collect()
}

/// The last loads of the rules.
fn loads(loads: &LoadHistory) -> Value {
    let in_use = loads.in_use().map(|taken| {
        json!({
            "atMillis": taken.at.millis(),
            "rules": taken.rules,
            "files": taken.files,
            "hash": format!("{:012x}", taken.hash),
        })
    });
    let refused = loads.refused().map(|refused| {
        json!({
            "atMillis": refused.at.millis(),
            "errors": refused.errors,
            "omitted": refused.omitted,
        })
    });
    json!({ "inUse": in_use, "refused": refused })
}

/// Whether the process wants traffic. Unhealthy until [`set`](Health::set) makes it healthy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<AtomicBool>);

impl Health {
    /// Makes the process healthy or unhealthy.
    pub(crate) fn set(&self, is_good: bool) {
        self.0.store(is_good, Relaxed);
    }

    fn is_good(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// The reply to `/healthcheck` with this query.
    pub(super) fn answer(
        &self,
        query: Option<&str>,
        components: &Components,
    ) -> (StatusCode, String) {
        let (status, text) = if self.is_good() {
            (StatusCode::OK, "OK")
        } else {
            // As in the reference, the reply is 500 with an empty body.
            (StatusCode::INTERNAL_SERVER_ERROR, "")
        };
        if is_verbose(query) {
            (status, describe_health(status, &components()))
        } else {
            (status, text.to_owned())
        }
    }
}

/// A function that returns the name and the state of each part of the process.
pub(crate) type Components = Arc<dyn Fn() -> Vec<(String, String)> + Send + Sync>;

fn is_verbose(query: Option<&str>) -> bool {
    let mut parameters = query.unwrap_or_default().split('&');
    parameters.any(|parameter| parameter.split('=').next() == Some("verbose"))
}

/// One line for the process, and one for each of its parts. Writing to a string cannot fail.
fn describe_health(status: StatusCode, components: &[(String, String)]) -> String {
    let is_good = status == StatusCode::OK;
    let mut page = format!("health: {}\n", if is_good { "good" } else { "bad" });
    for (name, text) in components {
        let _ = writeln!(page, "{name}: {text}");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_with_the_most_hits_have_room() {
        let path = "é".repeat(100);
        let total = |hits| RuleTotal {
            rule: &path,
            hits,
            over: 0,
            without_store: 0,
            refused_by_loss: 0,
            without_room: 0,
        };
        let mut rules: Vec<_> = (0..1000).map(total).collect();
        let omitted = keep_fitting(&mut rules);
        assert_eq!(omitted + rules.len(), 1000);
        assert!(ascii_json(&rules).len() <= MAX_RULE_BYTES + 1);
        assert!((190..300).contains(&rules.len()), "{}", rules.len());
        assert_eq!(rules[0].hits, 999);
    }
}
