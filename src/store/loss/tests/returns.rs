//! Clients of replicas whose store is lost and returns, with given times: none that stays below its limit is refused
//! for it, and none gets much more than its limit.

use std::{
    cell::Cell,
    sync::atomic::AtomicBool,
    task::{Context, Poll, Waker},
};

use super::*;
use crate::store::memory::MemoryStore;

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
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}

/// Two replicas, and the time.
struct Fleet {
    shared: Shared,
    replicas: Vec<(OnLoss<Shared>, Reconciler<Shared>)>,
    /// By a clock that is never set.
    now: Cell<u64>,
    /// The steps of the time of day, in sum.
    step: Cell<i64>,
}

impl Fleet {
    fn new(replicas: u32, max_counters: usize) -> Self {
        let shared = Shared {
            store: Arc::new(MemoryStore::new(1_000)),
            is_away: Arc::default(),
        };
        let replica = |_| {
            let loss = Arc::new(loss(replicas, max_counters));
            let reconciler = Reconciler {
                store: shared.clone(),
                loss: loss.clone(),
            };
            (
                OnLoss::new(
                    shared.clone(),
                    loss,
                    Returns::none(),
                    Duration::from_secs(1),
                ),
                reconciler,
            )
        };
        Self {
            replicas: (0..replicas).map(replica).collect(),
            shared,
            now: Cell::new(NOW.millis() + 1_234),
            step: Cell::new(0),
        }
    }

    fn moment(&self) -> Moment {
        let now = self.now.get();
        Moment {
            now: Timestamp::from_millis(now.saturating_add_signed(self.step.get())),
            steady: steady(Timestamp::from_millis(now)),
        }
    }

    /// Whether `hits` of `value` pass through a replica.
    fn passes(&self, replica: usize, value: &str, limit: &Limit, hits: Hits) -> bool {
        let moment = self.moment();
        let mut batch = batch(value, limit, hits, moment.now);
        batch = local(&batch);
        let deadline = Deadline::of_call(*EPOCH + Duration::from_millis(self.now.get()), None);
        let mut counts = CounterStates::new();
        let (store, _) = &self.replicas[replica];
        at_once(store.add_into(&mut counts, &batch, moment.now, &deadline)).unwrap();
        !counts[0].is_over(limit.capacity(), hits.added())
    }

    fn lose(&self) {
        self.shared.is_away.store(true, Relaxed);
    }

    /// The store is back, and gets the hits that it lacks.
    fn give_back(&self) {
        self.shared.is_away.store(false, Relaxed);
        for (_, reconciler) in &self.replicas {
            reconciler.loss.returned();
            at_once(reconciler.hand_back(|| self.moment()));
        }
    }

    fn stat(&self, stat: impl Fn(&LossStats) -> u64) -> u64 {
        let all = self.replicas.iter();
        all.map(|(store, _)| stat(&store.loss.stats)).sum()
    }
}

/// `batch`, whose rules count locally.
fn local(batch: &Batch) -> Batch {
    let mut local = Batch::default();
    for increment in batch.iter() {
        let spec = IncrementSpec {
            on_loss: OnStoreLoss::Local,
            ..increment.spec
        };
        local.append_one(Increment { spec, ..increment });
    }
    local
}

const PERIOD: u64 = 60_000;

/// Twenty a minute.
fn limits() -> Vec<Limit> {
    [
        Algorithm::FixedWindow,
        Algorithm::FirstHit,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket { burst: 20 },
    ]
    .into_iter()
    .map(|algorithm| Limit {
        algorithm,
        ..Limit::fixed(20, Unit::Minute)
    })
    .collect()
}

/// The moments at which a client was admitted and refused, from the first one on.
#[derive(Default)]
struct Course {
    admitted: Vec<u64>,
    refused: Vec<u64>,
}

impl Course {
    /// The most hits in any period.
    fn densest(&self) -> usize {
        let within = |start: &u64| {
            let until = start + PERIOD;
            let of_it = self
                .admitted
                .iter()
                .filter(|at| (*start..until).contains(at));
            of_it.count()
        };
        self.admitted.iter().map(within).max().unwrap_or(0)
    }
}

/// The times of a loss, in milliseconds since the start.
#[derive(Clone, Copy)]
struct Away {
    from: u64,
    until: u64,
}

const BEFORE: u64 = 3 * PERIOD + 7_700;

