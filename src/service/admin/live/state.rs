//! The state of the server at a moment, and its event: one line of JSON.

use std::{cmp::Reverse, sync::Arc, time::Instant};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::super::{health::Components, history::PROCESS, page::json, statistics::Statistics};
use crate::{
    observe::{
        history::{ProcessStep, ProcessTotals},
        metrics::LoadHistory,
    },
    service::limiter::{RuleSet, Rules},
};

/// The most bytes of rules in an event.
const MAX_RULE_BYTES: usize = 32 << 10;

/// The parts of the server that events show.
pub(crate) struct LiveSource {
    pub(crate) rules: Rules,
    pub(crate) statistics: Statistics,
    pub(crate) components: Components,
    pub(crate) began: Instant,
}

/// All counters at a moment.
pub(super) struct LiveState {
    process: ProcessTotals,
    rules: Option<Arc<RuleSet>>,
    /// By the number of the rule.
    hits: Vec<RuleHits>,
}

/// Hits on a rule since the start.
#[derive(Clone, Copy, Default)]
struct RuleHits {
    all: u64,
    over: u64,
    near: u64,
}

/// An event.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventDocument<'a> {
    end_millis: u64,
    length_millis: u128,
    nodes: u64,
    process: ProcessColumns<'a>,
    rules: Vec<RuleChange<'a>>,
    omitted_rules: usize,
    loads: Value,
    components: Vec<Value>,
}

struct ProcessColumns<'a>(&'a ProcessStep);

impl Serialize for ProcessColumns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let columns = PROCESS.iter();
        serializer.collect_map(columns.map(|(name, value)| (name, value(self.0))))
    }
}

/// A rule with hits since the state before.
#[derive(Serialize)]
struct RuleChange<'a> {
    rule: &'a str,
    hits: u64,
    over: u64,
    near: u64,
}

impl LiveSource {
    /// Reads all counters; returns them and the event: the changes since the state `before`, and the present state.
    pub(super) fn read(&self, before: Option<&LiveState>) -> (LiveState, String) {
        let now = self.state();
        let text = self.event(&now, before.unwrap_or(&now));
        (now, text)
    }

    fn state(&self) -> LiveState {
        let rules = self.rules.current();
        let hits = rules.as_ref().map_or_else(Vec::new, |set| hits(set));
        LiveState {
            process: self.statistics.totals(self.began),
            rules,
            hits,
        }
    }

    fn event(&self, now: &LiveState, before: &LiveState) -> String {
        let step = now.process.step_since(&before.process);
        let (mut rules, mut bytes) = (changes(now, before), 0);
        let all = rules.len();
        let fitting = rules.iter().take_while(|rule| {
            bytes += json(*rule).len() + 1;
            bytes <= MAX_RULE_BYTES
        });
        rules.truncate(fitting.count());
        let components = (self.components)().into_iter();
        json(&EventDocument {
            end_millis: step.ends_at.millis(),
            length_millis: step.lasted.as_millis(),
            nodes: step.gauges.nodes,
            process: ProcessColumns(&step),
            omitted_rules: all - rules.len(),
            rules,
            loads: loads(&self.statistics.metrics.loads()),
            components: components
                .map(|(name, state)| json!({ "name": name, "state": state }))
                .collect(),
        })
    }
}

fn hits(rules: &RuleSet) -> Vec<RuleHits> {
    let each = rules.matcher.rules().iter().map(|rule| {
        let totals = rules.stats.totals(rule.id).unwrap_or_default();
        RuleHits {
            all: totals.total_hits,
            over: totals.over_limit,
            near: totals.near_limit,
        }
    });
    each.collect()
}

/// The rules with new hits, the most first; none in the second of a reload.
fn changes<'a>(now: &'a LiveState, before: &LiveState) -> Vec<RuleChange<'a>> {
    let (Some(rules), Some(earlier)) = (&now.rules, &before.rules) else {
        return Vec::new();
    };
    if !Arc::ptr_eq(rules, earlier) {
        return Vec::new();
    }
    let rules = rules.matcher.rules().iter();
    let all = rules.zip(now.hits.iter().zip(&before.hits));
    let mut changes: Vec<_> = all
        .filter(|(_, (now, before))| now.all != before.all || now.over != before.over)
        .map(|(rule, (now, before))| RuleChange {
            rule: &rule.path,
            hits: now.all.saturating_sub(before.all),
            over: now.over.saturating_sub(before.over),
            near: now.near.saturating_sub(before.near),
        })
        .collect();
    changes.sort_by_key(|change| Reverse(change.hits));
    changes
}

/// The last loads of the rules.
fn loads(history: &LoadHistory) -> Value {
    let in_use = history.in_use().map(|taken| {
        json!({
            "atMillis": taken.at.millis(),
            "rules": taken.rules,
            "files": taken.files,
            "hash": format!("{:012x}", taken.hash),
        })
    });
    let refused = history.refused().map(|refused| {
        json!({
            "atMillis": refused.at.millis(),
            "errors": refused.errors,
            "omitted": refused.omitted,
        })
    });
    json!({ "inUse": in_use, "refused": refused })
}
