//! Answers requests: matcher, plan, store and decision meet here.

use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwapOption, Guard};

use crate::{
    core::{
        counter::{CounterState, CounterStates},
        decision::{Decision, decide_into},
        limit::Modes,
        matcher::Matcher,
        plan::Plan,
        request::Request,
        window::Timestamp,
    },
    foundation::{lock::lock, object_pool::Pooled},
    observe::{
        decision_log::{DecisionLog, RequestTimes},
        metrics::{Metrics, Recorder, RuleSetStats},
        talkers::TalkerRecorder,
    },
    store::contract::{Deadline, Store, StoreError},
};

/// The rules in use, shared by all workers. Empty until the first good load.
///
/// The last owner of a rule set frees it, and freeing 100,000 rules takes tens of milliseconds. A worker
/// would spend them in the middle of a decision, while all other requests on its thread wait. So a
/// retired set stays here until it has no other owner; from then on no request can obtain it again.
#[derive(Clone, Debug, Default)]
pub struct Rules(Arc<LoadedSets>);

#[derive(Debug, Default)]
struct LoadedSets {
    current: ArcSwapOption<RuleSet>,
    /// Earlier sets that a request may still hold.
    retired: Mutex<Vec<Arc<RuleSet>>>,
}

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
        let new = Arc::new(RuleSet { matcher, stats });
        let old = self.0.current.swap(Some(new));
        lock(&self.0.retired).extend(old);
    }

    pub fn current(&self) -> Option<Arc<RuleSet>> {
        self.0.current.load_full()
    }

    /// Removes and returns the earlier sets that have no other owner. Call it now and then, where
    /// freeing them may take its time.
    pub fn take_unused(&self) -> Vec<Arc<RuleSet>> {
        let is_unused = |set: &mut Arc<RuleSet>| Arc::strong_count(set) == 1;
        lock(&self.0.retired).extract_if(.., is_unused).collect()
    }
}

/// The rules that one request holds; no count of owners is written for most of them.
type HeldRules = Guard<Option<Arc<RuleSet>>>;

/// Turns requests into decisions, for one worker.
#[derive(Clone, Debug)]
pub struct Limiter<S> {
    pub rules: Rules,
    pub store: S,
    pub modes: Modes,
    pub metrics: Recorder,
    pub decision_log: DecisionLog,
    pub talkers: TalkerRecorder,
}

/// All that a decision was made from.
#[derive(Debug)]
pub struct Basis<'a, 'm> {
    pub(crate) matcher: &'m Matcher,
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

impl<S: Store> Limiter<S> {
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
        let rules = self.rules.0.current.load();
        let rules = self.loaded(&rules)?;
        let mut plan = Plan::default();
        plan.fill(&rules.matcher, request, self.modes, now);
        let mut counts = Pooled::<CounterStates>::default();
        self.count(&plan, now, deadline, &mut counts).await?;
        let mut decision = Decision::default();
        decide_into(&mut decision, &plan, &counts, self.modes, now);
        let times = RequestTimes {
            now,
            began: deadline.began,
        };
        self.observe(rules, request, &plan, &counts, &decision, times);
        let basis = Basis {
            matcher: &rules.matcher,
            plan: &plan,
            counts: &counts,
        };
        Ok(render(&mut decision, &basis))
    }

    fn loaded<'h>(&self, held: &'h HeldRules) -> Result<&'h RuleSet, NoDecision> {
        held.as_deref().ok_or_else(|| {
            self.metrics.record_bad_request();
            NoDecision::NoRules
        })
    }

    /// Adds the hits of `plan` to its counters.
    ///
    /// # Errors
    ///
    /// If the store failed; some hits may then have been counted.
    async fn count(
        &self,
        plan: &Plan<'_>,
        now: Timestamp,
        deadline: &Deadline,
        counts: &mut CounterStates,
    ) -> Result<(), StoreError> {
        if plan.batch.is_empty() {
            return Ok(());
        }
        let added = self.store.add_into(counts, &plan.batch, now, deadline);
        let added = added.await;
        added.inspect_err(|_| self.metrics.record_store_failure())
    }

    /// Records a decision in the statistics, the top talkers and the decision log.
    fn observe(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[CounterState],
        decision: &Decision,
        times: RequestTimes,
    ) {
        let is_any_over = self
            .metrics
            .record(&rules.stats, request, plan, counts, decision);
        if self.talkers.takes(is_any_over) {
            let began = times.began.into();
            self.talkers.record(request, plan, decision, began);
        }
        self.decision_log
            .log(&rules.matcher, request, plan, counts, decision, times);
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
        let in_use = rules.0.current.load();
        let first = Arc::downgrade(in_use.as_ref().unwrap());
        rules.swap(Matcher::strict(), &metrics);
        let second = rules.current().unwrap();
        assert!(!Arc::ptr_eq(&second, in_use.as_ref().unwrap()));
        assert!(rules.take_unused().is_empty());
        drop(in_use);
        assert!(first.upgrade().is_some());
        assert_eq!(rules.take_unused().len(), 1);
        assert!(first.upgrade().is_none());
    }
}
