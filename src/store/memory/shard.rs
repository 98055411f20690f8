//! A part of all counters, which has its own lock.

use std::{hash::BuildHasher as _, sync::Arc};

use foldhash::quality::RandomState;
use hashbrown::HashTable;

use super::capacity::Capacity;
use crate::core::{
    algorithm::AlgorithmState,
    charging::Look,
    counter::{CounterKind, CounterState, Increment, IncrementSpec, Reservation},
    window::Timestamp,
};

/// A map from keys to counters.
#[derive(Debug)]
pub(super) struct Shard {
    counters: HashTable<Counter>,
    hasher: RandomState,
    /// That of all shards with which it shares one.
    capacity: Arc<Capacity>,
    /// No counter of this shard expires before this time.
    earliest_expiry: Timestamp,
    /// The place in the map after which [`Self::sweep`] goes on.
    swept: usize,
}

#[derive(Debug)]
pub(super) struct Counter {
    key: Box<[u8]>,
    pub(super) value: CounterValue,
    /// From then on it has no effect.
    expires_at: Timestamp,
}

/// The content of a counter: a number, or the state of an algorithm.
#[derive(Clone, Debug)]
pub(super) enum CounterValue {
    Number(u64),
    Algorithm(Box<AlgorithmState>),
}

/// The places in its map that an increment without room searches for expired counters.
const SWEPT_AT_ONCE: usize = 64;

const NEVER: Timestamp = Timestamp::from_millis(u64::MAX);

impl Shard {
    /// One without counters. `hasher` is that of all keys.
    pub(super) fn new(hasher: RandomState, capacity: Arc<Capacity>) -> Self {
        Self {
            counters: HashTable::new(),
            hasher,
            capacity,
            earliest_expiry: NEVER,
            swept: 0,
        }
    }

    /// Calls `act` with the counter of `key`, which has this hash, if there is one.
    pub(super) fn with<R>(
        &mut self,
        hash: u64,
        key: &[u8],
        act: impl FnOnce(&mut Counter, &Capacity) -> R,
    ) -> Option<R> {
        let counter = self.counters.find_mut(hash, |one| *one.key == *key)?;
        let before = counter.value.heap_bytes();
        let result = act(counter, &self.capacity);
        // A look drops what a wrong clock has written.
        self.capacity.resize(before, counter.value.heap_bytes());
        self.earliest_expiry = self.earliest_expiry.min(counter.expires_at);
        Some(result)
    }

    /// Keeps the counter of `key`, if there is one, until an increment is applied. Returns whether there is one.
    pub(super) fn keeps(&mut self, hash: u64, key: &[u8]) -> bool {
        let kept = self.with(hash, key, |counter, _| counter.expires_at = NEVER);
        kept.is_some()
    }

    /// Applies `increment` to its counter, if it has one. `charges` is whether it is charged.
    pub(super) fn apply(
        &mut self,
        hash: u64,
        increment: &Increment<'_>,
        now: Timestamp,
        charges: impl FnOnce(&mut CounterValue) -> bool,
    ) -> Option<CounterState> {
        self.with(hash, increment.key, |counter, capacity| {
            let is_charged = charges(&mut counter.value);
            if let CounterValue::Algorithm(state) = &mut counter.value
                && is_charged
                && !capacity.may_grow(state.heap_bytes())
            {
                state.make_room(increment, now.millis());
            }
            let count = counter.value.apply(increment, is_charged, now);
            counter.expires_at = counter.value.expires_at(increment, now);
            count
        })
    }

    /// Takes room for one more counter, and returns whether there was any. A few places are searched for expired ones.
    pub(super) fn takes_room(&mut self, now: Timestamp) -> bool {
        self.capacity.takes_one() || {
            self.sweep(SWEPT_AT_ONCE, now);
            self.capacity.takes_one()
        }
    }

    /// Adds a counter, which must be new, and for which room was taken. No sweep drops it before an increment is
    /// applied.
    pub(super) fn insert(&mut self, hash: u64, key: &[u8], value: CounterValue) {
        let counter = Counter {
            key: key.into(),
            value,
            expires_at: NEVER,
        };
        self.capacity.resize(0, counter.bytes());
        let rehash = |one: &Counter| self.hasher.hash_one(&*one.key);
        self.counters.insert_unique(hash, counter, rehash);
    }

