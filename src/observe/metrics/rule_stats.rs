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
        metric_name::{RuleLabels, domain_and_rule, sanitize},
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
    counts: Arc<[OnceLock<Box<OwnCounts<10>>>]>,
    /// In the rule's order.
    limits: Box<[LimitStats]>,
    leases: Arc<LeaseStats>,
}

/// Counts of the leases of one rule, if it has any.
#[derive(Debug, Default)]
struct LeaseStats {
    reservations: OnceLock<Box<ReservationStats>>,
    slots: OnceLock<Box<SlotStats>>,
}

/// Totals of [`RuleStats`] over all workers and all rules of one name: all hits; those over the limit; descriptors that
/// the store did not decide; hits refused by `on_store_loss`, and for lack of room for a counter of their own; those
/// within and near the limit; those over it that shadow mode let pass, and that the local cache knew to be over; and
/// those that are counted under another name.
pub(crate) type RuleTotals = [u64; 10];

const HITS: usize = 0;
const OVER: usize = 1;
pub(super) const DEGRADED: usize = 2;
pub(super) const ON_STORE_LOSS: usize = 3;
pub(super) const NO_ROOM: usize = 4;
const WITHIN: usize = 5;
const NEAR: usize = 6;
const SHADOWED: usize = 7;
const CACHED: usize = 8;
pub(super) const NAMED: usize = 9;

impl RuleStats {
    /// Counters for `count` workers, and none for single limits.
    pub(super) fn for_workers(count: usize) -> Self {
        Self {
            counts: (0..count).map(|_| OnceLock::new()).collect(),
            limits: Box::default(),
            leases: Arc::default(),
        }
    }

    /// Counters for `rule` that continue its `old` ones, and for each limit those of the old one with its label.
    pub(super) fn of_rule(rule: &Rule, old: Option<&Arc<Self>>, workers: usize) -> Arc<Self> {
        let mut stats = Self::for_workers(workers);
        stats.limits = limits(rule);
        if let Some(old) = old {
            stats.counts = old.counts.clone();
            stats.leases = old.leases.clone();
            for limit in &mut stats.limits {
                let mut known = old.limits.iter();
                if let Some(same) = known.find(|known| known.label == limit.label) {
                    limit.counts = same.counts.clone();
                }
            }
        }
        Arc::new(stats)
    }

