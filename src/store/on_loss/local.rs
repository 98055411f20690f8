//! Counting in this process while a store does not answer.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::begin::{Begin, longest_life};
use crate::{
    counter::{Batch, Charge, Count, CountList, Ends, Increment, Method, Terms},
    request::Hits,
    store::memory::MemoryStore,
    window::Timestamp,
};

/// What one loss comes to. Bounded: a counter that finds no room is judged by what was known of it
/// before, as if it were asked for the first time each time, and what it lets pass is forgotten.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) counters: MemoryStore,
    /// Counters that have begun with what was known of them, and what they let pass since.
    pub(super) begun: HashMap<Arc<[u8]>, Option<Spent>>,
    /// The same by the second in which they end.
    pub(super) ends: BTreeMap<u64, Vec<Arc<[u8]>>>,
    /// The most of them.
    max: usize,
    was_full: bool,
    lacked_replicas: bool,
}

#[derive(Debug)]
pub(super) struct Spent {
    terms: Terms,
    /// Negative if more was given back than spent.
    pub(super) hits: i64,
}

/// Counters that have ended and are forgotten for the sake of one request that needs room: few, for others
/// wait meanwhile.
pub(super) const FORGOTTEN_AT_ONCE: usize = 64;

impl Local {
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

    /// Whether there is room for a counter that is not there yet. Forgets some that have ended if need be.
    pub(super) fn has_room(&mut self, now: Timestamp) -> bool {
        if self.begun.len() < self.max {
            return true;
        }
        for _ in 0..FORGOTTEN_AT_ONCE {
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

    /// Says once that shares are as small as they can be.
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

    /// Counts a counter from now on, of whose limit `share` is this replica's part.
    pub(super) fn begin(&mut self, key: &[u8], share: &Terms, begin: Begin, now: Timestamp) {
        let terms = Terms {
            hits: Hits::add(begin.held),
            charge: Charge::Always,
            ..*share
        };
        let mut first = Batch::default();
        first.append_one(Increment { key, terms });
        // Its bound is the same, but what has ended leaves it later.
        if self.counters.apply_all(&first, begin.at).is_err() {
            return;
        }
        let key: Arc<[u8]> = key.into();
        let end = lasts_until(share, now).secs().saturating_add(1);
        self.ends.entry(end).or_default().push(key.clone());
        self.begun.insert(key, None);
    }

    /// Counts hits that were let pass before.
    pub(super) fn charge(&self, key: &[u8], share: &Terms, now: Timestamp) {
        if self.counts(key) {
            let mut one = Batch::default();
            one.append_one(Increment { key, terms: *share });
            // It has room.
            let _ = self.counters.apply_all(&one, now);
        }
    }

    /// Notes hits that were let pass, or given back, to be handed on. Returns how many found no room.
    pub(super) fn spend(&mut self, increment: &Increment<'_>) -> u64 {
        let Some(spent) = self.begun.get_mut(increment.key) else {
            return increment.hits.added();
        };
        let spent = spent.get_or_insert(Spent {
            terms: increment.terms,
            hits: 0,
        });
        spent.hits = spent.hits.saturating_add(increment.hits.signed());
        0
    }

    /// Counts what has begun, and judges the rest by what is `known` of the counter of that index. All is
    /// one step, if it has to be and there is room.
    pub(super) fn count(
        &self,
        shares: &Batch,
        known: impl Fn(usize) -> u64,
        now: Timestamp,
    ) -> CountList {
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

    /// What all counters have let pass.
    pub(super) fn into_spent(self) -> Vec<(Arc<[u8]>, Spent)> {
        let begun = self.begun.into_iter();
        begun
            .filter_map(|(key, spent)| Some((key, spent?)))
            .collect()
    }
}

/// When a counter that is hit `now` holds nothing any more.
fn lasts_until(terms: &Terms, now: Timestamp) -> Timestamp {
    match terms.method {
        Method::Window => terms.expires_at,
        _ => now.plus(longest_life(terms)),
    }
}

/// What `share` would come to if its counter held `known`.
fn judged(share: &Increment<'_>, known: u64) -> Count {
    let is_over = share.refuses(known);
    let is_charged = match share.charge {
        Charge::Always => true,
        Charge::Never => false,
        Charge::Within | Charge::Admitted | Charge::Stopping => !is_over,
    };
    let (added, given_back) = if is_charged {
        (share.hits.added(), share.hits.given_back())
    } else {
        (0, 0)
    };
    let after = known.saturating_add(added).saturating_sub(given_back);
    let has_window = share.method == Method::Window;
    Count {
        is_charged,
        // By then at the latest.
        ends: (!has_window).then_some(Ends {
            resets_in: share.period_millis,
            retry_in: Some(share.period_millis),
        }),
        ..Count::from(after)
    }
}

impl Spent {
    /// The hits as an increment that nothing refuses.
    pub(super) fn added(&self) -> Terms {
        Terms {
            hits: if self.hits < 0 {
                Hits::give_back(self.hits.unsigned_abs())
            } else {
                Hits::add(self.hits.unsigned_abs())
            },
            charge: Charge::Always,
            ..self.terms
        }
    }

    /// When the counter holds them no more.
    pub(super) fn lasts_until(&self, now: Timestamp) -> Timestamp {
        lasts_until(&self.terms, now)
    }

    /// Whether the store still has a use for it.
    pub(super) fn matters(&self, now: Timestamp) -> bool {
        self.hits != 0 && (self.terms.method != Method::Window || self.terms.expires_at > now)
    }
}
