//! The counts that the workers of a process saw while their store replied.
//!
//! Each worker has a table of its own, to which only that worker writes. All tables are searched when a
//! counter is counted locally for the first time.

use std::{
    collections::hash_map::RandomState,
    sync::{Arc, Mutex},
    time::Duration,
};

use smallvec::SmallVec;

use super::past_hits::PastHits;
use crate::{
    core::{
        counter::{CounterState, Increment, IncrementSpec},
        window::{Moment, SteadyTime, Timestamp},
    },
    foundation::{generations::Generations, lock::lock},
    store::memory::begun::FirstCount,
};

/// The last counts that one worker saw.
#[derive(Debug)]
pub(super) struct Recent {
    counts: Generations<Box<[u8]>, SeenCount, RandomState>,
    /// When the first count of each generation was seen.
    young_began: Option<SteadyTime>,
    old_began: Option<SteadyTime>,
    /// The number of the rules under which the counts were seen.
    rule_set: u64,
    /// When the first count was seen under these rules.
    first: Option<SteadyTime>,
    /// Counters that were last seen before this moment may be missing.
    forgets_before: Option<SteadyTime>,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            counts: Generations::new(Self::GENERATION),
            young_began: None,
            old_began: None,
            rule_set: 0,
            first: None,
            forgets_before: None,
        }
    }
}

/// The count of a counter when a worker last saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenCount {
    pub(super) count: u64,
    pub(super) at: SteadyTime,
    /// The counter is empty from then on, if no further hits arrive.
    pub(super) lasts_until: SteadyTime,
    /// When its hits came, if that matters and is known.
    pub(super) past: Option<Box<PastHits>>,
}

impl SeenCount {
    /// The state after an increment of `spec`.
    pub(super) fn new(spec: &IncrementSpec, count: &CounterState, moment: &Moment) -> Self {
        Self {
            count: count.after,
            at: moment.steady,
            lasts_until: match count.ends {
                Some(ends) => moment.steady.plus(Duration::from_millis(ends.resets_in)),
                None => moment.steady_at(spec.expires_at),
            },
            past: None,
        }
    }
}

impl Recent {
    /// About 4 MB a generation, with keys of usual length; sliding algorithms take 8 MB more.
    pub(super) const GENERATION: usize = 1 << 15;

    /// Records the count after an increment; `rule_set` is the number of the rules in use.
    pub(super) fn see(
        &mut self,
        increment: &Increment<'_>,
        count: &CounterState,
        moment: &Moment,
        rule_set: u64,
    ) {
        let mut seen = SeenCount::new(&increment.spec, count, moment);
        if increment.method.facts().leaving.is_some() {
            let known = self.counts.get_mut(increment.key);
            let known = known.and_then(|known| known.past.take());
            seen.past = known.or_else(|| PastHits::new(increment, moment).map(Box::new));
        }
        if let Some(past) = &mut seen.past {
            let own = match count.is_charged {
                true => increment.added(),
                false => 0,
            };
            past.see(own, seen.count, moment);
        }
        self.insert(increment.key, seen, rule_set);
    }

    /// Records when the hits of an increment came that was counted without the store.
    pub(super) fn date(&mut self, increment: &Increment<'_>, moment: &Moment) {
        let known = self.counts.get_mut(increment.key);
        if let Some(past) = known.and_then(|known| known.past.as_mut()) {
            past.count(increment, moment);
        }
    }

    /// Records a count; `rule_set` is the number of the rules in use.
    pub(super) fn insert(&mut self, key: &[u8], seen: SeenCount, rule_set: u64) {
        if self.first.is_none() || self.rule_set != rule_set {
            self.rule_set = rule_set;
            self.first = Some(seen.at);
        }
        let at = seen.at;
        if let Some(dropped) = self.counts.insert(key, seen, 1) {
            self.old_began = self.young_began.take();
            if dropped > 0 {
                self.forgets_before = self.old_began;
            }
        }
        self.young_began.get_or_insert(at);
    }

    fn get(&self, key: &[u8]) -> Option<SeenCount> {
        self.counts.get(key).cloned()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }
}

/// The tables of all workers of a process for one store.
#[derive(Debug, Default)]
pub(super) struct RecentTables(Mutex<Vec<SharedRecent>>);

/// A worker's own table, at which others look only while the store is lost.
pub(super) type SharedRecent = Arc<Mutex<Recent>>;

/// A process's knowledge of one counter, with the times of day at which it got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CounterHistory {
    /// The last count that it saw.
    pub(super) seen: Option<KnownCount>,
    /// Since when it would have seen every hit of its own; `None` if it has seen none under these rules.
    pub(super) complete_since: Option<Timestamp>,
}

/// A [`SeenCount`] by the time of day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownCount {
    pub(super) count: u64,
    pub(super) at: Timestamp,
    pub(super) lasts_until: Timestamp,
    /// Its hits, the oldest first; none if their times are not known.
    pub(super) dated: Vec<FirstCount>,
}

/// Counts that workers saw within this time of each other are equally new: replies to requests that were
/// in flight together arrive in any order.
const TOGETHER: Duration = Duration::from_secs(1);

impl RecentTables {
    /// A table for one more worker.
    pub(super) fn add(&self) -> SharedRecent {
        let table = SharedRecent::default();
        lock(&self.0).push(table.clone());
        table
    }

    /// The knowledge of all tables about `key`, with times of day as of `moment`.
    pub(super) fn know(&self, key: &[u8], rule_set: u64, moment: &Moment) -> CounterHistory {
        let mut all = SmallVec::<[SeenCount; 16]>::new();
        let mut first = None::<SteadyTime>;
        let mut forgets_before = None::<SteadyTime>;
        for table in lock(&self.0).iter() {
            let table = lock(table);
            all.extend(table.get(key));
            forgets_before = forgets_before.max(table.forgets_before);
            if table.rule_set == rule_set
                && let Some(began) = table.first
            {
                first = Some(first.map_or(began, |first| first.min(began)));
            }
        }
        let latest = all.iter().map(|seen| seen.at).max();
        let is_new =
            |seen: &&SeenCount| latest.is_some_and(|latest| seen.at.plus(TOGETHER) >= latest);
        let seen = all.iter().filter(is_new).max_by_key(|seen| seen.count);
        let complete_since = first.map(|first| forgets_before.map_or(first, |at| first.max(at)));
        CounterHistory {
            seen: seen.map(|seen| KnownCount {
                count: seen.count,
                at: moment.time_of(seen.at),
                lasts_until: moment.time_of(seen.lasts_until),
                dated: seen
                    .past
                    .as_ref()
                    .map_or_else(Vec::new, |past| past.dated(seen.at, moment)),
            }),
            complete_since: complete_since.map(|since| moment.time_of(since)),
        }
    }
}
