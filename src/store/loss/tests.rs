//! Shares, and what a loss leaves behind.

use std::{
    num::NonZeroU32,
    sync::atomic::AtomicBool,
    task::{Context, Poll, Waker},
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::{
    core::{
        counter::{Charge, Identity, IncrementSpec},
        kind::Algorithm,
        limit::Limit,
        request::{Entry, Hits},
        window::Unit,
    },
    store::{
        memory::{CounterBounds, MemoryStore},
        replicas::ReplicaCount,
    },
};

const NOW: Timestamp = Timestamp::from_secs(1_795_230_000);

/// The losses of a store that this many replicas share; 0 if their number is not known.
fn loss(replicas: u32, max_counters: usize) -> Loss {
    let bounds = CounterBounds {
        counters: max_counters,
        bytes: CounterBounds::DEFAULT_BYTES,
    };
    let number = ReplicaCount::new(NonZeroU32::new(replicas));
    let stats = Arc::default();
    Loss::new("redis", LostLimits::All, bounds, number.into(), stats)
}

fn steady() -> SteadyTime {
    Deadline::of_store().steady()
}

/// A request of one descriptor whose rule answers `on_loss`.
fn batch(value: &str, limit: &Limit, hits: Hits, on_loss: OnStoreLoss, now: Timestamp) -> Batch {
    let charge = match limit.algorithm.looks_first() {
        true => Charge::Within,
        false => Charge::Always,
    };
    let spec = IncrementSpec {
        on_loss,
        ..IncrementSpec::charged(hits, charge)
    };
    let mut identity = Identity::default();
    let entry = Entry {
        key: b"k",
        value: value.as_bytes(),
    };
    identity.set(b"d", &[entry], &[]);
    let mut batch = Batch::default();
    batch.push(&identity, limit, now, spec);
    batch
}

fn with(algorithm: Algorithm, requests_per_unit: u64) -> Limit {
    Limit {
        algorithm,
        ..Limit::fixed(requests_per_unit, Unit::Year)
    }
}

/// Whether the hits of one request pass.
fn passes(loss: &Loss, value: &str, limit: &Limit, hits: u64) -> Option<u64> {
    let batch = batch(value, limit, Hits::add(hits), OnStoreLoss::Local, NOW);
    let counts = loss.count(batch.iter(), NOW);
    let is_over = counts[0].is_over(limit.capacity(), hits);
    (!is_over).then(|| limit.capacity() - counts[0].after)
}

/// Asserts how much is left after each of `hits`, or `None` if it is refused.
#[track_caller]
fn check(limit: &Limit, replicas: u32, hits: &[u64], expected: &[Option<u64>]) {
    let loss = loss(replicas, 10);
    let left = hits.iter().map(|hits| passes(&loss, "a", limit, *hits));
    assert_eq!(left.collect::<Vec<_>>(), expected, "{limit:?}");
}

#[test]
fn a_share_is_admitted() {
    let ten = Limit::fixed(10, Unit::Year);
    check(&ten, 1, &[4, 6, 1], &[Some(6), Some(0), None]);
    check(&ten, 2, &[2, 3, 1], &[Some(3), Some(0), None]);
    // Rounded up.
    check(&ten, 3, &[4, 1], &[Some(0), None]);
    check(&ten, 4, &[4, 3], &[None, None]);
    check(&ten, 100, &[1, 1], &[Some(0), None]);
    check(&Limit::fixed(0, Unit::Year), 2, &[1], &[None]);
    // Without a number a share is one hit.
    check(&ten, 0, &[1, 1], &[Some(0), None]);
}

#[test]
fn other_algorithms_have_shares_too() {
    for algorithm in Algorithm::one_of_each(10).skip(1) {
        let limit = with(algorithm, 10);
        let rest = limit.capacity().div_ceil(2) - 1;
        check(&limit, 2, &[1, rest, 1], &[Some(rest), Some(0), None]);
    }
}

#[test]
fn each_loss_begins_empty_and_leaves_nothing() {
    let loss = loss(2, 10);
    let ten = Limit::fixed(10, Unit::Year);
    let mut epochs = Vec::new();
    for _ in 0..2 {
        assert_eq!(loss.local_epoch(), None);
        loss.failed(StoreError::Unreachable, steady());
        assert_eq!(passes(&loss, "a", &ten, 5), Some(0));
        assert_eq!(passes(&loss, "a", &ten, 1), None);
        epochs.extend(loss.local_epoch());
        loss.returned();
    }
    assert_eq!(epochs.len(), 2);
    assert_ne!(epochs[0], epochs[1]);
}

#[test]
fn nothing_grows_with_the_values_that_come() {
    const MAX: usize = 100;
    let loss = loss(1, MAX);
    let limit = Limit::fixed(10, Unit::Second);
    for number in 0..10_000_u64 {
        // A hundred values a second, so that ended counters make room.
        let now = Timestamp::from_millis(NOW.millis() + number * 10);
        let batch = batch(
            &number.to_string(),
            &limit,
            Hits::ONE,
            OnStoreLoss::Local,
            now,
        );
        loss.count(batch.iter(), now);
    }
    let held = loss.local().counters.live_counters();
    assert!(held <= MAX && held > MAX / 2, "{held}");
}

#[test]
fn a_store_is_lost_once_and_back_once() {
    let loss = loss(1, 10);
    let lost = || loss.stats.lost.load(Relaxed);
    loss.returned();
    assert_eq!(lost(), 0);
    for _ in 0..2 {
        loss.failed(StoreError::Unreachable, steady());
        assert_eq!(lost(), 1);
    }
    for _ in 0..2 {
        loss.returned();
        assert_eq!(lost(), 0);
    }
}

/// The store of all replicas. While it is away it answers no replica.
#[derive(Clone, Debug)]
struct Shared {
    store: Arc<MemoryStore>,
    is_away: Arc<AtomicBool>,
}

impl Store for Shared {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        _deadline: &Deadline,
    ) -> Result<(), StoreError> {
        if self.is_away.load(Relaxed) {
            return Err(StoreError::Unreachable);
        }
        self.store.apply_into(counts, batch, now);
        Ok(())
    }

    fn state(&self) -> StoreState {
        StoreState {
            is_well: !self.is_away.load(Relaxed),
            is_one_step: true,
        }
    }
}

