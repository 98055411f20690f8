use proptest::prelude::*;

use super::*;
use crate::core::{
    counter::{BucketPlace, Charge, sample},
    kind::Halves,
    limit::Limit,
    request::Hits,
    window::Timestamp,
};

const PERIOD: u64 = 10_000;

/// The first millisecond of a window, long after the epoch.
const START: u64 = 1_795_230_000_000;

const RATE: u64 = 5;

const BUCKET: CounterKind = CounterKind::TokenBucket {
    rate: Halves::new(RATE),
};

/// Those with a state that is tested here: a window is a plain number, and slots have names.
fn all() -> Vec<CounterKind> {
    let with_state = |kind| match kind {
        CounterKind::Window | CounterKind::Slots { .. } => None,
        CounterKind::TokenBucket { .. } => Some(BUCKET),
        other => Some(other),
    };
    CounterKind::all().filter_map(with_state).collect()
}

fn spec(method: CounterKind, limit: u64, hits: Hits) -> IncrementSpec {
    IncrementSpec {
        method,
        period_millis: PERIOD,
        expires_at: Timestamp::from_millis(u64::MAX),
        ..sample::spec(limit, hits).asking(hits, Charge::Within)
    }
}

/// An algorithm state with its limit.
#[derive(Clone, Debug, PartialEq)]
struct Counter {
    state: AlgorithmState,
    limit: u64,
    method: CounterKind,
}

/// The answer to hits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Observed {
    passes: bool,
    held: u64,
    resets_in: u64,
    retry_in: Option<u64>,
}

impl Counter {
    fn new(method: CounterKind, limit: u64) -> Self {
        Self {
            state: AlgorithmState::new(method).unwrap(),
            limit,
            method,
        }
    }

    /// A counter that took `hits` at `now`.
    fn with(method: CounterKind, limit: u64, hits: u64, now: u64) -> Self {
        let mut counter = Self::new(method, limit);
        assert!(counter.send(Hits::add(hits), now).passes);
        counter
    }

    /// Does what a store does: looks, charges hits that pass, and answers.
    fn send(&mut self, hits: Hits, now: u64) -> Observed {
        let spec = spec(self.method, self.limit, hits);
        let now = self.state.present(&spec, now);
        let passes = !spec.refuses(self.state.held(&spec, now));
        if passes && !hits.is_peek() {
            self.state.charge(&spec, now);
        }
        let held = self.state.held(&spec, now);
        let ends = self.state.ends(&spec, held, now);
        Observed {
            passes,
            held,
            resets_in: ends.resets_in,
            retry_in: ends.retry_in,
        }
    }

    fn look(&mut self, now: u64) -> Observed {
        self.send(Hits::add(0), now)
    }

    fn passes(&self, hits: u64, now: u64) -> bool {
        self.clone().send(Hits::add(hits), now).passes
    }
}

/// Pauses and hits; negative ones are given back.
fn any_history() -> impl Strategy<Value = Vec<(u64, i64)>> {
    prop::collection::vec(
        (0..4_000_u64, prop_oneof![4 => 1..4_i64, 1 => -3..0_i64]),
        0..12,
    )
}

/// A counter after `history`, and the time at which that ended.
fn after(method: CounterKind, limit: u64, history: &[(u64, i64)]) -> (Counter, u64) {
    let mut counter = Counter::new(method, limit);
    let mut now = START;
    for &(pause, hits) in history {
        now += pause;
        let count = hits.unsigned_abs();
        let hits = if hits < 0 {
            Hits::give_back(count)
        } else {
            Hits::add(count)
        };
        counter.send(hits, now);
    }
    (counter, now)
}

fn any_method() -> impl Strategy<Value = CounterKind> {
    prop::sample::select(all())
}

// Each of the following is a row of the table in docs/rules/algorithms.md. A test holds for all columns, or
// there is one per column.

