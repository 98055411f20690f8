//! Counting in this process while a store does not reply.

use std::{
    collections::{BTreeMap, HashMap, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::Arc,
};

use super::first_count::{FirstCount, longest_life};
use crate::{
    core::{
        charging::Charging,
        counter::{
            Batch, Charge, CounterKind, CounterState, CounterStates, Increment, IncrementSpec,
            ResetTimes,
        },
        request::Hits,
        window::Timestamp,
    },
    store::memory::{
        CounterBounds, MemoryStore,
        sketch::{Sketch, SketchKey},
    },
};

/// The local counts of one loss. They are bounded: a counter without room begins with its last known count
/// as well, but its local hits are in a sketch, and are not added to the store afterwards.
#[derive(Debug)]
pub(super) struct LocalCounters {
    pub(super) counters: MemoryStore,
    /// Local hits on counters that have no room.
    sketch: Sketch,
    hasher: RandomState,
    /// Counters that began with their last known counts, and the hits that they let pass since.
    pub(super) begun: HashMap<Arc<[u8]>, Option<LocalHits>>,
    /// Their keys, by the second in which they end.
    pub(super) ends: BTreeMap<u64, Vec<Arc<[u8]>>>,
    bounds: CounterBounds,
    was_full: bool,
    lacked_replicas: bool,
}

#[derive(Debug)]
pub(super) struct LocalHits {
    spec: IncrementSpec,
    /// Negative if more was given back than spent.
    pub(super) hits: i64,
}

/// The most ended counters that are dropped when one request needs room: few, because other requests
/// wait meanwhile.
pub(super) const DROPPED_AT_ONCE: usize = 64;

impl LocalCounters {
    pub(super) fn new(bounds: CounterBounds) -> Self {
        Self {
            counters: MemoryStore::bounded(bounds),
            sketch: Sketch::new(bounds.sketch_width()),
            hasher: RandomState::default(),
            begun: HashMap::new(),
            ends: BTreeMap::new(),
            bounds,
            was_full: false,
            lacked_replicas: false,
        }
    }

    /// Whether there is room for a new counter. Drops some that have ended if necessary.
    pub(super) fn has_room(&mut self, now: Timestamp) -> bool {
        if self.begun.len() < self.bounds.counters {
            return true;
        }
        for _ in 0..DROPPED_AT_ONCE {
            let Some(mut first) = self
                .ends
                .first_entry()
                .filter(|end| *end.key() <= now.secs())
            else {
                break;
            };
            match first.get_mut().pop() {
                Some(key) => {
                    self.begun.remove(&key);
                }
                None => {
                    first.remove();
                }
            }
        }
        if self.begun.len() < self.bounds.counters {
            return true;
        }
        if !self.was_full {
            self.was_full = true;
            tracing::warn!(
                counters = self.begun.len(),
                "no room for more local counters: others are counted in a sketch, with which they may be refused early"
            );
        }
        false
    }

    /// Logs once that shares are as small as they can be.
    pub(super) fn lack_replicas(&mut self) {
        if !self.lacked_replicas {
            self.lacked_replicas = true;
            tracing::warn!(
                "the number of replicas is not known yet: this one admits one hit of each counter"
            );
        }
    }

    pub(super) fn counts(&self, key: &[u8]) -> bool {
        self.begun.contains_key(key)
    }

    /// Counts a counter from now on; `share` is this replica's part of its limit.
    pub(super) fn begin(
        &mut self,
        key: &[u8],
        share: &IncrementSpec,
        begin: FirstCount,
        now: Timestamp,
    ) {
        let held = begin
            .held
            .saturating_add(self.sketch.held(self.sketch_key(key, share, now), now));
        let spec = IncrementSpec {
            hits: Hits::add(held),
            charge: Charge::Always,
            ..*share
        };
        let mut first = Batch::default();
        first.append_one(Increment { key, spec });
        self.counters.apply_all(&first, begin.at);
        let key: Arc<[u8]> = key.into();
        let end = lasts_until(share, now).secs().saturating_add(1);
        self.ends.entry(end).or_default().push(key.clone());
        self.begun.insert(key, None);
    }

    /// Counts hits that were let pass before.
    pub(super) fn charge(&self, key: &[u8], share: &IncrementSpec, now: Timestamp) {
        if self.counts(key) {
            let mut one = Batch::default();
            one.append_one(Increment { key, spec: *share });
            self.counters.apply_all(&one, now);
        }
    }

    /// Records hits that were let pass, or given back, for the hand-back. Returns how many had no room.
    pub(super) fn spend(&mut self, increment: &Increment<'_>) -> u64 {
        let Some(spent) = self.begun.get_mut(increment.key) else {
            return increment.hits.added();
        };
        let spent = spent.get_or_insert(LocalHits {
            spec: increment.spec,
            hits: 0,
        });
        spent.hits = spent.hits.saturating_add(increment.hits.signed());
        0
    }

    /// Counts increments whose counters have begun, and the others in the sketch, above the count that `known`
    /// returns for their index. If all have begun, this is one step.
    pub(super) fn count(
        &mut self,
        shares: &Batch,
        known: impl Fn(usize) -> u64,
        now: Timestamp,
    ) -> CounterStates {
        if shares.iter().all(|share| self.counts(share.key)) {
            return self.counters.apply_all(shares, now);
        }
        let one = |(index, share): (usize, Increment<'_>)| {
            if share.stands_alone() && self.counts(share.key) {
                let mut alone = Batch::default();
                alone.append_one(share);
                let mut counts = self.counters.apply_all(&alone, now);
                return counts.pop().expect("one increment has one count");
            }
            self.count_in_sketch(&share, known(index), now)
        };
        shares.iter().enumerate().map(one).collect()
    }

    /// The result of `share` for a counter without room that held `known` when the store was lost.
    fn count_in_sketch(
        &mut self,
        share: &Increment<'_>,
        known: u64,
        now: Timestamp,
    ) -> CounterState {
        let key = self.sketch_key(share.key, share, now);
        let count = judged(share, known.saturating_add(self.sketch.held(key, now)));
        if count.is_charged && share.hits.added() > 0 {
            self.sketch.sweep(now);
            self.sketch.add(key, share.hits.added(), now);
        }
        count
    }

    fn sketch_key(&self, key: &[u8], spec: &IncrementSpec, now: Timestamp) -> SketchKey {
        let hash = |window: u64| self.hasher.hash_one((key, window));
        SketchKey::new(spec, hash, now)
    }

    /// The hits that all counters have let pass.
    pub(super) fn into_hits(self) -> Vec<(Arc<[u8]>, LocalHits)> {
        let begun = self.begun.into_iter();
        begun
            .filter_map(|(key, spent)| Some((key, spent?)))
            .collect()
    }
}

/// When a counter that is hit at `now` is empty again.
fn lasts_until(spec: &IncrementSpec, now: Timestamp) -> Timestamp {
    match spec.method {
        CounterKind::Window => spec.expires_at,
        _ => now.plus(longest_life(spec)),
    }
}

/// The result of `share` if its counter held `held`.
fn judged(share: &Increment<'_>, held: u64) -> CounterState {
    let is_over = share.refuses(i64::try_from(held).unwrap_or(i64::MAX));
    let charging = Charging::new([(&share.spec, is_over)]);
    let is_charged = charging.charges(&share.spec, is_over);
    let (added, given_back) = if is_charged {
        (share.hits.added(), share.hits.given_back())
    } else {
        (0, 0)
    };
    let after = held.saturating_add(added).saturating_sub(given_back);
    let has_window = share.method == CounterKind::Window;
    CounterState {
        is_charged,
        // These are the latest possible times.
        ends: (!has_window).then_some(ResetTimes {
            resets_in: share.period_millis,
            retry_in: Some(share.period_millis),
        }),
        ..CounterState::from(after)
    }
}

impl LocalHits {
    /// The hits as an increment that no limit refuses.
    pub(super) fn added(&self) -> IncrementSpec {
        IncrementSpec {
            hits: if self.hits < 0 {
                Hits::give_back(self.hits.unsigned_abs())
            } else {
                Hits::add(self.hits.unsigned_abs())
            },
            charge: Charge::Always,
            ..self.spec
        }
    }

    /// When the counter no longer holds these hits.
    pub(super) fn lasts_until(&self, now: Timestamp) -> Timestamp {
        lasts_until(&self.spec, now)
    }

    /// Whether these hits still matter to the store.
    pub(super) fn matters(&self, now: Timestamp) -> bool {
        self.hits != 0 && (self.spec.method != CounterKind::Window || self.spec.expires_at > now)
    }
}
