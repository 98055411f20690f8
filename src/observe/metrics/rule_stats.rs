//! Counts of the hits of each rule and limit: within, near and over; and of the descriptors of each domain that match
//! no rule.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
};

use crate::{
    core::{
        counter::CounterState,
        decision::Tally,
        limit::{Allows, Limit, Rule},
    },
    foundation::{
        metric_name::{domain_and_rule, sanitize},
        sample::{Sample, SampleValue, SampleWriter},
    },
    observe::metrics::{
        lease_stats::{ReservationStats, SlotStats},
        worker_stats::OwnCounts,
    },
};

/// Counts of one rule's hits, by their binding limit, per worker. The counters of a worker are created on first use,
/// because most rules are rarely matched.
#[derive(Debug)]
pub(super) struct RuleStats {
    counts: Arc<[OnceLock<Box<OwnCounts<8>>>]>,
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
/// those over it that shadow mode let pass; descriptors that the store did not decide; hits that the local cache knew
/// to be over; and descriptors refused because there was no room for a counter of their own.
pub(crate) type RuleTotals = [u64; 8];

const HITS: usize = 0;
const WITHIN: usize = 1;
const NEAR: usize = 2;
const OVER: usize = 3;
const SHADOWED: usize = 4;
const DEGRADED: usize = 5;
const CACHED: usize = 6;
const WITHOUT_ROOM: usize = 7;

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
        let limits = facts(rule);
        if let Some(old) = old
            && old.limits.facts == limits
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
        Arc::new(Self {
            counts,
            limits: LimitStats {
                facts: limits,
                counts: OnceLock::new(),
            },
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
        let degraded = u64::from(count.is_degraded);
        let without_room = u64::from(count.lacks_room);
        if fell.near | fell.over | degraded | without_room == 0 {
            return;
        }
        counts.add(WITHOUT_ROOM, without_room);
        let over_if = |is_it| if is_it { fell.over } else { 0 };
        counts.add(NEAR, fell.near);
        counts.add(OVER, fell.over);
        counts.add(SHADOWED, over_if(is_shadowed));
        counts.add(DEGRADED, degraded);
        counts.add(CACHED, over_if(count.is_cached));
    }

    /// Counts a request without an answer, because the store did not decide it.
    pub(super) fn record_failure(&self, worker: usize) {
        let counts = self.counts.get(worker).unwrap_or(&self.counts[0]);
        counts.get_or_init(Box::default).add(DEGRADED, 1);
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
    values: &HashMap<Arc<str>, Arc<RuleStats>>,
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
    let [
        hits,
        within,
        near,
        over,
        shadowed,
        degraded,
        cached,
        without_room,
    ] = *totals;
    let [domain, rule] = domain_and_rule(key);
    for (name, total) in [
        ("tollgate.rule_without_store_total", degraded),
        ("tollgate.rule_without_room_total", without_room),
    ] {
        if total > 0 {
            list.counter(name, &[domain, rule], total);
        }
    }
    // As in the reference, labels have the first two levels of a rule, and series of equal labels are added up.
    let levels = ["domain", "key1", "key2"].into_iter().zip(key.split('.'));
    let levels: Vec<_> = levels.collect();
    for (stat, total, is_optional) in [
        ("total_hits", hits, false),
        ("within_limit", within, false),
        ("near_limit", near, false),
        ("over_limit", over, false),
        ("shadow_mode", shadowed, true),
    ] {
        // Optional statistics are left out while they are 0, because few rules ever have any.
        if total > 0 || !is_optional {
            list.sample(&Sample {
                name: &format!("ratelimit.service.rate_limit.{stat}"),
                labels: &levels,
                statsd: Some(&format!("ratelimit.service.rate_limit.{key}.{stat}")),
                value: SampleValue::Counter(total),
            });
        }
    }
    if cached > 0 {
        let name = format!("ratelimit.service.rate_limit.{key}.over_limit_with_local_cache");
        list.counter(&name, &[], cached);
    }
}

/// Counts of a rule's hits by their binding limit, which add up to the counts of the rule. They are allocated at the
/// first hit near a limit, because few rules come that far.
#[derive(Debug, Default)]
struct LimitStats {
    /// The limits, in the rule's order.
    facts: Box<[LimitFacts]>,
    /// The counts of worker 0 for each limit, then those of worker 1, and so on.
    counts: OnceLock<Box<[OwnCounts<2>]>>,
}

/// A limit, as its statistics show it.
#[derive(Debug, PartialEq)]
struct LimitFacts {
    /// Its name, or `3/second`.
    label: Box<str>,
    requests: u64,
    period_secs: u64,
}

impl LimitStats {
    /// Whether any hit has been near or over a limit.
    fn is_used(&self) -> bool {
        self.counts.get().is_some()
    }

    /// Adds hits that fell near or over the limit with this index, for one of `workers` workers.
    fn record(&self, limit: usize, fell: Tally, worker: usize, workers: usize) {
        let new = || {
            let count = workers * self.facts.len();
            (0..count).map(|_| OwnCounts::default()).collect()
        };
        let at = worker * self.facts.len() + limit;
        if let Some(counts) = self.counts.get_or_init(new).get(at) {
            counts.add(0, fell.near);
            counts.add(1, fell.over);
        }
    }

    /// The hits near and over the limit with this index, in this order, summed over all workers.
    fn totals(&self, limit: usize) -> [u64; 2] {
        let counts = self.counts.get().map_or(&[][..], |counts| counts);
        let of_limit = counts.iter().skip(limit);
        OwnCounts::totals(of_limit.step_by(self.facts.len().max(1)))
    }

    /// Writes each limit of the rule at `path`, and its totals.
    fn samples(&self, path: &str, list: &mut SampleWriter<'_>) {
        let path = sanitize(path);
        for (limit, facts) in self.facts.iter().enumerate() {
            let [near, over] = self.totals(limit);
            let [domain, rule] = domain_and_rule(&path);
            let labels = &[domain, rule, ("limit", &*facts.label)];
            list.gauge("tollgate.limit_requests", labels, facts.requests);
            list.gauge("tollgate.limit_period_seconds", labels, facts.period_secs);
            list.counter("tollgate.limit_near_total", labels, near);
            list.counter("tollgate.limit_over_total", labels, over);
        }
    }
}

/// The limits of a rule.
fn facts(rule: &Rule) -> Box<[LimitFacts]> {
    let limits: &[Limit] = match &rule.allows {
        Allows::Unlimited => &[],
        Allows::Within(limits) => limits,
    };
    let mut facts: Vec<LimitFacts> = Vec::with_capacity(limits.len());
    for limit in limits {
        let mut label = label(limit);
        // Two limits of a rule can differ in nothing but their algorithm.
        if facts.iter().any(|other| *other.label == *label) {
            label = format!("{label} {}", limit.algorithm.name());
        }
        facts.push(LimitFacts {
            label: label.into(),
            requests: limit.requests_per_unit,
            period_secs: limit.period.secs(),
        });
    }
    facts.into()
}

fn label(limit: &Limit) -> String {
    match &limit.name {
        // A dot would end this part of the name.
        Some(name) => sanitize(name).replace('.', "_"),
        None => limit.rate().to_string(),
    }
}

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
pub(super) fn unmatched_samples(
    domains: &BTreeMap<Arc<str>, Arc<DomainStats>>,
    list: &mut SampleWriter<'_>,
) {
    for (domain, stats) in domains {
        let domain = sanitize(domain);
        let counts = stats.0.iter().filter_map(OnceLock::get);
        let totals = OwnCounts::totals(counts.map(|counts| &**counts));
        for (cause, total) in CAUSES.iter().zip(totals) {
            let labels = &[("domain", &*domain), ("cause", *cause)];
            list.counter("tollgate.unmatched_descriptors_total", labels, total);
        }
    }
}