proptest! {
    #[test]
    fn a_look_changes_nothing_that_is_told_later(
        method in any_method(),
        history in any_history(),
        (until_look, until_hit) in (0..15_000_u64, 0..15_000_u64),
        hits in 1..4_u64,
    ) {
        let (counter, now) = after(method, 5, &history);
        let (mut looked_at, mut untouched) = (counter.clone(), counter);
        let first = looked_at.look(now + until_look);
        prop_assert_eq!(looked_at.look(now + until_look), first);
        let later = now + until_look + until_hit;
        let hits = Hits::add(hits);
        prop_assert_eq!(looked_at.send(hits, later), untouched.send(hits, later));
    }

    #[test]
    fn hits_pass_together_or_not_at_all(
        method in any_method(),
        history in any_history(),
        hits in 2..5_u64,
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let before = counter.look(now).held;
        let observed = counter.send(Hits::add(hits), now);
        prop_assert_eq!(observed.passes, before + hits <= 5);
        prop_assert_eq!(observed.held, if observed.passes { before + hits } else { before });
    }

    #[test]
    fn more_hits_than_the_limit_never_pass(
        method in any_method(),
        history in any_history(),
        hits in 6..u64::MAX,
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let observed = counter.send(Hits::add(hits), now);
        prop_assert!(!observed.passes);
        prop_assert_eq!(observed.retry_in, None);
    }

    #[test]
    fn what_is_given_back_is_free_at_once_and_nothing_falls_below_zero(
        method in any_method(),
        history in any_history(),
        back in 1..9_u64,
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let before = counter.look(now).held;
        let observed = counter.send(Hits::give_back(back), now);
        prop_assert!(observed.passes);
        // A bucket takes back whole tokens, and a sliding window first takes hits from the present
        // window: hits that are held in part may round up.
        let expected = before.saturating_sub(back);
        let most = if method == CounterKind::SlidingWindow { before } else { expected };
        prop_assert!((expected..=most).contains(&observed.held), "{} of {before}", observed.held);
        counter.send(Hits::give_back(1_000), now);
        prop_assert_eq!(counter.look(now).held, 0);
        prop_assert!(counter.passes(5, now));
    }

    #[test]
    fn never_more_is_held_than_the_limit_and_what_remains_would_pass(
        method in any_method(),
        history in any_history(),
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let held = counter.look(now).held;
        prop_assert!(held <= 5);
        prop_assert!(counter.passes(5 - held, now));
        prop_assert!(!counter.passes(5 - held + 1, now));
    }

    #[test]
    fn when_it_resets_it_holds_nothing_and_before_that_it_does(
        method in any_method(),
        history in any_history(),
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let observed = counter.look(now);
        let mut then = counter.clone();
        prop_assert_eq!(then.look(now + observed.resets_in).held, 0);
        if observed.held > 0 {
            prop_assert!(counter.look(now + observed.resets_in - 1).held > 0);
        }
    }

    #[test]
    fn as_many_hits_pass_when_told_and_not_a_millisecond_before(
        method in any_method(),
        history in any_history(),
        hits in 1..6_u64,
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let observed = counter.send(Hits::add(hits), now);
        let retry_in = observed.retry_in.unwrap();
        prop_assert!(observed.passes || retry_in > 0);
        prop_assert!(retry_in == 0 || !counter.passes(hits, now + retry_in - 1));
        prop_assert!(counter.passes(hits, now + retry_in));
    }

    #[test]
    fn a_raised_limit_frees_at_once(
        method in any_method(),
        history in any_history(),
        more in 1..9_u64,
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let before = counter.look(now).held;
        counter.limit = 5 + more;
        prop_assert_eq!(counter.look(now).held, before);
        prop_assert!(counter.passes((5 + more) - before, now));
    }

    #[test]
    fn a_lowered_limit_holds_for_what_is_there_already(
        method in any_method(),
        history in any_history(),
        fewer in 1..5_u64,
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let before = counter.look(now).held;
        counter.limit = 5 - fewer;
        let limit = 5 - fewer;
        let observed = counter.send(Hits::ONE, now);
        prop_assert_eq!(observed.passes, before < limit);
        if !observed.passes {
            let retry_in = observed.retry_in.unwrap();
            prop_assert!(counter.passes(1, now + retry_in));
            prop_assert!(!counter.passes(1, now + retry_in - 1));
        }
    }

    #[test]
    fn a_clock_that_steps_back_frees_nothing(
        method in any_method(),
        history in any_history(),
        back in 1..=PERIOD,
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let before = counter.look(now).held;
        let observed = counter.look(now - back);
        // An older window that overlaps more again can show more than the limit.
        prop_assert!(observed.held >= before);
        prop_assert!(observed.held <= 5 || method == CounterKind::SlidingWindow);
        // Once the clock has caught up, all is as it was.
        prop_assert_eq!(counter.look(now).held, before);
    }

    #[test]
    fn a_look_by_a_clock_that_is_behind_changes_nothing(
        method in any_method(),
        history in any_history(),
        looks in prop::collection::vec(1..=PERIOD, 1..4),
        hits in 1..4_u64,
        limit in 1..9_u64,
    ) {
        let (counter, now) = after(method, limit, &history);
        let (mut looked_at, mut untouched) = (counter.clone(), counter);
        for behind in looks {
            looked_at.look(now - behind);
        }
        prop_assert_eq!(&looked_at, &untouched);
        let hits = Hits::add(hits);
        prop_assert_eq!(looked_at.send(hits, now), untouched.send(hits, now));
    }

    #[test]
    fn a_clock_that_was_wrong_by_more_locks_nobody_out_for_longer_than_a_period(
        method in any_method(),
        history in any_history(),
        back in 2 * PERIOD..1_000 * PERIOD,
    ) {
        let (mut counter, now) = after(method, 5, &history);
        let before = counter.look(now).held;
        let observed = counter.look(now - back);
        // The tokens that were missing after the last hit still are, and flow in from now on: in burst /
        // rate periods, which is one here.
        let most = if method == BUCKET { 5 } else { 0 };
        prop_assert!((before.min(most)..=most).contains(&observed.held));
        prop_assert!(counter.passes(5, now - back + PERIOD));
    }

    #[test]
    fn callers_whose_clocks_are_apart_get_the_burst_and_what_flows_in_and_no_more(
        (burst, rate) in (1..40_u64, 1..20_000_u64),
        apart in prop_oneof![2 => 1..4_u64, 1 => 1..PERIOD],
        calls in prop::collection::vec(
            (prop_oneof![5 => Just(0), 1 => 0..10_u64], 0..=PERIOD, 1..4_u64),
            100..400,
        ),
    ) {
        let mut counter = Counter::new(CounterKind::TokenBucket { rate: Halves::new(rate) }, burst);
        let mut time = START;
        let (mut first, mut last, mut admitted) = (u64::MAX, 0, 0);
        for (pause, behind, hits) in calls {
            time += pause;
            let now = time - behind % (apart + 1);
            (first, last) = (now.min(first), now.max(last));
            if counter.send(Hits::add(hits), now).passes {
                admitted += hits;
            }
        }
        let inflow = rate * (last - first);
        prop_assert!(admitted * PERIOD <= burst * PERIOD + inflow, "{admitted}");
    }

    #[test]
    fn callers_whose_clocks_are_apart_share_one_log(
        apart in prop_oneof![1..4_u64, 1..PERIOD],
        calls in prop::collection::vec((0..900_u64, 0..=PERIOD, 1..4_u64), 1..100),
    ) {
        let mut counter = Counter::new(CounterKind::SlidingLog, 5);
        let mut time = START;
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for (pause, behind, hits) in calls {
            time += pause;
            let now = time - behind % (apart + 1);
            if counter.send(Hits::add(hits), now).passes {
                // By the clock that is furthest ahead among the admitted calls.
                let latest = admitted.last().map_or(now, |(at, _)| now.max(*at));
                admitted.push((latest, hits));
            }
            let held: u64 = admitted
                .iter()
                .filter(|(at, _)| at + PERIOD > admitted.last().unwrap().0)
                .map(|(_, hits)| hits)
                .sum();
            prop_assert!(held <= 5);
        }
    }

    #[test]
    fn a_limit_that_was_another_for_a_moment_leaves_missing_what_was(
        history in any_history(),
        (other, rate) in (0..9_u64, 1..9_u64),
    ) {
        let (mut counter, now) = after(BUCKET, 5, &history);
        let before = counter.look(now);
        (counter.limit, counter.method) = (other, CounterKind::TokenBucket { rate: Halves::new(rate) });
        counter.look(now);
        (counter.limit, counter.method) = (5, BUCKET);
        prop_assert_eq!(counter.look(now), before);
    }
}

