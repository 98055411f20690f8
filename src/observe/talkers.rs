//! Top talkers: the descriptors that come near the limits of rules, how near, and how often they are refused.
//!
//! Each worker has one [`TalkerSketch`] in a bounded number of bytes, and readers merge them. A request that is
//! far from its limits pays for one comparison.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, hash_map::RandomState},
    hash::BuildHasher as _,
    mem,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::{
    core::{
        counter::CounterState,
        decision::Decision,
        plan::{Outcome, Plan},
        request::{Entry, Request},
        window::SteadyTime,
    },
    foundation::lock::lock,
    observe::metrics::other_refusal,
};

#[cfg(test)]
mod tests;

/// Most slots of a sketch, and of the merged ones.
const MOST_SLOTS: usize = 512;

/// Most bytes of the sketches of all workers together.
const MAX_BYTES: usize = 6 << 20;

/// Most bytes of a descriptor that are kept.
const MAX_TALKER_BYTES: usize = 512;

/// Most bytes of a key, and of a value.
const MAX_TEXT_BYTES: usize = 128;

/// Hits are forgotten together with all others of an epoch, so after one to two of them.
const EPOCH: Duration = Duration::from_secs(600);

/// The sketches of all workers.
#[derive(Debug)]
pub(crate) struct Talkers {
    /// All workers share it, so that a descriptor has one hash. It is random, so that clients cannot construct
    /// descriptors with equal hashes.
    hasher: RandomState,
    began: SteadyTime,
    workers: Box<[PaddedTalkers]>,
}

/// The sketches that one worker writes; no two workers share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct PaddedTalkers(Mutex<WorkerTalkers>);

/// The hits of this epoch and those of the one before.
#[derive(Clone, Debug)]
struct WorkerTalkers {
    /// The number of the epoch, counted from the start of the process by a clock that cannot be set.
    epoch: u64,
    current: TalkerSketch,
    previous: TalkerSketch,
}

/// The most frequent of any number of descriptors, in a bounded number of slots: Space-Saving (Metwally, Agrawal and El
/// Abbadi, "Efficient computation of frequent and top-k elements in data streams", 2005).
///
/// A descriptor without a slot replaces the one with the fewest hits, and inherits its hits as a possible error. So a
/// slot never counts too few: the true number lies between its hits minus the error and its hits. With n slots, a
/// descriptor with more than 1/n of all hits always has a slot.
#[derive(Clone, Debug)]
struct TalkerSketch {
    /// By the hash of the rule and the descriptor.
    slots: HashMap<u64, Slot>,
    most: usize,
    /// Most hits that a descriptor without a slot can have.
    floor: u64,
}

#[derive(Clone, Debug)]
struct Slot {
    /// At least the number that was added.
    hits: u64,
    /// By how many `hits` can be too high.
    error: u64,
    /// The most of a limit that was used, in percent.
    used: u8,
    /// Shared, so that a copy of the sketch is made quickly.
    descriptor: Arc<TalkerDescriptor>,
}

/// The rule that was hit, and the first entries of the descriptor.
#[derive(Debug)]
struct TalkerDescriptor {
    rule: Arc<str>,
    entries: Vec<TalkerEntry>,
    omitted_entries: usize,
}

/// An entry, cut to a bounded number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TalkerEntry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// How many bytes of the value were cut off.
    pub(crate) cut: usize,
}

/// A descriptor, and the bounds between which its number of refused hits lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Talker {
    pub(crate) at_least: u64,
    pub(crate) at_most: u64,
    /// The most of a limit that it has used, in percent: 100 if it was refused.
    pub(crate) used: u8,
    pub(crate) entries: Vec<TalkerEntry>,
    /// How many more entries the descriptor has.
    pub(crate) omitted_entries: usize,
}