/// The result of a future that waits for nothing.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut context) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}

/// Replicas of one store.
fn fleet(replicas: u32) -> (Shared, Vec<OnLoss<Shared>>) {
    let shared = Shared {
        store: Arc::new(MemoryStore::new(1_000)),
        is_away: Arc::default(),
    };
    let replica = |_| {
        let loss = Arc::new(loss(replicas, 10));
        OnLoss::new(
            shared.clone(),
            loss,
            Returns::new(Arc::default()),
            Duration::from_secs(1),
        )
    };
    let all = (0..replicas).map(replica).collect();
    (shared, all)
}

#[test]
fn each_rule_answers_for_itself_and_one_without_an_answer_fails_the_request() {
    let (shared, replicas) = fleet(1);
    let limit = Limit::fixed(1, Unit::Year);
    let ask = |answers: &[OnStoreLoss]| {
        let mut all = Batch::default();
        for (value, answer) in (0..).zip(answers) {
            let one = batch(&value.to_string(), &limit, Hits::ONE, *answer, NOW);
            all.append_one(one.increment(0));
        }
        let counts = at_once(replicas[0].add(&all, NOW))?;
        Ok(counts.iter().map(|count| count.is_over(1, 1)).collect())
    };
    shared.is_away.store(true, Relaxed);
    let answers = [OnStoreLoss::Allow, OnStoreLoss::Deny, OnStoreLoss::Local];
    assert_eq!(ask(&answers), Ok(vec![false, true, false]));
    assert_eq!(ask(&answers), Ok(vec![false, true, true]));
    let with_error = [OnStoreLoss::Allow, OnStoreLoss::Error];
    assert_eq!(ask(&with_error), Err(StoreError::Unreachable));
}

proptest! {
    /// The promise of a loss: nothing is added to the store, and each loss admits the share of each replica at most.
    #[test]
    fn a_counter_admits_its_limit_and_for_each_loss_the_share_of_each_replica(
        replicas in 1_u32..4,
        algorithm in prop::sample::select(Algorithm::one_of_each(20).collect::<Vec<_>>()),
        steps in prop::collection::vec((0_usize..4, 1_u64..6, prop::bool::weighted(0.1)), 1..200),
    ) {
        let limit = with(algorithm, 20);
        let (shared, all) = fleet(replicas);
        let share = limit.capacity().div_ceil(replicas.into());
        let (mut admitted, mut in_store, mut losses) = (0, 0, 0);
        for (replica, hits, turns) in steps {
            if turns {
                let was_away = shared.is_away.fetch_xor(true, Relaxed);
                losses += u64::from(!was_away);
                all.iter().filter(|_| was_away).for_each(|one| drop(one.loss.returned()));
            }
            // Another request with slots of its own, so that none of them is taken twice.
            let mut asked = batch("a", &limit, Hits::add(hits), OnStoreLoss::Local, NOW);
            asked.name_slots(admitted + 1);
            let one = &all[replica % all.len()];
            let counts = at_once(one.add(&asked, NOW)).unwrap();
            if !counts[0].is_over(limit.capacity(), hits) {
                admitted += hits;
                in_store += if counts[0].is_degraded { 0 } else { hits };
            }
        }
        prop_assert!(in_store <= limit.capacity());
        prop_assert!(admitted <= limit.capacity() + losses * share * u64::from(replicas));
    }
}