/// Asserts that a counter that took `taken` answers `hits` with `expected`.
#[track_caller]
fn check(
    method: CounterKind,
    limit: u64,
    taken: &[(u64, u64)],
    (hits, now): (u64, u64),
    expected: (bool, u64, u64, Option<u64>),
) {
    let mut counter = Counter::new(method, limit);
    for &(hits, at) in taken {
        assert!(counter.send(Hits::add(hits), START + at).passes);
    }
    let observed = counter.send(Hits::add(hits), START + now);
    assert_eq!(
        (
            observed.passes,
            observed.held,
            observed.resets_in,
            observed.retry_in
        ),
        expected
    );
}

#[test]
fn giving_back_to_a_counter_without_hits_changes_nothing() {
    for method in all() {
        for now in [0, 5, START] {
            let mut counter = Counter::new(method, 5);
            let empty = Observed {
                passes: true,
                held: 0,
                resets_in: 0,
                retry_in: Some(0),
            };
            assert_eq!(counter.look(now), empty, "{method:?} at {now}");
            assert_eq!(counter.send(Hits::give_back(3), now), empty);
            let spec = spec(method, 5, Hits::ONE);
            assert_eq!(counter.state.expires_at(&spec, now), now, "{method:?}");
            // A bucket remembers its limit.
            if method != BUCKET {
                assert_eq!(counter, Counter::new(method, 5), "{method:?} at {now}");
            }
        }
    }
}

