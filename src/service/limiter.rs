//! Answers requests: matcher, plan, store and decision meet here.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use arc_swap::{ArcSwapOption, Guard};

use crate::{
    core::{
        counter::{Batch, CounterState, CounterStates},
        decision::{Decision, decide_into},
        limit::{LeasePolicy, Modes, Rule},
        matcher::Matcher,
        plan::Plan,
        request::Request,
        window::Timestamp,
    },
    foundation::lock::lock,
    observe::{
        decision_log::{DecisionLog, RequestTimes},
        metrics::{Metrics, Recorder, RuleSetStats},
        talkers::TalkerRecorder,
    },
    service::leases::LeaseBook,
    store::{
        contract::{Deadline, Store, StoreError},
        returns::Returns,
    },
};

mod leasing;

/// The rules in use, shared by all workers. Empty until the first good load.
///
/// The last owner of a rule set frees it, and freeing 100,000 rules takes tens of milliseconds. A worker
/// would spend them in the middle of a decision, while all other requests on its thread wait. So a
/// retired set stays here until it has no other owner; from then on no request can obtain it again.
#[derive(Clone, Debug, Default)]
pub struct Rules(Arc<LoadedRules>);

#[derive(Debug, Default)]
struct LoadedRules {
    current: ArcSwapOption<RuleSet>,
    /// Whether any rule in use reserves hits or takes slots.
    has_leases: AtomicBool,
    /// Earlier sets that a request may still hold.
    retired: Mutex<Vec<Arc<RuleSet>>>,
}

/// The rules of one request. The first eight that a thread holds at a time change no count of owners, for which threads
/// could contend.
type HeldRules = Guard<Option<Arc<RuleSet>>>;

/// One load of the rules, and the stats that belong to it.
#[derive(Debug)]
pub struct RuleSet {
    pub matcher: Matcher,
    pub stats: RuleSetStats,
}

impl Rules {
    /// Takes `matcher` into use. Requests under way finish with the rules they began with.
    pub fn swap(&self, matcher: Matcher, metrics: &Metrics) {
        let stats = metrics.rule_set(&matcher);
        let leases = |rule: &Rule| rule.lease.is_some_and(|lease| lease != LeasePolicy::Slices);
        let has_leases = matcher.rules().iter().any(leases);
        self.0.has_leases.store(has_leases, Relaxed);
        let new = Arc::new(RuleSet { matcher, stats });
        let old = self.0.current.swap(Some(new));
        lock(&self.0.retired).extend(old);
    }

    pub fn current(&self) -> Option<Arc<RuleSet>> {
        self.0.current.load_full()
    }

    /// Whether any rule in use reserves hits or takes slots, so that answers carry leases.
    pub(crate) fn has_leases(&self) -> bool {
        self.0.has_leases.load(Relaxed)
    }

    /// Removes and returns the earlier sets that have no other owner. Call it now and then, where
    /// freeing them may take its time.
    pub fn take_unused(&self) -> Vec<Arc<RuleSet>> {
        let is_unused = |set: &mut Arc<RuleSet>| Arc::strong_count(set) == 1;
        lock(&self.0.retired).extract_if(.., is_unused).collect()
    }
}

/// Turns requests into decisions, for one worker.
#[derive(Clone, Debug)]
pub struct Limiter<S> {
    pub rules: Rules,
    pub store: S,
    pub modes: Modes,
    pub metrics: Recorder,
    pub decision_log: DecisionLog,
    pub talkers: TalkerRecorder,
    pub leases: LeaseBook,
    pub returns: Returns,
}

/// All that a decision was made from.
#[derive(Debug)]
pub struct Basis<'a, 'm> {
    pub(crate) plan: &'a Plan<'m>,
    /// The counts after the increments of the plan.
    pub(crate) counts: &'a [CounterState],
}

