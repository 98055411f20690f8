//! Shares, and the counts that a process assumes.

use std::{
    num::NonZeroU32,
    sync::{LazyLock, atomic::AtomicUsize},
    thread,
    time::{Duration, Instant},
};

use super::{
    first_count::FirstCountInputs,
    recent::{CounterHistory, KnownCount, Recent, RecentTables, SeenCount},
    *,
};
use crate::core::{
    counter::{Charge, Identity, IncrementSpec},
    kind::Algorithm,
    limit::Limit,
    request::{Entry, Hits},
    window::{SteadyTime, Unit},
};
use crate::store::memory::CounterBounds;

mod returns;

const NOW: Timestamp = Timestamp::from_secs(1_795_230_000);

/// The end of all windows of a year in these tests.
const LATER: Timestamp = Timestamp::from_secs(2_000_000_000);

/// The epoch by the clock that cannot be set.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time of day `now` by the clock that cannot be set.
fn steady(now: Timestamp) -> SteadyTime {
    (*EPOCH + Duration::from_millis(now.millis())).into()
}

fn moment(now: Timestamp) -> Moment {
    Moment {
        now,
        steady: steady(now),
    }
}

fn bounds(max_counters: usize) -> CounterBounds {
    CounterBounds {
        counters: max_counters,
        bytes: CounterBounds::DEFAULT_BYTES,
        ..CounterBounds::default()
    }
}

/// The losses of a store that this many replicas share; 0 if their number is not known.
fn loss(replicas: u32, max_counters: usize) -> Loss {
    let number = ReplicaCount::default();
    number.begin(NonZeroU32::new(replicas));
    let bounds = bounds(max_counters);
    Loss::new(
        "redis",
        LostLimits::All,
        bounds,
        number.into(),
        Arc::default(),
    )
}

/// Makes a worker see that the counter of `batch` holds `count`.
fn see(loss: &Loss, batch: &Batch, count: u64, at: Timestamp) {
    loss.note(batch.key(0), seen(count, at));
}

/// The hits that are handed back at `now`.
fn returned_hits(loss: &Loss, now: Timestamp) -> Vec<i64> {
    let mut next = 0;
    let batches = std::iter::from_fn(|| loss.take(&mut next, 10, moment(now)));
    batches
        .flat_map(|batch| {
            let hits = batch.all_specs().map(|spec| spec.signed());
            hits.collect::<Vec<_>>()
        })
        .collect()
}

fn batch(value: &str, limit: &Limit, hits: Hits, now: Timestamp) -> Batch {
    let entry = Entry {
        key: b"k",
        value: value.as_bytes(),
    };
    let mut identity = Identity::default();
    identity.set(b"d", &[entry], &[]);
    let charge = if limit.algorithm.looks_first() {
        Charge::Within
    } else {
        Charge::Always
    };
    let counting = IncrementSpec::charged(hits, charge);
    let mut batch = Batch::default();
    batch.push(&identity, limit, now, counting);
    batch
}

/// Asserts what remains after each of `hits` on a limit of which `known` were used before the loss;
/// `None` if it is refused.
#[track_caller]
fn check(limit: &Limit, replicas: u32, known: u64, hits: &[u64], expected: &[Option<u64>]) {
    let loss = loss(replicas, 10);
    see(&loss, &batch("a", limit, Hits::ONE, NOW), known, NOW);
    let remaining = |hits: &u64| {
        let hits = Hits::add(*hits);
        let counts = loss.count(&batch("a", limit, hits, NOW), moment(NOW));
        let count = counts[0];
        assert!(count.is_degraded);
        let left = limit.capacity().saturating_sub(count.after);
        (!count.is_over(limit.capacity(), hits.added())).then_some(left)
    };
    let remaining: Vec<_> = hits.iter().map(remaining).collect();
    assert_eq!(remaining, expected);
}

fn with(algorithm: Algorithm, requests_per_unit: u64) -> Limit {
    Limit {
        algorithm,
        ..Limit::fixed(requests_per_unit, Unit::Year)
    }
}