/// A counter that took `taken` hits at [`START`] would hold `held` if `ahead` were added `later` and then
/// `back` given back.
#[track_caller]
fn check_held_after(
    method: CounterKind,
    taken: u64,
    later: u64,
    [ahead, back]: [u64; 2],
    held: u64,
) {
    let mut counter = Counter::with(method, 8, taken, START);
    let untouched = counter.clone();
    let spec = spec(method, 8, Hits::give_back(back));
    let after = counter.state.held_after(&spec, ahead, START + later);
    assert_eq!(after, held, "{method:?}");
    assert_eq!(counter, untouched);
}

#[test]
fn a_look_at_a_give_back_counts_the_hits_ahead_of_it() {
    for method in all() {
        check_held_after(method, 3, 0, [2, 1], 4);
        check_held_after(method, 3, 0, [2, 9], 0);
        check_held_after(method, 8, 0, [0, 3], 5);
    }
    // Of a bucket no more than all of it can be missing.
    check_held_after(CounterKind::FirstHit, 7, 0, [3, 2], 8);
    check_held_after(CounterKind::SlidingLog, 7, 0, [3, 2], 8);
    check_held_after(BUCKET, 7, 0, [3, 2], 6);
    // Three quarters of the older hits count: 6 of 8, and of 7 when one is given back of them.
    check_held_after(CounterKind::SlidingWindow, 8, 12_500, [0, 0], 6);
    check_held_after(CounterKind::SlidingWindow, 8, 12_500, [1, 2], 6);
}

#[test]
fn a_counter_expires_when_it_is_empty_and_not_before() {
    let method = |rate| CounterKind::TokenBucket {
        rate: Halves::new(rate),
    };
    for (method, hits, expires_in) in [
        (CounterKind::FirstHit, 2, PERIOD),
        (CounterKind::SlidingLog, 2, PERIOD),
        (CounterKind::SlidingWindow, 2, 2 * PERIOD),
        (method(5), 2, 4_000),
        (method(3), 1, 3_334),
        (method(3), 2, 6_667),
        (method(3), 3, PERIOD),
    ] {
        let mut counter = Counter::with(method, 5, hits, START);
        let spec = spec(method, 5, Hits::ONE);
        for now in [START, START + 1_000] {
            let expires_at = counter.state.expires_at(&spec, now);
            assert_eq!(expires_at, START + expires_in, "{method:?}");
        }
    }
}

#[test]
fn a_window_from_the_first_hit_lasts_one_period_however_many_follow() {
    let full = [(1, 300), (4, 9_000)];
    let method = CounterKind::FirstHit;
    check(
        method,
        5,
        &full,
        (1, 300 + PERIOD - 1),
        (false, 5, 1, Some(1)),
    );
    check(
        method,
        5,
        &full,
        (1, 300 + PERIOD),
        (true, 1, PERIOD, Some(0)),
    );
}