/// Why a request has no decision. The texts are sent to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDecision {
    /// The reference's text.
    #[error("no rate limit configuration loaded")]
    NoRules,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store + Clone> Limiter<S> {
    /// Answers one request: passes the decision and its basis to `render`, and returns the result.
    ///
    /// # Errors
    ///
    /// If no rules are loaded yet, or the store failed; some hits may then have been counted.
    pub async fn check<R>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        deadline: &Deadline,
        render: impl FnOnce(&mut Decision, &Basis<'_, '_>) -> R,
    ) -> Result<R, NoDecision> {
        // One rule set for the whole request, however long the store takes.
        let held = self.rules.0.current.load();
        let rules = self.loaded(&held)?;
        let mut plan = Plan::default();
        self.plan(&mut plan, rules, request, now);
        let mut counts = CounterStates::new();
        let counted = if plan.leases.is_some() {
            // Boxed, or the future of every call would reserve the space that leases need.
            let counting = self.count_with_leases(&mut counts, &mut plan, rules, now, deadline);
            Box::pin(counting).await
        } else if plan.batch.is_empty() {
            Ok(())
        } else {
            // Not by `Self::count`: each future around another costs instructions whenever it is polled.
            let store = &self.store;
            store
                .add_into(&mut counts, &plan.batch, now, deadline)
                .await
        };
        counted.inspect_err(|_| {
            self.metrics
                .record_store_failure(&rules.stats, request, &plan)
        })?;
        let times = RequestTimes {
            now,
            began: deadline.began,
        };
        Ok(self.conclude(rules, request, &plan, &counts, times, render))
    }

    fn loaded<'h>(&self, held: &'h HeldRules) -> Result<&'h RuleSet, NoDecision> {
        held.as_deref().ok_or_else(|| {
            self.metrics.record_bad_request();
            NoDecision::NoRules
        })
    }

    /// Fills an empty plan: which counters `request` touches under `rules`, and how.
    #[inline]
    pub fn plan<'m>(
        &self,
        plan: &mut Plan<'m>,
        rules: &'m RuleSet,
        request: &'m Request<'_>,
        now: Timestamp,
    ) {
        plan.fill(&rules.matcher, request, self.modes, now);
        plan.name_leases(LeaseBook::name);
    }

    /// Applies the increments of a plan, which can be looks, and appends the counts after them to `counts`.
    ///
    /// # Errors
    ///
    /// If the store failed; some hits may then have been counted.
    #[inline]
    pub async fn count(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.store.add_into(counts, batch, now, deadline).await
    }

    /// Fills an empty decision. It records nothing.
    #[inline]
    pub fn decide(
        &self,
        decision: &mut Decision,
        plan: &Plan<'_>,
        counts: &[CounterState],
        now: Timestamp,
    ) {
        decide_into(decision, plan, counts, self.modes, now);
    }

    /// Records a decision in the statistics, the top talkers and the decision log.
    #[inline]
    pub(crate) fn observe(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[CounterState],
        decision: &Decision,
        times: RequestTimes,
    ) {
        let is_any_near = self
            .metrics
            .record(&rules.stats, request, plan, counts, decision);
        if is_any_near {
            let began = times.began.into();
            self.talkers.record(request, plan, counts, decision, began);
        }
        self.decision_log
            .log(&rules.matcher, request, plan, counts, decision, times);
    }

    /// Decides and records, once the counts are known.
    fn conclude<'m, R>(
        &self,
        rules: &'m RuleSet,
        request: &Request<'_>,
        plan: &Plan<'m>,
        counts: &[CounterState],
        times: RequestTimes,
        render: impl FnOnce(&mut Decision, &Basis<'_, '_>) -> R,
    ) -> R {
        let mut decision = Decision::default();
        self.decide(&mut decision, plan, counts, times.now);
        self.observe(rules, request, plan, counts, &decision, times);
        let basis = Basis { plan, counts };
        render(&mut decision, &basis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limit::NearRatio;

    #[test]
    fn rules_of_before_are_freed_once_nobody_uses_them_and_not_by_who_did() {
        let metrics = Metrics::new(NearRatio::default(), 0);
        let rules = Rules::default();
        assert!(rules.current().is_none());
        rules.swap(Matcher::default(), &metrics);
        // More than may be held without a count of owners.
        let in_use = [(); 20].map(|()| rules.0.current.load());
        let first = Arc::downgrade(in_use[0].as_ref().unwrap());
        rules.swap(Matcher::strict(), &metrics);
        assert!(!first.ptr_eq(&Arc::downgrade(&rules.current().unwrap())));
        for held in in_use {
            assert!(rules.take_unused().is_empty());
            drop(held);
        }
        assert!(first.upgrade().is_some());
        assert_eq!(rules.take_unused().len(), 1);
        assert!(first.upgrade().is_none());
    }
}
