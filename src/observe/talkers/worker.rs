//! The sketches of one worker: two for each rule, so that hits are forgotten after ten to twenty minutes.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use super::{
    label::{ByteRoom, Label},
    sketch::{NewHits, TopSketch},
};

/// A span of time whose hits are forgotten together, numbered from the start of the sketches. A change of the clock
/// does not move it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Epoch(u64);

/// The length of an epoch.
const EPOCH: Duration = Duration::from_secs(600);

impl Epoch {
    /// The epoch in which the sketches have this age.
    pub(super) fn at(age: Duration) -> Self {
        Self(age.as_secs() / EPOCH.as_secs())
    }

    fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The age that the sketches had when the oldest hits came that still count in this epoch.
    pub(super) fn counted_since(self) -> Duration {
        Duration::from_secs(self.before().0 * EPOCH.as_secs())
    }
}

/// The sketches of one worker.
#[derive(Debug)]
pub(super) struct WorkerTalkers {
    rules: HashMap<Arc<str>, RuleTalkers>,
    room: ByteRoom,
    /// The epoch in which rules without hits were last removed.
    swept: Epoch,
    /// How many hits were on rules that had no room.
    omitted: u64,
}

/// The sketches of one rule.
#[derive(Debug, Default)]
struct RuleTalkers {
    epoch: Epoch,
    current: TopSketch,
    /// The sketch of the epoch before.
    previous: TopSketch,
}

impl WorkerTalkers {
    /// An empty set of sketches that can take up to `max_bytes` in all.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            rules: HashMap::new(),
            room: ByteRoom::new(max_bytes),
            swept: Epoch::default(),
            omitted: 0,
        }
    }

    /// Adds hits on the rule at `path`. `name` writes the label of a value that had no slot.
    pub(super) fn add(
        &mut self,
        path: &Arc<str>,
        epoch: Epoch,
        new: NewHits,
        name: impl FnOnce(&mut Label, &mut ByteRoom),
    ) {
        if !self.rules.contains_key(path) {
            self.take_place(path, epoch);
        }
        let has_slot = self.rules.get_mut(path).is_some_and(|rule| {
            if rule.epoch != epoch {
                rule.roll(epoch, &mut self.room);
            }
            rule.current.add(new, &mut self.room, name)
        });
        if !has_slot {
            self.omitted = self.omitted.saturating_add(new.hits);
        }
    }

    /// Creates sketches for one more rule, if there is room.
    fn take_place(&mut self, path: &Arc<str>, epoch: Epoch) {
        let bytes = rule_bytes(path);
        if !self.room.take(bytes) {
            self.sweep(epoch);
            if !self.room.take(bytes) {
                return;
            }
        }
        self.rules.insert(path.clone(), RuleTalkers::default());
    }

    /// Removes the rules whose hits are all forgotten, once per epoch.
    fn sweep(&mut self, epoch: Epoch) {
        if mem::replace(&mut self.swept, epoch) == epoch {
            return;
        }
        let is_gone = |rule: &RuleTalkers| rule.epoch != epoch && rule.epoch != epoch.before();
        for (path, rule) in self.rules.extract_if(|_, rule| is_gone(rule)) {
            let sketches = rule.current.bytes() + rule.previous.bytes();
            self.room.give_back(rule_bytes(&path) + sketches);
        }
    }

    /// The rules that have sketches.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.keys()
    }

    /// Copies of the sketches of the rule at `path` that count in `epoch`.
    pub(super) fn sketches(&self, path: &str, epoch: Epoch) -> Vec<TopSketch> {
        let Some(rule) = self.rules.get(path) else {
            return Vec::new();
        };
        let counting = if rule.epoch == epoch {
            &[&rule.current, &rule.previous][..]
        } else if rule.epoch == epoch.before() {
            &[&rule.current][..]
        } else {
            &[]
        };
        counting.iter().map(|sketch| (*sketch).clone()).collect()
    }

    /// How many hits were on rules that had no room.
    pub(super) fn omitted(&self) -> u64 {
        self.omitted
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.room.left()
    }
}

impl RuleTalkers {
    /// Moves to `epoch`.
    fn roll(&mut self, epoch: Epoch, room: &mut ByteRoom) {
        let current = mem::take(&mut self.current);
        let previous = mem::take(&mut self.previous);
        room.give_back(previous.bytes());
        // After a longer break, no hits remain.
        if self.epoch == epoch.before() {
            self.previous = current;
        } else {
            room.give_back(current.bytes());
        }
        self.epoch = epoch;
    }
}

/// Bytes of a rule without its sketches. The table that holds it is never full, and grows by doubling.
fn rule_bytes(path: &str) -> usize {
    path.len() + 3 * size_of::<(Arc<str>, RuleTalkers)>()
}
