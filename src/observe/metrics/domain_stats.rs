//! Counts of the descriptors that match no rule of their domain.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use crate::foundation::{metric_name::sanitize, sample::SampleWriter};

use super::worker_stats::OwnCounts;

/// Why a descriptor is unmatched, by index.
const CAUSES: [&str; 2] = ["no_rule", "no_limit"];

/// The index of descriptors that lead to no node of the rules.
pub(super) const NO_RULE: usize = 0;

/// The index of descriptors that lead to a node without a limit.
pub(super) const NO_LIMIT: usize = 1;

/// Unmatched descriptors of one domain of the rules, per worker. The counters of a worker are created on first use.
#[derive(Debug)]
pub(super) struct DomainStats(Box<[OnceLock<Box<OwnCounts<2>>>]>);

impl DomainStats {
    pub(super) fn for_workers(count: usize) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// Counts a descriptor.
    pub(super) fn record(&self, worker: usize, cause: usize) {
        let counts = self.0[worker].get_or_init(Box::default);
        counts.add(cause, 1);
    }
}

/// Writes the totals of each domain that has rules.
pub(super) fn samples(domains: &BTreeMap<Arc<str>, Arc<DomainStats>>, list: &mut SampleWriter<'_>) {
    for (domain, stats) in domains {
        let domain = sanitize(domain);
        let counts = stats.0.iter().filter_map(OnceLock::get);
        let totals = OwnCounts::totals(counts.map(|counts| &**counts));
        for (cause, total) in CAUSES.iter().zip(totals) {
            let name = format!("tollgate.unmatched_descriptors_total.{domain}.{cause}");
            list.counter(name, total);
        }
    }
}
