//! Counts in memory, and the room that they take.

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU32,
};

use proptest::prelude::*;

use super::{shard::MAX_INLINE, table::DescriptorCounters, *};
use crate::core::{
    counter::{Charge, CounterState, IncrementSpec, Operation},
    kind::Algorithm,
    limit::Limit,
    window::{Period, Unit},
};

const MINUTE: u64 = 60;

fn batch(values: &[&str], hits: Hits, now: Timestamp) -> Batch {
    let limit = Limit::fixed(1, Unit::Minute);
    let mut batch = Batch::default();
    for value in values {
        batch.push_value(value.as_bytes(), &limit, now, hits);
    }
    batch
}

#[track_caller]
fn check<const N: usize>(store: &MemoryStore, values: [&str; N], secs: u64, expected: [u64; N]) {
    let now = Timestamp::from_secs(secs);
    let counts = store.apply_all(&batch(&values, Hits::ONE, now), now);
    let after: Vec<_> = counts.iter().map(|count| count.after).collect();
    assert_eq!(after, expected);
}

#[test]
fn expired_windows_are_dropped() {
    let store = MemoryStore::new(10);
    check(&store, ["a", "b"], 0, [1, 1]);
    check(&store, ["c"], MINUTE, [1]);
    assert_eq!(store.live_counters(), 3);
    store.sweep(Timestamp::from_secs(MINUTE));
    assert_eq!(store.live_counters(), 1);
    check(&store, ["c"], MINUTE, [2]);
    store.sweep(Timestamp::from_secs(2 * MINUTE));
    assert_eq!(store.live_counters(), 0);
    assert_eq!(store.capacity.bytes(), 0);
}

#[test]
fn a_full_store_counts_exactly_what_it_knows_and_the_rest_in_a_sketch() {
    let store = MemoryStore::new(2);
    check(&store, ["a", "b"], 0, [1, 1]);
    check(&store, ["c", "d", "c"], 0, [1, 1, 2]);
    check(&store, ["a", "c"], 0, [2, 3]);
    assert_eq!(store.live_counters(), 2);
    assert_eq!(store.capacity.sketched_hits(), 4);
    store.sweep(Timestamp::from_secs(MINUTE));
    check(&store, ["c", "d"], MINUTE, [1, 1]);
    assert_eq!(store.live_counters(), 2);
    assert_eq!(store.capacity.sketched_hits(), 4);
}

/// One increment of one hit on `value`, under a limit of `per_minute` by `algorithm`.
fn one(
    value: &str,
    algorithm: &Algorithm,
    per_minute: u64,
    charge: Charge,
    now: Timestamp,
) -> Batch {
    let limit = Limit {
        algorithm: algorithm.clone(),
        ..Limit::fixed(per_minute, Unit::Minute)
    };
    let counting = IncrementSpec::charged(Hits::ONE, charge);
    let mut batch = Batch::default();
    batch.push_value(value.as_bytes(), &limit, now, counting);
    batch
}

/// All that count hits, by themselves or by the moment; slots have names.
fn every_algorithm() -> Vec<Algorithm> {
    let mut all: Vec<_> = Algorithm::one_of_each(3).collect();
    all.retain(|algorithm| *algorithm != Algorithm::Concurrency);
    all.extend([10, 2].map(|burst| Algorithm::TokenBucket { burst }));
    all
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(every_algorithm())
}

#[test]
fn a_value_begins_with_the_hits_of_the_sketch_when_there_is_room_again() {
    for algorithm in every_algorithm() {
        let store = MemoryStore::new(1);
        let send = |value, secs| {
            let now = Timestamp::from_secs(secs);
            let batch = one(value, &algorithm, 5, Charge::Within, now);
            store.apply_all(&batch, now)[0].is_charged
        };
        // For two minutes at most, whatever the algorithm.
        assert!(send("known", 0));
        let early: usize = (0..3).filter(|_| send("new", 130)).count();
        store.sweep(Timestamp::from_secs(130));
        let late = (0..20).filter(|_| send("new", 131)).count();
        let most = match algorithm {
            Algorithm::TokenBucket { burst } => usize::try_from(burst).unwrap(),
            _ => 5,
        };
        assert!(early + late <= most, "{algorithm:?}: {early} and {late}");
        assert!(early >= 2, "{algorithm:?}");
    }
}