    /// Drops the counter of `key`.
    pub(super) fn remove(&mut self, hash: u64, key: &[u8]) {
        if let Ok(entry) = self.counters.find_entry(hash, |one| *one.key == *key) {
            self.capacity.give_back(entry.remove().0.bytes());
        }
    }

    /// Drops the expired ones of the counters in the next `places` of the map, or in all of them.
    pub(super) fn sweep(&mut self, places: usize, now: Timestamp) {
        if self.earliest_expiry > now {
            return;
        }
        let all = self.counters.num_buckets();
        let mut earliest = NEVER;
        for _ in 0..places.min(all) {
            self.swept = (self.swept + 1) % all;
            match self.counters.get_bucket_entry(self.swept) {
                Ok(entry) if entry.get().expires_at <= now => {
                    self.capacity.give_back(entry.remove().0.bytes());
                }
                Ok(entry) => earliest = earliest.min(entry.get().expires_at),
                Err(_is_free) => {}
            }
        }
        if places >= all {
            self.earliest_expiry = earliest;
        }
        if self.counters.capacity() > 4 * self.counters.len() {
            let rehash = |one: &Counter| self.hasher.hash_one(&*one.key);
            self.counters.shrink_to_fit(rehash);
        }
    }
}

impl Counter {
    /// The bytes that it takes with its key. A map that has just doubled is filled to seven sixteenths, and allocators
    /// hand out multiples of 16 bytes.
    fn bytes(&self) -> usize {
        let entry = size_of::<Self>() + 1;
        entry * 16 / 7 + self.key.len().next_multiple_of(16) + self.value.heap_bytes()
    }
}

impl CounterValue {
    /// One without hits.
    pub(super) fn new(method: CounterKind) -> Self {
        match AlgorithmState::new(method) {
            None => Self::Number(0),
            Some(state) => Self::Algorithm(Box::new(state)),
        }
    }

    /// The hits that it holds.
    pub(super) fn held(&mut self, spec: &IncrementSpec, now: Timestamp) -> u64 {
        match self {
            Self::Number(count) => *count,
            Self::Algorithm(state) => state.held(spec, now.millis()),
        }
    }

    /// The hits that it holds with `ahead` more, and those that it would hold after `spec`.
    pub(super) fn look(&mut self, spec: &IncrementSpec, ahead: u64, now: Timestamp) -> Look {
        let before = self.held(spec, now).saturating_add(ahead);
        let after = match self {
            Self::Algorithm(state) if spec.taken_off() > 0 => {
                state.held_after(spec, ahead, now.millis())
            }
            Self::Algorithm(_) | Self::Number(_) => spec.moves(before),
        };
        Look { before, after }
    }

    /// Applies `spec`, which is charged or not.
    pub(super) fn apply(
        &mut self,
        spec: &IncrementSpec,
        is_charged: bool,
        now: Timestamp,
    ) -> CounterState {
        let state = match self {
            Self::Number(count) => {
                if is_charged {
                    // The clock may have stepped back into a window that was swept or soon will be. The window is part
                    // of the key, so the count is still right.
                    *count = spec.moves(*count);
                }
                return CounterState {
                    is_charged,
                    ..CounterState::from(*count)
                };
            }
            Self::Algorithm(state) => state,
        };
        let now = state.present(spec, now.millis());
        if is_charged && (spec.hits > 0 || spec.ends_reservation()) {
            state.charge(spec, now);
        }
        let held = state.held(spec, now);
        let mut count = CounterState {
            is_charged,
            ends: Some(state.ends(spec, held, now)),
            ..CounterState::from(held)
        };
        if is_charged && spec.reservation == Reservation::Begins {
            count.place = state.place();
        }
        count
    }

    fn expires_at(&mut self, spec: &IncrementSpec, now: Timestamp) -> Timestamp {
        match self {
            Self::Number(_) => spec.expires_at,
            Self::Algorithm(state) => Timestamp::from_millis(state.expires_at(spec, now.millis())),
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Number(_) => 0,
            Self::Algorithm(state) => size_of::<AlgorithmState>() + state.heap_bytes(),
        }
    }
}