/// A client that asks every `pause` milliseconds, through the replicas in turn.
fn course(limit: &Limit, replicas: u32, pause: u64, away: Option<Away>, end: u64) -> Course {
    let fleet = Fleet::new(replicas, 1_000);
    let start = fleet.now.get();
    let mut course = Course::default();
    let (mut is_away, mut asked) = (false, 0);
    for after in (0..end).step_by(usize::try_from(pause).unwrap()) {
        fleet.now.set(start + after);
        if let Some(away) = away {
            let is_now = (away.from..away.until).contains(&after);
            if is_now && !is_away {
                fleet.lose();
            } else if is_away && !is_now {
                fleet.give_back();
            }
            is_away = is_now;
        }
        let replica = asked % fleet.replicas.len();
        asked += 1;
        match fleet.passes(replica, "v", limit, Hits::ONE) {
            true => course.admitted.push(after),
            false => course.refused.push(after),
        }
    }
    assert_eq!(fleet.stat(|stats| stats.lost_hits.load(Relaxed)), 0);
    course
}

const LOSSES: [u64; 4] = [5, 20, 200, 3_600];

#[test]
fn a_client_below_its_limit_is_refused_nothing_after_a_loss_of_any_length() {
    for limit in limits() {
        for secs in LOSSES {
            for (percent, pause) in [(20, 15_000), (50, 6_000), (95, 3_158)] {
                for replicas in [1, 2] {
                    let until = BEFORE + secs * 1_000;
                    let away = Away {
                        from: BEFORE,
                        until,
                    };
                    let end = until + 4 * PERIOD;
                    let count = |away| {
                        let refused = course(&limit, replicas, pause, away, end).refused;
                        let (late, early): (Vec<_>, Vec<_>) =
                            refused.into_iter().partition(|at| *at >= until);
                        (early.len(), late.len())
                    };
                    let (_, exact) = count(None);
                    let (during, after) = count(Some(away));
                    let case = format!(
                        "{:?}, {secs} s, {percent} %, {replicas} replicas",
                        limit.algorithm
                    );
                    assert!(after <= exact, "{case}: {after} refused and not {exact}");
                    // One replica knows all hits.
                    if replicas == 1 {
                        assert_eq!(during, 0, "{case}");
                    }
                    // Shares are rounded, and some of others' hits have no known time.
                    let most = match limit.algorithm {
                        // Half of such a limit, 9.5 hits of 10, is counted by whole hits all the time.
                        Algorithm::SlidingWindow if percent == 95 => 2 + secs / 50,
                        _ => 1,
                    };
                    assert!(during as u64 <= most, "{case}: {during} refused during it");
                }
            }
        }
    }
}

#[test]
fn a_client_that_asks_all_the_time_gets_no_more_for_a_loss() {
    for limit in limits() {
        for secs in LOSSES {
            for replicas in [1, 2] {
                let until = BEFORE + secs * 1_000;
                let away = Away {
                    from: BEFORE,
                    until,
                };
                let lost = course(&limit, replicas, 700, Some(away), until + 3 * PERIOD);
                let most = match limit.algorithm {
                    // A hit of another replica that came as an older one left looks like that one.
                    Algorithm::SlidingLog if replicas > 1 => 23,
                    Algorithm::SlidingLog | Algorithm::FirstHit => 20,
                    // A pause leaves room for more at once, with a store as well.
                    Algorithm::SlidingWindow => 30,
                    // Windows that touch; a full bucket, and what flows in.
                    _ => 40,
                };
                let densest = lost.densest();
                assert!(
                    densest <= most,
                    "{:?}, {secs} s: {densest}",
                    limit.algorithm
                );
                if limit.algorithm == Algorithm::FixedWindow {
                    let window = |at: &u64| (NOW.millis() + 1_234 + at) / PERIOD;
                    let mut windows: Vec<_> = lost.admitted.iter().map(window).collect();
                    let admitted = windows.len();
                    windows.dedup();
                    assert!(admitted <= 20 * windows.len(), "{admitted}");
                }
            }
        }
    }
}

