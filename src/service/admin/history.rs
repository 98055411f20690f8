//! `/history`: the last hour as JSON, in columns that share one list of times.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};

use super::{
    json::json_headers,
    page::{PageWriter, json_list},
    statistics::Statistics,
};
use crate::{
    foundation::{ascii_json::ascii_json, lock::lock},
    observe::history::{History, STEP_VALUES},
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

    /// Writes the page, whose last step ends now.
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

/// Writes the process first, then one rule at a time.
fn writer(history: History) -> PageWriter {
    let paths: Vec<_> = history.rule_paths().cloned().collect();
    let head = process(&history);
    let rules = paths.into_iter().map(move |path| rule(&history, &path));
    json_list(head, rules, "]}\n".to_owned())
}

const RULE: [&str; 6] = ["hits", "within", "near", "over", "shadow", "degraded"];

const LIMIT: [&str; 2] = ["near", "over"];

/// Steps as columns: the names of the values, and the values of each step.
struct Columns<T, const N: usize>(&'static [&'static str; N], Vec<[T; N]>);

impl<T: Serialize, const N: usize> Serialize for Columns<T, N> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        let Self(names, steps) = self;
        let column = |index: usize| steps.iter().map(|step| &step[index]).collect::<Vec<_>>();
        let columns = names.iter().enumerate();
        serializer.collect_map(columns.map(|(index, name)| (name, column(index))))
    }
}

#[derive(Serialize)]
struct RuleColumns<'a> {
    rule: &'a str,
    #[serde(flatten)]
    steps: Columns<u32, 6>,
    limits: Vec<LimitColumns<'a>>,
}

#[derive(Serialize)]
struct LimitColumns<'a> {
    limit: &'a str,
    #[serde(flatten)]
    steps: Columns<u32, 2>,
}

/// The text of the page before the rules.
fn process(history: &History) -> String {
    let steps: Vec<_> = history.process_steps().copied().collect();
    let values = steps.iter().map(|step| step.values).collect();
    let ends: Vec<_> = steps.iter().map(|step| step.ends_at.millis()).collect();
    let lengths: Vec<_> = steps.iter().map(|step| step.lasted.as_millis()).collect();
    format!(
        "{{\"endMillis\":{},\n\"lengthMillis\":{},\n\"nodes\":{},\"omittedRules\":{},\n\"process\":{},\n\"rules\":[",
        ascii_json(&ends),
        ascii_json(&lengths),
        steps.last().map_or(0, |step| step.nodes),
        history.omitted(),
        ascii_json(&Columns(&STEP_VALUES, values))
    )
}

fn rule(history: &History, path: &str) -> String {
    let limits = history
        .limit_steps(path)
        .map(|(limit, steps)| LimitColumns {
            limit,
            steps: Columns(&LIMIT, steps.collect()),
        });
    ascii_json(&RuleColumns {
        rule: path,
        steps: Columns(&RULE, history.rule_steps(path).collect()),
        limits: limits.collect(),
    })
}
