//! Increments: how many hits, under which limit, how they change the counter, and its state afterwards.

use smallvec::SmallVec;

use crate::core::{kind::CounterKind, limit::OnStoreLoss, request::Hits, window::Timestamp};

/// Parameters of an increment, without its key. `Batch::push` fills in those that the limit and the moment determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncrementSpec {
    /// How many bytes of the key name the descriptor. The others name the period and the window.
    pub descriptor_bytes: u32,
    pub operation: Operation,
    /// The hits of the operation, at most [`Hits::MAX`].
    pub hits: u64,
    /// The most hits that the limit admits, at most 2^53 − 1; see `Limit::capacity`.
    pub limit: u64,
    pub method: CounterKind,
    pub enforcement: Enforcement,
    /// The answer while the store does not reply.
    pub on_loss: OnStoreLoss,
    /// The index of its descriptor in the request.
    pub descriptor: u32,
    /// The number of its domain, which is equal in all processes: those that count it share its limit.
    pub domain: u32,
    /// The number of its rule, which is that of its domain if the request brings the limit.
    pub rule: u32,
    /// Whether the unit of its limit is the second.
    pub is_per_second: bool,
    /// Whether a worker may charge hits of its descriptor in advance (`accuracy: exact-leased`).
    pub is_sliced: bool,
    /// Whether it is added before it is judged: its worker judges the counts that come back, and gives back hits that
    /// are refused.
    pub adds_first: bool,
    /// The length of the limit's period in milliseconds; for a calendar limit, that of the present
    /// window.
    pub period_millis: u64,
    /// The end of the window, if it is known in advance. From then on the counter may be dropped.
    pub expires_at: Timestamp,
    /// Its part in the reservations of a bucket.
    pub reservation: Reservation,
}

/// The part of an increment in the reservations of a token bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservation {
    #[default]
    None,
    /// It reserves its hits. Windows do not mind.
    Begins,
    /// It settles `hits` that were reserved at `place`: they cost as many, and those of the increment.
    Ends { hits: u64, place: BucketPlace },
}

/// When a bucket was reserved from, in its own terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketPlace {
    /// 0 if it is not known. Another era has other reservations.
    pub era: u64,
    /// How many reserved parts of tokens had flowed in again since the era began.
    pub drained: u64,
}

impl IncrementSpec {
    /// Hits of the only descriptor of a request, whose rule sets no other options; for any limit.
    pub const fn charged(hits: Hits, charge: Charge) -> Self {
        Self {
            descriptor_bytes: 0,
            operation: Operation::of(hits, charge),
            hits: hits.count(),
            limit: 0,
            method: CounterKind::Window,
            enforcement: Enforcement::Refuses,
            on_loss: OnStoreLoss::Error,
            descriptor: 0,
            domain: 0,
            rule: 0,
            is_per_second: false,
            is_sliced: false,
            adds_first: false,
            period_millis: 0,
            expires_at: Timestamp::from_secs(0),
            reservation: Reservation::None,
        }
    }

    /// How many hits are added, or would be after a look; 0 if hits are taken off.
    pub const fn added(&self) -> u64 {
        match self.operation {
            Operation::Look | Operation::Add(_) => self.hits,
            Operation::GiveBack | Operation::Reset => 0,
        }
    }

    /// How many hits are taken off.
    pub const fn taken_off(&self) -> u64 {
        self.hits - self.added()
    }

    /// The hits as one number, negative if they are taken off.
    pub const fn signed(&self) -> i64 {
        self.added().cast_signed() - self.taken_off().cast_signed()
    }

    /// `count` with these hits. Giving back leaves at least 0.
    pub const fn moves(&self, count: u64) -> u64 {
        match self.operation {
            Operation::Look | Operation::Add(_) => count.saturating_add(self.hits),
            Operation::GiveBack | Operation::Reset => count.saturating_sub(self.hits),
        }
    }

    /// Whether a counter that holds `held` refuses these hits. It never refuses hits that are given back.
    pub fn refuses(&self, held: u64) -> bool {
        !self.operation.takes_off() && held.saturating_add(self.added()) > self.limit
    }

    /// The look at what the increment would lead to, which changes nothing. Hits that it would take off stay.
    pub fn look(&self) -> Self {
        Self {
            operation: Operation::Look,
            hits: self.added(),
            adds_first: false,
            ..*self
        }
    }