#[test]
fn a_share_of_what_is_left_is_admitted() {
    let ten = Limit::fixed(10, Unit::Year);
    check(&ten, 2, 0, &[1, 4, 1], &[Some(4), Some(0), None]);
    check(&ten, 2, 6, &[1, 1, 1], &[Some(1), Some(0), None]);
    check(&ten, 1, 9, &[1, 1], &[Some(0), None]);
    check(&ten, 3, 20, &[1, 0], &[None, None]);
    check(
        &Limit::fixed(0, Unit::Year),
        2,
        0,
        &[0, 1, 0],
        &[Some(0), None, None],
    );
}

#[test]
fn a_limit_that_admits_any_admits_one_at_each_replica() {
    check(
        &Limit::fixed(3, Unit::Year),
        10,
        0,
        &[1, 1],
        &[Some(0), None],
    );
}

#[test]
fn other_algorithms_have_shares_too() {
    for algorithm in [
        Algorithm::FirstHit,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket { burst: 10 },
    ] {
        let limit = with(algorithm, 10);
        check(&limit, 2, 4, &[1, 2, 1], &[Some(2), Some(0), None]);
    }
}

#[test]
fn what_is_taken_is_what_was_let_pass() {
    let loss = loss(2, 10);
    let ten = Limit::fixed(10, Unit::Year);
    see(&loss, &batch("a", &ten, Hits::ONE, NOW), 4, NOW);
    let count = |hits| loss.count(&batch("a", &ten, hits, NOW), moment(NOW));
    count(Hits::add(2));
    count(Hits::add(0));
    count(Hits::ONE);
    count(Hits::give_back(1));
    assert_eq!(returned_hits(&loss, NOW), [2]);
    assert!(returned_hits(&loss, NOW).is_empty());
}

/// Redis may answer another worker, and get hits back, while a counter begins.
#[test]
fn hits_of_a_counter_that_begins_while_others_are_seen_are_handed_back() {
    const COUNTERS: usize = 500;
    let limit = Limit::fixed(1_000_000, Unit::Year);
    let value = |number: usize| batch(&number.to_string(), &limit, Hits::ONE, NOW);
    let loss = loss(1, 2 * COUNTERS);
    let (current, reached) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0;
            while current.load(Relaxed) <= COUNTERS {
                let number = current.load(Relaxed);
                count += 1;
                see(&loss, &value(number), count, NOW);
                reached.store(number, Relaxed);
            }
        });
        for number in 1..=COUNTERS {
            current.store(number, Relaxed);
            while reached.load(Relaxed) < number {
                thread::yield_now();
            }
            loss.count(&value(number), moment(NOW));
        }
        current.store(COUNTERS + 1, Relaxed);
    });
    assert_eq!(returned_hits(&loss, NOW), [1; COUNTERS]);
}

#[test]
fn nothing_grows_with_the_values_that_come() {
    const MAX: usize = 100;
    let loss = loss(0, MAX);
    let limit = Limit::fixed(10, Unit::Second);
    for number in 0..10_000_u64 {
        // A hundred values a second, so that ended counters make room.
        let now = Timestamp::from_millis(NOW.millis() + number * 10);
        let batch = batch(&number.to_string(), &limit, Hits::ONE, now);
        loss.count(&batch, moment(now));
    }
    let held = loss.local().len();
    assert!(held <= MAX && held > MAX / 2, "{held}");
}

/// Asserts whether a hit on each of `values` passes where two counters have room, and `known` hits on a
/// limit of ten are known.
#[track_caller]
fn check_full(loss: &Loss, limit: &Limit, values: &[&str], known: u64, expected: &[bool]) {
    let passes = values.iter().map(|value| {
        let batch = batch(value, limit, Hits::ONE, NOW);
        see(loss, &batch, known, NOW);
        let counts = loss.count(&batch, moment(NOW));
        assert!(counts[0].is_degraded);
        assert_eq!(counts[0].ends.is_some(), limit.algorithm.looks_first());
        !counts[0].is_over(limit.capacity(), 1)
    });
    assert_eq!(passes.collect::<Vec<_>>(), expected);
}