impl Talkers {
    /// Empty sketches for `workers` workers.
    pub(crate) fn new(workers: usize) -> Self {
        let workers = workers.max(1);
        let slot_bytes =
            size_of::<(u64, Slot)>() + size_of::<TalkerDescriptor>() + MAX_TALKER_BYTES;
        // Each worker has two sketches.
        let slots = (MAX_BYTES / workers / 2 / slot_bytes).clamp(1, MOST_SLOTS);
        let new = |_| PaddedTalkers(Mutex::new(WorkerTalkers::new(slots)));
        Self {
            hasher: RandomState::new(),
            began: Instant::now().into(),
            workers: (0..workers).map(new).collect(),
        }
    }

    /// The recorder of worker number `worker`.
    pub(crate) fn recorder(self: &Arc<Self>, worker: usize) -> TalkerRecorder {
        TalkerRecorder {
            talkers: Some(self.clone()),
            worker: worker % self.workers.len(),
        }
    }

    /// The rules with talkers, and these: those that have used the most of a limit first, then those with most refused
    /// hits.
    pub(crate) fn top(&self, now: SteadyTime) -> BTreeMap<Arc<str>, Vec<Talker>> {
        let epoch = self.epoch(now);
        let mut sketches = Vec::new();
        for worker in &self.workers {
            // Its worker needs the lock, so it is held only while copying.
            let mut own = lock(&worker.0);
            own.move_to(epoch);
            let copy = own.clone();
            drop(own);
            sketches.extend([copy.current, copy.previous]);
        }
        merge(&sketches)
    }

    /// The age at `now` of the oldest hits that are still counted.
    pub(crate) fn counted_for(&self, now: SteadyTime) -> Duration {
        let since = EPOCH.as_secs() * self.epoch(now).saturating_sub(1);
        now.since(self.began)
            .saturating_sub(Duration::from_secs(since))
    }

    fn epoch(&self, now: SteadyTime) -> u64 {
        now.since(self.began).as_secs() / EPOCH.as_secs()
    }
}

impl WorkerTalkers {
    fn new(slots: usize) -> Self {
        Self {
            epoch: 0,
            current: TalkerSketch::new(slots),
            previous: TalkerSketch::new(slots),
        }
    }

    /// Forgets what is too old in `epoch`.
    fn move_to(&mut self, epoch: u64) {
        let most = self.current.most;
        // A request can have begun before the epoch of another one.
        if epoch > self.epoch {
            let current = mem::replace(&mut self.current, TalkerSketch::new(most));
            let is_next = epoch == self.epoch + 1;
            self.previous = if is_next {
                current
            } else {
                TalkerSketch::new(most)
            };
            self.epoch = epoch;
        }
    }
}

impl TalkerSketch {
    fn new(most: usize) -> Self {
        Self {
            slots: HashMap::new(),
            most,
            floor: 0,
        }
    }

    /// Adds hits, if any were refused, of a descriptor that has used so much of a limit. `describe` is called if it has
    /// no slot.
    fn add(&mut self, hash: u64, hits: u64, used: u8, describe: impl FnOnce() -> TalkerDescriptor) {
        if let Some(slot) = self.slots.get_mut(&hash) {
            slot.hits = slot.hits.saturating_add(hits);
            slot.used = slot.used.max(used);
            return;
        }
        if self.slots.len() >= self.most {
            let slots = self.slots.iter();
            let slots = slots.map(|(hash, slot)| (slot.hits, slot.used, *hash));
            if let Some((fewest, _, hash)) = slots.min() {
                self.slots.remove(&hash);
                self.floor = self.floor.max(fewest);
            }
        }
        let slot = Slot {
            hits: self.floor.saturating_add(hits),
            error: self.floor,
            used,
            descriptor: Arc::new(describe()),
        };
        self.slots.insert(hash, slot);
    }
}