#[test]
fn a_new_bucket_is_full_while_there_is_room_and_holds_the_inflow_of_a_window_otherwise() {
    let bucket = Algorithm::TokenBucket { burst: 7 };
    let store = MemoryStore::new(1);
    let send = |value| {
        let batch = one(value, &bucket, 3, Charge::Within, Timestamp::from_secs(0));
        store.apply_all(&batch, Timestamp::from_secs(0))[0].is_charged
    };
    assert_eq!((0..9).filter(|_| send("known")).count(), 7);
    assert_eq!((0..9).filter(|_| send("new")).count(), 3);
}

#[test]
fn a_call_that_a_full_store_refuses_is_not_reported_as_admitted() {
    let bucket = Algorithm::TokenBucket { burst: 7 };
    let store = MemoryStore::new(1);
    let now = Timestamp::from_secs(0);
    let limit = Limit {
        algorithm: bucket,
        ..Limit::fixed(3, Unit::Minute)
    };
    for number in 0..2_000 {
        let mut batch = Batch::default();
        let counting = IncrementSpec::charged(Hits::add(4), Charge::Within);
        batch.push_value(number.to_string().as_bytes(), &limit, now, counting);
        let count = store.apply_all(&batch, now)[0];
        let is_admitted = !count.is_over(limit.capacity(), 4);
        // The first value has a counter. In the sketch four hits are more than a minute's inflow.
        assert_eq!(is_admitted, number == 0, "{number}: {count:?}");
    }
}

/// The sizes in `docs/rules/algorithms.md`.
#[test]
fn each_counter_is_taken_for_the_bytes_that_the_documents_state() {
    for (algorithm, expected) in [
        (Algorithm::FixedWindow, 144),
        (Algorithm::FirstHit, 141),
        (Algorithm::SlidingWindow, 141),
        (Algorithm::SlidingLog, 205),
        (Algorithm::TokenBucket { burst: 3 }, 141),
    ] {
        let store = MemoryStore::new(10);
        let now = Timestamp::from_secs(0);
        let batch = one("value", &algorithm, 5, Charge::Within, now);
        store.apply_all(&batch, now);
        assert_eq!(batch.key(0).len().next_multiple_of(16), 32, "{algorithm:?}");
        assert_eq!(store.capacity.bytes(), expected, "{algorithm:?}");
    }
}