#[test]
fn a_full_table_counts_what_it_has_and_the_rest_in_a_sketch_above_what_was_known() {
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket { burst: 10 },
    ] {
        let ten = with(algorithm, 10);
        let loss = loss(1, 2);
        check_full(&loss, &ten, &["a", "b"], 8, &[true, true]);
        // One hit is left for each counter that has room, and two for the others.
        let values = ["c", "a", "c", "a", "c", "b", "b"];
        let expected = [true, true, true, false, false, true, false];
        check_full(&loss, &ten, &values, 8, &expected);
        // A value that was over before gets no hit.
        check_full(&loss, &ten, &["d", "d"], 10, &[false, false]);
        assert_eq!(returned_hits(&loss, NOW).len(), 2);
        // `c` twice; and a fixed window counts the hits that it refuses.
        let refused = if ten.algorithm.looks_first() { 0 } else { 3 };
        assert_eq!(loss.stats.lost_hits.load(Relaxed), 2 + refused);
    }
}

#[test]
fn a_store_is_lost_once_and_back_once() {
    let loss = loss(1, 10);
    let lost = || loss.stats.lost.load(Relaxed);
    loss.returned();
    assert_eq!(lost(), 0);
    for _ in 0..2 {
        loss.failed(StoreError::Unreachable, steady(NOW));
        assert_eq!(lost(), 1);
    }
    for _ in 0..2 {
        loss.returned();
        assert_eq!(lost(), 0);
    }
}

fn seen(count: u64, at: Timestamp) -> SeenCount {
    SeenCount {
        count,
        at: steady(at),
        lasts_until: steady(LATER),
        past: None,
    }
}

/// [`seen`] by the time of day.
fn known(count: u64, at: Timestamp) -> Option<KnownCount> {
    Some(KnownCount {
        count,
        at,
        lasts_until: LATER,
        dated: Vec::new(),
    })
}

#[test]
fn recent_counts_are_bounded_and_what_is_forgotten_is_known_to_be() {
    let tables = RecentTables::default();
    let table = tables.add();
    let at = |number: u64| Timestamp::from_millis(NOW.millis() + number);
    let total = 3 * Recent::GENERATION as u64;
    for number in 0..total {
        lock(&table).insert(&number.to_be_bytes(), seen(number, at(number)), 0);
    }
    assert!(lock(&table).len() <= 2 * Recent::GENERATION);
    let know = |number: u64| tables.know(&number.to_be_bytes(), 0, &moment(NOW));
    // The last, one of half a generation ago, and at least a whole generation.
    let last = total - 1;
    for ago in [0, Recent::GENERATION / 2, Recent::GENERATION - 1] {
        let number = last - ago as u64;
        assert_eq!(know(number).seen, known(number, at(number)));
    }
    let lost_hits = know(0);
    assert_eq!(lost_hits.seen, None);
    // All counts that came since then are still there.
    let complete_since = lost_hits.complete_since.unwrap();
    assert_eq!(complete_since, at(Recent::GENERATION as u64));
    let oldest = complete_since.millis() - NOW.millis();
    assert!(know(oldest).seen.is_some() && know(oldest - 1).seen.is_none());
}

#[test]
fn tables_of_all_workers_are_known_and_the_newest_count_holds() {
    let tables = RecentTables::default();
    let workers = [tables.add(), tables.add()];
    let at = |secs| NOW.plus(Duration::from_secs(secs));
    let saw = |worker: usize, count, secs| {
        lock(&workers[worker]).insert(b"k", seen(count, at(secs)), 1);
    };
    assert_eq!(
        tables.know(b"k", 1, &moment(NOW)),
        CounterHistory {
            seen: None,
            complete_since: None
        }
    );
    saw(1, 90, 5);
    assert_eq!(tables.know(b"k", 1, &moment(NOW)).seen, known(90, at(5)));
    // Replies to requests that were sent together arrive in any order.
    saw(0, 89, 6);
    assert_eq!(tables.know(b"k", 1, &moment(NOW)).seen, known(90, at(5)));
    // Hits have been given back since.
    saw(0, 30, 7);
    assert_eq!(tables.know(b"k", 1, &moment(NOW)).seen, known(30, at(7)));
    assert_eq!(
        tables.know(b"k", 1, &moment(NOW)).complete_since,
        Some(at(5))
    );
    // Under other rules other counters were seen.
    assert_eq!(tables.know(b"k", 2, &moment(NOW)).complete_since, None);
    lock(&workers[0]).insert(b"k", seen(31, at(8)), 2);
    assert_eq!(
        tables.know(b"k", 2, &moment(NOW)).complete_since,
        Some(at(8))
    );
}

