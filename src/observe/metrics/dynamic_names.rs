//! Statistics under names that requests create, with a bound on their number and length.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::foundation::{
    lock::lock, log_throttle::LogThrottle, metric_name::sanitize, sample::SampleWriter,
};

use super::rule_stats::RuleStats;

/// Longest name that requests can create, in bytes. Values can be whole headers, and ten thousand of those are more
/// than a process should keep.
pub(super) const MAX_DYNAMIC_NAME_BYTES: usize = 512;

/// A name takes a place for each beginning of this many bytes, because a scraped page contains each name several times,
/// in several forms.
pub(super) const PLACE_BYTES: usize = 128;

static FULL: LogThrottle = LogThrottle::new();

/// Statistics whose names come from requests: values of `detailed_metric` and `value_to_metric`, limit overrides,
/// unknown domains. Bounded, because clients could otherwise fill the memory.
#[derive(Debug, Default)]
pub(super) struct DynamicNames {
    /// Places that no name has taken.
    free: usize,
    /// The places of each domain, and of all domains without rules together, under the empty name.
    taken: HashMap<Box<str>, usize>,
    // Scrapes hold the two maps, so that they take the lock, which decisions need too, for a moment only.
    pub(super) values: Arc<HashMap<Arc<str>, Arc<RuleStats>>>,
    pub(super) unknown_domains: Arc<HashMap<Arc<str>, Arc<AtomicU64>>>,
    /// Events that were not counted under a name of their own, because no more names were allowed.
    pub(super) overflow: u64,
}

impl DynamicNames {
    /// An empty set with this many places.
    pub(super) fn new(places: usize) -> Self {
        Self {
            free: places,
            ..Self::default()
        }
    }

    /// The counts under this name of `domain`, unless the name is new and there is no room for it.
    pub(super) fn stats(&mut self, key: &str, domain: &[u8]) -> Option<Arc<RuleStats>> {
        let key = sanitize(key);
        if let Some(stats) = self.values.get(&*key) {
            return Some(stats.clone());
        }
        if !self.takes_room_for(&key, &String::from_utf8_lossy(domain)) {
            return None;
        }
        // A lock guards these, so all workers share one set of counters.
        let stats = Arc::new(RuleStats::for_workers(1));
        Arc::make_mut(&mut self.values).insert((*key).into(), stats.clone());
        Some(stats)
    }

    /// Counts a request for a domain without rules.
    pub(super) fn unknown_domain(&mut self, domain: &[u8]) {
        let domain = String::from_utf8_lossy(domain);
        let domain = sanitize(&domain);
        if let Some(count) = self.unknown_domains.get(&*domain) {
            count.fetch_add(1, Relaxed);
        } else if self.takes_room_for(&domain, "") {
            let domains = Arc::make_mut(&mut self.unknown_domains);
            domains.insert((*domain).into(), Arc::new(1.into()));
        }
    }

    /// Takes room for a name of `domain` if there is some; otherwise counts the overflow. Returns whether there was. A
    /// domain leaves as much as it has, so that others always get some.
    fn takes_room_for(&mut self, name: &str, domain: &str) -> bool {
        let places = name.len().div_ceil(PLACE_BYTES).max(1);
        let before = self.taken.get(domain).copied().unwrap_or_default();
        let has_room = name.len() <= MAX_DYNAMIC_NAME_BYTES && before + places <= self.free;
        if has_room {
            self.free -= places;
            self.taken.insert(domain.into(), before + places);
            return true;
        }
        self.overflow += 1;
        if FULL.may_log() {
            let of = match domain {
                "" => "domains without rules",
                domain => domain,
            };
            tracing::warn!(
                "no room for more names of metrics that requests of {of:?} make up: others count under the names of \
                 their rules, and tollgate_metric_names_overflow_total counts them"
            );
        }
        false
    }
}

/// Writes the counts of unknown domains, and the overflow.
pub(super) fn samples(names: &Mutex<DynamicNames>, list: &mut SampleWriter<'_>) {
    let names = lock(names);
    let (domains, overflow) = (names.unknown_domains.clone(), names.overflow);
    drop(names);
    for (domain, count) in &*domains {
        let name = format!("ratelimit.service.rate_limit.{domain}.domain_not_found");
        list.counter(&name, &[], count.load(Relaxed));
    }
    list.counter("tollgate.metric_names_overflow_total", &[], overflow);
}
