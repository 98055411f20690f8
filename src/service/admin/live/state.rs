//! The state of the server at a moment, and the event that describes it: one line of JSON.

use std::{array, cmp::Reverse, sync::Arc, time::Instant};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::super::{health::Components, statistics::Statistics};
use crate::{
    foundation::ascii_json::ascii_json,
    observe::{
        history::{ProcessTotals, STEP_VALUES},
        metrics::{LoadHistory, Metrics, RuleTotals},
    },
    service::limiter::{RuleSet, Rules},
    store::{loss::LostLimits, redis::stats::RedisStats},
};

/// Most bytes of rules in an event.
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
    /// The totals of each rule, by rule number.
    hits: Vec<RuleTotals>,
}

/// An event.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventDocument<'a> {
    end_millis: u64,
    length_millis: u128,
    nodes: u64,
    process: Map<String, Value>,
    rules: Vec<RuleChange<'a>>,
    omitted_rules: usize,
    loads: Value,
    /// The answers that clients get because of lost stores.
    loss: Vec<String>,
    components: Vec<Value>,
}

/// A rule with hits since the previous state.
#[derive(Serialize)]
struct RuleChange<'a> {
    rule: &'a str,
    hits: u64,
    over: u64,
    near: u64,
}

impl LiveSource {
    /// Reads all counters. Returns them, and the event: the changes since the state `before`, and the current state.
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
            bytes += ascii_json(*rule).len() + 1;
            bytes <= MAX_RULE_BYTES
        });
        rules.truncate(fitting.count());
        let process = STEP_VALUES.iter().zip(step.values);
        let process = process.map(|(name, value)| ((*name).to_owned(), value.into()));
        let components = (self.components)().into_iter();
        ascii_json(&EventDocument {
            end_millis: step.ends_at.millis(),
            length_millis: step.lasted.as_millis(),
            nodes: step.nodes,
            process: process.collect(),
            omitted_rules: all - rules.len(),
            rules,
            loads: loads(&self.statistics.metrics.loads()),
            loss: loss(&self.statistics.metrics),
            components: components
                .map(|(name, state)| json!({ "name": name, "state": state }))
                .collect(),
        })
    }
}

fn hits(rules: &RuleSet) -> Vec<RuleTotals> {
    let all = rules.matcher.rules().iter();
    let each = all.map(|rule| rules.stats.totals(rule.id).unwrap_or_default());
    each.collect()
}

/// The rules with new hits, most hits first. In the second of a reload there are none.
fn changes<'a>(now: &'a LiveState, before: &LiveState) -> Vec<RuleChange<'a>> {
    let (Some(rules), Some(earlier)) = (&now.rules, &before.rules) else {
        return Vec::new();
    };
    if !Arc::ptr_eq(rules, earlier) {
        return Vec::new();
    }
    let rules = rules.matcher.rules().iter();
    let all = rules.zip(now.hits.iter().zip(&before.hits));
    let changes = all.map(|(rule, (now, before))| {
        let change: RuleTotals = array::from_fn(|index| now[index].saturating_sub(before[index]));
        let [hits, _within, near, over, ..] = change;
        RuleChange {
            rule: &rule.path,
            hits,
            over,
            near,
        }
    });
    let changes = changes.filter(|change| change.hits > 0 || change.over > 0);
    let mut changes: Vec<_> = changes.collect();
    changes.sort_by_key(|change| Reverse(change.hits));
    changes
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
