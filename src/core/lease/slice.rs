//! Slices: hits of one descriptor that a worker charged in advance, and from which it admits requests without asking
//! the store.
//!
//! A slice only ever admits: without enough free hits the store is asked, as it would be without slices. So no request
//! is refused that exact counting would admit, and none waits for a slice.
//!
//! A slice is as large as the demand of a *horizon*, a fortieth of the window, and a fifth more, but at most a quarter
//! of this holder's share of what the counters still admit: the last hits of a limit are counted one by one. The share
//! follows from how much of the counters' growth is this holder's. What is too much goes back once a horizon, and all
//! of it as soon as demand seems to have ended: others may need it before the window ends.

use std::time::Duration;

use crate::core::window::SteadyTime;

/// A smaller slice would cost more commands than it saves.
pub(crate) const LEAST: u64 = 6;

/// Demand has ended if this many requests that were expected have not come, or none came for a horizon.
const MISSED: f64 = 8.0;

/// How slices of one descriptor are sized.
#[derive(Clone, Copy, Debug)]
pub struct SlicePolicy {
    pub(crate) horizon: Duration,
    /// How many workers of all replicas can hold slices, as far as known.
    pub(crate) holders: u32,
}

impl SlicePolicy {
    /// How often a holder looks through its slices for a surplus.
    pub const SWEEP: Duration = Duration::from_millis(100);

    /// For the shortest window of a descriptor.
    pub fn new(window_millis: u64, holders: u32) -> Self {
        let horizon = Duration::from_millis(window_millis / 40);
        Self {
            horizon: horizon.clamp(Duration::from_millis(50), Duration::from_secs(1)),
            holders: holders.max(1),
        }
    }
}

/// Hits that are charged and not yet used, and what is known for the size of further ones.
#[derive(Clone, Debug)]
pub struct Slice {
    free: u64,
    /// The demand of about a horizon, in hits and in requests.
    recent: f64,
    requests: f64,
    recent_at: SteadyTime,
    /// The hits that were charged for this holder, and the growth of the counters; older ones weigh less.
    own: f64,
    all: f64,
    /// How many hits the counters still admitted when the store answered last.
    room: u64,
    is_asked: bool,
    /// When a request came last.
    used_at: SteadyTime,
    looked_at: SteadyTime,
}

impl Slice {
    pub fn new(now: SteadyTime) -> Self {
        Self {
            free: 0,
            recent: 0.0,
            requests: 0.0,
            recent_at: now,
            own: 0.0,
            all: 0.0,
            room: 0,
            is_asked: false,
            used_at: now,
            looked_at: now,
        }
    }

    pub fn free(&self) -> u64 {
        self.free
    }

    /// Takes hits into account for which a request asks.
    pub fn demand(&mut self, hits: u64, policy: &SlicePolicy, now: SteadyTime) {
        self.decay(policy, now);
        self.recent += float(hits);
        self.requests += 1.0;
        self.used_at = self.used_at.max(now);
    }

    /// Uses hits of it.
    ///
    /// # Panics
    ///
    /// If fewer are free.
    pub fn admit(&mut self, hits: u64) {
        self.free = self.free.checked_sub(hits).expect("the caller looks first");
    }

    /// Takes a reply of the store into account: `own` hits were charged for this holder, the counters grew by `growth`
    /// since the reply before, and admit `room` more.
    pub fn see(&mut self, own: u64, growth: u64, room: u64) {
        self.own = 0.9 * self.own + float(own);
        self.all = 0.9 * self.all + float(growth.max(own));
        self.room = room;
    }

    /// The hits to ask the store for, if it is time to; they are then on their way.
    pub fn ask(&mut self, policy: &SlicePolicy) -> Option<u64> {
        if self.is_asked || float(self.free) > self.recent / 4.0 {
            return None;
        }
        let share = (self.own + 4.0 / f64::from(policy.holders)) / (self.all + 4.0);
        let most = share.min(1.0) * float(self.room) / 4.0;
        let wanted = whole((1.2 * self.recent).ceil().min(most));
        self.is_asked = wanted >= LEAST;
        self.is_asked.then_some(wanted)
    }

    /// Takes the answer to [`Self::ask`] over: the hits that were charged, 0 if none were or that is not known.
    pub fn answered(&mut self, hits: u64) {
        self.is_asked = false;
        self.free += hits;
    }

