//! Counters that begin with hits that another store holds, and those of their hits that it lacks.

use std::time::Duration;

use smallvec::SmallVec;

use super::slot::in_map;
use crate::core::{
    algorithm::{AlgorithmState, DatedHits},
    counter::{Charge, Increment, IncrementSpec, Operation},
    request::Hits,
    window::Timestamp,
};

/// Hits that count as used, and the moment at which they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct FirstCount {
    pub(in crate::store) held: u64,
    pub(in crate::store) at: Timestamp,
}

/// The hits that count as used when a counter begins, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct FirstHits(pub(in crate::store) SmallVec<[FirstCount; 1]>);

/// How a counter begins.
#[derive(Clone, Debug)]
pub(in crate::store) struct Beginning {
    /// The hits that the other store holds.
    pub(in crate::store) first: FirstHits,
    /// The increment as it would be sent to the other store, which may have another limit.
    pub(in crate::store) whole: IncrementSpec,
}

/// Returns the beginning of the counter of an increment.
pub(in crate::store) type Begin<'a> = &'a dyn Fn(&Increment<'_>) -> Beginning;

/// The beginning of a counter, and what happened to it that its hits do not show.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    whole: IncrementSpec,
    first: FirstHits,
    /// The hits that were in the sketch before it had room: they are not handed back.
    sketched: FirstCount,
    /// Hits that were given back and that it did not hold, because it is only a share.
    owed: u64,
    /// A counter to which hits were given back is kept until then, although it may be empty.
    keep_until: Timestamp,
}

impl Begun {
    pub(super) fn new(beginning: Beginning, sketched: u64, now: Timestamp) -> Self {
        let Beginning { whole, first } = beginning;
        let sketched = FirstCount {
            held: sketched,
            at: now,
        };
        Self {
            whole,
            first,
            sketched,
            owed: 0,
            keep_until: now,
        }
    }

    /// Records hits that are given back to a counter that holds `held`.
    pub(super) fn give_back(&mut self, hits: u64, held: u64, now: Timestamp) {
        if self.keep_until <= now {
            self.owed = 0;
        }
        self.owed = self.owed.saturating_add(hits.saturating_sub(held));
        self.keep_until = now.plus(Duration::from_millis(self.whole.period_millis));
    }

    /// How many bytes of its key name the descriptor.
    pub(super) fn descriptor_bytes(&self) -> u32 {
        self.whole.descriptor_bytes
    }

    pub(super) fn keep_until(&self) -> Timestamp {
        self.keep_until
    }

    /// The bytes that it takes, with its key.
    pub(super) fn bytes(&self, key: &[u8]) -> usize {
        let first = &self.first.0;
        let heap = if first.spilled() { first.capacity() } else { 0 };
        in_map::<Self>(key) + heap * size_of::<FirstCount>()
    }
}

/// The hits of a counter.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Number(u64),
    State(AlgorithmState),
}

/// A counter that was taken out of the store.
#[derive(Clone, Debug)]
pub(in crate::store) struct TakenCounter {
    pub(in crate::store) key: Box<[u8]>,
    pub(super) begun: Begun,
    pub(super) content: Content,
}

impl TakenCounter {
    /// The last increment that it got, as the other store has it.
    pub(in crate::store) fn whole(&self) -> &IncrementSpec {
        &self.begun.whole
    }

    /// The hits that it holds at `now`, by the limit of `share`, and that the other store does not hold. Hits that have
    /// left are no part of it.
    pub(in crate::store) fn own_hits(
        mut self,
        share: &IncrementSpec,
        now: Timestamp,
    ) -> Vec<DatedHits> {
        let begun = &self.begun;
        let mut own = match &mut self.content {
            Content::Number(count) => {
                let known = begun.first.sum().saturating_add(begun.sketched.held);
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                vec![DatedHits {
                    hits: count.saturating_sub_unsigned(known),
                    at: now.millis(),
                }]
            }
            Content::State(state) => {
                let mut known = begun.first.state(share);
                if let Some(known) = &mut known {
                    begun.sketched.charge(known, share);
                }
                let beyond = |known: &mut AlgorithmState| {
                    state.beyond(known, share, &begun.whole, now.millis())
                };
                known.as_mut().map(beyond).unwrap_or_default()
            }
        };
        let is_number = matches!(self.content, Content::Number(_));
        if begun.owed > 0 && (is_number || begun.keep_until > now) {
            own.push(DatedHits {
                hits: Hits::give_back(begun.owed).signed(),
                at: now.millis(),
            });
        }
        own
    }
}

impl FirstCount {
    /// Adds these hits to a counter of `spec`.
    pub(super) fn charge(self, state: &mut AlgorithmState, spec: &IncrementSpec) {
        if self.held > 0 {
            let spec = IncrementSpec {
                operation: Operation::Add(Charge::Always),
                hits: self.held.min(Hits::MAX),
                method: spec.method.unleased(),
                ..*spec
            };
            state.charge(&spec, self.at.millis());
        }
    }
}

impl FirstHits {
    /// The state of a counter of `spec` that holds nothing else; `None` if it is a plain number.
    fn state(&self, spec: &IncrementSpec) -> Option<AlgorithmState> {
        let mut state = AlgorithmState::new(spec.method)?;
        self.charge(&mut state, spec);
        Some(state)
    }

    /// Adds these hits to a counter of `spec`.
    pub(super) fn charge(&self, state: &mut AlgorithmState, spec: &IncrementSpec) {
        for hits in &self.0 {
            hits.charge(state, spec);
        }
    }

    /// How many of these hits still count at `now`.
    pub(super) fn left(&self, spec: &IncrementSpec, now: Timestamp) -> u64 {
        match self.state(spec) {
            Some(mut state) => state.held(spec, now.millis()),
            None => self.sum(),
        }
    }

    pub(in crate::store) fn sum(&self) -> u64 {
        let all = self.0.iter();
        all.fold(0, |sum, hits| hits.held.saturating_add(sum))
    }
}

impl From<FirstCount> for FirstHits {
    fn from(hits: FirstCount) -> Self {
        Self(SmallVec::from_buf([hits]))
    }
}
