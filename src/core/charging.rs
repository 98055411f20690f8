//! Charging: which increments of one request are charged, once it is known which would pass their
//! limits.
//!
//! All Rust code that judges increments asks here; `step.lua` does the same inside Redis.

use std::collections::HashMap;

use crate::core::counter::{Batch, Charge, Enforcement, Increment, IncrementSpec, Operation};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{counter::sample, request::Hits};

    const ALWAYS: Operation = Operation::Add(Charge::Always);
    const WITHIN: Operation = Operation::Add(Charge::Within);
    const ADMITTED: Operation = Operation::Add(Charge::Admitted);
    const STOPPING: Operation = Operation::Add(Charge::Stopping);

    fn spec(operation: Operation, enforcement: Enforcement, descriptor: u32) -> IncrementSpec {
        IncrementSpec {
            operation,
            enforcement,
            descriptor,
            ..sample::spec(1, Hits::ONE)
        }
    }

    /// Each case is an increment, whether its limit refuses it, and whether it is charged.
    #[track_caller]
    fn check<const N: usize>(cases: [(Operation, Enforcement, u32, bool, bool); N]) {
        let spec = cases.map(|(operation, enforcement, at, is_over, _)| {
            (spec(operation, enforcement, at), is_over)
        });
        let charging = Charging::new(spec.iter().map(|(spec, is_over)| (spec, *is_over)));
        let charged = spec.map(|(spec, is_over)| charging.charges(&spec, is_over));
        assert_eq!(charged, cases.map(|(.., is_charged)| is_charged));
    }

    use Enforcement::{Quota, Refuses, Silent};

    #[test]
    fn what_one_limit_refuses_is_charged_to_none() {
        check([
            (ADMITTED, Refuses, 0, false, false),
            (ADMITTED, Refuses, 0, true, false),
            (ADMITTED, Refuses, 1, false, false),
            (ALWAYS, Refuses, 2, false, true),
            (WITHIN, Refuses, 2, false, true),
        ]);
        check([
            (ADMITTED, Refuses, 0, false, true),
            (ADMITTED, Refuses, 1, false, true),
        ]);
    }

    #[test]
    fn a_rule_in_shadow_mode_spares_itself_and_nobody_else() {
        check([
            (ADMITTED, Silent, 0, true, false),
            (ADMITTED, Silent, 0, false, false),
            (ADMITTED, Refuses, 1, false, true),
        ]);
    }

    #[test]
    fn an_increment_that_stands_alone_is_charged_unless_its_own_limit_refuses_it() {
        for (operation, held, is_charged) in [
            (ALWAYS, 9, true),
            (STOPPING, 9, true),
            (ADMITTED, 0, true),
            (ADMITTED, 1, false),
            (WITHIN, 0, true),
            (WITHIN, 1, false),
        ] {
            let spec = spec(operation, Refuses, 0);
            assert_eq!(
                charges_alone(&spec, || held),
                is_charged,
                "{operation:?} {held}"
            );
        }
    }

    #[test]
    fn a_look_that_is_over_refuses_and_stops_nothing() {
        check([
            (Operation::Look, Refuses, 0, true, false),
            (STOPPING, Refuses, 1, false, true),
            (ADMITTED, Refuses, 2, false, false),
        ]);
    }

    #[test]
    fn hits_of_one_request_on_one_key_come_one_after_the_other() {
        let mut batch = Batch::default();
        for _ in 0..2 {
            batch.append_one(Increment {
                key: b"k",
                spec: spec(WITHIN, Refuses, 0),
            });
        }
        // The limit is 1, and the counter is empty.
        let judged = BatchCharging::new(&batch, |increment, ahead| Look {
            before: ahead,
            after: increment.moves(ahead),
        });
        let specs = batch.all_specs().enumerate();
        let charged: Vec<_> = specs
            .map(|(index, spec)| judged.charges(index, spec))
            .collect();
        assert_eq!(charged, [true, false]);
    }

    #[test]
    fn hits_in_front_wait_together_with_those_that_a_counter_refuses() {
        let judged = |before| JudgedIncrement {
            is_over: true,
            before,
        };
        assert_eq!(judged(7).waiting(1), 6);
        // Hits that were charged meanwhile are no longer in front.
        assert_eq!(judged(1).waiting(7), 0);
    }

    #[test]
    fn quotas_refuse_together() {
        check([
            (ADMITTED, Quota, 0, true, false),
            (ADMITTED, Quota, 1, false, true),
            (ADMITTED, Refuses, 2, false, true),
        ]);
        check([
            (ADMITTED, Quota, 0, true, false),
            (ADMITTED, Quota, 1, true, false),
            (ADMITTED, Refuses, 2, false, false),
        ]);
    }

    #[test]
    fn a_request_is_refused_by_one_plain_limit_or_by_all_quotas() {
        for (first, second, refuses) in [
            ((Refuses, true), (Refuses, false), true),
            ((Refuses, false), (Quota, false), false),
            ((Silent, true), (Refuses, false), false),
            ((Quota, true), (Quota, false), false),
            ((Quota, true), (Quota, true), true),
        ] {
            let (one, other) = (spec(ALWAYS, first.0, 0), spec(ALWAYS, second.0, 1));
            let charging = Charging::new([(&one, first.1), (&other, second.1)]);
            assert_eq!(charging.refuses, refuses, "{first:?} {second:?}");
        }
    }

    #[test]
    fn each_judges_for_itself_where_all_hits_count() {
        check([
            (ALWAYS, Refuses, 0, true, true),
            (WITHIN, Refuses, 0, true, false),
            (WITHIN, Refuses, 0, false, true),
        ]);
    }

    #[test]
    fn what_a_give_back_leaves_over_refuses_the_request_but_stops_nothing() {
        let charged = |operation| {
            let back = spec(Operation::GiveBack, Refuses, 0);
            let hit = spec(operation, Refuses, 1);
            let charging = Charging::new([(&back, true), (&hit, false)]);
            (charging.charges(&back, true), charging.charges(&hit, false))
        };
        assert_eq!(charged(ADMITTED), (true, false));
        assert_eq!(charged(ALWAYS), (true, true));
        assert_eq!(charged(STOPPING), (true, true));
    }

    #[test]
    fn a_look_is_never_charged_and_refuses_all_the_same() {
        check([
            (Operation::Look, Refuses, 0, true, false),
            (Operation::Look, Refuses, 1, false, false),
            (ADMITTED, Refuses, 2, false, false),
            (ALWAYS, Refuses, 3, false, true),
        ]);
    }

    #[test]
    fn the_references_stop_leaves_out_what_would_have_passed() {
        check([
            (STOPPING, Refuses, 0, true, true),
            (STOPPING, Refuses, 1, false, false),
        ]);
        check([
            (STOPPING, Refuses, 0, false, true),
            (STOPPING, Silent, 1, false, true),
        ]);
    }
}
