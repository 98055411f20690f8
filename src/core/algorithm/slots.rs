//! Slots: how many requests are in flight. Each takes its slots under the name of its lease, and frees them by it.

use std::collections::VecDeque;

use crate::core::counter::{CounterKind, IncrementSpec, Operation};

/// The slots that are taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slots {
    /// In the order in which they leave, which is that in which they were taken.
    taken: VecDeque<SlotsOfLease>,
}

/// Slots that a request took at once. One that names its descriptor twice takes some twice.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SlotsOfLease {
    lease: u64,
    slots: u64,
    /// When they are free again without a release.
    leave_at: u64,
}

fn lease_of(spec: &IncrementSpec) -> u64 {
    match spec.method {
        CounterKind::Slots { lease } => lease.get(),
        _ => 0,
    }
}

impl Slots {
    /// The slots that are taken at `now`.
    pub(super) fn held(&self, now: u64) -> u64 {
        self.live(now).map(|one| one.slots).sum()
    }

    /// Those that `spec` frees: of the lease that it names, or all by a reset.
    pub(super) fn freed(&self, spec: &IncrementSpec, now: u64) -> u64 {
        if spec.operation == Operation::Reset {
            return self.held(now);
        }
        let lease = lease_of(spec);
        let own = self.live(now).filter(|one| one.lease == lease);
        own.map(|one| one.slots).sum()
    }

    fn live(&self, now: u64) -> impl Iterator<Item = &SlotsOfLease> {
        self.taken.iter().filter(move |one| one.leave_at > now)
    }

    /// Takes slots for the lease that `spec` names, beside those that it has, or frees all of them. Hits that are given
    /// back without a lease free none, and a reset frees those of all leases.
    pub(super) fn charge(&mut self, spec: &IncrementSpec, now: u64) {
        if spec.operation == Operation::Reset {
            self.taken = VecDeque::new();
        }
        self.taken.retain(|one| one.leave_at > now);
        let lease = lease_of(spec);
        if spec.added() > 0 {
            self.taken.push_back(SlotsOfLease {
                lease,
                slots: spec.added(),
                leave_at: now.saturating_add(spec.period_millis),
            });
        } else if spec.taken_off() > 0 && lease != 0 {
            self.taken.retain(|one| one.lease != lease);
        }
    }

    /// Slots that leave later than `latest` were taken by a clock that was ahead.
    pub(super) fn bound(&mut self, latest: u64) {
        let ahead = self.taken.iter_mut().rev();
        for one in ahead.take_while(|one| one.leave_at > latest) {
            one.leave_at = latest;
        }
    }

    /// Milliseconds until the oldest one leaves; 0 if none is taken.
    pub(super) fn oldest_leaves_in(&self, now: u64) -> u64 {
        self.live(now).next().map_or(0, |one| one.leave_at - now)
    }

    /// Milliseconds until so many have left that the hits of `spec` fit. Most are freed earlier, by their requests.
    pub(super) fn leaves_room_in(&self, spec: &IncrementSpec, now: u64) -> u64 {
        let wanted = self.held(now).saturating_add(spec.added());
        let mut short = wanted.saturating_sub(spec.limit);
        let last = self.live(now).find(|one| {
            short = short.saturating_sub(one.slots);
            short == 0
        });
        last.map_or(0, |one| one.leave_at - now)
    }

    pub(super) fn last_leaves_at(&self) -> u64 {
        self.taken.back().map_or(0, |one| one.leave_at)
    }