/// The beginning of a counter of a hundred a day at noon, from `known`. `bounds` are those of
/// `replicas`, of which one is alone from the beginning, and of a store that is lost since eleven.
mod begins {
    use super::*;

    /// A midnight.
    const DAY: u64 = 20_778 * 86_400;

    fn at(hour: u64) -> Timestamp {
        Timestamp::from_secs(DAY + hour * 3600)
    }

    fn bounds(replicas: u32) -> FirstCountInputs {
        FirstCountInputs {
            replicas,
            alone_since: Timestamp::from_secs(0),
            lost_at: at(11),
        }
    }

    fn nothing_since(hour: u64) -> CounterHistory {
        CounterHistory {
            seen: None,
            complete_since: Some(at(hour)),
        }
    }

    fn saw(count: u64, hour: u64) -> CounterHistory {
        CounterHistory {
            seen: Some(KnownCount {
                count,
                at: at(hour),
                lasts_until: at(24),
                dated: Vec::new(),
            }),
            complete_since: Some(at(0)),
        }
    }

    #[track_caller]
    fn check_of(
        algorithm: Algorithm,
        known: CounterHistory,
        bounds: FirstCountInputs,
        expected: (u64, u64),
    ) {
        let limit = Limit {
            algorithm,
            ..Limit::fixed(100, Unit::Day)
        };
        let now = at(12);
        let batch = batch("a", &limit, Hits::ONE, now);
        let spec = batch.spec(0);
        let share = local::share(spec, bounds.replicas);
        let first = bounds.first_hits(spec, &share, &known, now);
        let latest = first.0.iter().map(|hits| hits.at).max();
        let (held, hour) = expected;
        assert_eq!(first.sum(), held);
        assert!(latest.is_none_or(|latest| latest == at(hour)), "{latest:?}");
    }

    #[track_caller]
    fn check(known: CounterHistory, bounds: FirstCountInputs, expected: (u64, u64)) {
        check_of(Algorithm::FixedWindow, known, bounds, expected);
    }

    #[test]
    fn what_nobody_can_have_hit_begins_at_zero() {
        // The replica is alone, and has watched since before the day began.
        check(nothing_since(0), bounds(1), (0, 12));
        // The store has answered no replica since before the day began.
        let lost_before = FirstCountInputs {
            lost_at: at(0),
            ..bounds(3)
        };
        let unknown = CounterHistory {
            seen: None,
            complete_since: None,
        };
        check(unknown, lost_before, (0, 12));
    }

    #[test]
    fn what_was_never_seen_is_used_up_but_for_one_hit_of_the_share() {
        let unknown = CounterHistory {
            seen: None,
            complete_since: None,
        };
        check(unknown.clone(), bounds(1), (99, 11));
        check(unknown.clone(), bounds(2), (49, 11));
        // Other replicas may have seen it.
        check(nothing_since(0), bounds(2), (49, 11));
        // The replica has not watched, or not been alone, since the beginning of the day.
        check(nothing_since(1), bounds(1), (99, 1));
        let late_alone = FirstCountInputs {
            alone_since: at(3),
            ..bounds(1)
        };
        check(nothing_since(0), late_alone, (99, 3));
        // A share of one hit has that hit left.
        check(nothing_since(0), bounds(1000), (0, 11));
    }

