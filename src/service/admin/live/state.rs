//! The state of the server at a moment, and its event: one line of JSON.

use std::{
    cmp::Reverse,
    fmt::{self, Write as _},
    sync::Arc,
    time::Instant,
};

use serde_json::{Value, json};

use super::super::{health::Components, history::PROCESS, statistics::Statistics};
use crate::{
    observe::{history::ProcessTotals, metrics::LoadHistory},
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

/// A rule with hits since the state before.
struct RuleChange {
    rule: usize,
    more: RuleHits,
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

    /// Writes the event. Writing to a string cannot fail.
    fn event(&self, now: &LiveState, before: &LiveState) -> String {
        let step = now.process.step_since(&before.process);
        let mut text = format!(
            "{{\"endMillis\":{},\"lengthMillis\":{},\"nodes\":{},\"process\":{{",
            step.ends_at.millis(),
            step.lasted.as_millis(),
            step.gauges.nodes
        );
        for (index, (name, value)) in PROCESS.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let _ = write!(text, "{separator}\"{name}\":{}", value(&step));
        }
        text.push_str("},\"rules\":[");
        let omitted = write_rules(now, &changes(now, before), &mut text);
        let components: Vec<_> = (self.components)()
            .into_iter()
            .map(|(name, state)| json!({ "name": name, "state": state }))
            .collect();
        let _ = write!(
            text,
            "],\"omittedRules\":{omitted},\"loads\":{},\"components\":{}}}",
            loads(&self.statistics.metrics.loads()),
            Value::from(components)
        );
        text
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
fn changes(now: &LiveState, before: &LiveState) -> Vec<RuleChange> {
    let is_one_set = match (&now.rules, &before.rules) {
        (Some(now), Some(before)) => Arc::ptr_eq(now, before),
        _ => false,
    };
    if !is_one_set {
        return Vec::new();
    }
    let both = now.hits.iter().zip(&before.hits).enumerate();
    let mut changes: Vec<_> = both
        .filter(|(_, (now, before))| now.all != before.all || now.over != before.over)
        .map(|(rule, (now, before))| RuleChange {
            rule,
            more: RuleHits {
                all: now.all.saturating_sub(before.all),
                over: now.over.saturating_sub(before.over),
                near: now.near.saturating_sub(before.near),
            },
        })
        .collect();
    changes.sort_by_key(|change| Reverse(change.more.all));
    changes
}

/// Writes as many rules as there is room for; returns how many are left.
fn write_rules(now: &LiveState, changes: &[RuleChange], text: &mut String) -> usize {
    let Some(rules) = &now.rules else { return 0 };
    let end = text.len() + MAX_RULE_BYTES;
    for (index, RuleChange { rule, more }) in changes.iter().enumerate() {
        let path = Value::from(&*rules.matcher.rules()[*rule].path);
        let row = fmt::from_fn(|f| {
            let RuleHits { all, over, near } = more;
            write!(
                f,
                "{{\"rule\":{path},\"hits\":{all},\"over\":{over},\"near\":{near}}}"
            )
        });
        let row = row.to_string();
        if text.len() + row.len() >= end {
            return changes.len() - index;
        }
        text.push_str(if index == 0 { "" } else { "," });
        text.push_str(&row);
    }
    0
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