#[test]
fn a_window_of_which_all_was_given_back_still_ends_when_it_was_to() {
    let mut counter = Counter::with(CounterKind::FirstHit, 5, 1, START);
    let observed = counter.send(Hits::give_back(1), START + 10);
    assert_eq!((observed.held, observed.resets_in), (0, PERIOD - 10));
    counter.send(Hits::add(5), START + PERIOD - 1);
    assert!(counter.passes(5, START + PERIOD));
}

#[test]
fn an_older_window_weighs_as_much_as_it_overlaps_the_last_period() {
    let method = CounterKind::SlidingWindow;
    let older = [(8, 0)];
    // A quarter of the next window is over: 6 of the 8 count.
    check(
        method,
        8,
        &older,
        (2, 12_500),
        (true, 8, 17_500, Some(2_500)),
    );
    check(
        method,
        8,
        &older,
        (3, 12_500),
        (false, 6, 7_500, Some(1_250)),
    );
    // The last millisecond of a window, the first of the next, and the last of that.
    check(
        method,
        8,
        &older,
        (1, PERIOD - 1),
        (false, 8, PERIOD + 1, Some(1_251)),
    );
    check(
        method,
        8,
        &older,
        (1, PERIOD),
        (false, 8, PERIOD, Some(1_250)),
    );
    check(
        method,
        8,
        &older,
        (8, 2 * PERIOD - 1),
        (false, 1, 1, Some(1)),
    );
    check(
        method,
        8,
        &older,
        (8, 2 * PERIOD),
        (true, 8, 2 * PERIOD, Some(2 * PERIOD)),
    );
}

#[test]
fn hits_of_one_millisecond_all_count_and_leave_a_log_together() {
    let method = CounterKind::SlidingLog;
    let taken = [(2, 0), (1, 0), (2, 1)];
    check(method, 5, &taken, (1, PERIOD - 1), (false, 5, 2, Some(1)));
    check(
        method,
        5,
        &taken,
        (3, PERIOD),
        (true, 5, PERIOD, Some(PERIOD)),
    );
    check(method, 5, &taken, (4, PERIOD), (false, 2, 1, Some(1)));
    let mut counter = Counter::new(method, 5);
    for _ in 0..5 {
        counter.send(Hits::ONE, START);
    }
    let AlgorithmState::SlidingLog(log) = &counter.state else {
        unreachable!("it was made as one");
    };
    assert_eq!(log.entries.len(), 1);
}

#[test]
fn a_log_gives_back_the_latest_hits() {
    let mut counter = Counter::with(CounterKind::SlidingLog, 5, 2, START);
    counter.send(Hits::add(3), START + 4_000);
    counter.send(Hits::give_back(4), START + 5_000);
    let observed = counter.look(START + 5_000);
    assert_eq!((observed.held, observed.resets_in), (1, PERIOD - 5_000));
}

/// Merges a log of these moments after `START`, each with its hits, that has no free place.
#[track_caller]
fn check_merged(entries: &[(u64, u64)], expected: &[(u64, u64)]) {
    let log = |entries: &[(u64, u64)]| {
        let entries: Vec<_> = entries
            .iter()
            .map(|(at, hits)| (START + at, *hits))
            .collect();
        AlgorithmState::SlidingLog(SlidingLog {
            total: entries.iter().map(|(_, hits)| hits).sum(),
            entries: entries.into(),
        })
    };
    let mut state = log(entries);
    let spec = spec(CounterKind::SlidingLog, 5, Hits::ONE);
    assert_eq!(state.heap_bytes(), 16 * entries.len());
    state.make_room(&spec, START + 10);
    assert_eq!(state, log(expected));
    // There are free places now.
    state.make_room(&spec, START + 10);
    assert_eq!(state, log(expected));
    assert_eq!(state.heap_bytes(), 16 * entries.len());
}

#[test]
fn a_log_without_a_free_place_keeps_the_later_moment_of_each_pair() {
    check_merged(&[(1, 1), (2, 2)], &[(2, 3)]);
    check_merged(&[(1, 1), (2, 2), (3, 4)], &[(2, 3), (3, 4)]);
    check_merged(
        &[(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32)],
        &[(2, 3), (4, 12), (6, 48)],
    );
    check_merged(
        &[(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 64)],
        &[(2, 3), (4, 12), (6, 48), (7, 64)],
    );
}

