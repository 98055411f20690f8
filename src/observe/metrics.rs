//! All statistics of the process, and the samples that sinks render from them.
//!
//! Names are the reference's where it has one (`ratelimit.…`); tollgate's own metrics are called `tollgate.…`. Each
//! part names its own, in a function `samples` next to its stats, and each sink renders them in its form.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
};

use crate::{
    core::{
        limit::{NearRatio, Rule, RuleId},
        matcher::Matcher,
    },
    foundation::{
        lock::lock,
        sample::{Sample, SampleWriter},
    },
    observe::{log_lines::LogStats, metrics::rule_stats::DomainStats, traces::TraceStats},
    store::{
        known::KnownTables,
        loss::LossStats,
        memory::MemoryStore,
        redis::stats::{self as redis, RedisStats},
        returns::ReturnStats,
        slices::SliceTables,
    },
};

mod config_stats;
mod dynamic_names;
mod lease_stats;
pub(crate) mod mapper;
pub(crate) mod mogrifier;
pub(crate) mod process;
pub(crate) mod prometheus;
mod recorder;
mod rule_stats;
mod server;
pub(crate) mod statsd;
#[cfg(test)]
mod tests;
mod worker_stats;

pub(crate) use config_stats::{ConfigStats, LONG_LOAD, LoadHistory, TakenLoad};
pub(crate) use recorder::{Recorder, other_refusal};
pub(crate) use rule_stats::RuleTotals;
pub(crate) use server::{CutOff, RESET_CODES, ServerStats, reset_code};
pub(crate) use worker_stats::{CallCount, CallTotals};

use dynamic_names::DynamicNames;
use rule_stats::RuleStats;
use statsd::SinkStats;
use worker_stats::WorkerStats;

/// All statistics of the process. Workers share it, and each writes through its own `Recorder`.
#[derive(Debug, Default)]
pub struct Metrics {
    near_ratio: NearRatio,
    /// One per recorder.
    workers: Box<[WorkerStats]>,
    pub(crate) config: ConfigStats,
    /// The statistics of each rule in use, by path.
    rules: Mutex<BTreeMap<Arc<str>, Arc<RuleStats>>>,
    /// The statistics of each domain of the rules in use, by name.
    domains: Mutex<BTreeMap<Arc<str>, Arc<DomainStats>>>,
    /// Statistics under names that requests create.
    dynamic_names: Mutex<DynamicNames>,
    pub redis: Arc<RedisStats>,
    pub redis_per_second: Arc<RedisStats>,
    pub(crate) known: Arc<KnownTables>,
    pub loss: Arc<LossStats>,
    pub(crate) slices: Arc<SliceTables>,
    pub returns: Arc<ReturnStats>,
    pub(crate) server: Arc<ServerStats>,
    pub traces: Arc<TraceStats>,
    pub statsd: Arc<SinkStats>,
    pub log: Arc<LogStats>,
}

/// The statistics of one set of rules.
#[derive(Debug)]
pub struct RuleSetStats {
    /// One per rule, in the matcher's order.
    rules: Vec<Arc<RuleStats>>,
    /// One per domain, in the matcher's order.
    domains: Vec<Arc<DomainStats>>,
}

impl RuleSetStats {
    /// The totals of a rule, if it has ever been hit.
    pub(crate) fn totals(&self, rule: RuleId) -> Option<RuleTotals> {
        self.rules.get(rule.0)?.totals()
    }

    /// Counts a reset that freed `slots` of a rule.
    pub(crate) fn reset_slots(&self, rule: RuleId, slots: u64) {
        if let Some(stats) = self.rules.get(rule.0) {
            stats.slots().reset(slots);
        }
    }
}

impl Metrics {
    /// Empty statistics. At most `max_dynamic_names` names can come from requests.
    pub fn new(near_ratio: NearRatio, max_dynamic_names: usize) -> Self {
        Self {
            near_ratio,
            dynamic_names: Mutex::new(DynamicNames::new(max_dynamic_names)),
            ..Self::default()
        }
        .for_workers(1)
    }

