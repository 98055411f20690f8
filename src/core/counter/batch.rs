//! Batches: the increments of one request, or of several that are sent together.

use std::{
    mem,
    ops::{Deref, Range},
};

use smallvec::SmallVec;

use crate::core::{
    counter::{
        increment::{CounterState, IncrementSpec, Operation},
        key::{Identity, Keys},
    },
    kind::{Algorithm, CounterKind, Halves},
    limit::Limit,
    window::{Timestamp, Unit, Window},
};

/// Increments of one request, or of several, in order, with their keys in one buffer.
#[derive(Debug, Default)]
pub struct Batch {
    keys: Keys,
    increments: SmallVec<[BatchEntry; 8]>,
    /// Where each request ends that was appended as a whole.
    ends: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct BatchEntry {
    key_start: usize,
    key_end: usize,
    spec: IncrementSpec,
}

/// A counter's key, and the increment to apply.
#[derive(Clone, Copy, Debug)]
pub struct Increment<'a> {
    pub key: &'a [u8],
    pub spec: IncrementSpec,
}

impl<'a> Increment<'a> {
    /// The part of its key that names the descriptor.
    pub(crate) fn identity(&self) -> &'a [u8] {
        let length = self.descriptor_bytes as usize;
        self.key.get(..length).unwrap_or(self.key)
    }
}

impl Deref for Increment<'_> {
    type Target = IncrementSpec;

    fn deref(&self) -> &IncrementSpec {
        &self.spec
    }
}

#[cfg(test)]
impl Batch {
    /// Makes each increment a reset.
    pub(crate) fn reset(&mut self) {
        for planned in &mut self.increments {
            planned.spec.operation = Operation::Reset;
            planned.spec.hits = crate::core::request::Hits::MAX;
        }
    }

    /// [`Self::push`] for the descriptor `k=value` of domain `d`.
    pub fn push_value(
        &mut self,
        value: &[u8],
        limit: &Limit,
        now: Timestamp,
        spec: impl Into<IncrementSpec>,
    ) {
        let mut identity = Identity::default();
        identity.set(
            b"d",
            &[crate::core::request::Entry { key: b"k", value }],
            &[],
        );
        self.push(&identity, limit, now, spec);
    }
}

impl Batch {
    pub fn len(&self) -> usize {
        self.increments.len()
    }

    pub fn is_empty(&self) -> bool {
        self.increments.is_empty()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Increment<'_>> + Clone {
        self.range(0..self.len())
    }