/// The hit that has left does not come back with a later one.
#[test]
fn a_log_forgets_what_has_left_before_it_merges_moments() {
    let mut counter = Counter::with(CounterKind::SlidingLog, 5, 1, START);
    for millis in 1..4 {
        counter.send(Hits::ONE, START + millis);
    }
    let spec = spec(CounterKind::SlidingLog, 5, Hits::ONE);
    counter.state.make_room(&spec, START + PERIOD);
    assert_eq!(counter.look(START + PERIOD).held, 3);
}

#[test]
fn states_without_a_list_need_no_room() {
    for method in [CounterKind::FirstHit, CounterKind::SlidingWindow, BUCKET] {
        let counter = Counter::with(method, 5, 3, START);
        let mut state = counter.state.clone();
        state.make_room(&spec(method, 5, Hits::ONE), START);
        assert_eq!((state.heap_bytes(), state), (0, counter.state));
    }
}

#[test]
fn tokens_flow_in_evenly_to_the_millisecond() {
    // Five tokens in ten seconds: one every two.
    check(BUCKET, 5, &[(5, 0)], (1, 1_999), (false, 5, 8_001, Some(1)));
    check(
        BUCKET,
        5,
        &[(5, 0)],
        (1, 2_000),
        (true, 5, 10_000, Some(2_000)),
    );
    check(
        BUCKET,
        5,
        &[(5, 0)],
        (2, 2_000),
        (false, 4, 8_000, Some(2_000)),
    );
    // A bucket that is larger than what flows in during a period, and one that is smaller.
    check(
        BUCKET,
        20,
        &[(20, 0)],
        (1, 0),
        (false, 20, 40_000, Some(2_000)),
    );
    check(
        BUCKET,
        1,
        &[(1, 0)],
        (1, 1_000),
        (false, 1, 1_000, Some(1_000)),
    );
}

#[test]
fn tokens_that_are_no_whole_milliseconds_apart_are_kept_exactly() {
    // Three in ten seconds: one every 3,333 and a third.
    let method = CounterKind::TokenBucket {
        rate: Halves::new(3),
    };
    let mut counter = Counter::with(method, 2, 2, START);
    let mut now = START;
    for wait in [3_334, 3_333, 3_333, 3_334] {
        assert!(!counter.passes(1, now + wait - 1), "{}", now - START);
        now += wait;
        assert!(counter.send(Hits::ONE, now).passes);
    }
}

#[test]
fn tokens_that_are_missing_flow_at_a_new_rate() {
    let mut counter = Counter::with(BUCKET, 5, 5, START);
    counter.method = CounterKind::TokenBucket {
        rate: Halves::new(50),
    };
    let observed = counter.send(Hits::ONE, START);
    assert_eq!((observed.held, observed.retry_in), (5, Some(200)));
}

#[test]
fn tokens_that_are_reserved_flow_at_a_new_rate() {
    let mut state = AlgorithmState::new(BUCKET).unwrap();
    let reserving = IncrementSpec {
        reservation: Reservation::Begins,
        ..spec(BUCKET, 5, Hits::add(5))
    };
    state.charge(&reserving, START);
    let faster = CounterKind::TokenBucket {
        rate: Halves::new(50),
    };
    let look = spec(faster, 5, Hits::add(0));
    let held = [0, 199, 200].map(|millis| state.held(&look, START + millis));
    assert_eq!(held, [5, 5, 4]);
}

/// The end of a reservation of so many parts that began when so many had drained: how many of it drained, and the
/// range that is remembered then. 100 have drained, and those from 50 to 60 were taken.
#[test]
fn the_range_of_drained_parts_that_were_taken_gives_way_to_a_longer_one_below_or_if_it_is_left_behind()
 {
    const ERA: u64 = 7;
    for (parts, began, drained, taken) in [
        // Behind it, within its own length and beyond that.
        (5, 65, 5, (50, 60)),
        (11, 65, 11, (50, 60)),
        (5, 66, 5, (66, 71)),
        // Below it, as long as it and longer.
        (10, 30, 10, (50, 60)),
        (11, 30, 11, (30, 41)),
        // At its begin, within it and at its end: the next ones.
        (5, 50, 5, (50, 65)),
        (5, 55, 5, (50, 65)),
        (50, 60, 40, (50, 100)),
    ] {
        let place = |drained| BucketPlace { era: ERA, drained };
        let mut reserved = ReservedParts {
            parts: 1_000,
            place: place(100),
            taken: (50, 60),
        };
        let found = (reserved.end(parts, place(began)), reserved.taken);
        assert_eq!(found, (drained, taken), "{parts} from {began}");
        assert_eq!(reserved.parts, 1_000 - (parts - drained));
    }
}