#[test]
fn no_log_grows_beyond_the_bound_on_bytes_or_counts_less_because_of_it() {
    let bytes = 1 << 20;
    let store = MemoryStore::bounded(&CounterBounds {
        counters: 1_000_000,
        bytes,
        ..CounterBounds::default()
    });
    let (mut sent, mut passed) = (0, 0);
    for millis in 0..30_000 {
        let now = Timestamp::from_millis(millis);
        for value in ["a", "b", "c", "d"] {
            let batch = one(value, &Algorithm::SlidingLog, 25_000, Charge::Within, now);
            passed += u64::from(store.apply_all(&batch, now)[0].is_charged);
            sent += 1;
        }
    }
    assert_eq!((sent, passed), (120_000, 100_000));
    assert!(store.capacity.bytes() <= bytes);
    // Merged hits leave when the later one does, so a moment can have more hits than room, but never fewer.
    let now = Timestamp::from_millis(60_000);
    let batch = one("a", &Algorithm::SlidingLog, 25_000, Charge::Within, now);
    assert!(store.apply_all(&batch, now)[0].after >= 24_999);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The least sketch, and room for three counters: values share cells all the time.
    #[test]
    fn no_value_passes_more_often_than_its_limit_allows(
        algorithm in any_algorithm(),
        charge in prop::sample::select(vec![Charge::Always, Charge::Within, Charge::Admitted]),
        steps in prop::collection::vec((0_u32..60, 0_u64..400, any::<bool>()), 1..600),
    ) {
        let algorithm = &algorithm;
        // Algorithms that look first never charge what they refuse.
        prop_assume!(charge != Charge::Always || !algorithm.looks_first());
        let store = MemoryStore::bounded(&CounterBounds { counters: 3, bytes: 1 << 16, ..CounterBounds::default() });
        let per_minute = 5;
        let mut passed: HashMap<(u32, u64), u64> = HashMap::new();
        let mut now = Timestamp::from_secs(600);
        for (value, millis, sweeps) in steps {
            now = Timestamp::from_millis(now.millis() + millis);
            if sweeps {
                store.sweep(now);
            }
            let batch = one(&value.to_string(), algorithm, per_minute, charge, now);
            let count = store.apply_all(&batch, now)[0];
            let limit = batch.spec(0).limit;
            if !count.is_over(limit, 1) {
                *passed.entry((value, now.secs() / 60)).or_default() += 1;
            }
            // A full bucket and the inflow of the minute.
            let most = match algorithm {
                Algorithm::TokenBucket { burst } => (*burst) + 5,
                // The end of one window and the beginning of the next.
                Algorithm::FirstHit => 10,
                _ => 5,
            };
            prop_assert!(passed.values().all(|passed| *passed <= most));
            prop_assert!(store.live_counters() <= 3);
        }
    }
}

/// Time that passes in a history.
#[derive(Clone, Copy, Debug)]
enum Pause {
    Millis(u64),
    /// To this many milliseconds before the next edge of this period, or after it.
    ToEdge(u64, i64),
    /// A part of this period.
    Part(u64, u64),
}

impl Pause {
    fn after(self, now: u64) -> u64 {
        match self {
            Self::Millis(millis) => now + millis,
            Self::ToEdge(period, away) => {
                let edge = (now / period + 1) * period;
                now.max(edge.saturating_add_signed(away))
            }
            Self::Part(period, parts) => now + period / parts,
        }
    }
}

/// Periods of each class of the sketch, in seconds; the last two share cells.
const PERIODS: [(Unit, u32); 6] = [
    (Unit::Second, 1),
    (Unit::Second, 10),
    (Unit::Minute, 1),
    (Unit::Hour, 1),
    (Unit::Day, 1),
    (Unit::Day, 3),
];

