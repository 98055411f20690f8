//! Stats of the caches.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::foundation::{lock::lock, sample::SampleWriter};

/// Stats of the caches of all workers.
#[derive(Debug, Default)]
pub struct CacheStats(Mutex<Vec<Arc<WorkerCacheStats>>>);

/// Stats of one worker's cache. They change with each request, so no other thread writes near them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct WorkerCacheStats {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) evicted: AtomicU64,
    /// Entries after the last new one.
    pub(super) entries: AtomicU64,
}

/// The stats of caches up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    pub evicted: u64,
    pub entries: u64,
}

impl CacheStats {
    pub(super) fn new_worker_stats(&self) -> Arc<WorkerCacheStats> {
        let worker_stats = Arc::<WorkerCacheStats>::default();
        let mut all = lock(&self.0);
        all.push(worker_stats.clone());
        worker_stats
    }

    /// The stats of all caches together.
    pub fn totals(&self) -> Totals {
        let all = lock(&self.0);
        let sum = |pick: fn(&WorkerCacheStats) -> &AtomicU64| {
            all.iter()
                .map(|worker_stats| pick(worker_stats).load(Relaxed))
                .sum()
        };
        Totals {
            hits: sum(|worker_stats| &worker_stats.hits),
            misses: sum(|worker_stats| &worker_stats.misses),
            expired: sum(|worker_stats| &worker_stats.expired),
            evicted: sum(|worker_stats| &worker_stats.evicted),
            entries: sum(|worker_stats| &worker_stats.entries),
        }
    }
}

impl CacheStats {
    /// Passes on the stats of all caches together.
    pub fn samples(&self, list: &mut SampleWriter<'_>) {
        let totals = self.totals();
        let lookups = totals.hits + totals.misses;
        list.gauge("ratelimit.localcache.hitCount", totals.hits);
        list.gauge("ratelimit.localcache.missCount", totals.misses);
        list.gauge("ratelimit.localcache.lookupCount", lookups);
        list.gauge("ratelimit.localcache.expiredCount", totals.expired);
        list.gauge("ratelimit.localcache.evacuateCount", totals.evicted);
        list.gauge("ratelimit.localcache.entryCount", totals.entries);
    }
}