    /// The increment that takes these hits off again; `place` is that of its count.
    pub(crate) fn undone(&self, place: BucketPlace) -> Self {
        let hits = self.hits;
        Self {
            operation: Operation::GiveBack,
            adds_first: false,
            reservation: match self.method {
                CounterKind::TokenBucket { .. } if self.reservation == Reservation::Begins => {
                    Reservation::Ends { hits, place }
                }
                _ => Reservation::None,
            },
            ..*self
        }
    }

    /// Whether it is to take slots of a concurrency limit.
    pub(crate) fn takes_slots(&self) -> bool {
        let is_add = matches!(self.operation, Operation::Add(_)) && self.hits > 0;
        is_add && matches!(self.method, CounterKind::Slots { .. })
    }

    /// Whether it charges hits that can be given back, and no slots.
    pub(crate) fn reserves(&self) -> bool {
        matches!(self.operation, Operation::Add(_)) && self.hits > 0 && !self.takes_slots()
    }

    /// Whether it settles a reservation of a bucket, if only by no hits.
    pub(crate) fn ends_reservation(&self) -> bool {
        matches!(self.reservation, Reservation::Ends { .. })
    }

    /// Whether the counter is a plain number, and adding the hits to it is all there is to do.
    pub fn is_plain(&self) -> bool {
        // All fields are named: a new one does not compile before it is considered here.
        let Self {
            operation,
            method,
            hits: _,
            descriptor_bytes: _,
            limit: _,
            enforcement: _,
            on_loss: _,
            descriptor: _,
            domain: _,
            rule: _,
            is_per_second: _,
            is_sliced: _,
            adds_first,
            period_millis: _,
            expires_at: _,
            reservation: _,
        } = *self;
        let adds_all = adds_first || operation == Operation::Add(Charge::Always);
        method == CounterKind::Window && adds_all
    }

    /// Whether a store need not look at the other counters of its request: it [stands alone](Self::stands_alone), or is
    /// judged later.
    pub fn needs_no_look(&self) -> bool {
        self.adds_first || self.stands_alone()
    }

    /// Whether the increment can be judged without looking at the other counters of its request.
    pub fn stands_alone(&self) -> bool {
        match self.operation {
            Operation::Add(charge) => matches!(charge, Charge::Always | Charge::Within),
            Operation::GiveBack | Operation::Reset => true,
            Operation::Look => false,
        }
    }
}

/// How an increment changes its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reports the state that they would lead to. It changes nothing, and keeps no others from being charged by
    /// [`Charge::Stopping`].
    Look,
    /// Adds all of them or none. Without hits it reports the present state, and counts as an increment in all else.
    Add(Charge),
    /// Takes them off, as far as the counter holds any.
    GiveBack,
    /// Takes all of them off, and frees the slots of all leases. Its hits are [`Hits::MAX`].
    Reset,
}

impl Operation {
    /// The operation of a request's addend, under a rule that charges by `charge`.
    pub const fn of(hits: Hits, charge: Charge) -> Self {
        if hits.given_back() > 0 {
            Self::GiveBack
        } else {
            Self::Add(charge)
        }
    }

    pub const fn takes_off(self) -> bool {
        matches!(self, Self::GiveBack | Self::Reset)
    }
}

/// When the hits that are added are charged: the policy of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// All hits.
    Always,
    /// Hits that its own limit lets pass.
    Within,
    /// Hits of requests that pass as a whole.
    Admitted,
    /// Hits that its own limit refuses, and hits of requests in which no limit refuses
    /// (`STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`).
    Stopping,
}

/// The effect of an exceeded limit on the request as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The request is refused.
    Refuses,
    /// The request is refused if all its quota descriptors are over (`quota_mode`).
    Quota,
    /// No effect (shadow mode).
    Silent,
}

impl From<Hits> for IncrementSpec {
    /// The defaults.
    fn from(hits: Hits) -> Self {
        Self::charged(hits, Charge::Always)
    }
}

/// The state of a counter after an increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// The hits that the counter holds now; sliding windows and buckets round up. After a refusal
    /// without a charge it includes earlier uncharged hits of the request on this counter.
    pub after: u64,
    /// Whether the hits of this increment are included.
    pub is_charged: bool,
    /// Whether it is known to be over the limit without asking the store.
    pub is_cached: bool,
    /// Whether it was answered without the store, which does not reply.
    pub is_degraded: bool,
    /// Whether memory had no room for a counter of its own, so that it shares one with others or has none.
    pub lacks_room: bool,
    /// When the counter changes; `None` if its window determines that.
    pub ends: Option<ResetTimes>,
    /// Where a bucket was reserved from.
    pub place: BucketPlace,
}