    /// The increment at `index`.
    ///
    /// # Panics
    ///
    /// If the batch has fewer increments.
    pub fn increment(&self, index: usize) -> Increment<'_> {
        self.with_key(&self.increments[index])
    }

    /// The key of the counter at `index`.
    ///
    /// # Panics
    ///
    /// If the batch has fewer increments.
    pub fn key(&self, index: usize) -> &[u8] {
        self.increment(index).key
    }

    /// The parameters of the increment at `index`.
    ///
    /// # Panics
    ///
    /// If the batch has fewer increments.
    pub fn spec(&self, index: usize) -> &IncrementSpec {
        &self.increments[index].spec
    }

    /// The parameters of all increments, in order.
    pub fn all_specs(&self) -> impl ExactSizeIterator<Item = &IncrementSpec> {
        self.increments.iter().map(|planned| &planned.spec)
    }

    /// The increments in `range`.
    ///
    /// # Panics
    ///
    /// If the batch has fewer increments.
    pub fn range(
        &self,
        range: Range<usize>,
    ) -> impl ExactSizeIterator<Item = Increment<'_>> + Clone {
        let planned = self.increments[range].iter();
        planned.map(|planned| self.with_key(planned))
    }

    fn with_key(&self, planned: &BatchEntry) -> Increment<'_> {
        Increment {
            key: &self.keys[planned.key_start..planned.key_end],
            spec: planned.spec,
        }
    }

    /// The requests that were appended, each as the range of its increments.
    pub fn requests(&self) -> impl Iterator<Item = Range<usize>> {
        let mut end = 0;
        let ends = self.ends.iter();
        ends.map(move |&next| mem::replace(&mut end, next)..next)
    }

    /// Removes all increments, but keeps the memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.increments.clear();
        self.ends.clear();
    }

    /// Makes it a look, which every store answers without counting anything, and without a new counter.
    pub(crate) fn look(&mut self) {
        for planned in &mut self.increments {
            planned.spec = planned.spec.look();
        }
    }

    /// Makes the increments of rules with slices such that are added before they are judged.
    pub(crate) fn add_first(&mut self) {
        for planned in &mut self.increments {
            planned.spec.adds_first = planned.spec.is_sliced;
        }
    }

    /// Names the slots that the increments take or free by a lease.
    pub(crate) fn name_slots(&mut self, lease: u64) {
        let lease = Halves::new(lease);
        for planned in &mut self.increments {
            if let CounterKind::Slots { .. } = planned.spec.method {
                planned.spec.method = CounterKind::Slots { lease };
            }
        }
    }

    /// Gives back the hits that were counted, by these counts after them, but no slots.
    pub(crate) fn returned(&self, counts: &[CounterState]) -> Self {
        let mut returned = Self::default();
        for (Increment { key, spec }, count) in self.iter().zip(counts) {
            if spec.added() > 0 && !spec.takes_slots() && count.was_counted(&spec) {
                let spec = spec.undone(count.place);
                returned.append_one(Increment { key, spec });
            }
        }
        returned
    }

    /// Frees the slots that it takes.
    pub(crate) fn freed(&self) -> Self {
        let mut freed = Self::default();
        for Increment { key, mut spec } in self.iter() {
            if spec.takes_slots() {
                spec.operation = Operation::GiveBack;
                freed.append_one(Increment { key, spec });
            }
        }
        freed
    }

    /// Appends a copy of `increment`.
    pub fn append_one(&mut self, increment: Increment<'_>) {
        let key_start = self.keys.len();
        self.keys.push_slice(increment.key);
        self.increments.push(BatchEntry {
            key_start,
            key_end: self.keys.len(),
            spec: increment.spec,
        });
    }

    /// Appends a copy of all of `other` as one request.
    pub fn append(&mut self, other: &Self) {
        let start = self.keys.len();
        self.keys.push_slice(&other.keys);
        let moved = other.increments.iter().map(|planned| BatchEntry {
            key_start: start + planned.key_start,
            key_end: start + planned.key_end,
            spec: planned.spec,
        });
        self.increments.extend(moved);
        self.ends.push(self.increments.len());
    }

    /// Appends a copy of the increments in `range` of `other` as one request.
    pub fn append_range(&mut self, other: &Self, range: Range<usize>) {
        for increment in other.range(range) {
            self.append_one(increment);
        }
        self.ends.push(self.increments.len());
    }

    /// Appends the increment of the counter of `identity` for `limit` at `now`. The limit and the moment determine
    /// fields of `spec` too.
    pub fn push(
        &mut self,
        identity: &Identity,
        limit: &Limit,
        now: Timestamp,
        spec: impl Into<IncrementSpec>,
    ) {
        let key_start = self.keys.len();
        let window = identity.push_key(&mut self.keys, limit, now);
        let period = limit.period;
        let spec = spec.into();
        self.increments.push(BatchEntry {
            key_start,
            key_end: self.keys.len(),
            spec: IncrementSpec {
                descriptor_bytes: u32::try_from(identity.len()).unwrap_or(u32::MAX),
                domain: identity.domain,
                rule: match spec.rule {
                    0 => identity.domain,
                    rule => rule,
                },
                limit: limit.capacity(),
                method: limit.algorithm.kind(limit.requests_per_unit.max(1)),
                is_per_second: limit.unit() == Some(Unit::Second),
                period_millis: match limit.algorithm {
                    Algorithm::Calendar(_) => {
                        let Window { start, end } = window;
                        end.millis().saturating_sub(start.millis())
                    }
                    _ => period.secs() * 1000,
                },
                expires_at: window.end,
                ..spec
            },
        });
    }
}
