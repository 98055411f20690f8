//! Slices: hits of one descriptor that a worker charged in advance, and from which it admits requests without asking
//! the store.
//!
//! A slice only ever admits: without enough free hits the store is asked, as it would be without slices. So no request
//! is refused that exact counting would admit, and none waits for a slice.
//!
//! A slice is as large as the demand of a *horizon*, a thirtieth of the window, and a fifth more. Demand is what was
//! charged; refused hits are none. It is taken only where it serves enough calls to cost less than they do. What a
//! holder has and asks for is together at most a quarter of its share of what is free: the last hits of a
//! limit are counted one by one. The share follows from how much of the counters' growth is this holder's. What is too
//! much goes back once a horizon, and all of it as soon as demand seems to have ended: others may need it before the
//! window ends.

use std::time::Duration;

use crate::core::window::SteadyTime;

/// A slice is taken if it serves this many calls, each of which would be an increment that shares its pipeline with
/// others: so from 20 calls in a horizon on. Asking for it costs Redis and this process as much as about so many.
const PAYS: f64 = 24.0;

/// As [`PAYS`], where each call would be a script as the asking is.
const PAYS_BESIDE_SCRIPTS: f64 = 6.0;

/// After a slice of which less than half was used the next one has to serve this many times as many calls.
const DOUBT: f64 = 4.0;

/// Demand has ended if this many requests that were expected have not come, or none came for a horizon.
const MISSED: f64 = 8.0;

/// The calls of a descriptor that has no slice are remembered for this long, and for a horizon.
const KEPT: Duration = Duration::from_secs(1);

/// How slices of one descriptor are sized.
#[derive(Clone, Copy, Debug)]
pub struct SlicePolicy {
    pub(crate) horizon: Duration,
    /// The least of its limits.
    pub(crate) limit: u64,
    /// How many workers of all replicas can hold slices, as far as known.
    pub(crate) holders: u32,
}

impl SlicePolicy {
    /// How often a holder looks through its slices for a surplus.
    pub const SWEEP: Duration = Duration::from_millis(100);

    /// For the shortest window and the least limit of a descriptor.
    pub fn new(window_millis: u64, limit: u64, holders: u32) -> Self {
        let horizon = Duration::from_millis(window_millis / 30);
        Self {
            horizon: horizon.clamp(Duration::from_millis(50), Duration::from_secs(2)),
            limit,
            holders: holders.max(1),
        }
    }

    /// Whether a slice could pay for a descriptor of which so many calls are remembered: those since less than half a
    /// second, half of those of the half second before, and so on.
    pub(crate) fn may_pay(&self, calls: u8) -> bool {
        // These are at least half of the calls of a second.
        f64::from(calls) >= PAYS / 1.2 / 2.0 / self.horizon.as_secs_f64()
    }
}

/// Whether hits may be added before they are judged if nothing is known of their counters. Should they be too many, the
/// counters look fuller than they are until the hits are given back. One hit keeps no other out: where it is too many
/// there is no room for any.
pub(crate) fn may_add_first_unknown(hits: u64, limit: u64) -> bool {
    hits <= limit && hits <= (limit / 8).max(1)
}

/// Hits that are charged and not yet used, and what is known for the size of further ones.
#[derive(Clone, Debug)]
pub struct Slice {
    free: u64,
    /// The size of the last slice, and what was used since it came.
    taken: u64,
    used: u64,
    is_asked: bool,
    /// The calls of about a horizon that were charged.
    calls: f64,
    /// Those of them that a slice can serve, and their hits.
    served: f64,
    recent: f64,
    counted_at: SteadyTime,
    /// The hits that were charged for this holder, and the growth of the counters; older ones weigh less.
    own: f64,
    all: f64,
    /// How many hits the counters still admitted when the store answered last; `None` if it is not known.
    room: Option<u64>,
    /// When a call came last, and one that a slice can serve.
    seen_at: SteadyTime,
    used_at: SteadyTime,
    looked_at: SteadyTime,
}

