//! Counts of the hits near and over each limit of a rule. The counts of the rule itself do not tell its limits apart.

use std::sync::OnceLock;

use crate::{
    core::{
        decision::Tally,
        limit::{Allows, Limit, Rule},
    },
    foundation::{metric_name::sanitize, sample::SampleWriter},
};

use super::worker_stats::OwnCounts;

/// Counts of a rule's hits by their binding limit, which add up to the counts of the rule. They are allocated at the
/// first hit near a limit, because few rules come that far.
#[derive(Debug, Default)]
pub(super) struct LimitStats {
    /// The labels of the limits, in the rule's order.
    labels: Box<[Box<str>]>,
    /// The counts of worker 0 for each limit, then those of worker 1, and so on.
    counts: OnceLock<Box<[OwnCounts<2>]>>,
}

impl LimitStats {
    /// Empty counts for limits with these labels.
    pub(super) fn new(labels: Box<[Box<str>]>) -> Self {
        Self {
            labels,
            counts: OnceLock::new(),
        }
    }

    pub(super) fn labels(&self) -> &[Box<str>] {
        &self.labels
    }

    /// Whether any hit has been near or over a limit.
    pub(super) fn is_used(&self) -> bool {
        self.counts.get().is_some()
    }

    /// Adds hits that fell near or over the limit with this index, for one of `workers` workers.
    pub(super) fn record(&self, limit: usize, fell: Tally, worker: usize, workers: usize) {
        let new = || {
            let count = workers * self.labels.len();
            (0..count).map(|_| OwnCounts::default()).collect()
        };
        let at = worker * self.labels.len() + limit;
        if let Some(counts) = self.counts.get_or_init(new).get(at) {
            counts.add(0, fell.near);
            counts.add(1, fell.over);
        }
    }

    /// The hits near and over the limit with this index, in this order, summed over all workers.
    fn totals(&self, limit: usize) -> [u64; 2] {
        let counts = self.counts.get().map_or(&[][..], |counts| counts);
        let of_limit = counts.iter().skip(limit);
        OwnCounts::totals(of_limit.step_by(self.labels.len().max(1)))
    }

    /// Writes the totals of each limit of the rule at `path`.
    pub(super) fn samples(&self, path: &str, list: &mut SampleWriter<'_>) {
        let path = sanitize(path);
        for (limit, label) in self.labels.iter().enumerate() {
            let [near, over] = self.totals(limit);
            list.counter(format!("tollgate.limit_near_total.{path}.{label}"), near);
            list.counter(format!("tollgate.limit_over_total.{path}.{label}"), over);
        }
    }
}

/// The labels of a rule's limits: the name of each, or `3/second`.
pub(super) fn labels(rule: &Rule) -> Box<[Box<str>]> {
    let limits: &[Limit] = match &rule.allows {
        Allows::Unlimited => &[],
        Allows::Within(limits) => limits,
    };
    let mut labels: Vec<Box<str>> = Vec::with_capacity(limits.len());
    for limit in limits {
        let mut label = label(limit);
        // Two limits of a rule can differ in nothing but their algorithm.
        if labels.iter().any(|other| **other == *label) {
            label = format!("{label} {}", limit.algorithm.name());
        }
        labels.push(label.into());
    }
    labels.into()
}

fn label(limit: &Limit) -> String {
    match &limit.name {
        // A dot would end this part of the name.
        Some(name) => sanitize(name).replace('.', "_"),
        None => limit.rate().to_string(),
    }
}