#[test]
fn two_clocks_a_millisecond_apart_share_what_flows_in() {
    // Two tokens a millisecond, and a burst of 200.
    let rate = 2 * PERIOD;
    let mut counter = Counter::new(
        CounterKind::TokenBucket {
            rate: Halves::new(rate),
        },
        200,
    );
    let passes = (0..1_500).map(|call| counter.send(Hits::ONE, START + call / 2 % 2).passes);
    assert_eq!(passes.filter(|passes| *passes).count(), 202);
}

#[test]
fn a_bucket_whose_limit_is_lowered_is_empty_at_most_and_fills_at_the_new_rate() {
    let mut counter = Counter::with(
        CounterKind::TokenBucket {
            rate: Halves::new(1_000),
        },
        1_000,
        900,
        START,
    );
    (counter.limit, counter.method) = (5, BUCKET);
    let observed = counter.send(Hits::ONE, START);
    assert_eq!(
        (observed.held, observed.retry_in, observed.resets_in),
        (5, Some(2_000), PERIOD)
    );
    assert!(!counter.passes(1, START + 1_999));
    assert!(counter.send(Hits::ONE, START + 2_000).passes);
}

#[test]
fn a_bucket_is_still_as_empty_as_it_was_after_a_moment_without_a_limit() {
    let mut counter = Counter::with(BUCKET, 5, 4, START);
    // A limit of 0 arrives in this form.
    (counter.limit, counter.method) = (
        0,
        CounterKind::TokenBucket {
            rate: Halves::new(1),
        },
    );
    assert!(!counter.send(Hits::ONE, START).passes);
    (counter.limit, counter.method) = (5, BUCKET);
    assert_eq!(counter.look(START).held, 4);
}

#[test]
fn no_number_is_too_large() {
    for method in all() {
        // The largest bucket that a rule may have; see `MAX_TOKEN_MILLIS` of `config/algorithm.rs`.
        let limit = match method {
            CounterKind::TokenBucket { .. } => (1 << 53) / PERIOD,
            _ => method.facts().max_requests.min(Limit::MAX_REQUESTS),
        };
        let mut counter = Counter::new(method, limit);
        let many = spec(method, limit, Hits::add(u64::MAX));
        for now in [0, START, u64::MAX] {
            counter.state.charge(&many, now);
            counter.state.charge(&many, now);
            let observed = counter.look(now);
            assert!(observed.held >= limit || now != START, "{observed:?}");
            counter.send(Hits::give_back(u64::MAX), now);
        }
    }
}

/// A change of a bucket.
#[derive(Clone, Copy, Debug)]
enum BucketStep {
    Reserve(u64),
    /// One of the open reservations, by a number of any size, costs so many hundredths of it.
    Settle(usize, u64),
    Charge(u64),
    GiveBack(u64),
    /// Another rate and another limit.
    Reload(u64, u64),
}

fn any_bucket_step() -> impl Strategy<Value = (u64, BucketStep)> {
    let cost = prop_oneof![Just(0), Just(100), 0_u64..=100, 0_u64..300];
    let step = prop_oneof![
        4 => (1_u64..150).prop_map(BucketStep::Reserve),
        4 => (any::<usize>(), cost).prop_map(|(which, cost)| BucketStep::Settle(which, cost)),
        1 => (1_u64..150).prop_map(BucketStep::Charge),
        1 => (1_u64..100).prop_map(BucketStep::GiveBack),
    ];
    let pause = prop_oneof![Just(0_u64), Just(1), 0_u64..30, 0_u64..200];
    (pause, step)
}

/// A charge, and its millisecond.
struct BucketCharge {
    spec: IncrementSpec,
    at: u64,
}

/// How much is missing from a bucket after these charges.
fn missing_after(charges: &[BucketCharge]) -> u64 {
    let mut state = AlgorithmState::new(BUCKET).unwrap();
    let mut missing = 0;
    for BucketCharge { spec, at } in charges {
        state.charge(spec, *at);
        missing = state.held(spec, *at);
    }
    missing
}