    /// Takes out what is not needed, once a horizon: all of it if demand has ended, and that at once.
    pub fn surplus(&mut self, policy: &SlicePolicy, now: SteadyTime) -> Option<u64> {
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

    /// Begins again in other windows, with what is known of the demand. Returns the hits that were left.
    pub fn turn(&mut self) -> u64 {
        self.is_asked = false;
        self.room = 0;
        self.end()
    }

    /// Takes out all hits: none is used any more.
    pub fn end(&mut self) -> u64 {
        std::mem::take(&mut self.free)
    }

    /// Whether nothing is lost if it is forgotten.
    pub fn is_idle(&self) -> bool {
        self.free == 0 && !self.is_asked && self.recent < 0.5
    }

    fn has_ended(&self, policy: &SlicePolicy, now: SteadyTime) -> bool {
        let horizons = now.since(self.used_at).div_duration_f64(policy.horizon);
        // They have decayed since.
        let requests = self.requests * horizons.exp();
        horizons >= 1.0 || horizons * requests > MISSED
    }

    fn decay(&mut self, policy: &SlicePolicy, now: SteadyTime) {
        let passed = now.since(self.recent_at).div_duration_f64(policy.horizon);
        let left = (-passed).exp();
        self.recent *= left;
        self.requests *= left;
        // A reply can be about a request that came earlier.
        self.recent_at = self.recent_at.max(now);
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
        holders: 4,
    };

    fn any_step() -> impl Strategy<Value = (u64, u64, u64, bool, bool)> {
        (
            0_u64..400,
            1_u64..5,
            0_u64..40,
            any::<bool>(),
            any::<bool>(),
        )
    }

    proptest! {
        /// A counter that this holder and others charge, all or nothing, with lost answers.
        #[test]
        fn what_is_admitted_is_charged_and_nothing_is_charged_twice(
            limit in 0_u64..3_000,
            steps in prop::collection::vec(any_step(), 1..400),
        ) {
            let began = Instant::now();
            let mut now = SteadyTime::from(began);
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
                slice.demand(hits, &POLICY, now);
                if slice.free() >= hits {
                    slice.admit(hits);
                    admitted += hits;
                } else {
                    let own = if charge(&mut count, hits) { hits } else { 0 };
                    admitted += own;
                    slice.see(own, count - seen, limit - count);
                    seen = count;
                }
                if let Some(wanted) = slice.ask(&POLICY) {
                    prop_assert!(wanted >= LEAST && 4 * wanted <= slice.room);
                    // One ask at a time.
                    prop_assert_eq!(slice.ask(&POLICY), None);
                    let is_charged = charge(&mut count, wanted);
                    match (is_charged, is_lost) {
                        (true, true) => {
                            lost += wanted;
                            slice.answered(0);
                        }
                        (true, false) => slice.answered(wanted),
                        (false, _) => slice.answered(0),
                    }
                    let own = if is_charged && !is_lost { wanted } else { 0 };
                    slice.see(own, count.saturating_sub(seen), limit - count);
                    seen = count;
                }
                if asks && let Some(surplus) = slice.surplus(&POLICY, now) {
                    count -= surplus;
                    seen = seen.min(count);
                }
                prop_assert_eq!(count, admitted + others + lost + slice.free());
                prop_assert!(admitted + others <= limit);
            }
        }
    }

    /// A slice of a busy counter, with `hits` requests in each of ten horizons.
    fn busy(hits: u64, room: u64) -> (Slice, SteadyTime) {
        let mut now = SteadyTime::from(Instant::now());
        let mut slice = Slice::new(now);
        for _ in 0..10 * hits {
            now = now.plus(POLICY.horizon.div_f64(hits as f64));
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
            // At most all of it.
            (0, 1_000.0, 60.0, 30.0, 80, 2, Some(20)),
            (0, 5.0, 96.0, 96.0, 10_000, 1, Some(LEAST)),
            (0, 4.0, 96.0, 96.0, 10_000, 1, None),
        ] {
            let mut slice = Slice {
                free,
                recent,
                own,
                all,
                room,
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
            assert_eq!(slice.room, room);
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
    fn a_slow_counter_is_counted_exactly() {
        let (mut slice, _) = busy(3, 1_000_000);
        assert_eq!(slice.ask(&POLICY), None);
        let (mut slice, _) = busy(6, 1_000_000);
        assert!(slice.ask(&POLICY).is_some());
    }

    #[test]
    fn more_than_twice_the_demand_goes_back_once_a_horizon() {
        let (mut slice, now) = busy(100, 1_000_000);
        slice.ask(&POLICY).unwrap();
        slice.answered(1_000);
        slice.surplus(&POLICY, now);
        let before = slice.free();
        let later = now.plus(POLICY.horizon);
        slice.demand(1, &POLICY, later);
        let back = slice.surplus(&POLICY, later).unwrap();
        assert!((80..100).contains(&(before - back)), "{before} {back}");
        slice.answered(1_000);
        assert_eq!(slice.surplus(&POLICY, later), None);
        // A horizon later it is all needed.
        let (mut slice, now) = busy(100, 1_000_000);
        slice.answered(10);
        let later = now.plus(POLICY.horizon);
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
                slice.answered(10);
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
        slice.answered(7);
        assert!(slice.ask(&POLICY).is_some());
        assert_eq!((slice.turn(), slice.free()), (7, 0));
        assert_eq!(slice.ask(&POLICY), None);
        slice.see(1, 1, 1_000_000);
        assert!(slice.ask(&POLICY).is_some());
    }

    #[test]
    fn a_slice_is_idle_without_hits_an_ask_and_demand() {
        let now = SteadyTime::from(Instant::now());
        for (free, is_asked, recent, is_idle) in [
            (0, false, 0.4, true),
            (0, false, 0.5, false),
            (0, true, 0.4, false),
            (1, false, 0.4, false),
        ] {
            let slice = Slice {
                free,
                is_asked,
                recent,
                ..Slice::new(now)
            };
            assert_eq!(slice.is_idle(), is_idle, "{slice:?}");
        }
    }

    #[test]
    fn a_horizon_is_a_fortieth_of_a_window_within_bounds() {
        let horizons = [1_000, 20_000, 60_000].map(|window| SlicePolicy::new(window, 1).horizon);
        assert_eq!(
            horizons.map(|horizon| horizon.as_millis()),
            [50, 500, 1_000]
        );
    }
}
