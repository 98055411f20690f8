//! The counts that a request would lead to, from a look at its counters.

use std::collections::HashMap;

use crate::core::{
    charging::{BatchCharging, Look, charges_alone},
    counter::{
        Batch, CounterKind, CounterState, CounterStates, Increment, IncrementSpec, ResetTimes,
    },
};

/// The look at counters that hold nothing.
pub(crate) fn empty_look(batch: &Batch) -> CounterStates {
    let specs = batch.all_specs();
    specs
        .map(|spec| CounterState {
            is_charged: false,
            ends: (spec.method != CounterKind::Window).then(|| ResetTimes {
                resets_in: 0,
                retry_in: (!spec.refuses(0)).then_some(0),
            }),
            ..CounterState::from(0)
        })
        .collect()
}

/// The counts after `batch`, as a store would return them for the counts of its look. Hits that are given back are
/// taken from whole counts, so for a sliding window or a bucket they are near the truth only.
pub(crate) fn predicted(batch: &Batch, looked: &[CounterState]) -> CounterStates {
    // The first look at a counter has no other hits of the request in front.
    let mut held: HashMap<&[u8], u64> = HashMap::new();
    for (increment, count) in batch.iter().zip(looked) {
        held.entry(increment.key).or_insert(count.after);
    }
    let mut counts = CounterStates::new();
    if batch.all_specs().all(IncrementSpec::stands_alone) {
        for (increment, looked) in batch.iter().zip(looked) {
            let held = held.entry(increment.key).or_default();
            let is_charged = charges_alone(&increment.spec, || *held);
            counts.push(state(&increment, *looked, held, 0, is_charged));
        }
        return counts;
    }
    let charging = BatchCharging::new(batch, |increment, ahead| {
        let before = held.get(increment.key).copied().unwrap_or(0);
        let before = before.saturating_add(ahead);
        Look {
            before,
            after: increment.moves(before),
        }
    });
    for (index, (increment, looked)) in batch.iter().zip(looked).enumerate() {
        let held = held.entry(increment.key).or_default();
        let judged = charging.judged[index];
        let is_charged = charging.charges(index, &increment.spec);
        let waiting = if judged.is_over {
            judged.waiting(*held)
        } else {
            0
        };
        counts.push(state(&increment, *looked, held, waiting, is_charged));
    }
    counts
}

/// The state of a counter that holds `held` after `increment`. `waiting` are earlier uncharged hits of the request.
fn state(
    increment: &Increment<'_>,
    looked: CounterState,
    held: &mut u64,
    waiting: u64,
    is_charged: bool,
) -> CounterState {
    // A rule that allows without the store has answered already.
    if looked.is_charged {
        return looked;
    }
    if is_charged {
        *held = increment.moves(*held);
        return CounterState {
            is_charged,
            after: *held,
            ..looked
        };
    }
    CounterState {
        after: held.saturating_add(waiting),
        ..looked
    }
}

#[cfg(test)]
mod tests;