impl Slice {
    pub fn new(now: SteadyTime) -> Self {
        Self {
            free: 0,
            taken: 0,
            used: 0,
            is_asked: false,
            calls: 0.0,
            served: 0.0,
            recent: 0.0,
            counted_at: now,
            own: 0.0,
            all: 0.0,
            room: None,
            seen_at: now,
            used_at: now,
            looked_at: now,
        }
    }

    pub fn free(&self) -> u64 {
        self.free
    }

    /// Takes a call into account, of which nothing is known but whether its hits were charged.
    pub fn call(&mut self, is_charged: bool, policy: &SlicePolicy, now: SteadyTime) {
        self.decay(policy, now);
        self.seen_at = self.seen_at.max(now);
        if is_charged {
            self.calls += 1.0;
        }
    }

    /// Takes the charged hits of the last call into account, which a slice can serve.
    pub fn demand(&mut self, hits: u64, policy: &SlicePolicy, now: SteadyTime) {
        self.recent = (self.recent + float(hits)).min(float(policy.limit));
        self.served += 1.0;
        self.used_at = self.used_at.max(now);
    }

    /// Uses hits of it.
    ///
    /// # Panics
    ///
    /// If fewer are free.
    pub fn admit(&mut self, hits: u64) {
        self.free = self.free.checked_sub(hits).expect("the caller looks first");
        self.used += hits;
    }

    /// Takes a reply of the store into account: `own` hits were charged for this holder, the counters grew by `growth`
    /// since the reply before, and admit `room` more.
    pub fn see(&mut self, own: u64, growth: u64, room: u64) {
        self.own = 0.9 * self.own + float(own);
        self.all = 0.9 * self.all + float(growth.max(own));
        self.room = Some(room);
    }

    /// Whether `hits` may be added before they are judged: with room for several times as many, and for the demand of
    /// all holders meanwhile, they are hardly ever too many.
    pub fn may_add_first(&self, hits: u64, policy: &SlicePolicy) -> bool {
        let Some(room) = self.room else {
            return may_add_first_unknown(hits, policy.limit);
        };
        let margin = hits.saturating_sub(1).saturating_mul(4).saturating_add(1);
        float(room) >= float(margin) + 2.0 * self.recent / self.share(policy)
    }

    /// Whether calls come so often that a slice is there or would pay.
    pub fn is_hot(&self, policy: &SlicePolicy) -> bool {
        self.free > 0 || self.is_asked || 1.2 * self.calls >= self.least_calls(1, policy)
    }

    /// The hits to ask the store for, if it is time to; they are then on their way.
    pub fn ask(&mut self, policy: &SlicePolicy) -> Option<u64> {
        if self.is_asked || float(self.free) > self.recent / 4.0 {
            return None;
        }
        let most = self.share(policy) * float(self.room?) / 4.0 - float(self.free);
        let wanted = (1.2 * self.recent).ceil().min(most);
        let hits_of_call = self.recent / self.served.max(1.0);
        let least_calls = self.least_calls(whole(hits_of_call), policy);
        let wanted = whole(wanted);
        self.is_asked = wanted > 0 && float(wanted) >= least_calls * hits_of_call;
        self.is_asked.then_some(wanted)
    }

    /// Takes the answer to [`Self::ask`] over: the hits that were charged, or `None` if that is not known. Then it asks
    /// for no more before the store has answered something else.
    pub fn answered(&mut self, hits: Option<u64>) {
        self.is_asked = false;
        match hits {
            None => self.room = None,
            Some(0) => {}
            Some(hits) => {
                self.free += hits;
                (self.taken, self.used) = (hits, 0);
            }
        }
    }

    /// How many calls a slice has to serve, of which each has so many hits.
    fn least_calls(&self, hits: u64, policy: &SlicePolicy) -> f64 {
        let least = match self.may_add_first(hits, policy) {
            true => PAYS,
            false => PAYS_BESIDE_SCRIPTS,
        };
        match self.used < self.taken / 2 {
            true => DOUBT * least,
            false => least,
        }
    }

    /// This holder's part of what all of them take.
    fn share(&self, policy: &SlicePolicy) -> f64 {
        let share = (self.own + 4.0 / f64::from(policy.holders)) / (self.all + 4.0);
        share.min(1.0)
    }