    /// The bytes of the list.
    pub(super) fn heap_bytes(&self) -> usize {
        self.taken.capacity() * size_of::<SlotsOfLease>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::core::{
        algorithm::AlgorithmState,
        counter::{CounterKind, IncrementSpec, Operation, sample},
        kind::Halves,
        request::Hits,
    };

    const TTL: u64 = 1_000;

    const START: u64 = 5_000_000;

    /// Takes slots for a lease if `hits` is positive, and frees them if it is negative.
    fn spec(lease: u64, hits: i64) -> IncrementSpec {
        let count = hits.unsigned_abs();
        let hits = if hits < 0 {
            Hits::give_back(count)
        } else {
            Hits::add(count)
        };
        IncrementSpec {
            method: CounterKind::Slots {
                lease: Halves::new(lease),
            },
            period_millis: TTL,
            ..sample::spec(5, hits)
        }
    }

    fn slots() -> AlgorithmState {
        AlgorithmState::new(spec(0, 0).method).unwrap()
    }

    /// The lease of each slot that is taken, and when it leaves.
    #[derive(Debug, Default)]
    struct Model(Vec<(u64, u64)>);

    impl Model {
        fn held(&mut self, now: u64) -> u64 {
            self.0.retain_mut(|(_, leave_at)| {
                // Taken by a clock that was ahead.
                *leave_at = (*leave_at).min(now + TTL);
                *leave_at > now
            });
            self.0.len().try_into().unwrap()
        }
    }

    proptest! {
        /// Releases that are repeated, unknown or too early, clocks that step, and slots whose time is over.
        #[test]
        fn slots_are_those_of_requests_that_have_neither_ended_nor_outlived_them(
            steps in prop::collection::vec((1_u64..9, -1_i64..4, -1_500_i64..1_500), 1..80),
        ) {
            let (mut state, mut model, mut now) = (slots(), Model::default(), START);
            for (lease, hits, passes) in steps {
                now = now.saturating_add_signed(passes);
                let spec = spec(lease, hits);
                let held = model.held(now);
                prop_assert_eq!(state.held(&spec, now), held);
                if hits < 0 {
                    model.0.retain(|(other, _)| *other != lease);
                    prop_assert_eq!(state.held_after(&spec, 2, now), model.held(now) + 2);
                }
                model.0.extend((0..hits).map(|_| (lease, now + TTL)));
                state.charge(&spec, now);
                prop_assert_eq!(state.held(&spec, now), model.held(now));
                let held = model.held(now);
                let leaves = model.0.iter().map(|(_, leave_at)| *leave_at);
                prop_assert_eq!(state.expires_at(&spec, now), leaves.clone().max().unwrap_or(0));
                let ends = state.ends(&spec, held, now);
                prop_assert_eq!(ends.resets_in, leaves.min().map_or(0, |leave_at| leave_at - now));
            }
        }
    }

    #[test]
    fn a_slot_leaves_when_its_time_is_over_and_not_a_millisecond_before() {
        let mut state = slots();
        state.charge(&spec(1, 2), START);
        state.charge(&spec(2, 1), START + 1);
        for (passed, held) in [(TTL - 1, 3), (TTL, 1), (TTL + 1, 0)] {
            assert_eq!(state.held(&spec(3, 0), START + passed), held, "{passed}");
        }
    }

    #[test]
    fn a_lease_whose_time_is_over_takes_slots_again() {
        let mut state = slots();
        for (passed, hits) in [(0, 2_i64), (TTL, 1)] {
            state.charge(&spec(1, hits), START + passed);
            assert_eq!(
                state.held(&spec(2, 0), START + passed),
                hits.unsigned_abs(),
                "{passed}"
            );
        }
    }

    #[test]
    fn the_bytes_of_slots_are_those_of_their_list() {
        let mut state = slots();
        assert_eq!(state.heap_bytes(), 0);
        for lease in 0..5 {
            state.charge(&spec(lease, 1), START);
        }
        let each = size_of::<super::SlotsOfLease>();
        assert!(state.heap_bytes() >= 5 * each && state.heap_bytes().is_multiple_of(each));
    }

    #[test]
    fn hits_pass_at_the_latest_when_enough_slots_have_left() {
        let mut state = slots();
        for (lease, hits) in [(1, 1), (2, 2), (3, 2)] {
            state.charge(&spec(lease, hits), START + 100 * lease);
        }
        let now = START + 400;
        for (hits, retry_in) in [(1, 700), (2, 800), (3, 800), (4, 900), (5, 900)] {
            let ends = state.ends(&spec(9, hits), 5, now);
            assert_eq!(ends.retry_in, Some(retry_in), "{hits}");
        }
        let ends = slots().ends(&spec(9, 6), 0, START);
        assert_eq!(ends.retry_in, None);
    }

    #[test]
    fn hits_that_are_given_back_without_a_lease_free_nothing_and_a_reset_frees_all() {
        let mut state = slots();
        state.charge(&spec(0, 1), START);
        state.charge(&spec(7, 1), START);
        state.charge(&spec(0, -1), START);
        assert_eq!(state.held(&spec(0, 0), START), 2);
        let reset = IncrementSpec {
            operation: Operation::Reset,
            hits: Hits::MAX,
            ..spec(0, 1)
        };
        assert_eq!(state.held_after(&reset, 3, START), 3);
        state.charge(&reset, START);
        assert_eq!(state.held(&spec(0, 0), START), 0);
    }
}
