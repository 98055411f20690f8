//! Counts of the hits of each rule, by how they fell against its limits.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    core::{counter::CounterState, decision::Tally, limit::Rule},
    foundation::{metric_name::sanitize, sample::SampleWriter},
};

use super::{
    limit_stats::{self, LimitStats, LimitTotals},
    worker_stats::add_alone,
};

/// Counts of one rule's hits, by their binding limit, per worker. The counters of a worker are created on first use,
/// because most rules are rarely matched.
#[derive(Debug)]
pub(super) struct RuleStats {
    counts: Arc<[OnceLock<Box<RuleCounts>>]>,
    limits: LimitStats,
}

#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct RuleCounts {
    total_hits: AtomicU64,
    within_limit: AtomicU64,
    near_limit: AtomicU64,
    over_limit: AtomicU64,
    over_limit_with_local_cache: AtomicU64,
    shadow_mode: AtomicU64,
    /// Hits that were judged without the store, which did not reply.
    degraded: AtomicU64,
}

/// Totals of [`RuleStats`] over all workers and all rules with one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleTotals {
    pub(crate) total_hits: u64,
    pub(crate) within_limit: u64,
    pub(crate) near_limit: u64,
    pub(crate) over_limit: u64,
    pub(crate) over_limit_with_local_cache: u64,
    pub(crate) shadow_mode: u64,
    pub(crate) degraded: u64,
}

impl RuleStats {
    /// Counters for so many workers, without any of single limits.
    pub(super) fn for_workers(count: usize) -> Self {
        Self {
            counts: (0..count).map(|_| OnceLock::new()).collect(),
            limits: LimitStats::default(),
        }
    }

    /// Counters for `rule`, which go on with those that it had. Limits begin anew if one of them has changed.
    pub(super) fn of_rule(rule: &Rule, old: Option<&Arc<Self>>, workers: usize) -> Arc<Self> {
        let labels = limit_stats::labels(rule);
        if let Some(old) = old
            && *old.limits.labels() == *labels
        {
            return old.clone();
        }
        let counts = match old {
            Some(old) => old.counts.clone(),
            None => (0..workers).map(|_| OnceLock::new()).collect(),
        };
        let limits = LimitStats::new(labels);
        Arc::new(Self { counts, limits })
    }

    /// The counters of one worker; shared statistics have only the first.
    pub(super) fn of(&self, worker: usize) -> &RuleCounts {
        let counts = self.counts.get(worker).unwrap_or(&self.counts[0]);
        counts.get_or_init(Box::default)
    }

    /// Counts hits that `fell` near or over the limit with this index.
    pub(super) fn record_limit(&self, limit: usize, fell: Tally, worker: usize) {
        self.limits.record(limit, fell, worker, self.counts.len());
    }

    /// The labels of the rule's limits.
    pub(super) fn limit_labels(&self) -> &[Box<str>] {
        self.limits.labels()
    }

    /// The totals of the limit with this index.
    pub(super) fn limit_totals(&self, limit: usize) -> LimitTotals {
        self.limits.totals(limit)
    }

    /// The totals, if the rule is used; 0 where requests count under names of their own (`detailed_metric`).
    pub(super) fn totals(&self) -> Option<RuleTotals> {
        self.is_used().then(|| {
            let mut totals = RuleTotals::default();
            totals.absorb(self);
            totals
        })
    }

    /// Whether a request has ever counted under the rule's own name, or come near one of its limits.
    fn is_used(&self) -> bool {
        self.limits.is_used() || self.counts.iter().any(|counts| counts.get().is_some())
    }
}

impl RuleCounts {
    /// Adds the hits of a request, as they `fell` against the binding limit, whose `count` is that after them.
    pub(super) fn record(&self, hits: u64, fell: Tally, count: &CounterState, is_shadowed: bool) {
        add_alone(&self.total_hits, hits);
        add_alone(&self.within_limit, fell.within);
        add_alone(&self.near_limit, fell.near);
        add_alone(&self.over_limit, fell.over);
        if count.is_cached {
            add_alone(&self.over_limit_with_local_cache, fell.over);
        }
        if is_shadowed {
            add_alone(&self.shadow_mode, fell.over);
        }
        if count.is_degraded {
            add_alone(&self.degraded, hits);
        }
    }
}

impl RuleTotals {
    /// Adds the counts of `stats`.
    fn absorb(&mut self, stats: &RuleStats) {
        for counts in stats.counts.iter().filter_map(OnceLock::get) {
            self.total_hits += counts.total_hits.load(Relaxed);
            self.within_limit += counts.within_limit.load(Relaxed);
            self.near_limit += counts.near_limit.load(Relaxed);
            self.over_limit += counts.over_limit.load(Relaxed);
            self.over_limit_with_local_cache += counts.over_limit_with_local_cache.load(Relaxed);
            self.shadow_mode += counts.shadow_mode.load(Relaxed);
            self.degraded += counts.degraded.load(Relaxed);
        }
    }

    fn samples(&self, key: &str, list: &mut SampleWriter<'_>) {
        let mut push = |stat: &str, total: u64| {
            let name = format!("ratelimit.service.rate_limit.{key}.{stat}");
            list.counter(name, total);
        };
        push("total_hits", self.total_hits);
        push("within_limit", self.within_limit);
        push("near_limit", self.near_limit);
        push("over_limit", self.over_limit);
        // Few rules ever have these.
        for (stat, total) in [
            (
                "over_limit_with_local_cache",
                self.over_limit_with_local_cache,
            ),
            ("shadow_mode", self.shadow_mode),
        ] {
            if total > 0 {
                push(stat, total);
            }
        }
    }
}

/// Passes on the totals of `rules`, by path, and of `values`, by name; those of one name are adjacent.
///
/// Adds up names that read alike: a limit override is named after the rule that it replaces, and values under
/// `detailed_metric` may equal the name of a neighbouring rule.
pub(super) fn samples(
    rules: &BTreeMap<Arc<str>, Arc<RuleStats>>,
    values: &[(Arc<str>, Arc<RuleStats>)],
    list: &mut SampleWriter<'_>,
) {
    let mut by_name: BTreeMap<Cow<'_, str>, RuleTotals> = BTreeMap::new();
    for (path, stats) in rules {
        by_name.entry(sanitize(path)).or_default().absorb(stats);
    }
    for (name, stats) in values {
        let name = Cow::Borrowed(&**name);
        by_name.entry(name).or_default().absorb(stats);
    }
    for (name, totals) in &by_name {
        totals.samples(name, list);
    }
    for (path, stats) in rules {
        if stats.is_used() {
            stats.limits.samples(path, list);
        }
    }
}
