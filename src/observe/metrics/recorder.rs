//! Records calls and decisions, for one worker.

use std::{ptr, sync::Arc, time::Duration};

use crate::{
    core::{
        counter::CounterState,
        decision::{Code, Decision, Tally, tally},
        limit::{Allows, Limit, Rule},
        matcher::{DomainId, NoMatch},
        plan::{Outcome, Plan, PlannedDescriptor},
        request::Request,
    },
    foundation::lock::lock,
};

use super::{
    Metrics, RuleSetStats,
    rule_stats::RuleStats,
    worker_stats::{WorkerStats, add_alone},
};

/// A worker's handle for recording.
#[derive(Clone, Debug)]
pub struct Recorder {
    metrics: Arc<Metrics>,
    worker: usize,
}

impl Metrics {
    /// The recorder of worker number `worker`; beyond the room they share counters. Recorders that share must stay on
    /// one thread, or counts get lost.
    pub fn recorder(self: Arc<Self>, worker: usize) -> Recorder {
        Recorder {
            worker: worker % self.workers.len(),
            metrics: self,
        }
    }
}

impl Recorder {
    fn stats(&self) -> &WorkerStats {
        &self.metrics.workers[self.worker]
    }

    /// Records the decision on a request, and how the hits of each descriptor fell against its limit. Returns whether
    /// any fell over it.
    pub fn record(
        &self,
        stats: &RuleSetStats,
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[CounterState],
        decision: &Decision,
    ) -> bool {
        let mut is_any_over = false;
        let own = self.stats();
        add_alone(&own.global_shadow_mode, u64::from(decision.is_shadowed));
        match decision.overall {
            Code::Ok => add_alone(&own.decisions_ok, 1),
            Code::OverLimit => add_alone(&own.decisions_over_limit, 1),
        }
        for (outcome, status) in plan.outcomes.iter().zip(&decision.statuses) {
            match (outcome, &status.binding) {
                (Outcome::Counted(counted), Some(binding)) => {
                    let count = counts[binding.counter];
                    let fell = tally(&binding.limit, self.metrics.near_ratio, counted.hits, count);
                    let is_shadowed = counted.rule.is_some_and(|rule| rule.shadow_mode);
                    let hits = counted.hits.added();
                    self.with_stats(&stats.rules, counted, |stats| {
                        let counts = stats.of(self.worker);
                        counts.record(hits, fell, &count, is_shadowed);
                    });
                    if fell.near | fell.over != 0 {
                        is_any_over |= fell.over != 0;
                        let limit = plan.limits[binding.counter];
                        self.record_limit(&stats.rules, counted.rule, limit, fell);
                    }
                }
                (Outcome::Unmatched(reason), _) => {
                    self.record_unmatched(stats, request.domain, *reason);
                }
                _ => {}
            }
        }
        is_any_over
    }

    /// Records hits near or over a limit, which belongs to `rule` unless the request brought it.
    fn record_limit(
        &self,
        stats: &[Arc<RuleStats>],
        rule: Option<&Rule>,
        limit: &Limit,
        fell: Tally,
    ) {
        if let Some(rule) = rule
            && let Allows::Within(limits) = &rule.allows
            && let Some(index) = limits.iter().position(|other| ptr::eq(other, limit))
        {
            stats[rule.id.0].record_limit(index, fell, self.worker);
        }
    }

    fn record_unmatched(&self, stats: &RuleSetStats, domain: &[u8], reason: NoMatch) {
        let of = |DomainId(id)| stats.domains[id].of(self.worker);
        match reason {
            NoMatch::UnknownDomain => lock(&self.metrics.dynamic_names).unknown_domain(domain),
            NoMatch::NoRule(id) => of(id).record_no_rule(),
            NoMatch::NoLimit(id) => of(id).record_no_limit(),
        }
    }

    fn with_stats(
        &self,
        rules: &[Arc<RuleStats>],
        counted: &PlannedDescriptor<'_>,
        record: impl FnOnce(&RuleStats),
    ) {
        if let Some(key) = &counted.metric_key {
            // Stays locked while recording, because all workers share these counters.
            let mut dynamic_names = lock(&self.metrics.dynamic_names);
            if let Some(stats) = dynamic_names.stats(key) {
                return record(&stats);
            }
        }
        // Without room for a name of its own, the hit counts for its rule.
        if let Some(rule) = counted.rule {
            record(&rules[rule.id.0]);
        }
    }

    /// Records a gRPC call, with any result.
    pub fn record_call(&self, took: Duration) {
        add_alone(&self.stats().calls, 1);
        self.stats().response_time.record(took);
    }

    /// Records a request without an answer, because it was invalid or there are no rules.
    pub fn record_bad_request(&self) {
        add_alone(&self.stats().bad_requests, 1);
    }

    /// Records a request without an answer, because the store did not return counts.
    pub fn record_store_failure(&self) {
        add_alone(&self.stats().store_failures, 1);
    }

    /// Records a call that was answered after its deadline, or whose caller gave up.
    pub fn record_late_call(&self) {
        add_alone(&self.stats().late_calls, 1);
    }
}