    /// Adds the hits of a request: `fell` says how many were within, near and over the binding limit, and `count` is
    /// the state of its counter after them.
    pub(super) fn record(
        &self,
        worker: usize,
        hits: u64,
        fell: Tally,
        count: &CounterState,
        is_shadowed: bool,
    ) {
        let counts = self.of_worker(worker);
        counts.add(HITS, hits);
        counts.add(WITHIN, fell.within);
        let degraded = u64::from(count.is_degraded);
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

    /// Adds to the total with this index.
    pub(super) fn add(&self, worker: usize, index: usize, count: u64) {
        self.of_worker(worker).add(index, count);
    }

    /// Statistics that all workers share have one set of counters, the first.
    fn of_worker(&self, worker: usize) -> &OwnCounts<10> {
        let counts = self.counts.get(worker).unwrap_or(&self.counts[0]);
        counts.get_or_init(Box::default)
    }

    /// Adds hits that fell near or over the limit with this index.
    pub(super) fn record_limit(&self, limit: usize, fell: Tally, worker: usize) {
        let new = || self.counts.iter().map(|_| OwnCounts::default()).collect();
        let counts = &self.limits[limit].counts.get_or_init(new)[worker];
        counts.add(0, fell.near);
        counts.add(1, fell.over);
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

    /// Whether a request has ever counted for the rule.
    fn is_used(&self) -> bool {
        self.counts.iter().any(|counts| counts.get().is_some())
    }

    /// Writes each limit of the rule that has these labels, and its totals.
    fn limit_samples(&self, [domain, rule]: RuleLabels<'_>, list: &mut SampleWriter<'_>) {
        let sums = self.sums();
        for limit in &self.limits {
            let [near, over] = OwnCounts::totals(limit.counts.get().into_iter().flatten());
            let labels = &[domain, rule, ("limit", &*limit.label)];
            list.gauge("tollgate.limit_requests", labels, limit.requests);
            list.gauge("tollgate.limit_period_seconds", labels, limit.period_secs);
            let hits = sums[HITS] + sums[NAMED];
            list.counter("tollgate.limit_hits_total", labels, hits);
            list.counter("tollgate.limit_near_total", labels, near);
            list.counter("tollgate.limit_over_total", labels, over);
        }
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
        let path = sanitize(path);
        let rule = domain_and_rule(&path);
        if stats.is_used() {
            stats.limit_samples(rule, list);
        }
        if let Some(reservations) = stats.leases.reservations.get() {
            reservations.samples(rule, list);
        }
        if let Some(slots) = stats.leases.slots.get() {
            slots.samples(rule, list);
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
    let [domain, rule] = domain_and_rule(key);
    if totals[DEGRADED] > 0 {
        let name = "tollgate.rule_without_store_total";
        list.counter(name, &[domain, rule], totals[DEGRADED]);
    }
    for (cause, which) in [("on_store_loss", ON_STORE_LOSS), ("no_room", NO_ROOM)] {
        if totals[which] > 0 {
            let labels = &[domain, rule, ("cause", cause)];
            list.counter("tollgate.rule_refused_hits_total", labels, totals[which]);
        }
    }
    // As in the reference, labels have the first two levels of a rule, and series of equal labels are added up. A
    // domain alone is a part of the name.
    let levels = ["domain", "key1", "key2"].into_iter().zip(key.split('.'));
    let levels: Vec<_> = levels.filter(|_| key.contains('.')).collect();
    for (stat, which) in [
        ("total_hits", HITS),
        ("within_limit", WITHIN),
        ("near_limit", NEAR),
        ("over_limit", OVER),
        ("shadow_mode", SHADOWED),
    ] {
        // Few rules ever let hits pass by shadow mode.
        if totals[which] > 0 || which != SHADOWED {
            let statsd = format!("ratelimit.service.rate_limit.{key}.{stat}");
            let short = format!("ratelimit.service.rate_limit.{stat}");
            list.sample(&Sample {
                name: if levels.is_empty() { &statsd } else { &short },
                labels: &levels,
                statsd: Some(&statsd),
                value: SampleValue::Counter(totals[which]),
            });
        }
    }
    if totals[CACHED] > 0 {
        let name = format!("ratelimit.service.rate_limit.{key}.over_limit_with_local_cache");
        list.counter(&name, &[], totals[CACHED]);
    }
}

/// A limit, as its statistics show it.
#[derive(Debug)]
struct LimitStats {
    /// Its name, or `3/second`.
    label: Box<str>,
    requests: u64,
    period_secs: u64,
    /// Hits near it and over it, by worker. They are allocated at the first, because few rules come that far.
    counts: Arc<OnceLock<Box<[OwnCounts<2>]>>>,
}

/// The limits of a rule, without counts.
fn limits(rule: &Rule) -> Box<[LimitStats]> {
    let limits: &[Limit] = match &rule.allows {
        Allows::Unlimited => &[],
        Allows::Within(limits) => limits,
    };
    let mut stats: Vec<LimitStats> = Vec::with_capacity(limits.len());
    for limit in limits {
        let mut label = label(limit);
        // Limits of a rule can have one name, and differ in nothing but their algorithm.
        for more in [limit.algorithm.name(), &limit.rate().to_string()] {
            if stats.iter().any(|other| *other.label == *label) {
                label = format!("{label} {more}");
            }
        }
        stats.push(LimitStats {
            label: label.into(),
            requests: limit.requests_per_unit,
            period_secs: limit.period.secs(),
            counts: Arc::default(),
        });
    }
    stats.into()
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