    #[test]
    fn what_was_seen_grows_by_the_pace_of_the_limit_until_the_loss() {
        check(saw(60, 11), bounds(2), (30, 11));
        // Twelve hours are half of a hundred a day: a half of 20 and of 50 more.
        let lost_at_noon = FirstCountInputs {
            lost_at: at(12),
            ..bounds(2)
        };
        check(saw(20, 0), lost_at_noon, (35, 12));
        // One hit is left as long as there was one.
        check(saw(80, 0), lost_at_noon, (49, 12));
        check(saw(99, 0), lost_at_noon, (50, 0));
        check(saw(300, 11), bounds(2), (150, 11));
        // A replica that is alone has seen all hits.
        check(saw(60, 2), bounds(1), (60, 2));
        let late_alone = FirstCountInputs {
            alone_since: at(8),
            ..bounds(1)
        };
        check(saw(60, 2), late_alone, (85, 8));
    }

    #[test]
    fn hits_of_others_in_a_window_from_its_first_hit_leave_with_it() {
        // The window ends at midnight, so it began with the day.
        check_of(Algorithm::FirstHit, saw(60, 2), bounds(2), (49, 0));
        check_of(Algorithm::SlidingLog, saw(60, 2), bounds(2), (49, 11));
        let ended_before = CounterHistory {
            seen: Some(KnownCount {
                count: 60,
                at: at(2),
                lasts_until: at(9),
                dated: Vec::new(),
            }),
            complete_since: Some(at(0)),
        };
        // Others may have begun another one.
        check_of(Algorithm::FirstHit, ended_before, bounds(2), (19, 11));
    }

    #[test]
    fn hits_that_have_a_period_to_live_leave_when_they_would_have() {
        for algorithm in [Algorithm::SlidingLog, Algorithm::FirstHit] {
            // The last hit of them came a day before their end.
            check_of(algorithm.clone(), saw(60, 2), bounds(1), (60, 0));
            // The replica watched for less than a day.
            check_of(algorithm.clone(), nothing_since(0), bounds(1), (99, 0));
            check_of(algorithm, nothing_since(0), bounds(2), (49, 11));
        }
        let bucket = Algorithm::TokenBucket { burst: 50 };
        // Half a day fills a bucket of half a day's tokens.
        check_of(bucket.clone(), nothing_since(0), bounds(1), (0, 12));
        check_of(bucket, nothing_since(1), bounds(1), (49, 1));
        let ended = CounterHistory {
            seen: Some(KnownCount {
                count: 60,
                at: at(11),
                lasts_until: at(12),
                dated: Vec::new(),
            }),
            complete_since: Some(at(0)),
        };
        check_of(Algorithm::SlidingWindow, ended, bounds(1), (0, 11));
    }
}

/// How many of `hits` single hits a process lets pass.
fn passing(loss: &Loss, limit: &Limit, hits: usize, now: Timestamp) -> usize {
    let passes = |_: &usize| {
        let batch = batch("a", limit, Hits::ONE, now);
        let counts = loss.count(&batch, moment(now));
        !counts[0].is_over(limit.capacity(), 1)
    };
    (0..hits).filter(passes).count()
}

#[test]
fn hits_that_were_handed_back_are_known_when_the_store_is_lost_again() {
    for is_sent in [true, false] {
        let loss = loss(1, 10);
        let ten = Limit::fixed(10, Unit::Year);
        see(&loss, &batch("a", &ten, Hits::ONE, NOW), 4, NOW);
        loss.failed(StoreError::Unreachable, steady(NOW));
        assert_eq!(passing(&loss, &ten, 3, NOW), 3);
        loss.returned();
        if is_sent {
            let batch = loss.take(&mut 0, 10, moment(NOW)).unwrap();
            loss.expect(&batch, &moment(NOW));
        }
        loss.failed(StoreError::Unreachable, steady(NOW));
        assert_eq!(passing(&loss, &ten, 10, NOW), 3, "sent: {is_sent}");
    }
}

#[test]
fn without_any_number_of_replicas_a_share_is_one_hit() {
    let loss = loss(0, 10);
    loss.failed(StoreError::Unreachable, steady(NOW));
    let ten = Limit::fixed(10, Unit::Year);
    assert_eq!(passing(&loss, &ten, 5, NOW), 1);
}
