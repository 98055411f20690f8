//! `/history`: the last hour as JSON, in columns that share one list of times.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};

use super::{
    json::json_headers,
    page::{PageWriter, json, json_list},
    statistics::Statistics,
};
use crate::{
    foundation::lock::lock,
    observe::history::{History, LimitStep, ProcessStep, RuleStep},
    service::{held_bytes::Account, limiter::Rules},
};

/// The history of this process, and the counters that it samples.
#[derive(Clone, Debug)]
pub(crate) struct HistoryRecorder {
    history: Arc<Mutex<History>>,
    began: Instant,
    rules: Rules,
    statistics: Statistics,
}

impl HistoryRecorder {
    pub(crate) fn new(rules: Rules, statistics: Statistics) -> Self {
        Self {
            history: Arc::default(),
            began: Instant::now(),
            rules,
            statistics,
        }
    }

    /// Adds a sample of all counters. With many rules it takes milliseconds.
    pub(crate) fn sample(&self) {
        self.sample_into(&mut lock(&self.history));
    }

    fn sample_into(&self, history: &mut History) {
        let process = self.statistics.totals(self.began);
        let rules = self.rules.current();
        let rules = rules.as_ref().map(|rules| (&rules.matcher, &rules.stats));
        history.sample(&process, rules);
    }

    /// The page. Its last step ends now.
    pub(super) fn page(self, account: Arc<Account>) -> Response {
        let blocking = self.statistics.blocking.clone();
        let page = blocking.page(account, move || {
            let mut history = lock(&self.history).clone();
            self.sample_into(&mut history);
            let bytes = history.bytes();
            (writer(history), bytes)
        });
        (json_headers(), page).into_response()
    }
}

/// The process first, then rule by rule.
fn writer(history: History) -> PageWriter {
    let paths: Vec<_> = history.rule_paths().cloned().collect();
    let head = process(&history);
    let rules = paths.into_iter().map(move |path| rule(&history, &path));
    json_list(head, rules, "]}\n".to_owned())
}

/// A column of the page, and the value that it takes from a step.
pub(super) type Column<S> = (&'static str, fn(&S) -> u64);

pub(super) const PROCESS: [Column<ProcessStep>; 22] = [
    ("calls", |step| step.calls.into()),
    ("ok", |step| step.ok.into()),
    ("overLimit", |step| step.over_limit.into()),
    ("shadowed", |step| step.shadowed.into()),
    ("degraded", |step| step.degraded.into()),
    ("badRequests", |step| step.bad_requests.into()),
    ("storeFailures", |step| step.store_failures.into()),
    ("late", |step| step.late.into()),
    ("p50Micros", |step| step.p50.into()),
    ("p90Micros", |step| step.p90.into()),
    ("p99Micros", |step| step.p99.into()),
    ("p999Micros", |step| step.p999.into()),
    ("batches", |step| step.pipelines.into()),
    ("commands", |step| step.commands.into()),
    ("redisFailures", |step| step.redis_failures.into()),
    ("storesLost", |step| step.gauges.stores_lost),
    ("nodesLost", |step| step.gauges.nodes_lost),
    ("nodesSuspected", |step| step.gauges.nodes_suspected),
    ("residentBytes", |step| step.gauges.resident_bytes),
    ("heldBytes", |step| step.gauges.held_bytes),
    ("counters", |step| step.gauges.counters),
    ("counterBytes", |step| step.gauges.counter_bytes),
];

const RULE: [Column<RuleStep>; 6] = [
    ("hits", |step| step.hits.into()),
    ("within", |step| step.within.into()),
    ("near", |step| step.near.into()),
    ("over", |step| step.over.into()),
    ("shadow", |step| step.shadow.into()),
    ("degraded", |step| step.degraded.into()),
];

const LIMIT: [Column<LimitStep>; 2] = [
    ("near", |step| step.near.into()),
    ("over", |step| step.over.into()),
];

/// Some steps as columns.
struct Columns<S: 'static>(&'static [Column<S>], Vec<S>);

impl<S> Serialize for Columns<S> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        let Self(columns, steps) = self;
        let column = |value: &fn(&S) -> u64| steps.iter().map(value).collect::<Vec<_>>();
        serializer.collect_map(columns.iter().map(|(name, value)| (name, column(value))))
    }
}

#[derive(Serialize)]
struct RuleColumns<'a> {
    rule: &'a str,
    #[serde(flatten)]
    steps: Columns<RuleStep>,
    limits: Vec<LimitColumns<'a>>,
}

#[derive(Serialize)]
struct LimitColumns<'a> {
    limit: &'a str,
    #[serde(flatten)]
    steps: Columns<LimitStep>,
}

/// The page up to its rules.
fn process(history: &History) -> String {
    let steps: Vec<_> = history.process_steps().copied().collect();
    let ends: Vec<_> = steps.iter().map(|step| step.ends_at.millis()).collect();
    let lengths: Vec<_> = steps.iter().map(|step| step.lasted.as_millis()).collect();
    format!(
        "{{\"endMillis\":{},\n\"lengthMillis\":{},\n\"nodes\":{},\"omittedRules\":{},\n\"process\":{},\n\"rules\":[",
        json(&ends),
        json(&lengths),
        steps.last().map_or(0, |step| step.gauges.nodes),
        history.omitted(),
        json(&Columns(&PROCESS, steps))
    )
}

fn rule(history: &History, path: &str) -> String {
    let limits = history
        .limit_steps(path)
        .map(|(limit, steps)| LimitColumns {
            limit,
            steps: Columns(&LIMIT, steps.collect()),
        });
    json(&RuleColumns {
        rule: path,
        steps: Columns(&RULE, history.rule_steps(path).collect()),
        limits: limits.collect(),
    })
}
