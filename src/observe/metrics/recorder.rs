//! Records the calls and decisions of one worker. The limiter and the gRPC service call it.

use std::{ptr, sync::Arc, time::Duration};

use crate::{
    core::{
        counter::{Batch, CounterKind, CounterState},
        decision::{Binding, Code, Decision, Leased, Tally, tally},
        lease::order::{OrderOutcome, OrderedHits},
        limit::{Allows, Limit, OnStoreLoss, Rule},
        matcher::{DomainId, NoMatch},
        plan::{Outcome, Plan, PlannedDescriptor},
        request::{Entry, Request},
    },
    foundation::{lock::lock, log_throttle::LogThrottle, printable::Shown},
    observe::metrics::{
        Metrics, RuleSetStats,
        rule_stats::{DEGRADED, NAMED, NO_LIMIT, NO_ROOM, NO_RULE, ON_STORE_LOSS, RuleStats},
        worker_stats::{CallCount, WorkerStats},
    },
};

/// A worker's handle for recording.
#[derive(Clone, Debug)]
pub struct Recorder {
    metrics: Arc<Metrics>,
    worker: usize,
}

/// The total of hits that are refused for another cause than their limit, if this is one: its rule refuses all while
/// the store does not answer, or memory has no room for a counter of its own.
pub(crate) fn other_refusal(
    plan: &Plan<'_>,
    binding: &Binding,
    count: &CounterState,
) -> Option<usize> {
    let is_denied = || plan.batch.spec(binding.counter).on_loss == OnStoreLoss::Deny;
    if count.is_degraded && is_denied() {
        return Some(ON_STORE_LOSS);
    }
    (count.lacks_room && binding.is_over).then_some(NO_ROOM)
}

static WITHOUT_LIMIT: LogThrottle = LogThrottle::new();

/// Most descriptors of a request, and entries of each, that the log names.
const MOST_NAMED: usize = 4;

/// Warns once a minute of a request that no limit applies to, with the keys of its descriptors: those of the rules, or
/// their order, may be others.
#[cold]
fn log_without_limit(request: &Request<'_>) {
    if !WITHOUT_LIMIT.may_log() {
        return;
    }
    let key = |entry: &Entry<'_>| Shown(entry.key).to_string();
    let descriptors = request.descriptors().take(MOST_NAMED).map(|descriptor| {
        let entries = descriptor.entries.iter().take(MOST_NAMED);
        let keys: Vec<_> = entries.map(key).collect();
        format!("({})", keys.join(", "))
    });
    let descriptors: Vec<_> = descriptors.collect();
    tracing::warn!(
        domain = %Shown(request.domain),
        descriptors = %descriptors.join(" "),
        "no limit applies to a request, so it passes: compare the keys of its descriptors and their order with the \
         rules; tollgate_requests_without_limit_total counts such requests"
    );
}

impl Metrics {
    /// The recorder of worker number `worker`. If there are more recorders than [`Self::for_workers`] made room for,
    /// some share counters; those must stay on one thread, or counts get lost.
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

    /// Records the decision on a request, and for each descriptor how many hits were within, near and over its binding
    /// limit. Returns whether any were near or over.
    pub fn record(
        &self,
        stats: &RuleSetStats,
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[CounterState],
        decision: &Decision,
    ) -> bool {
        let mut is_any_near = false;
        let own = self.stats();
        own.add(CallCount::GlobalShadowMode, decision.is_shadowed.into());
        match decision.overall {
            Code::Ok => own.add(CallCount::Ok, 1),
            Code::OverLimit => own.add(CallCount::OverLimit, 1),
        }
        let mut unmatched = 0;
        for (outcome, status) in plan.outcomes.iter().zip(&decision.statuses) {
            match (outcome, &status.binding) {
                (Outcome::Counted(counted), Some(binding)) => {
                    let count = counts[binding.counter];
                    let hits = counted.hits.added();
                    let refused = other_refusal(plan, binding, &count);
                    let fell = match refused {
                        Some(_) => Tally::default(),
                        None => tally(&binding.limit, self.metrics.near_ratio, hits, count),
                    };
                    let is_shadowed = counted.rule.is_some_and(|rule| rule.shadow_mode);
                    let is_named = self.with_stats(stats, request, counted, |stats| {
                        stats.record(self.worker, hits, fell, &count, is_shadowed);
                        if let Some(cause) = refused {
                            stats.add(self.worker, cause, hits);
                        }
                    });
                    if is_named && let Some(rule) = counted.rule {
                        stats.rules[rule.id.0].add(self.worker, NAMED, hits);
                    }
                    if fell.near | fell.over != 0 {
                        is_any_near = true;
                        let limit = plan.limits[binding.counter];
                        self.record_limit(&stats.rules, counted.rule, limit, fell);
                    }
                }
                (Outcome::Unmatched(reason), _) => {
                    unmatched += 1;
                    self.record_unmatched(stats, request.domain, *reason);
                }
                _ => {}
            }
        }
        if unmatched == plan.outcomes.len() {
            own.add(CallCount::WithoutLimit, 1);
            log_without_limit(request);
        }
        if let Some(leased) = &decision.leased {
            Self::record_leased(stats, plan, leased);
        }
        is_any_near
    }

