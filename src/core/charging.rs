//! Charging: which increments of one request are charged, once it is known which would pass their limits; and the
//! counts that a request would lead to, from a look at its counters.
//!
//! All Rust code that judges increments asks here; `step.lua` does the same inside Redis.

use std::collections::HashMap;

use crate::core::counter::{
    Batch, Charge, CounterKind, CounterState, CounterStates, Enforcement, Increment, IncrementSpec,
    Operation, ResetTimes,
};

#[cfg(test)]
mod tests;

/// The judgement on a request's counters, before any of them changes.
#[derive(Debug, Default)]
pub(crate) struct Charging {
    /// Descriptors that are over one of their limits; some occur more than once.
    over: Vec<u32>,
    refuses: bool,
    /// Whether an increment that adds hits, or looks, is over: with the reference's stop option the
    /// others are then left out.
    stops: bool,
    /// Descriptors that count as quotas.
    quotas: Vec<u32>,
}

impl Charging {
    /// Judges all increments of the request, each given with whether its limit refuses it. Hits that are
    /// given back are never refused by themselves, but the request is refused if the counter stays above
    /// its limit.
    pub(crate) fn new<'a>(increments: impl IntoIterator<Item = (&'a IncrementSpec, bool)>) -> Self {
        let mut charging = Self::default();
        for (spec, is_over) in increments {
            if spec.enforcement == Enforcement::Quota && !charging.quotas.contains(&spec.descriptor)
            {
                charging.quotas.push(spec.descriptor);
            }
            if is_over {
                charging.over.push(spec.descriptor);
                charging.refuses |= spec.enforcement == Enforcement::Refuses;
                charging.stops |= matches!(spec.operation, Operation::Add(_));
            }
        }
        let quotas = &charging.quotas;
        charging.refuses |=
            !quotas.is_empty() && quotas.iter().all(|quota| charging.is_over(*quota));
        charging
    }

    /// Whether `descriptor` is over one of its limits.
    pub(crate) fn is_over(&self, descriptor: u32) -> bool {
        self.over.contains(&descriptor)
    }

    /// Whether an increment is charged whose own limit gives `is_over`. Hits that are given back always
    /// are, except in a look.
    pub(crate) fn charges(&self, spec: &IncrementSpec, is_over: bool) -> bool {
        match spec.operation {
            Operation::Look => false,
            Operation::GiveBack | Operation::Reset => true,
            Operation::Add(_) if is_over => charges_refused(spec),
            Operation::Add(Charge::Always | Charge::Within) => true,
            Operation::Add(Charge::Admitted) => !self.refuses && !self.is_over(spec.descriptor),
            Operation::Add(Charge::Stopping) => !self.stops,
        }
    }
}

/// Whether hits are charged although their own limit refuses them. The other limits of the request do not
/// matter then.
pub(crate) fn charges_refused(spec: &IncrementSpec) -> bool {
    matches!(
        spec.operation,
        Operation::Add(Charge::Always | Charge::Stopping)
    )
}

/// Whether an increment that stands alone is charged to a counter that holds `held`.
#[inline]
pub(crate) fn charges_alone(spec: &IncrementSpec, held: impl FnOnce() -> u64) -> bool {
    match spec.operation {
        Operation::Look => false,
        Operation::GiveBack | Operation::Reset => true,
        Operation::Add(_) => charges_refused(spec) || !spec.refuses(held()),
    }
}

/// The hits that a counter would hold just before an increment, and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub before: u64,
    pub after: u64,
}

/// The judgement on a batch that is one request, with that on each of its increments.
#[derive(Debug)]
pub(crate) struct BatchCharging {
    pub charging: Charging,
    /// One for each increment, in order.
    pub judged: Vec<JudgedIncrement>,
}

/// An increment before any counter of its request changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JudgedIncrement {
    /// Whether its limit refuses it.
    pub is_over: bool,
    /// The hits that its counter holds, and earlier hits of the request on it.
    pub before: u64,
}

impl JudgedIncrement {
    /// The earlier uncharged hits of the request on its counter, which holds `held`: they count together with its
    /// own if they are refused.
    pub(crate) fn waiting(&self, held: u64) -> u64 {
        self.before.saturating_sub(held)
    }
}

impl BatchCharging {
    /// Judges `batch`. `look` looks at the counter of an increment, on which earlier increments of the
    /// batch would put as many hits as its second argument.
    pub(crate) fn new<'a>(
        batch: &'a Batch,
        mut look: impl FnMut(&Increment<'a>, u64) -> Look,
    ) -> Self {
        // A descriptor can occur twice; the earlier hits of the request then count as well.
        let mut ahead: HashMap<&[u8], u64> = HashMap::new();
        let judge = |increment: Increment<'a>| {
            let ahead = ahead.entry(increment.key).or_default();
            let Look { before, after } = look(&increment, *ahead);
            let is_over = after > increment.limit;
            let is_ahead = match increment.operation {
                Operation::Add(Charge::Always) => true,
                // The reference looks at all counters before it adds to any.
                Operation::Add(Charge::Stopping) => false,
                Operation::Add(Charge::Within | Charge::Admitted) | Operation::Look => !is_over,
                Operation::GiveBack | Operation::Reset => false,
            };
            if is_ahead {
                *ahead = ahead.saturating_add(increment.added());
            }
            JudgedIncrement { is_over, before }
        };
        let judged: Vec<_> = batch.iter().map(judge).collect();
        let is_over = judged.iter().map(|judged| judged.is_over);
        let charging = Charging::new(batch.all_specs().zip(is_over));
        Self { charging, judged }
    }

    /// Whether the increment at `index`, which has the parameters `spec`, is charged.
    pub(crate) fn charges(&self, index: usize, spec: &IncrementSpec) -> bool {
        self.charging.charges(spec, self.judged[index].is_over)
    }
}

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
