//! Merges the sketches of one rule: those of all workers, from this epoch and the one before.

use std::{cmp::Reverse, collections::HashMap};

use serde::Serialize;

use super::{
    label::TalkerEntry,
    sketch::{SLOTS, Slot, TopSketch},
};

/// The values of one rule with the most hits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RuleTop {
    /// All hits that were counted.
    #[serde(rename = "hits")]
    pub(crate) total: u64,
    /// Most hits first.
    pub(crate) talkers: Vec<Talker>,
}

/// A value, and the bounds between which its number of hits lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Talker {
    pub(crate) at_least: u64,
    pub(crate) at_most: u64,
    /// The least number of refused hits.
    pub(crate) refused: u64,
    /// The first entries of the descriptor.
    pub(crate) entries: Vec<TalkerEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) omitted_entries: Option<usize>,
}

/// The slots of one value in several sketches.
struct MergedSlot<'s> {
    slot: &'s Slot,
    /// The hits in excess of these sketches' floors; `certain` are those without a possible error.
    above: u64,
    certain: u64,
    refused: u64,
}

/// Adds up sketches. A value that has no slot in a sketch can have up to that sketch's floor of hits there.
pub(super) fn merge(sketches: &[TopSketch]) -> RuleTop {
    let sum = |pick: fn(&TopSketch) -> u64| {
        let each = sketches.iter().map(pick);
        each.fold(0, u64::saturating_add)
    };
    let floor = sum(TopSketch::floor);
    let mut found: HashMap<u64, MergedSlot<'_>> = HashMap::new();
    for sketch in sketches {
        for (hash, slot) in sketch.slots() {
            let found = found.entry(hash).or_insert(MergedSlot {
                slot,
                above: 0,
                certain: 0,
                refused: 0,
            });
            let above = slot.hits.saturating_sub(sketch.floor());
            let certain = slot.hits.saturating_sub(slot.error);
            found.above = found.above.saturating_add(above);
            found.certain = found.certain.saturating_add(certain);
            found.refused = found.refused.saturating_add(slot.refused);
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    // Ties are ordered by hash, so that the order is always the same.
    found.sort_unstable_by_key(|(hash, found)| (Reverse((found.above, found.certain)), *hash));
    found.truncate(SLOTS);
    let talkers = found.into_iter().map(|(_, found)| {
        let (entry_count, entries) = found.slot.label.entries();
        Talker {
            omitted_entries: (entry_count > entries.len()).then(|| entry_count - entries.len()),
            entries,
            at_least: found.certain,
            at_most: found.above.saturating_add(floor),
            refused: found.refused,
        }
    });
    RuleTop {
        total: sum(TopSketch::total),
        talkers: talkers.collect(),
    }
}