fn any_pause() -> impl Strategy<Value = Pause> {
    let period = || {
        prop::sample::select(PERIODS.to_vec())
            .prop_map(|(unit, times)| unit.secs() * u64::from(times) * 1000)
    };
    prop_oneof![
        3 => (0_u64..400).prop_map(Pause::Millis),
        3 => (period(), -2_i64..=2).prop_map(|(period, away)| Pause::ToEdge(period, away)),
        1 => (period(), 1_u64..5).prop_map(|(period, parts)| Pause::Part(period, parts)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The bounds in docs/rules/algorithms.md, section "When memory is full".
    #[test]
    fn around_an_edge_no_value_passes_more_often_than_the_documents_say(
        room in prop::sample::select(vec![0_usize, 3]),
        algorithms in prop::sample::subsequence(every_algorithm(), 1..3),
        steps in prop::collection::vec(
            (0_u32..3, any::<prop::sample::Index>(), 0..PERIODS.len(), 1_usize..14, any_pause(), any::<bool>()),
            1..120,
        ),
    ) {
        const LIMIT: u32 = 5;
        let store = MemoryStore::bounded(&CounterBounds { counters: room, bytes: 1 << 22, ..CounterBounds::default() });
        let mut admitted: HashMap<_, VecDeque<u64>> = HashMap::new();
        let mut now = 20_000 * 24 * 60 * 60 * 1000;
        for (value, algorithm, period, hits, pause, sweeps) in steps {
            now = pause.after(now);
            let at = Timestamp::from_millis(now);
            if sweeps {
                store.sweep(at);
            }
            let algorithm = algorithm.get(&algorithms);
            let (unit, times) = PERIODS[period];
            let limit = Limit {
                algorithm: algorithm.clone(),
                ..Limit::fixed(LIMIT.into(), Period::new(unit, NonZeroU32::new(times).unwrap()).unwrap())
            };
            let charge = match algorithm.looks_first() {
                true => Charge::Within,
                false => Charge::Always,
            };
            let period_millis = limit.period.secs() * 1000;
            let passed = admitted.entry((value, format!("{algorithm:?}"), period)).or_default();
            for _ in 0..hits {
                let mut batch = Batch::default();
                let counting = IncrementSpec::charged(Hits::ONE, charge);
                batch.push_value(&value.to_be_bytes(), &limit, at, counting);
                let count = store.apply_all(&batch, at)[0];
                if !count.is_over(limit.capacity(), 1) {
                    passed.push_back(now);
                }
            }
            let in_period = |then: &u64| *then + period_millis > now;
            while passed.front().is_some_and(|then| !in_period(then)) {
                passed.pop_front();
            }
            let limit = usize::try_from(LIMIT).unwrap();
            let most = match *algorithm {
                // As with a counter of its own.
                Algorithm::FixedWindow | Algorithm::Calendar(_) => {
                    let of_now = |then: &&u64| **then / period_millis == now / period_millis;
                    prop_assert!(passed.iter().filter(of_now).count() <= limit);
                    2 * limit
                }
                Algorithm::FirstHit if room == 0 => 2 * limit,
                Algorithm::FirstHit => 3 * limit,
                Algorithm::TokenBucket { burst } => {
                    let burst = usize::try_from(burst).unwrap();
                    let in_window = burst.min(limit);
                    match room {
                        0 => 2 * in_window,
                        _ => burst + limit + in_window,
                    }
                }
                _ => 2 * limit,
            };
            prop_assert!(passed.len() <= most, "{algorithm:?} {period_millis} {passed:?}");
        }
    }
}

#[test]
fn without_room_an_edge_lets_a_second_limit_pass_whatever_the_algorithm() {
    for algorithm in every_algorithm() {
        let store = MemoryStore::new(0);
        let passed = |millis| {
            let now = Timestamp::from_millis(millis);
            let batch = one("v", &algorithm, 4, Charge::Within, now);
            let charged = (0..9).filter(|_| store.apply_all(&batch, now)[0].is_charged);
            charged.count()
        };
        let in_window = match algorithm {
            Algorithm::TokenBucket { burst } => usize::try_from(burst).unwrap().min(4),
            _ => 4,
        };
        let found = [59_000, 60_000, 60_500].map(passed);
        assert_eq!(found, [in_window, in_window, 0], "{algorithm:?}");
    }
}

/// Sends hits for a value with a counter of its own at these moments, and then, after another value has taken the
/// room of that counter. Each is a moment, the hits, and how many of them pass.
#[track_caller]
fn check_lost_room(
    algorithm: &Algorithm,
    own: &[(u64, usize, usize)],
    sketched: &[(u64, usize, usize)],
) {
    let store = MemoryStore::new(1);
    let check = |moments: &[(u64, usize, usize)]| {
        for &(millis, hits, expected) in moments {
            let now = Timestamp::from_millis(millis);
            let hit = one("v", algorithm, 4, Charge::Within, now);
            let passed = (0..hits).filter(|_| store.apply_all(&hit, now)[0].is_charged);
            assert_eq!(passed.count(), expected, "{algorithm:?} {millis}");
        }
    };
    check(own);
    let begin = Timestamp::from_millis(sketched[0].0);
    store.sweep(begin);
    assert_eq!(store.live_counters(), 0);
    let mut other = Batch::default();
    other.push_value(b"other", &Limit::fixed(1, Unit::Year), begin, Hits::ONE);
    store.apply_all(&other, begin);
    check(sketched);
}

#[test]
fn a_value_that_loses_its_own_counter_may_pass_more_than_two_limits_in_a_period() {
    // The window ends at 125 s: eleven hits pass in less than a minute.
    check_lost_room(
        &Algorithm::FirstHit,
        &[(65_000, 1, 1), (124_900, 9, 3)],
        &[(125_000, 9, 4), (180_000, 9, 4)],
    );
    // The bucket is full at 115 s: nine hits pass in 20 s.
    check_lost_room(
        &Algorithm::TokenBucket { burst: 4 },
        &[(100_000, 1, 1)],
        &[(115_000, 9, 4), (120_000, 9, 4)],
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn after_a_reset_as_many_hits_pass_as_the_limit_has(
        algorithm in any_algorithm(),
        before in 0_u64..30,
    ) {
        let (store, now) = (MemoryStore::new(10), Timestamp::from_secs(600));
        let send = |operation, hits| {
            let mut batch = one("v", &algorithm, 5, Charge::Within, now);
            let spec = IncrementSpec { operation, hits, ..*batch.spec(0) };
            let key = batch.key(0).to_vec();
            batch.clear();
            batch.append_one(Increment { key: &key, spec });
            let count = store.apply_all(&batch, now)[0];
            u64::from(!count.is_over(spec.limit, spec.added()))
        };
        let limit = match algorithm {
            Algorithm::TokenBucket { burst } => burst,
            _ => 5,
        };
        for _ in 0..before {
            send(Operation::Add(Charge::Within), 1);
        }
        send(Operation::Reset, Hits::MAX);
        let passed: u64 = (0..50).map(|_| send(Operation::Add(Charge::Within), 1)).sum();
        prop_assert_eq!(passed, limit);
    }
}

#[test]
fn a_look_takes_no_room() {
    let store = MemoryStore::new(1);
    let now = Timestamp::from_secs(0);
    let look = batch(&["a", "b", "c"], Hits::add(0), now);
    let counts = store.apply_all(&look, now);
    assert_eq!(counts, CounterStates::from_elem(CounterState::from(0), 3));
    assert_eq!(store.live_counters(), 0);
    check(&store, ["a", "b"], 0, [1, 1]);
    let counts = store.apply_all(&look, now);
    let after: Vec<_> = counts.iter().map(|count| count.after).collect();
    assert_eq!(after, [1, 1, 0]);
    assert_eq!(store.capacity.sketched_hits(), 1);
}

/// Increments of a minute's and an hour's limit for each of `values`.
fn two_limits(values: &[&str], charge: Charge, now: Timestamp) -> Batch {
    let mut batch = Batch::default();
    for value in values {
        for unit in [Unit::Minute, Unit::Hour] {
            let counting = IncrementSpec::charged(Hits::ONE, charge);
            batch.push_value(value.as_bytes(), &Limit::fixed(9, unit), now, counting);
        }
    }
    batch
}

/// One request that hits each of these periods of one descriptor.
fn periods(seconds: impl Iterator<Item = u32>, now: Timestamp) -> Batch {
    let mut batch = Batch::default();
    for seconds in seconds {
        let limit = Limit {
            period: Period::new(Unit::Second, NonZeroU32::new(seconds).unwrap()).unwrap(),
            ..Limit::fixed(9, Unit::Second)
        };
        batch.push_value(b"v", &limit, now, Hits::ONE);
    }
    batch
}

/// The longest list that is searched from end to end while a shard is locked.
fn longest_list(store: &MemoryStore) -> usize {
    let mut longest = 0;
    for shard in &*store.shards {
        let shard = &mut lock(&shard.0);
        let look = |family: &mut DescriptorCounters| {
            longest = longest.max(family.slots.len());
            true
        };
        shard.families.retain(look, |name| store.hash(name));
    }
    longest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Clients can send limits of their own, with any period.
    #[test]
    fn a_count_costs_the_same_however_many_periods_its_descriptor_has(
        count in prop_oneof![1_u32..40, 1_000_u32..5_000],
        kept in 1_u32..50,
    ) {
        let store = MemoryStore::new(1_000_000);
        let now = Timestamp::from_secs(0);
        for expected in 1..=2 {
            let batch = periods(1..=count, now);
            let counts = store.apply_all(&batch, now);
            prop_assert!(counts.iter().all(|count| count.after == expected));
        }
        prop_assert!(longest_list(&store) <= MAX_INLINE);
        prop_assert_eq!(store.live_counters(), count as usize);
        // Counters that are left after a sweep are found, wherever they are stored.
        store.sweep(Timestamp::from_secs(u64::from(count.saturating_sub(kept))));
        let left = count - count.saturating_sub(kept);
        prop_assert_eq!(store.live_counters(), left as usize);
        let batch = periods(count - left + 1..=count, now);
        let counts = store.apply_all(&batch, now);
        prop_assert!(counts.iter().all(|count| count.after == 3));
        prop_assert_eq!(store.live_counters(), left as usize);
        store.sweep(Timestamp::from_secs(u64::from(count)));
        prop_assert_eq!(store.live_counters(), 0);
    }
}

#[test]
fn a_request_takes_the_last_room_and_the_rest_of_it_is_counted_in_the_sketch() {
    let now = Timestamp::from_secs(0);
    for charge in [
        Charge::Always,
        Charge::Within,
        Charge::Admitted,
        Charge::Stopping,
    ] {
        let store = MemoryStore::new(5);
        let after = |values: &[&str]| {
            let counts = store.apply_all(&two_limits(values, charge, now), now);
            counts.iter().map(|count| count.after).collect::<Vec<_>>()
        };
        assert_eq!(after(&["a", "b"]), [1, 1, 1, 1]);
        for times in 2..=4 {
            let counts = [times, times, times - 1, times - 1];
            assert_eq!(after(&["a", "c"]), counts, "{charge:?}");
            assert_eq!(store.live_counters(), 5);
        }
        assert_eq!(after(&["a", "b"]), [5, 5, 2, 2], "{charge:?}");
    }
}

#[test]
fn expired_counters_make_room() {
    for charge in [Charge::Always, Charge::Admitted] {
        let store = MemoryStore::new(4);
        let add = |values: &[&str], secs| {
            let now = Timestamp::from_secs(secs);
            store.apply_all(&two_limits(values, charge, now), now);
        };
        add(&["a", "a", "b"], 0);
        assert_eq!(store.live_counters(), 4);
        add(&["c"], 0);
        assert_eq!(store.capacity.sketched_hits(), 2);
        add(&["a"], 3600);
        assert_eq!(store.capacity.sketched_hits(), 2);
    }
}

#[test]
fn what_a_give_back_leaves_over_its_limit_spares_the_others() {
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::FirstHit,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket { burst: 10 },
    ] {
        let store = MemoryStore::new(10);
        let now = Timestamp::from_secs(0);
        let send = |steps: &[(&str, Hits, Charge)]| {
            let mut batch = Batch::default();
            for (index, (value, hits, charge)) in (0..).zip(steps) {
                let limit = Limit {
                    algorithm: algorithm.clone(),
                    ..Limit::fixed(10, Unit::Minute)
                };
                let counting = IncrementSpec {
                    descriptor: index,
                    ..IncrementSpec::charged(*hits, *charge)
                };
                batch.push_value(value.as_bytes(), &limit, now, counting);
            }
            let counts = store.apply_all(&batch, now);
            counts.iter().map(|count| count.after).collect::<Vec<_>>()
        };
        let refund = [
            ("a", Hits::give_back(1), Charge::Admitted),
            ("b", Hits::ONE, Charge::Admitted),
        ];
        let above = [("a", Hits::add(12), Charge::Always)];
        send(&above);
        let reported = send(&refund);
        // A bucket cannot lack more tokens than it holds.
        let (first, second) = match algorithm {
            Algorithm::TokenBucket { .. } => (9, 8),
            _ => (11, 10),
        };
        assert_eq!(reported[0], first, "{algorithm:?}");
        let is_over = first > 10;
        assert_eq!(reported[1], u64::from(!is_over), "{algorithm:?}");
        assert_eq!(send(&refund)[0], second, "{algorithm:?}");
    }
}