    /// Takes out what is not needed, once a horizon: all of it if demand has ended, and that at once.
    pub fn surplus(&mut self, policy: &SlicePolicy, now: SteadyTime) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        let is_due = now.since(self.looked_at) >= policy.horizon;
        if !is_due && now <= self.used_at {
            return None;
        }
        self.decay(policy, now);
        let has_ended = self.has_ended(policy, now);
        if !has_ended && !is_due {
            return None;
        }
        self.looked_at = now;
        let kept = match has_ended {
            true => 0,
            false => whole((2.4 * self.recent).ceil()),
        };
        let surplus = self.free.saturating_sub(kept);
        self.free -= surplus;
        (surplus > 0).then_some(surplus)
    }

    /// Begins again with other counters, and with what is known of the demand. Returns the hits that were left.
    pub fn turn(&mut self) -> u64 {
        self.is_asked = false;
        self.room = None;
        (self.taken, self.used) = (0, 0);
        self.end()
    }

    /// Takes out all hits: none is used any more.
    pub fn end(&mut self) -> u64 {
        std::mem::take(&mut self.free)
    }

    /// Whether nothing is lost if it is forgotten.
    pub fn is_idle(&self, policy: &SlicePolicy, now: SteadyTime) -> bool {
        let unseen = now.since(self.seen_at);
        self.free == 0 && !self.is_asked && unseen >= policy.horizon.max(KEPT)
    }

    fn has_ended(&self, policy: &SlicePolicy, now: SteadyTime) -> bool {
        let horizons = now.since(self.used_at).div_duration_f64(policy.horizon);
        // They have decayed since.
        let served = self.served * horizons.exp();
        horizons >= 1.0 || horizons * served > MISSED
    }

    fn decay(&mut self, policy: &SlicePolicy, now: SteadyTime) {
        let passed = now.since(self.counted_at).div_duration_f64(policy.horizon);
        let left = (-passed).exp();
        self.calls *= left;
        self.served *= left;
        self.recent *= left;
        // A reply can be about a request that came earlier.
        self.counted_at = self.counted_at.max(now);
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes need no more")]
fn float(hits: u64) -> f64 {
    hits as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is at least 0, and a cast of floats saturates"
)]
fn whole(hits: f64) -> u64 {
    hits as u64
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    const POLICY: SlicePolicy = SlicePolicy {
        horizon: Duration::from_millis(500),
        limit: 1_000_000,
        holders: 4,
    };

    fn any_step() -> impl Strategy<Value = (u64, u64, u64, bool, bool)> {
        (
            0_u64..40,
            prop_oneof![9 => 1_u64..5, 1 => 1_000_u64..u64::MAX / 4],
            0_u64..40,
            any::<bool>(),
            any::<bool>(),
        )
    }

    proptest! {
        /// A counter that this holder and others charge, all or nothing, with answers that are late or lost. Hits that
        /// are added first and refused are given back.
        #[test]
        fn what_is_admitted_is_charged_and_nothing_is_charged_twice(
            limit in 0_u64..3_000,
            steps in prop::collection::vec(any_step(), 1..800),
        ) {
            let policy = SlicePolicy { limit, ..POLICY };
            let mut now = SteadyTime::from(Instant::now());
            let (mut count, mut admitted, mut lost, mut others) = (0_u64, 0_u64, 0_u64, 0_u64);
            let mut seen = 0;
            let mut slice = Slice::new(now);
            for (millis, hits, of_others, is_lost, asks) in steps {
                now = now.plus(Duration::from_millis(millis));
                let charge = |count: &mut u64, hits: u64| {
                    let is_charged = *count + hits <= limit;
                    *count += if is_charged { hits } else { 0 };
                    is_charged
                };
                if charge(&mut count, of_others) {
                    others += of_others;
                }
                let own = if slice.free() >= hits {
                    slice.admit(hits);
                    admitted += hits;
                    hits
                } else {
                    // Others see what is added first: at most an eighth of the limit, or what seemed to be there.
                    let is_first = slice.may_add_first(hits, &policy);
                    prop_assert!(!is_first || hits <= limit && hits <= limit / 4 + 1);
                    let own = if charge(&mut count, hits) { hits } else { 0 };
                    admitted += own;
                    slice.see(own, count - seen, limit - count);
                    seen = count;
                    own
                };
                slice.call(own > 0, &policy, now);
                if own > 0 {
                    slice.demand(own, &policy, now);
                }
                prop_assert!(slice.recent <= float(limit));
                let room = slice.room;
                if let Some(wanted) = slice.ask(&policy) {
                    prop_assert!(4 * (wanted + slice.free()) <= room.unwrap());
                    // One ask at a time.
                    prop_assert_eq!(slice.ask(&policy), None);
                    let is_charged = charge(&mut count, wanted);
                    let own = if is_charged && !is_lost { wanted } else { 0 };
                    if is_charged && is_lost {
                        lost += wanted;
                    }
                    slice.answered((!is_lost).then_some(own));
                    if is_lost {
                        prop_assert_eq!(slice.ask(&policy), None);
                    } else {
                        slice.see(own, count.saturating_sub(seen), limit - count);
                        seen = count;
                    }
                }
                if asks && let Some(surplus) = slice.surplus(&policy, now) {
                    count -= surplus;
                    seen = seen.min(count);
                }
                prop_assert_eq!(count, admitted + others + lost + slice.free());
                prop_assert!(admitted + others <= limit);
            }
        }
    }

    /// A slice of a busy counter, with `calls` of one hit in each of ten horizons.
    fn busy(calls: u64, room: u64) -> (Slice, SteadyTime) {
        let mut now = SteadyTime::from(Instant::now());
        let mut slice = Slice::new(now);
        for _ in 0..10 * calls {
            now = now.plus(POLICY.horizon.div_f64(calls as f64));
            slice.call(true, &POLICY, now);
            slice.demand(1, &POLICY, now);
            slice.see(1, 1, room);
        }
        (slice, now)
    }

    #[test]
    fn a_slice_is_a_fifth_more_than_the_demand_of_a_horizon() {
        let (mut slice, _) = busy(1_000, 1_000_000);
        let wanted = slice.ask(&POLICY).unwrap();
        assert!((1_150..=1_250).contains(&wanted), "{wanted}");
    }

    #[test]
    fn a_slice_is_asked_for_when_a_quarter_of_the_demand_is_left_and_by_share_and_room() {
        let now = SteadyTime::from(Instant::now());
        for (free, recent, own, all, room, holders, wanted) in [
            (25, 100.0, 96.0, 96.0, 10_000, 1, Some(120)),
            (26, 100.0, 96.0, 96.0, 10_000, 1, None),
            // A quarter of the share of the room: nothing is known of it yet, and then of half the growth.
            (0, 1_000.0, 0.0, 0.0, 1_600, 4, Some(100)),
            (0, 1_000.0, 30.0, 60.0, 80, 2, Some(10)),
            // With what is free.
            (60, 1_000.0, 0.0, 0.0, 1_600, 4, Some(40)),
            (96, 1_000.0, 0.0, 0.0, 1_600, 4, None),
            (150, 1_000.0, 0.0, 0.0, 1_600, 4, None),
            // At most all of it.
            (0, 1_000.0, 60.0, 30.0, 80, 2, Some(20)),
        ] {
            let mut slice = Slice {
                free,
                recent,
                served: recent,
                own,
                all,
                room: Some(room),
                ..Slice::new(now)
            };
            let policy = SlicePolicy { holders, ..POLICY };
            assert_eq!(slice.ask(&policy), wanted, "{slice:?}");
        }
    }

    #[test]
    fn older_growth_weighs_less_and_is_at_least_that_of_this_holder() {
        let mut slice = Slice::new(SteadyTime::from(Instant::now()));
        for (own, growth, room, seen) in [(10, 100, 500, [10, 100]), (20, 5, 300, [29, 110])] {
            slice.see(own, growth, room);
            assert_eq!([slice.own, slice.all].map(whole), seen);
            assert_eq!(slice.room, Some(room));
        }
    }

    #[test]
    fn no_more_than_a_quarter_of_the_share_of_what_is_left_is_taken() {
        let (mut slice, _) = busy(1_000, 100);
        let wanted = slice.ask(&POLICY).unwrap();
        // Its share is not quite all: it has to be learned.
        assert!((18..=25).contains(&wanted), "{wanted}");
        let (mut slice, _) = busy(1_000, 23);
        assert_eq!(slice.ask(&POLICY), None);
    }

    #[test]
    fn a_slice_has_to_serve_enough_calls_whatever_their_hits() {
        for (calls, room, asks) in [
            (18, 1_000_000, false),
            (21, 1_000_000, true),
            // Near the limit each call would be a script.
            (30, 60, true),
            (30, 25, false),
        ] {
            let (slice, _) = busy(calls, room);
            assert_eq!(slice.clone().ask(&POLICY).is_some(), asks, "{slice:?}");
            // With a hundred hits in each.
            let mut large = Slice {
                recent: 100.0 * slice.recent,
                room: Some(100 * room),
                ..slice
            };
            assert_eq!(large.ask(&POLICY).is_some(), asks, "{large:?}");
        }
    }

    #[test]
    fn a_descriptor_is_hot_while_it_has_a_slice_or_from_20_calls_in_a_horizon_on() {
        let now = SteadyTime::from(Instant::now());
        for (free, is_asked, calls, is_hot) in [
            (0, false, 20, true),
            (0, false, 19, false),
            (0, false, 0, false),
            (1, false, 0, true),
            (0, true, 0, true),
        ] {
            let mut slice = Slice {
                free,
                is_asked,
                ..Slice::new(now)
            };
            for _ in 0..calls {
                slice.call(true, &POLICY, now);
                slice.call(false, &POLICY, now);
            }
            assert_eq!(slice.is_hot(&POLICY), is_hot, "{slice:?}");
        }
    }

    #[test]
    fn what_is_known_of_the_demand_decays_and_without_demand_nothing_is_asked_for() {
        let (mut slice, now) = busy(1_000, 1_000_000);
        let before = [slice.calls, slice.served, slice.recent];
        slice.call(false, &POLICY, now.plus(POLICY.horizon));
        let after = [slice.calls, slice.served, slice.recent];
        for (before, after) in before.into_iter().zip(after) {
            assert!(
                (before / after - 1_f64.exp()).abs() < 0.001,
                "{before} {after}"
            );
        }
        let mut slice = Slice::new(now);
        slice.see(1, 1, 1_000);
        assert_eq!(slice.ask(&POLICY), None);
    }

    #[test]
    fn after_a_slice_that_was_hardly_used_the_next_one_has_to_serve_more() {
        for (used, asks) in [(60, true), (40, false)] {
            let (mut slice, now) = busy(100, 1_000_000);
            slice.ask(&POLICY).unwrap();
            slice.answered(Some(120));
            slice.admit(used);
            let later = now.plus(POLICY.horizon);
            assert_eq!(slice.surplus(&POLICY, later), Some(120 - used));
            let (fresh, _) = busy(50, 1_000_000);
            let mut slice = Slice {
                recent: fresh.recent,
                served: fresh.served,
                ..slice
            };
            assert_eq!(slice.ask(&POLICY).is_some(), asks, "{slice:?}");
        }
    }

    #[test]
    fn hits_are_added_first_where_there_is_room_for_many_more() {
        let (slice, _) = busy(100, 1_000_000);
        for (room, hits, may) in [
            (Some(1_000_000), 1, true),
            (Some(1_000_000), 240_000, true),
            (Some(1_000_000), 260_000, false),
            (Some(1_000_000), u64::MAX, false),
            // Twice what all take in a horizon.
            (Some(280), 1, true),
            (Some(240), 1, false),
            (None, 1, true),
            (None, 125_000, true),
            (None, 125_001, false),
        ] {
            let slice = Slice {
                room,
                ..slice.clone()
            };
            assert_eq!(slice.may_add_first(hits, &POLICY), may, "{room:?} {hits}");
        }
        // Hits that no room would be enough for.
        assert!(may_add_first_unknown(1, 1));
        assert!(!may_add_first_unknown(1, 0));
        assert!(!may_add_first_unknown(2, 15));
    }

    #[test]
    fn more_than_twice_the_demand_goes_back_once_a_horizon() {
        let (mut slice, now) = busy(100, 1_000_000);
        slice.ask(&POLICY).unwrap();
        slice.answered(Some(1_000));
        slice.surplus(&POLICY, now);
        let before = slice.free();
        let later = now.plus(POLICY.horizon);
        slice.call(true, &POLICY, later);
        slice.demand(1, &POLICY, later);
        let back = slice.surplus(&POLICY, later).unwrap();
        assert!((80..100).contains(&(before - back)), "{before} {back}");
        slice.answered(Some(1_000));
        assert_eq!(slice.surplus(&POLICY, later), None);
        // A horizon later it is all needed.
        let (mut slice, now) = busy(100, 1_000_000);
        slice.answered(Some(10));
        let later = now.plus(POLICY.horizon);
        slice.call(true, &POLICY, later);
        slice.demand(1, &POLICY, later);
        assert_eq!((slice.surplus(&POLICY, later), slice.free()), (None, 10));
    }

    #[test]
    fn all_goes_back_when_demand_has_ended() {
        // Requests in a horizon, and the parts of a horizon before and after which eight of them are missing.
        for (requests, soon, late) in [
            (1_000, 0.007, 0.01),
            (100, 0.07, 0.1),
            (16, 0.45, 0.55),
            (8, 0.9, 1.0),
        ] {
            for hits in [1, 100] {
                let (mut slice, now) = busy(requests, 1_000_000);
                slice.recent *= float(hits);
                slice.answered(Some(10));
                slice.surplus(&POLICY, now);
                let at = |part| now.plus(POLICY.horizon.mul_f64(part));
                assert_eq!(slice.surplus(&POLICY, at(soon)), None, "{requests}");
                assert_eq!(slice.surplus(&POLICY, at(late)), Some(10), "{requests}");
                assert_eq!(slice.free(), 0);
            }
        }
    }

    #[test]
    fn in_other_windows_a_slice_is_empty_and_asks_once_their_room_is_known() {
        let (mut slice, _) = busy(1_000, 1_000_000);
        slice.answered(Some(7));
        assert!(slice.ask(&POLICY).is_some());
        assert_eq!((slice.turn(), slice.free()), (7, 0));
        assert_eq!(slice.ask(&POLICY), None);
        slice.see(1, 1, 1_000_000);
        assert!(slice.ask(&POLICY).is_some());
    }

    #[test]
    fn a_slice_is_idle_without_hits_an_ask_and_calls() {
        let now = SteadyTime::from(Instant::now());
        for (free, is_asked, unseen, is_idle) in [
            (0, false, KEPT, true),
            (0, false, KEPT / 2, false),
            (0, true, KEPT, false),
            (1, false, KEPT, false),
        ] {
            let slice = Slice {
                free,
                is_asked,
                ..Slice::new(now)
            };
            assert_eq!(
                slice.is_idle(&POLICY, now.plus(unseen)),
                is_idle,
                "{slice:?}"
            );
        }
    }

    #[test]
    fn a_slice_may_pay_from_half_of_the_calls_that_make_it_pay() {
        for (window, least) in [(1_000, 200), (20_000, 16), (60_000, 5), (86_400_000, 5)] {
            let policy = SlicePolicy::new(window, 1, 1);
            assert!(policy.may_pay(least), "{window}");
            assert!(!policy.may_pay(least - 1), "{window}");
        }
    }

    #[test]
    fn a_horizon_is_a_thirtieth_of_a_window_within_bounds() {
        let horizons = [1_000, 20_000, 60_000].map(|window| SlicePolicy::new(window, 1, 1).horizon);
        assert_eq!(
            horizons.map(|horizon| horizon.as_millis()),
            [50, 666, 2_000]
        );
    }
}
