//! Counts of descriptors that no rule of their domain matches.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::foundation::{metric_name::sanitize, sample::SampleWriter};

use super::worker_stats::add_alone;

/// Unmatched descriptors of one domain of the rules, per worker. The counters of a worker are created on first use.
#[derive(Debug)]
pub(super) struct DomainStats(Box<[OnceLock<Box<UnmatchedCounts>>]>);

#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct UnmatchedCounts {
    no_rule: AtomicU64,
    no_limit: AtomicU64,
}

impl DomainStats {
    /// Counters for so many workers.
    pub(super) fn for_workers(count: usize) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// The counters of one worker.
    pub(super) fn of(&self, worker: usize) -> &UnmatchedCounts {
        self.0[worker].get_or_init(Box::default)
    }
}

impl UnmatchedCounts {
    /// Counts a descriptor that leads to no node of the rules.
    pub(super) fn record_no_rule(&self) {
        add_alone(&self.no_rule, 1);
    }

    /// Counts a descriptor that leads to a node without a limit.
    pub(super) fn record_no_limit(&self) {
        add_alone(&self.no_limit, 1);
    }
}

/// Passes on the totals of each domain, which is one of the rules.
pub(super) fn samples(domains: &BTreeMap<Arc<str>, Arc<DomainStats>>, list: &mut SampleWriter<'_>) {
    for (domain, stats) in domains {
        let domain = sanitize(domain);
        let counts = || stats.0.iter().filter_map(OnceLock::get);
        let no_rule = counts().map(|counts| counts.no_rule.load(Relaxed)).sum();
        let no_limit = counts().map(|counts| counts.no_limit.load(Relaxed)).sum();
        for (cause, total) in [("no_rule", no_rule), ("no_limit", no_limit)] {
            let name = format!("tollgate.unmatched_descriptors_total.{domain}.{cause}");
            list.counter(name, total);
        }
    }
}