    /// Makes room for `count` recorders, at least one. Must be called before anything is recorded.
    #[must_use]
    pub fn for_workers(mut self, count: usize) -> Self {
        self.workers = (0..count.max(1)).map(|_| WorkerStats::default()).collect();
        self
    }

    /// The counters of the rules and domains of `matcher`. Rules and domains that existed before keep their counts.
    pub fn rule_set(&self, matcher: &Matcher) -> RuleSetStats {
        RuleSetStats {
            rules: self.rules(matcher.rules()),
            domains: self.domains(matcher.domain_names()),
        }
    }

    /// The counters of domains, in their order.
    fn domains(&self, names: &[Box<[u8]>]) -> Vec<Arc<DomainStats>> {
        let mut known = lock(&self.domains);
        let mut stats = BTreeMap::new();
        let mut in_order = Vec::with_capacity(names.len());
        for name in names {
            let name = String::from_utf8_lossy(name);
            let old = known.get(&*name).cloned();
            let new = || Arc::new(DomainStats::for_workers(self.workers.len()));
            let of_domain = old.unwrap_or_else(new);
            in_order.push(of_domain.clone());
            stats.insert(name.into(), of_domain);
        }
        *known = stats;
        in_order
    }

    /// The counters of `rules`, in their order. A rule that existed before keeps its counts, and the counts of removed
    /// rules are dropped, so there are as many entries as rules.
    fn rules(&self, rules: &[Rule]) -> Vec<Arc<RuleStats>> {
        let mut known = lock(&self.rules);
        let stats: BTreeMap<_, _> = rules
            .iter()
            .map(|rule| {
                let old = known.get(&rule.path);
                let stats = RuleStats::of_rule(rule, old, self.workers.len());
                (rule.path.clone(), stats)
            })
            .collect();
        let in_order = rules.iter().map(|rule| stats[&rule.path].clone()).collect();
        *known = stats;
        in_order
    }

    /// Totals of calls and decisions.
    pub(crate) fn call_totals(&self) -> CallTotals {
        worker_stats::totals(&self.workers)
    }

    /// Stores that do not answer: requests have failed, or a server is lost, also before the first request.
    pub(crate) fn stores_lost(&self) -> u64 {
        let stores = [&self.redis, &self.redis_per_second];
        let has_lost =
            |stats: &&&Arc<RedisStats>| stats.nodes().iter().any(|node| node.failure.is_some());
        let lost = stores.iter().filter(has_lost).count();
        self.loss.lost.load(Relaxed).max(lost as u64)
    }

    /// Passes all statistics at this moment to `take`, including those that only histograms can show.
    pub fn each_histogram_sample(
        &self,
        memory: Option<&MemoryStore>,
        take: &mut dyn FnMut(&Sample<'_>),
    ) {
        self.each_sample(memory, take);
        worker_stats::fine_samples(&self.workers, &mut SampleWriter::new(take));
    }

    /// Passes all statistics at this moment to `take`, one by one; those of one rule are adjacent.
    pub fn each_sample(&self, memory: Option<&MemoryStore>, take: &mut dyn FnMut(&Sample<'_>)) {
        let list = &mut SampleWriter::new(take);
        let rules = lock(&self.rules).clone();
        let values = lock(&self.dynamic_names).values.clone();
        rule_stats::samples(&rules, &values, list);
        let domains = lock(&self.domains).clone();
        rule_stats::unmatched_samples(&domains, list);
        dynamic_names::samples(&self.dynamic_names, list);
        worker_stats::samples(&self.workers, list);
        self.config.samples(list);
        self.server.samples(list);
        self.traces.samples(list);
        self.statsd.samples(list);
        self.log.samples(list);
        redis::samples(&self.redis, &self.redis_per_second, list);
        list.gauge("tollgate.stores_lost", &[], self.stores_lost());
        self.loss.samples(list);
        self.slices.samples(list);
        self.returns.samples(list);
        self.known.samples(list);
        if let Some(store) = memory {
            store.samples(list);
        }
    }
}
