//! Answers requests: the only place where the rooms meet.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};

use crate::{
    counter::{Count, CountList},
    decision::{Decision, decide_into},
    limit::Modes,
    matcher::Matcher,
    metrics::{Metrics, Recorder, RuleMeters},
    plan::Plan,
    request::Request,
    store::{Store, StoreError, memory::MemoryStore},
    window::Timestamp,
};

/// The rules in use, shared by all workers. Empty until the first good load.
#[derive(Clone, Debug, Default)]
pub struct Rules(Arc<ArcSwapOption<RuleSet>>);

/// One load of the rules, and the meters that belong to it.
#[derive(Debug)]
pub struct RuleSet {
    pub matcher: Matcher,
    /// One for each rule, in the order of the matcher.
    pub meters: Vec<Arc<RuleMeters>>,
}

impl Rules {
    /// Takes `matcher` into use. Requests under way end by the rules they began with.
    pub fn swap(&self, matcher: Matcher, metrics: &Metrics) {
        let meters = metrics.rules(matcher.rules());
        self.0.store(Some(Arc::new(RuleSet { matcher, meters })));
    }

    pub fn current(&self) -> Option<Arc<RuleSet>> {
        self.0.load_full()
    }

    /// The same, for as long as one request takes: most of the time without a reference count,
    /// which all workers would have to share.
    fn snapshot(&self) -> Guard<Option<Arc<RuleSet>>> {
        self.0.load()
    }
}

/// One worker's way from requests to decisions.
#[derive(Clone, Debug)]
pub struct Limiter<S> {
    pub rules: Rules,
    pub store: S,
    pub modes: Modes,
    pub metrics: Recorder,
}

/// Why a request has no decision. The texts go to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDecision {
    /// The reference's text.
    #[error("no rate limit configuration loaded")]
    NoRules,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store> Limiter<S> {
    /// Answers one request.
    ///
    /// # Errors
    ///
    /// If there are no rules yet, or the store failed; some hits may then have been counted.
    pub async fn check(
        &self,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, NoDecision> {
        // One snapshot, however long the store takes.
        let snapshot = self.rules.snapshot();
        let rules = self.loaded(&snapshot)?;
        let mut plan = Plan::default();
        plan.fill(&rules.matcher, request, self.modes, now);
        let mut counts = CountList::new();
        if !plan.batch.is_empty() {
            let added = self.store.add_into(&mut counts, &plan.batch, now).await;
            added.inspect_err(|_| self.metrics.record_store_failure())?;
        }
        let mut decision = Decision::default();
        self.conclude(&mut decision, rules, request, &plan, &counts, now);
        Ok(decision)
    }

    /// The same without a future and into an empty decision where it lies, or nothing if the store
    /// is one to wait for.
    pub fn check_at_once(
        &self,
        decision: &mut Decision,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Option<Result<(), NoDecision>> {
        let memory = self.store.as_memory()?;
        Some(self.check_in(memory, decision, request, now))
    }

    fn check_in(
        &self,
        memory: &MemoryStore,
        decision: &mut Decision,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<(), NoDecision> {
        let snapshot = self.rules.snapshot();
        let rules = self.loaded(&snapshot)?;
        let mut plan = Plan::default();
        plan.fill(&rules.matcher, request, self.modes, now);
        let mut counts = CountList::new();
        let counted = memory.apply_into(&mut counts, &plan.batch, now);
        counted.inspect_err(|_| self.metrics.record_store_failure())?;
        self.conclude(decision, rules, request, &plan, &counts, now);
        Ok(())
    }

    fn loaded<'s>(&self, snapshot: &'s Option<Arc<RuleSet>>) -> Result<&'s RuleSet, NoDecision> {
        snapshot.as_deref().ok_or_else(|| {
            self.metrics.record_bad_request();
            NoDecision::NoRules
        })
    }

    /// What follows once the counts are known.
    fn conclude(
        &self,
        decision: &mut Decision,
        rules: &RuleSet,
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[Count],
        now: Timestamp,
    ) {
        decide_into(decision, plan, counts, self.modes, now);
        self.metrics
            .record(&rules.meters, request, plan, counts, decision);
    }
}
