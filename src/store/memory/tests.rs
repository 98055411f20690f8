//! Counts in memory, and the room that they take.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::{shard::MAX_INLINE, table::DescriptorCounters, *};
use crate::core::{
    counter::{Charge, DescriptorHits},
    limit::{Algorithm, Limit},
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
fn check(store: &MemoryStore, values: &[&str], secs: u64, expected: Result<Vec<u64>, StoreError>) {
    let now = Timestamp::from_secs(secs);
    let batch = batch(values, Hits::ONE, now);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let counts = runtime.block_on(store.add(&batch, now));
    let after = |counts: CounterStates| counts.iter().map(|count| count.after).collect();
    assert_eq!(counts.map(after), expected);
}

#[test]
fn expired_windows_are_dropped() {
    let store = MemoryStore::new(10);
    check(&store, &["a", "b"], 0, Ok(vec![1, 1]));
    check(&store, &["c"], MINUTE, Ok(vec![1]));
    assert_eq!(store.live_counters(), 3);
    store.sweep(Timestamp::from_secs(MINUTE));
    assert_eq!(store.live_counters(), 1);
    check(&store, &["c"], MINUTE, Ok(vec![2]));
    store.sweep(Timestamp::from_secs(2 * MINUTE));
    assert_eq!(store.live_counters(), 0);
}

#[test]
fn a_full_store_counts_what_it_knows_and_refuses_the_rest() {
    let store = MemoryStore::new(2);
    check(&store, &["a", "b"], 0, Ok(vec![1, 1]));
    check(&store, &["c"], 0, Err(StoreError::Full));
    check(&store, &["a"], 0, Ok(vec![2]));
    assert_eq!(store.live_counters(), 2);
    store.sweep(Timestamp::from_secs(MINUTE));
    check(&store, &["c"], MINUTE, Ok(vec![1]));
}

#[test]
fn a_look_takes_no_room() {
    let store = MemoryStore::new(1);
    let now = Timestamp::from_secs(0);
    let look = batch(&["a", "b", "c"], Hits::add(0), now);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let counts = runtime.block_on(store.add(&look, now));
    assert_eq!(
        counts,
        Ok(CounterStates::from_elem(CounterState::from(0), 3))
    );
    assert_eq!(store.live_counters(), 0);
}

/// Increments of a minute's and an hour's limit for each of `values`.
fn two_limits(values: &[&str], charge: Charge, now: Timestamp) -> Batch {
    let mut batch = Batch::default();
    for value in values {
        for unit in [Unit::Minute, Unit::Hour] {
            let counting = DescriptorHits {
                charge,
                ..Hits::ONE.into()
            };
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
        let shard = &mut lock(shard);
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

    /// Clients may send limits of their own, with any period.
    #[test]
    fn a_count_costs_the_same_however_many_periods_its_descriptor_has(
        count in prop_oneof![1_u32..40, 1_000_u32..100_000],
        kept in 1_u32..50,
    ) {
        let store = MemoryStore::new(1_000_000);
        let now = Timestamp::from_secs(0);
        for expected in 1..=2 {
            let batch = periods(1..=count, now);
            let counts = store.apply_all(&batch, now).unwrap();
            prop_assert!(counts.iter().all(|count| count.after == expected));
        }
        prop_assert!(longest_list(&store) <= MAX_INLINE);
        prop_assert_eq!(store.live_counters(), count as usize);
        // Counters that are left after a sweep are found, wherever they are stored.
        store.sweep(Timestamp::from_secs(u64::from(count.saturating_sub(kept))));
        let left = count - count.saturating_sub(kept);
        prop_assert_eq!(store.live_counters(), left as usize);
        let batch = periods(count - left + 1..=count, now);
        let counts = store.apply_all(&batch, now).unwrap();
        prop_assert!(counts.iter().all(|count| count.after == 3));
        prop_assert_eq!(store.live_counters(), left as usize);
        store.sweep(Timestamp::from_secs(u64::from(count)));
        prop_assert_eq!(store.live_counters(), 0);
    }
}

#[test]
fn without_room_for_all_that_a_request_counts_nothing_is_counted() {
    let now = Timestamp::from_secs(0);
    for charge in [
        Charge::Always,
        Charge::Within,
        Charge::Admitted,
        Charge::Stopping,
    ] {
        let store = MemoryStore::new(5);
        let add = |values: &[&str]| store.apply_all(&two_limits(values, charge, now), now);
        let after = |values: &[&str]| {
            let counts = add(values).unwrap();
            counts.iter().map(|count| count.after).collect::<Vec<_>>()
        };
        assert_eq!(after(&["a", "b"]), [1, 1, 1, 1]);
        for _ in 0..3 {
            assert_eq!(add(&["a", "c"]), Err(StoreError::Full), "{charge:?}");
            assert_eq!(store.live_counters(), 4);
        }
        assert_eq!(after(&["a", "b"]), [2, 2, 2, 2], "{charge:?}");
    }
}

#[test]
fn a_request_takes_the_last_room_and_that_of_what_has_expired() {
    for charge in [Charge::Always, Charge::Admitted] {
        let store = MemoryStore::new(4);
        let add = |values: &[&str], secs| {
            let now = Timestamp::from_secs(secs);
            store.apply_all(&two_limits(values, charge, now), now)
        };
        assert!(add(&["a", "a", "b"], 0).is_ok());
        assert_eq!(store.live_counters(), 4);
        assert_eq!(add(&["c"], 0), Err(StoreError::Full));
        assert!(add(&["a"], 3600).is_ok());
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
                let counting = DescriptorHits {
                    charge: *charge,
                    descriptor: index,
                    ..(*hits).into()
                };
                batch.push_value(value.as_bytes(), &limit, now, counting);
            }
            let counts = store.apply_all(&batch, now).unwrap();
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
