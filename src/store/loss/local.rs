//! Counting in this process while a store does not reply.

use std::{
    collections::{BTreeMap, HashMap},
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
    store::memory::MemoryStore,
};

/// The local counts of one loss. They are bounded: a counter without room is judged by its last known
/// count, each time as if it were asked for the first time, and the hits that it lets pass are dropped.
#[derive(Debug)]
pub(super) struct LocalCounters {
    pub(super) counters: MemoryStore,
    /// Counters that began with their last known counts, and the hits that they let pass since.
    pub(super) begun: HashMap<Arc<[u8]>, Option<LocalHits>>,
    /// Their keys, by the second in which they end.
    pub(super) ends: BTreeMap<u64, Vec<Arc<[u8]>>>,
    /// The most counters.
    max: usize,
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
    pub(super) fn new(max_counters: usize) -> Self {
        Self {
            counters: MemoryStore::new(max_counters),
            begun: HashMap::new(),
            ends: BTreeMap::new(),
            max: max_counters,
            was_full: false,
            lacked_replicas: false,
        }
    }

    /// Whether there is room for a new counter. Drops some that have ended if necessary.
    pub(super) fn has_room(&mut self, now: Timestamp) -> bool {
        if self.begun.len() < self.max {
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
        if self.begun.len() < self.max {
            return true;
        }
        if !self.was_full {
            self.was_full = true;
            tracing::warn!(
                max = self.max,
                "no room to count more locally: other counters are judged by what was known of them"
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
        let spec = IncrementSpec {
            hits: Hits::add(begin.held),
            charge: Charge::Always,
            ..*share
        };
        let mut first = Batch::default();
        first.append_one(Increment { key, spec });
        // The store has the same bound, but ended counters leave it later.
        if self.counters.apply_all(&first, begin.at).is_err() {
            return;
        }
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
            // The counter exists, so there is room.
            let _ = self.counters.apply_all(&one, now);
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

    /// Counts increments whose counters have begun, and judges the others by the count that `known`
    /// returns for their index. If all have begun and there is room, this is one step.
    pub(super) fn count(
        &self,
        shares: &Batch,
        known: impl Fn(usize) -> u64,
        now: Timestamp,
    ) -> CounterStates {
        let all_begun = shares.iter().all(|share| self.counts(share.key));
        if all_begun && let Ok(counts) = self.counters.apply_all(shares, now) {
            return counts;
        }
        let one = |(index, share): (usize, Increment<'_>)| {
            let mut alone = Batch::default();
            alone.append_one(share);
            if share.stands_alone()
                && self.counts(share.key)
                && let Ok(counts) = self.counters.apply_all(&alone, now)
                && let [count] = counts[..]
            {
                return count;
            }
            judged(&share, known(index))
        };
        shares.iter().enumerate().map(one).collect()
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

/// The result of `share` if its counter held `known`.
fn judged(share: &Increment<'_>, known: u64) -> CounterState {
    let is_over = share.refuses(known);
    let charging = Charging::new([(&share.spec, is_over)]);
    let is_charged = charging.charges(&share.spec, is_over);
    let (added, given_back) = if is_charged {
        (share.hits.added(), share.hits.given_back())
    } else {
        (0, 0)
    };
    let after = known.saturating_add(added).saturating_sub(given_back);
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