/// Adds up sketches. A descriptor that has no slot in a sketch can have up to that sketch's floor of hits there.
fn merge(sketches: &[TalkerSketch]) -> BTreeMap<Arc<str>, Vec<Talker>> {
    let floors = sketches.iter().map(|sketch| sketch.floor);
    let floor = floors.fold(0, u64::saturating_add);
    // The part that was used, the hits in excess of these sketches' floors, and those without a possible error.
    let mut found: HashMap<u64, (u8, u64, u64, &TalkerDescriptor)> = HashMap::new();
    for sketch in sketches {
        for (hash, slot) in &sketch.slots {
            let new = (0, 0, 0, &*slot.descriptor);
            let (used, above, certain, _) = found.entry(*hash).or_insert(new);
            *used = slot.used.max(*used);
            *above = above.saturating_add(slot.hits.saturating_sub(sketch.floor));
            *certain = certain.saturating_add(slot.hits.saturating_sub(slot.error));
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    // Ties are ordered by hash, so that the order is always the same.
    found.sort_unstable_by_key(|(hash, (used, above, certain, _))| {
        (Reverse((*used, *above, *certain)), *hash)
    });
    found.truncate(MOST_SLOTS);
    let mut rules: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (_, (used, above, certain, descriptor)) in found {
        let rule = rules.entry(descriptor.rule.clone()).or_default();
        rule.push(Talker {
            at_least: certain,
            at_most: above.saturating_add(floor),
            used,
            entries: descriptor.entries.clone(),
            omitted_entries: descriptor.omitted_entries,
        });
    }
    rules
}

impl TalkerDescriptor {
    fn new(rule: &Arc<str>, entries: &[Entry<'_>]) -> Self {
        let mut left = MAX_TALKER_BYTES;
        let mut kept = Vec::new();
        for Entry { key, value } in entries {
            let key = &key[..key.len().min(MAX_TEXT_BYTES)];
            let Some(room) = left.checked_sub(size_of::<TalkerEntry>() + key.len()) else {
                break;
            };
            let shown = &value[..value.len().min(MAX_TEXT_BYTES).min(room)];
            left = room - shown.len();
            kept.push(TalkerEntry {
                key: key.to_vec(),
                value: shown.to_vec(),
                cut: value.len() - shown.len(),
            });
        }
        Self {
            rule: rule.clone(),
            omitted_entries: entries.len() - kept.len(),
            entries: kept,
        }
    }
}

/// A worker's handle for recording; by default it records nothing.
#[derive(Clone, Debug, Default)]
pub struct TalkerRecorder {
    talkers: Option<Arc<Talkers>>,
    worker: usize,
}

impl TalkerRecorder {
    /// Records a request for the limits that it came near, and its hits on those that are over, even if shadow mode
    /// lets it pass.
    #[cold]
    #[inline(never)]
    pub(crate) fn record(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[CounterState],
        decision: &Decision,
        now: SteadyTime,
    ) {
        let Some(talkers) = &self.talkers else {
            return;
        };
        let mut own = lock(&talkers.workers[self.worker].0);
        own.move_to(talkers.epoch(now));
        let judged = plan.outcomes.iter().zip(&decision.statuses);
        for (descriptor, (outcome, status)) in request.descriptors().zip(judged) {
            let (Outcome::Counted(counted), Some(binding)) = (outcome, &status.binding) else {
                continue;
            };
            // A limit that the request brought belongs to no rule.
            let Some(rule) = counted.rule else {
                continue;
            };
            let (hits, count) = (counted.hits.added(), &counts[binding.counter]);
            // A shared counter says nothing about one value.
            let is_unknown = count.lacks_room || other_refusal(plan, binding, count).is_some();
            // A request that is near by itself says nothing about its value, either.
            if hits == 0 || is_unknown || count.after == hits && !binding.is_over {
                continue;
            }
            let capacity = binding.limit.capacity().max(1);
            let after = count.after.min(capacity);
            let (hits, used) = match binding.is_over {
                true => (hits, 100),
                false => (0, u128::from(after) * 99 / u128::from(capacity)),
            };
            let used = u8::try_from(used).unwrap_or(100);
            let hash = talkers.hasher.hash_one((&rule.path, descriptor.entries));
            own.current.add(hash, hits, used, || {
                TalkerDescriptor::new(&rule.path, descriptor.entries)
            });
        }
    }
}