    #[cold]
    fn record_leased(stats: &RuleSetStats, plan: &Plan<'_>, leased: &Leased) {
        let rule_of = |index: usize| match &plan.outcomes[index] {
            Outcome::Counted(counted) => counted.rule,
            _ => None,
        };
        for (index, part) in &leased.reserved {
            if let Some(rule) = rule_of(*index) {
                stats.rules[rule.id.0].reservations().made(part.hits);
            }
        }
        for &index in &leased.slots {
            if let Some(rule) = rule_of(index) {
                stats.rules[rule.id.0].slots().taken(rule.ttl());
            }
        }
    }

    /// Records what became of orders.
    pub(crate) fn record_orders(&self, stats: &RuleSetStats, hits: &OrderedHits<'_>) {
        self.stats().add(CallCount::StrayOrders, hits.strays);
        for &(rule, outcome, is_late) in &hits.outcomes {
            let stats = &stats.rules[rule.id.0];
            match outcome {
                OrderOutcome::Freed { is_first, age } => {
                    stats.slots().freed(is_first, age, rule.ttl());
                }
                _ => stats.reservations().ended(outcome, is_late),
            }
        }
    }

    /// Records costs that buckets had no tokens for: `added` are the counts after `adds`, which belong to `outcomes`.
    pub(crate) fn record_beyond(
        &self,
        stats: &RuleSetStats,
        outcomes: &[(&Rule, OrderOutcome, bool)],
        adds: &Batch,
        added: &[CounterState],
    ) {
        for (spec, count) in adds.all_specs().zip(added) {
            let beyond = count.after.saturating_sub(spec.limit).min(spec.hits);
            let is_lost = beyond > 0 && matches!(spec.method, CounterKind::TokenBucket { .. });
            if let (true, Some((rule, ..))) = (is_lost, outcomes.get(spec.descriptor as usize)) {
                stats.rules[rule.id.0].reservations().lost(beyond);
            }
        }
    }

    /// Records costs, or hits to give back, that the store has perhaps not counted.
    pub(crate) fn record_lost_settlements(&self, count: u64) {
        self.stats().add(CallCount::LostSettlements, count);
    }

    /// Records an answer with a lease that its caller did not use.
    pub(crate) fn record_unused_answer(&self) {
        self.stats().add(CallCount::UnusedAnswers, 1);
    }

    /// Records hits near or over a limit, unless the request brought that limit itself.
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
        let (DomainId(id), cause) = match reason {
            NoMatch::UnknownDomain => {
                return lock(&self.metrics.dynamic_names).unknown_domain(domain);
            }
            NoMatch::NoRule(id) => (id, NO_RULE),
            NoMatch::NoLimit(id) => (id, NO_LIMIT),
        };
        stats.domains[id].record(self.worker, cause);
    }

    /// Returns whether they are those of another name than the rule's.
    fn with_stats(
        &self,
        stats: &RuleSetStats,
        request: &Request<'_>,
        counted: &PlannedDescriptor<'_>,
        record: impl FnOnce(&RuleStats),
    ) -> bool {
        if let Some(key) = &counted.metric_key {
            // The lock is held while recording, because all workers share these counters.
            let mut dynamic_names = lock(&self.metrics.dynamic_names);
            if let Some(stats) = dynamic_names.stats(key, request.domain) {
                record(&stats);
                return true;
            }
        }
        // If there is no room for a name of its own, the hit counts for its rule.
        if let Some(rule) = counted.rule {
            record(&stats.rules[rule.id.0]);
        }
        false
    }

    /// Records a gRPC call, whatever its result.
    pub fn record_call(&self, took: Duration) {
        self.stats().add(CallCount::Calls, 1);
        self.stats().response_time.record(took);
    }

    /// Records a request without an answer, because it was invalid or there are no rules.
    pub fn record_bad_request(&self) {
        self.stats().add(CallCount::BadRequests, 1);
    }

    /// Records a request without an answer, because the store did not return counts.
    #[cold]
    pub fn record_store_failure(
        &self,
        stats: &RuleSetStats,
        request: &Request<'_>,
        plan: &Plan<'_>,
    ) {
        self.stats().add(CallCount::StoreFailures, 1);
        for outcome in &plan.outcomes {
            if let Outcome::Counted(counted) = outcome {
                self.with_stats(stats, request, counted, |stats| {
                    stats.add(self.worker, DEGRADED, 1);
                });
            }
        }
    }

    /// Records a call that was answered after its deadline, or whose caller gave up.
    pub fn record_late_call(&self) {
        self.stats().add(CallCount::LateCalls, 1);
    }
}
