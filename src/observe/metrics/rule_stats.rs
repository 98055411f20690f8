//! Counts of each rule's hits: within, near and over its limits.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use crate::{
    core::{counter::CounterState, decision::Tally, limit::Rule},
    foundation::{metric_name::sanitize, sample::SampleWriter},
};

use super::{
    lease_stats::{ReservationStats, SlotStats},
    limit_stats::{self, LimitStats},
    worker_stats::OwnCounts,
};

/// Counts of one rule's hits, by their binding limit, per worker. The counters of a worker are created on first use,
/// because most rules are rarely matched.
#[derive(Debug)]
pub(super) struct RuleStats {
    counts: Arc<[OnceLock<Box<OwnCounts<7>>>]>,
    limits: LimitStats,
    leases: Arc<LeaseStats>,
}

/// Counts of the leases of one rule, if it has any.
#[derive(Debug, Default)]
struct LeaseStats {
    reservations: OnceLock<Box<ReservationStats>>,
    slots: OnceLock<Box<SlotStats>>,
}

/// Totals of [`RuleStats`] over all workers and all rules of one name: all hits; those within, near and over the limit;
/// those over it that shadow mode let pass; those decided without the store; and those that the local cache knew to be
/// over.
pub(crate) type RuleTotals = [u64; 7];

const HITS: usize = 0;
const WITHIN: usize = 1;
const NEAR: usize = 2;
const OVER: usize = 3;
const SHADOWED: usize = 4;
const DEGRADED: usize = 5;
const CACHED: usize = 6;

impl RuleStats {
    /// Counters for `count` workers, and none for single limits.
    pub(super) fn for_workers(count: usize) -> Self {
        Self {
            counts: (0..count).map(|_| OnceLock::new()).collect(),
            limits: LimitStats::default(),
            leases: Arc::default(),
        }
    }

    /// Counters for `rule` that continue its `old` ones. The counts of its limits restart at zero if one of them has
    /// changed.
    pub(super) fn of_rule(rule: &Rule, old: Option<&Arc<Self>>, workers: usize) -> Arc<Self> {
        let labels = limit_stats::labels(rule);
        if let Some(old) = old
            && *old.limits.labels() == *labels
        {
            return old.clone();
        }
        let (counts, leases) = match old {
            Some(old) => (old.counts.clone(), old.leases.clone()),
            None => (
                (0..workers).map(|_| OnceLock::new()).collect(),
                Arc::default(),
            ),
        };
        let limits = LimitStats::new(labels);
        Arc::new(Self {
            counts,
            limits,
            leases,
        })
    }

    /// Adds the hits of a request: `fell` says how many were within, near and over the binding limit, and `count` is
    /// the state of its counter after them. Statistics that all workers share have one set of counters, the first.
    pub(super) fn record(
        &self,
        worker: usize,
        hits: u64,
        fell: Tally,
        count: &CounterState,
        is_shadowed: bool,
    ) {
        let counts = self.counts.get(worker).unwrap_or(&self.counts[0]);
        let counts = counts.get_or_init(Box::default);
        counts.add(HITS, hits);
        counts.add(WITHIN, fell.within);
        let degraded = if count.is_degraded { hits } else { 0 };
        if fell.near | fell.over | degraded == 0 {
            return;
        }
        let over_if = |is_it| if is_it { fell.over } else { 0 };
        counts.add(NEAR, fell.near);
        counts.add(OVER, fell.over);
        counts.add(SHADOWED, over_if(is_shadowed));
        counts.add(DEGRADED, degraded);
        counts.add(CACHED, over_if(count.is_cached));
    }

    /// Adds hits that fell near or over the limit with this index.
    pub(super) fn record_limit(&self, limit: usize, fell: Tally, worker: usize) {
        self.limits.record(limit, fell, worker, self.counts.len());
    }

    /// The counts of the rule's reservations.
    pub(super) fn reservations(&self) -> &ReservationStats {
        self.leases.reservations.get_or_init(Box::default)
    }

    /// The counts of the rule's slots.
    pub(super) fn slots(&self) -> &SlotStats {
        self.leases.slots.get_or_init(Box::default)
    }

    /// The totals, if the rule has been used. They are 0 if its requests count under names of their own
    /// (`detailed_metric`).
    pub(super) fn totals(&self) -> Option<RuleTotals> {
        self.is_used().then(|| self.sums())
    }

    fn sums(&self) -> RuleTotals {
        let counts = self.counts.iter().filter_map(OnceLock::get);
        OwnCounts::totals(counts.map(|counts| &**counts))
    }

    /// Whether a request has ever counted under the rule's own name, or come near one of its limits.
    fn is_used(&self) -> bool {
        self.limits.is_used() || self.counts.iter().any(|counts| counts.get().is_some())
    }
}

/// Writes the totals of `rules`, which are by path, and of `values`, which are by name; those of one name are adjacent.
///
/// Equal names are added up: a limit override is named after the rule that it replaces, and a value under
/// `detailed_metric` can equal the name of a neighbouring rule.
pub(super) fn samples(
    rules: &BTreeMap<Arc<str>, Arc<RuleStats>>,
    values: &[(Arc<str>, Arc<RuleStats>)],
    list: &mut SampleWriter<'_>,
) {
    let mut by_name: BTreeMap<Cow<'_, str>, RuleTotals> = BTreeMap::new();
    for (path, stats) in rules {
        absorb(by_name.entry(sanitize(path)).or_default(), stats);
    }
    for (name, stats) in values {
        let name = Cow::Borrowed(&**name);
        absorb(by_name.entry(name).or_default(), stats);
    }
    for (name, totals) in &by_name {
        name_samples(name, totals, list);
    }
    for (path, stats) in rules {
        if stats.is_used() {
            stats.limits.samples(path, list);
        }
        if let Some(reservations) = stats.leases.reservations.get() {
            reservations.samples(path, list);
        }
        if let Some(slots) = stats.leases.slots.get() {
            slots.samples(path, list);
        }
    }
}

/// Adds the counts of `stats`.
fn absorb(totals: &mut RuleTotals, stats: &RuleStats) {
    for (total, more) in totals.iter_mut().zip(stats.sums()) {
        *total += more;
    }
}

/// Writes the totals of one name.
fn name_samples(key: &str, totals: &RuleTotals, list: &mut SampleWriter<'_>) {
    let [hits, within, near, over, shadowed, _degraded, cached] = *totals;
    for (stat, total, is_optional) in [
        ("total_hits", hits, false),
        ("within_limit", within, false),
        ("near_limit", near, false),
        ("over_limit", over, false),
        ("over_limit_with_local_cache", cached, true),
        ("shadow_mode", shadowed, true),
    ] {
        // Optional statistics are left out while they are 0, because few rules ever have any.
        if total > 0 || !is_optional {
            let name = format!("ratelimit.service.rate_limit.{key}.{stat}");
            list.counter(name, total);
        }
    }
}