/// When a counter changes if no further hits arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetTimes {
    /// Milliseconds until it is empty; 0 if it is.
    pub resets_in: u64,
    /// Milliseconds until the same hits would pass: 0 if they would now, `None` if they never will.
    pub retry_in: Option<u64>,
}

impl From<u64> for CounterState {
    fn from(after: u64) -> Self {
        Self {
            after,
            is_charged: true,
            is_cached: false,
            is_degraded: false,
            lacks_room: false,
            ends: None,
            place: BucketPlace::default(),
        }
    }
}

impl CounterState {
    /// Whether the hits that led to this count, of which `added` were to be added, are too many for `limit`. A look
    /// without hits is over only if the count itself is.
    pub fn is_over(self, limit: u64, added: u64) -> bool {
        let missing = if self.is_charged { 0 } else { added };
        self.after.saturating_add(missing) > limit
    }

    /// How long the oldest slot is held, in whole seconds, if its counter has any.
    pub(crate) fn oldest_secs(self, spec: &IncrementSpec) -> Option<u64> {
        let leaves_in = self.ends.filter(|_| self.after > 0)?.resets_in;
        let has_slots = matches!(spec.method, CounterKind::Slots { .. });
        has_slots.then(|| spec.period_millis.saturating_sub(leaves_in) / 1000)
    }

    /// Whether the hits of `spec` are in its counter: a rule that allows them while the store does not reply counts
    /// none.
    pub fn was_counted(self, spec: &IncrementSpec) -> bool {
        let was_let_pass = self.is_degraded && spec.on_loss == OnStoreLoss::Allow;
        self.is_charged && !was_let_pass
    }
}

/// The counts after a batch's increments, in their order.
pub type CounterStates = SmallVec<[CounterState; 2]>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::kind::Halves;

    const ADD: Operation = Operation::Add(Charge::Always);

    const PLACE: BucketPlace = BucketPlace { era: 7, drained: 3 };

    const ENDS: Reservation = Reservation::Ends {
        hits: 2,
        place: PLACE,
    };

    fn spec(operation: Operation, hits: u64, method: CounterKind) -> IncrementSpec {
        IncrementSpec {
            operation,
            hits,
            method,
            ..IncrementSpec::from(Hits::ONE)
        }
    }

    fn bucket() -> CounterKind {
        let rate = Halves::new(1);
        CounterKind::TokenBucket { rate }
    }

    #[test]
    fn hits_that_are_added_can_be_given_back_but_no_slots() {
        let lease = Halves::new(1);
        for (operation, hits, method, reserves) in [
            (ADD, 1, CounterKind::Window, true),
            (ADD, 0, CounterKind::Window, false),
            (ADD, 1, CounterKind::Slots { lease }, false),
            (Operation::Look, 1, CounterKind::Window, false),
            (Operation::GiveBack, 1, CounterKind::Window, false),
        ] {
            let spec = spec(operation, hits, method);
            assert_eq!(spec.reserves(), reserves, "{spec:?}");
        }
    }

    #[test]
    fn what_is_undone_is_given_back_and_ends_what_it_reserved_of_a_bucket() {
        for (method, reservation, expected) in [
            (bucket(), Reservation::Begins, ENDS),
            (bucket(), Reservation::None, Reservation::None),
            (CounterKind::Window, Reservation::Begins, Reservation::None),
        ] {
            let spec = IncrementSpec {
                adds_first: true,
                reservation,
                ..spec(ADD, 2, method)
            };
            let undone = IncrementSpec {
                operation: Operation::GiveBack,
                adds_first: false,
                reservation: expected,
                ..spec
            };
            assert_eq!(spec.undone(PLACE), undone);
            assert!(!spec.ends_reservation());
            assert_eq!(undone.ends_reservation(), expected == ENDS);
        }
    }

    #[test]
    fn what_stands_alone_or_is_judged_later_needs_no_look() {
        for (adds_first, charge, needs_none) in [
            (false, Charge::Always, true),
            (false, Charge::Admitted, false),
            (true, Charge::Admitted, true),
        ] {
            let spec = IncrementSpec {
                adds_first,
                ..spec(Operation::Add(charge), 1, CounterKind::Window)
            };
            assert_eq!(spec.needs_no_look(), needs_none, "{spec:?}");
            assert!(!spec.look().adds_first);
        }
    }
}