#[test]
fn hits_given_back_during_a_loss_are_given_back_to_the_store() {
    for limit in limits() {
        let fleet = Fleet::new(2, 1_000);
        assert!(fleet.passes(0, "v", &limit, Hits::add(10)));
        assert!(fleet.passes(1, "v", &limit, Hits::add(2)));
        fleet.lose();
        // The share of this replica holds six of the twelve.
        assert!(fleet.passes(0, "v", &limit, Hits::give_back(8)));
        assert!(fleet.passes(0, "v", &limit, Hits::add(3)));
        fleet.give_back();
        let left = (0..30).filter(|_| fleet.passes(1, "v", &limit, Hits::ONE));
        assert_eq!(left.count(), 13, "{:?}", limit.algorithm);
        // Only hits that were given back.
        fleet.lose();
        fleet.passes(1, "v", &limit, Hits::give_back(5));
        fleet.give_back();
        let left = (0..30).filter(|_| fleet.passes(0, "v", &limit, Hits::ONE));
        // A fixed window holds the hits that it refused.
        let most = if limit.algorithm.looks_first() { 5 } else { 0 };
        assert!(left.count() <= most, "{:?}", limit.algorithm);
    }
}

#[test]
fn a_step_of_the_clock_during_a_loss_refuses_nobody_and_admits_one_more_window_at_most() {
    const DAY: i64 = 86_400_000;
    for limit in limits() {
        for step in [20_000, 600_000, DAY, -20_000, -600_000, -DAY] {
            for (pause, most) in [(6_000, 0), (700, 40)] {
                let fleet = Fleet::new(1, 1_000);
                let start = fleet.now.get();
                let mut course = Course::default();
                for after in (0..8 * PERIOD).step_by(pause) {
                    fleet.now.set(start + after);
                    if after >= 2 * PERIOD {
                        fleet.lose();
                    }
                    if after >= 4 * PERIOD + 12_000 {
                        fleet.step.set(step);
                    }
                    match fleet.passes(0, "v", &limit, Hits::ONE) {
                        true => course.admitted.push(after),
                        false => course.refused.push(after),
                    }
                }
                let case = format!("{:?}, {step} ms, each {pause} ms", limit.algorithm);
                if most == 0 {
                    assert_eq!(course.refused, [0; 0], "{case}");
                }
                // Edges of windows, and one more window.
                assert!(course.densest() <= 60, "{case}: {}", course.densest());
                let longest = course.admitted.windows(2).map(|two| two[1] - two[0]).max();
                // The hits of a sliding window count from the loss on, because their times are not known.
                assert!(longest <= Some(PERIOD + 5_000), "{case}: {longest:?}");
            }
        }
    }
}

/// Sixty values ask all the time, and a third of them has room.
#[test]
fn a_live_counter_is_not_dropped_while_room_is_short() {
    for limit in limits() {
        let fleet = Fleet::new(1, 20);
        fleet.lose();
        let start = fleet.now.get();
        let mut admitted = std::collections::BTreeMap::<u64, Course>::new();
        for after in (0..4 * PERIOD).step_by(500) {
            fleet.now.set(start + after);
            for value in 0..60 {
                if fleet.passes(0, &value.to_string(), &limit, Hits::ONE) {
                    admitted.entry(value).or_default().admitted.push(after);
                }
            }
        }
        for (value, course) in &admitted {
            // In a sketch all algorithms count in windows, and the unknown store may have had all but one hit.
            let exact = matches!(limit.algorithm, Algorithm::SlidingLog | Algorithm::FirstHit);
            let most = if exact && *value < 20 { 20 } else { 40 };
            let densest = course.densest();
            assert!(densest <= most, "{:?}, {value}: {densest}", limit.algorithm);
        }
    }
}

#[test]
fn every_local_hit_is_handed_back_or_counted_as_lost() {
    for limit in limits() {
        let fleet = Fleet::new(2, 10);
        fleet.lose();
        for replica in 0..2 {
            fleet.passes(replica, "first", &limit, Hits::ONE);
        }
        // The store can hold nothing any more.
        fleet.now.set(fleet.now.get() + 3 * PERIOD);
        for (store, _) in &fleet.replicas {
            store.loss.sweep(fleet.moment().steady);
        }
        let mut admitted = 0;
        for _ in 0..5 {
            for value in 0..40 {
                let replica = usize::try_from(value % 2).unwrap();
                let passes = fleet.passes(replica, &value.to_string(), &limit, Hits::ONE);
                admitted += u64::from(passes);
            }
        }
        assert_eq!(admitted, 200, "{:?}", limit.algorithm);
        fleet.give_back();
        let reconciled = fleet.stat(|stats| stats.reconciled.load(Relaxed));
        let lost = fleet.stat(|stats| stats.lost_hits.load(Relaxed));
        assert_eq!((reconciled, lost), (100, 100), "{:?}", limit.algorithm);
        assert!(
            fleet
                .replicas
                .iter()
                .all(|(store, _)| store.loss.local().len() == 0)
        );
    }
}