/// Holds a bucket to one that was charged the costs when the reservations began: their estimates while they are open.
fn check_reservations(
    steps: &[(u64, BucketStep)],
    (mut rate, mut limit, period): (u64, u64, u64),
    is_alone: bool,
) -> Result<(), TestCaseError> {
    let mut state = AlgorithmState::new(BUCKET).unwrap();
    let (mut charges, mut open, mut now) = (Vec::new(), Vec::new(), START);
    for &(pause, step) in steps {
        now += pause;
        let method = CounterKind::TokenBucket {
            rate: Halves::new(rate),
        };
        let with = |hits, reservation| IncrementSpec {
            period_millis: period,
            reservation,
            ..spec(method, limit, hits)
        };
        let plain = |hits| with(hits, Reservation::None);
        let mut is_exact = is_alone;
        let (hits, truth) = match step {
            BucketStep::Reserve(_) if is_alone && !open.is_empty() => continue,
            BucketStep::Reserve(hits) => {
                let reserved = Hits::add(hits);
                open.push((hits, charges.len(), BucketPlace::default()));
                (with(reserved, Reservation::Begins), plain(reserved))
            }
            BucketStep::Settle(..) if open.is_empty() => continue,
            BucketStep::Settle(which, percent) => {
                let (hits, index, place) = open.swap_remove(which % open.len());
                let cost = hits * percent / 100;
                let change = match cost.checked_sub(hits) {
                    Some(more) if more > 0 => Hits::add(more),
                    _ => Hits::give_back(hits - cost),
                };
                let begun: &mut BucketCharge = &mut charges[index];
                begun.spec.hits = cost;
                // More can be charged later only.
                is_exact &= cost <= hits;
                (
                    with(change, Reservation::Ends { hits, place }),
                    plain(Hits::add(0)),
                )
            }
            BucketStep::Charge(hits) => (plain(Hits::add(hits)), plain(Hits::add(hits))),
            BucketStep::GiveBack(hits) => {
                let back = plain(Hits::give_back(hits));
                (back, back)
            }
            BucketStep::Reload(new_rate, new_limit) => {
                (rate, limit) = (new_rate, new_limit);
                continue;
            }
        };
        state.charge(&hits, now);
        if hits.reservation == Reservation::Begins {
            open.last_mut().unwrap().2 = state.place();
        }
        charges.push(BucketCharge {
            spec: truth,
            at: now,
        });
        let (missing, true_missing) = (
            state.held(&plain(Hits::add(0)), now),
            missing_after(&charges),
        );
        prop_assert!(
            missing >= true_missing,
            "{missing} < {true_missing} after {step:?}"
        );
        if !is_exact && is_alone {
            return Ok(());
        }
        prop_assert!(
            !is_exact || missing == true_missing,
            "{missing} {true_missing} after {step:?}"
        );
    }
    // All flows in, whoever does not end.
    let spec = IncrementSpec {
        period_millis: period,
        ..spec(BUCKET, limit, Hits::add(0))
    };
    prop_assert_eq!(state.held(&spec, now + 100_000_000), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_bucket_is_never_fuller_than_if_all_costs_had_been_charged_when_they_were_reserved(
        mut steps in prop::collection::vec(any_bucket_step(), 1..30),
        reloads in prop::collection::vec((any::<prop::sample::Index>(), 1_u64..12, 50_u64..500), 0..3),
        rate in prop::sample::select(vec![1_u64, 3, 10]),
        limit in prop::sample::select(vec![100_u64, 300, 1_000_000]),
        period in prop::sample::select(vec![1_u64, 7]),
    ) {
        for (at, rate, limit) in reloads {
            steps.insert(at.index(steps.len()), (0, BucketStep::Reload(rate, limit)));
        }
        check_reservations(&steps, (rate, limit, period), false)?;
    }

    #[test]
    fn a_bucket_with_one_reservation_at_a_time_is_as_full_as_if_its_cost_had_been_charged(
        steps in prop::collection::vec(any_bucket_step(), 1..30),
        rate in prop::sample::select(vec![1_u64, 3, 10]),
        period in prop::sample::select(vec![1_u64, 7]),
    ) {
        check_reservations(&steps, (rate, 1_000_000, period), true)?;
    }
}
