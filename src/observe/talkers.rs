//! Top talkers: the values that hit each rule most, and how often.
//!
//! Each worker has its own [sketch](mod@sketch) for each rule, in a bounded number of bytes, and readers merge them. By
//! default only refused hits are counted, so an admitted request pays for one comparison.

use std::{
    collections::{BTreeSet, hash_map::RandomState},
    hash::{BuildHasher as _, Hasher as _},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::{
    core::{
        decision::Decision,
        plan::{Outcome, Plan},
        request::{Entry, Request},
        window::SteadyTime,
    },
    foundation::lock::lock,
};

mod label;
mod merged;
mod sketch;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use label::{EntryValue, TalkerEntry};
pub(crate) use merged::RuleTop;

use sketch::NewHits;
use worker::{Epoch, WorkerTalkers};

/// Most bytes of the sketches of all workers together.
const MAX_BYTES: usize = 6 << 20;

/// Which hits are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TalkerChoice {
    #[default]
    Off,
    /// Hits over a limit, even if shadow mode lets the request pass.
    Refused,
    All,
}

impl crate::foundation::named::Named for TalkerChoice {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("refused", Self::Refused),
        ("all", Self::All),
    ];
}

/// How reports show values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ValueForm {
    #[default]
    Show,
    /// The first 16 digits of their SHA-256.
    Hash,
    /// Not at all: only keys are shown.
    Hide,
}

impl crate::foundation::named::Named for ValueForm {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("show", Self::Show),
        ("hash", Self::Hash),
        ("hide", Self::Hide),
    ];
}

/// The sketches of all workers.
#[derive(Debug)]
pub(crate) struct Talkers {
    choice: TalkerChoice,
    form: ValueForm,
    /// All workers share it, so that a value has one hash. It is random, so that clients cannot construct values with
    /// equal hashes.
    hasher: RandomState,
    began: SteadyTime,
    workers: Box<[PaddedTalkers]>,
}

/// The sketches that one worker writes; no two workers share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct PaddedTalkers(Mutex<WorkerTalkers>);

impl Talkers {
    /// Empty sketches for `workers` workers.
    pub(crate) fn new(choice: TalkerChoice, form: ValueForm, workers: usize) -> Self {
        Self::bounded(choice, form, workers, MAX_BYTES)
    }

    fn bounded(choice: TalkerChoice, form: ValueForm, workers: usize, max_bytes: usize) -> Self {
        let workers = workers.max(1);
        let new = |_| PaddedTalkers(Mutex::new(WorkerTalkers::new(max_bytes / workers)));
        Self {
            choice,
            form,
            hasher: RandomState::new(),
            began: Instant::now().into(),
            workers: (0..workers).map(new).collect(),
        }
    }

    pub(crate) fn choice(&self) -> TalkerChoice {
        self.choice
    }

    pub(crate) fn form(&self) -> ValueForm {
        self.form
    }

    /// The recorder of worker number `worker`.
    pub(crate) fn recorder(self: &Arc<Self>, worker: usize) -> TalkerRecorder {
        let is_on = self.choice != TalkerChoice::Off;
        TalkerRecorder {
            choice: self.choice,
            talkers: is_on.then(|| self.clone()),
            worker: worker % self.workers.len(),
        }
    }

    /// The rules that have been hit, in order.
    pub(crate) fn paths(&self) -> BTreeSet<Arc<str>> {
        let mut paths = BTreeSet::new();
        for worker in &self.workers {
            let own: Vec<_> = lock(&worker.0).paths().cloned().collect();
            paths.extend(own);
        }
        paths
    }

    /// The values that hit the rule at `path` most.
    pub(crate) fn top(&self, path: &str, now: SteadyTime) -> RuleTop {
        let epoch = self.epoch(now);
        // Each lock is held only while copying, because its worker needs it.
        let sketches = self.workers.iter();
        let sketches = sketches.flat_map(|worker| lock(&worker.0).sketches(path, epoch));
        merged::merge(&sketches.collect::<Vec<_>>())
    }

    /// The age at `now` of the oldest hits that are still counted.
    pub(crate) fn counted_for(&self, now: SteadyTime) -> Duration {
        let since = self.epoch(now).counted_since();
        now.since(self.began).saturating_sub(since)
    }

    fn epoch(&self, now: SteadyTime) -> Epoch {
        Epoch::at(now.since(self.began))
    }

    /// How many hits had no room.
    pub(crate) fn omitted(&self) -> u64 {
        let workers = self.workers.iter();
        let omitted = workers.map(|worker| lock(&worker.0).omitted());
        omitted.fold(0, u64::saturating_add)
    }

    fn hash(&self, entries: &[Entry<'_>]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for Entry { key, value } in entries {
            for text in [key, value] {
                hasher.write_usize(text.len());
                hasher.write(text);
            }
        }
        hasher.finish()
    }
}

/// A worker's handle for recording; by default it records nothing.
#[derive(Clone, Debug, Default)]
pub struct TalkerRecorder {
    choice: TalkerChoice,
    /// `None` if it records nothing.
    talkers: Option<Arc<Talkers>>,
    worker: usize,
}

impl TalkerRecorder {
    /// Whether to record a decision of which some limit is over (`is_any_over`), or none.
    #[inline]
    pub(crate) fn takes(&self, is_any_over: bool) -> bool {
        match self.choice {
            TalkerChoice::Off => false,
            TalkerChoice::Refused => is_any_over,
            TalkerChoice::All => true,
        }
    }

    /// Records the hits of a request if [`Self::takes`] says so.
    #[cold]
    #[inline(never)]
    pub(crate) fn record(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        decision: &Decision,
        now: SteadyTime,
    ) {
        let Some(talkers) = &self.talkers else {
            return;
        };
        let mut own = lock(&talkers.workers[self.worker].0);
        let judged = plan.outcomes.iter().zip(&decision.statuses);
        for (descriptor, (outcome, status)) in request.descriptors().zip(judged) {
            let (Outcome::Counted(counted), Some(binding)) = (outcome, &status.binding) else {
                continue;
            };
            // A limit that the request brought belongs to no rule.
            let Some(rule) = counted.rule else {
                continue;
            };
            let all = counted.hits.added();
            let refused = if binding.is_over { all } else { 0 };
            let hits = match self.choice {
                TalkerChoice::Off => 0,
                TalkerChoice::Refused => refused,
                TalkerChoice::All => all,
            };
            if hits > 0 {
                let new = NewHits {
                    hash: talkers.hash(descriptor.entries),
                    hits,
                    refused,
                };
                own.add(&rule.path, talkers.epoch(now), new, |label, room| {
                    label.set(descriptor.entries, talkers.form, room);
                });
            }
        }
    }
}
