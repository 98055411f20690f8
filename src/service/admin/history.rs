//! `/history`: the last hour as JSON, in columns that share one list of times.

use std::{
    fmt::{Display, Write as _},
    sync::{Arc, Mutex},
    time::Instant,
};

use axum::response::{IntoResponse, Response};

use super::{
    json::json_headers,
    page::{PIECE_BYTES, PageWriter},
    statistics::Statistics,
};
use crate::{
    foundation::lock::lock,
    observe::history::{History, LimitStep, ProcessStep, RuleStep},
    service::{budget::Account, limiter::Rules},
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

/// Writes the process first, then rule by rule.
fn writer(history: History) -> PageWriter {
    let paths: Vec<_> = history.rule_paths().cloned().collect();
    let mut paths = paths.into_iter().enumerate();
    let mut is_begun = false;
    Box::new(move |page| {
        if !is_begun {
            is_begun = true;
            write_process(&history, page);
        }
        while page.len() < PIECE_BYTES {
            let Some((index, path)) = paths.next() else {
                page.push_str("]}\n");
                return false;
            };
            page.push_str(if index == 0 { "\n" } else { ",\n" });
            write_rule(&history, &path, page);
        }
        true
    })
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

fn write_process(history: &History, page: &mut String) {
    page.push('{');
    let times = history.process_steps().map(|step| step.ends_at.millis());
    list(page, "endMillis", times);
    page.push_str(",\n");
    let lengths = history.process_steps().map(|step| step.lasted.as_millis());
    list(page, "lengthMillis", lengths);
    let nodes = history.process_steps().last().map(|step| step.gauges.nodes);
    let _ = write!(
        page,
        ",\n\"nodes\":{},\"omittedRules\":{},\n\"process\":{{",
        nodes.unwrap_or_default(),
        history.omitted()
    );
    columns(page, &PROCESS, || history.process_steps().copied());
    page.push_str("},\n\"rules\":[");
}

fn write_rule(history: &History, path: &str, page: &mut String) {
    let _ = write!(page, "{{\"rule\":{},", serde_json::Value::from(path));
    columns(page, &RULE, || history.rule_steps(path));
    page.push_str(",\"limits\":[");
    for (index, (label, steps)) in history.limit_steps(path).enumerate() {
        page.push_str(if index == 0 { "" } else { "," });
        let _ = write!(page, "{{\"limit\":{},", serde_json::Value::from(label));
        let steps: Vec<_> = steps.collect();
        columns(page, &LIMIT, || steps.iter().copied());
        page.push('}');
    }
    page.push_str("]}");
}

/// Writes the columns of some steps, each as a list.
fn columns<S, I: Iterator<Item = S>>(
    page: &mut String,
    columns: &[Column<S>],
    steps: impl Fn() -> I,
) {
    for (index, (name, value)) in columns.iter().enumerate() {
        page.push_str(if index == 0 { "" } else { "," });
        list(page, name, steps().map(|step| value(&step)));
    }
}

/// Writes a list of numbers with its name. Writing to a string cannot fail.
fn list(page: &mut String, name: &str, numbers: impl Iterator<Item = impl Display>) {
    let _ = write!(page, "\"{name}\":[");
    for (index, number) in numbers.enumerate() {
        page.push_str(if index == 0 { "" } else { "," });
        let _ = write!(page, "{number}");
    }
    page.push(']');
}
