//! Compares every algorithm with a naive model, on both stores: the hits held, the charging, the reset, and when the
//! hits would pass.

use std::{cell::Cell, collections::BTreeMap, num::NonZeroU32, thread};

use proptest::{
    prelude::*,
    strategy::Union,
    test_runner::{Config, TestRunner},
};
use tokio::task::JoinSet;
use tollgate::{
    Algorithm::{
        self, Calendar, Concurrency, FirstHit, FixedWindow, SlidingLog, SlidingWindow, TokenBucket,
    },
    Batch,
    Charge::{Admitted, Always, Within},
    Entry, Hits, Identity, IncrementSpec, Limit,
    Operation::{self, Add, GiveBack, Reset},
    Period, Timestamp, Unit,
};

use crate::{
    store::{Backend, Handle, on_all_stores},
    support::{cluster::Cluster, redis::Redis},
};

on_all_stores! {
    everywhere: [
        a_count_below_zero_is_judged_as_0
        what_is_refused_takes_no_room
    ]
    within_a_slot: [
        any_history_of_each_algorithm
        any_history_of_everything_together
        hits_that_come_at_once_are_admitted_in_some_order
    ]
}

/// All limits have this period.
const PERIOD: u64 = 10_000;

/// Long after the epoch, within a window.
const START: u64 = 1_795_230_003_217;

/// The hits of one descriptor on one counter.
#[derive(Clone, Debug)]
struct Step {
    /// Selects a counter of the algorithm.
    value: u8,
    algorithm: Algorithm,
    requests_per_unit: u64,
    hits: Hits,
    operation: Operation,
}

/// The steps of one request.
#[derive(Clone, Debug)]
struct Call {
    /// Time in milliseconds; clocks sometimes step back.
    now: u64,
    steps: Vec<Step>,
}

impl Step {
    fn limit(&self) -> Limit {
        let period = Period::new(Unit::Second, NonZeroU32::new(10).unwrap()).unwrap();
        Limit {
            algorithm: self.algorithm.clone(),
            ..Limit::fixed(self.requests_per_unit, period)
        }
    }
}

/// Sends a call for counters that no other history uses.
async fn send(handle: &Handle, history: u32, call: &Call) -> Vec<Reported> {
    let now = Timestamp::from_millis(call.now);
    let mut batch = Batch::default();
    let mut identity = Identity::default();
    for (index, step) in call.steps.iter().enumerate() {
        let value = [&[step.value][..], &history.to_be_bytes()].concat();
        let (key, value) = (b"key", &*value);
        identity.set(b"algorithms", &[Entry { key, value }], &[]);
        let counting = IncrementSpec {
            operation: step.operation,
            descriptor: index.try_into().unwrap(),
            ..step.hits.into()
        };
        batch.push(&identity, &step.limit(), now, counting);
    }
    let counts = handle.counts(&batch, now).await;
    let reported = counts.into_iter().map(|count| Reported {
        after: count.after,
        is_charged: count.is_charged,
        ends: count.ends.map(|ends| (ends.resets_in, ends.retry_in)),
    });
    reported.collect()
}

/// The result of one step, from a store or from the model.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reported {
    /// The hits held.
    after: u64,
    is_charged: bool,
    /// Time until the counter is empty, and until the hits would pass; `None` for aligned windows.
    ends: Option<(u64, Option<u64>)>,
}

const SLOTS: &str = "slots have names, and a model in slots.rs";

/// One counter in its simplest form.
#[derive(Clone, Debug, Default)]
struct Naive {
    /// Admitted hits, each with its time. A sliding window uses only the number of the window.
    hits: Vec<(u64, u64)>,
    /// Start of the window of the first hit.
    start: Option<u64>,
    /// For a bucket: missing tokens times milliseconds, the time of that state, the rate of new tokens, and the
    /// capacity. For a sliding window, the number of the latest window.
    missing: i128,
    since: u64,
    rate: u64,
    capacity: u64,
}

impl Naive {
    /// The hits held.
    fn held(&self, step: &Step, now: u64) -> u64 {
        let sum = |is_so: &dyn Fn(u64) -> bool| -> u64 {
            let hits = self.hits.iter().filter(|(at, _)| is_so(*at));
            hits.map(|(_, hits)| hits).sum()
        };
        match &step.algorithm {
            FixedWindow | Calendar(_) => sum(&|at| at / PERIOD == now / PERIOD),
            FirstHit => match self.start {
                Some(start) if now < start + PERIOD => sum(&|_| true),
                _ => 0,
            },
            SlidingWindow => {
                let index = now / PERIOD;
                let left = PERIOD - now % PERIOD;
                let older = sum(&|at| at / PERIOD + 1 == index);
                sum(&|at| at / PERIOD == index) + (older * left).div_ceil(PERIOD)
            }
            SlidingLog => sum(&|at| at + PERIOD > now),
            TokenBucket { .. } => {
                let missing = u64::try_from(self.still_missing(step, now)).unwrap();
                missing.div_ceil(PERIOD)
            }
            Concurrency => unreachable!("{SLOTS}"),
        }
    }

    /// How much a bucket of this capacity lacks.
    fn still_missing(&self, step: &Step, now: u64) -> i128 {
        let most = i128::from(step.limit().capacity()) * i128::from(PERIOD);
        self.less_what_flowed(self.missing.min(most), now)
    }

    fn less_what_flowed(&self, missing: i128, now: u64) -> i128 {
        (missing - i128::from(now - self.since) * i128::from(self.rate)).max(0)
    }

    /// The latest time that it remembers.
    fn latest(&self, step: &Step) -> u64 {
        match step.algorithm {
            FixedWindow | Calendar(_) => 0,
            FirstHit => self.start.unwrap_or(0),
            SlidingWindow => self.since * PERIOD,
            SlidingLog => self.hits.last().map_or(0, |(at, _)| *at),
            TokenBucket { .. } => self.since,
            Concurrency => unreachable!("{SLOTS}"),
        }
    }

    /// Starts a use of the counter by a caller with the clock `now`. Returns the counter's present, which is later if
    /// another caller's clock was ahead by up to `skew`. A larger difference cannot be right.
    fn look(&mut self, step: &Step, now: u64, skew: u64) -> u64 {
        let is_wrong = self.latest(step) > now + skew;
        let is_bucket = matches!(step.algorithm, TokenBucket { .. });
        match (is_wrong, is_bucket) {
            (false, _) => {}
            (true, true) => self.since = now,
            (true, false) => *self = Self::default(),
        }
        let now = now.max(self.latest(step));
        if is_bucket {
            let (rate, capacity) = (step.requests_per_unit.max(1), step.limit().capacity());
            let left = self.less_what_flowed(self.missing, now);
            if left > 0 && (rate, capacity) != (self.rate, self.capacity) {
                (self.missing, self.since) = (left, now);
                (self.rate, self.capacity) = (rate, capacity);
            }
        }
        now
    }

    fn charge(&mut self, step: &Step, now: u64) {
        let (added, back) = (step.hits.added(), step.hits.given_back());
        let is_new = self.hits.is_empty() && self.rate == 0 && self.since == 0;
        if is_new && added == 0 && self.start.is_none() {
            return;
        }
        match &step.algorithm {
            TokenBucket { .. } => {
                let change = (i128::from(added) - i128::from(back)) * i128::from(PERIOD);
                self.missing = (self.still_missing(step, now) + change).max(0);
                self.since = now;
                self.rate = step.requests_per_unit.max(1);
                self.capacity = step.limit().capacity();
                return;
            }
            FirstHit => {
                if self.start.is_none_or(|start| now >= start + PERIOD) {
                    self.hits.clear();
                    self.start = (added > 0).then_some(now);
                }
            }
            SlidingWindow => {
                self.since = now / PERIOD;
                self.hits.retain(|(at, _)| at / PERIOD + 1 >= now / PERIOD);
            }
            SlidingLog => self.hits.retain(|(at, _)| at + PERIOD > now),
            FixedWindow | Calendar(_) => {}
            Concurrency => unreachable!("{SLOTS}"),
        }
        if added > 0 {
            self.hits.push((now, added));
        }
        self.take_back(back);
    }

    /// Removes the latest hits first.
    fn take_back(&mut self, mut back: u64) {
        while let Some((_, hits)) = self.hits.last_mut() {
            let taken = back.min(*hits);
            *hits -= taken;
            back -= taken;
            if *hits > 0 {
                break;
            }
            self.hits.pop();
        }
    }

    /// The time from `now` until at most `most` hits are held; their number only falls.
    fn falls_to(&self, step: &Step, most: u64, now: u64) -> u64 {
        let (mut low, mut high) = (0, 1 << 40);
        while low < high {
            let middle = (low + high) / 2;
            if self.held(step, now + middle) <= most {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    fn reported(&self, step: &Step, is_charged: bool, now: u64) -> Reported {
        let after = self.held(step, now);
        let room = step.limit().capacity().checked_sub(step.hits.added());
        let retry_in = room.map(|most| self.falls_to(step, most, now));
        let has_window = matches!(step.algorithm, FixedWindow);
        let resets_in = match (&step.algorithm, self.start) {
            // The window lasts even if all of its hits were given back.
            (FirstHit, Some(start)) => (start + PERIOD).saturating_sub(now),
            _ => self.falls_to(step, 0, now),
        };
        Reported {
            after,
            is_charged,
            ends: (!has_window).then_some((resets_in, retry_in)),
        }
    }
}

/// All counters. A request is judged as a whole, then charged step by step.
struct Model {
    counters: BTreeMap<(u8, &'static str, bool, u64), Naive>,
    /// How far the clock of one caller can be ahead of another's, in milliseconds.
    skew: u64,
}

impl Model {
    fn of(backend: &Backend) -> Self {
        Self {
            counters: BTreeMap::new(),
            skew: match backend {
                // One process has one clock.
                Backend::Memory(_) => PERIOD,
                Backend::Redis(_) | Backend::Cluster(_) => 24 * 60 * 60 * 1000,
            },
        }
    }

    fn send(&mut self, call: &Call) -> Vec<Reported> {
        let now = call.now;
        let alone = |step: &Step| matches!(step.operation, Add(Always | Within) | GiveBack | Reset);
        if call.steps.iter().all(alone) {
            let steps = call.steps.iter();
            return steps.map(|step| self.alone(step, now)).collect();
        }
        let mut ahead: BTreeMap<_, u64> = BTreeMap::new();
        let mut over = Vec::new();
        for step in &call.steps {
            let ahead = ahead.entry(Self::name(step, now)).or_default();
            let (naive, now) = self.counter(step, now);
            let before = naive.held(step, now) + *ahead;
            let after = if step.hits.given_back() > 0 {
                // The state that it will have in the end.
                let mut copy = naive.clone();
                let mut first = step.clone();
                first.hits = Hits::add(*ahead);
                copy.charge(&first, now);
                copy.charge(step, now);
                copy.held(step, now)
            } else {
                before + step.hits.added()
            };
            let is_over = after > step.limit().capacity();
            if step.operation == Add(Always) || !is_over {
                *ahead += step.hits.added();
            }
            over.push((is_over, before));
        }
        let is_refused = over.iter().any(|(is_over, _)| *is_over);
        let charge = |(step, &(is_over, before)): (&Step, &(bool, u64))| {
            let is_charged = match step.operation {
                Add(Within) => !is_over,
                Add(Admitted) => !is_refused,
                _ => true,
            };
            let reported = self.charge(step, is_charged, now);
            let waiting = before.saturating_sub(reported.after);
            if !is_over || is_charged || waiting == 0 {
                return reported;
            }
            // Earlier steps that are not charged either wait together with this one.
            let mut together = step.clone();
            together.hits = Hits::add(step.hits.added() + waiting);
            let (naive, now) = self.counter(step, now);
            let reported = naive.reported(&together, false, now);
            Reported {
                after: reported.after + waiting,
                ..reported
            }
        };
        call.steps.iter().zip(&over).map(charge).collect()
    }

    fn alone(&mut self, step: &Step, now: u64) -> Reported {
        let (naive, present) = self.counter(step, now);
        let held = naive.held(step, present);
        let is_over = held + step.hits.added() > step.limit().capacity();
        let is_charged = step.operation != Add(Within) || !is_over;
        self.charge(step, is_charged, now)
    }

    fn charge(&mut self, step: &Step, is_charged: bool, now: u64) -> Reported {
        let (naive, now) = self.counter(step, now);
        if is_charged && step.hits != Hits::add(0) {
            naive.charge(step, now);
        }
        naive.reported(step, is_charged, now)
    }

    /// A counter in use, and its present.
    fn counter(&mut self, step: &Step, now: u64) -> (&mut Naive, u64) {
        let naive = self.counters.entry(Self::name(step, now)).or_default();
        let now = naive.look(step, now, self.skew);
        (naive, now)
    }

    /// The name of a counter. An aligned window is a counter of its own.
    fn name(step: &Step, now: u64) -> (u8, &'static str, bool, u64) {
        let is_first_hit = step.algorithm == FirstHit;
        let is_aligned = step.algorithm == FixedWindow;
        let window = if is_aligned { now / PERIOD } else { 0 };
        (step.value, step.algorithm.name(), is_first_hit, window)
    }
}

fn any_hits() -> impl Strategy<Value = Hits> {
    prop_oneof![
        5 => (1_u64..4).prop_map(Hits::add),
        1 => (4_u64..12).prop_map(Hits::add),
        1 => Just(Hits::add(0)),
        2 => (1_u64..5).prop_map(Hits::give_back),
    ]
}

/// All but slots.
fn all() -> impl Iterator<Item = Algorithm> {
    Algorithm::one_of_each(5).filter(|algorithm| *algorithm != Concurrency)
}

fn algorithms() -> Vec<BoxedStrategy<Algorithm>> {
    let bucket = (1_u64..9).prop_map(|burst| TokenBucket { burst });
    let any = |algorithm| match algorithm {
        TokenBucket { .. } => bucket.clone().boxed(),
        other => Just(other).boxed(),
    };
    all().map(any).collect()
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    Union::new(algorithms())
}

fn any_step(algorithm: impl Strategy<Value = Algorithm>) -> impl Strategy<Value = Step> {
    let charge = prop_oneof![2 => Just(false), 1 => Just(true)];
    // Limits change between requests, as after a reload.
    let requests_per_unit = prop_oneof![6 => 3_u64..7, 1 => 0_u64..12];
    (0..2_u8, algorithm, requests_per_unit, any_hits(), charge).prop_map(
        |(value, algorithm, requests_per_unit, hits, is_admitted)| {
            let charge = match (&algorithm, is_admitted) {
                (_, true) => Admitted,
                (FixedWindow | FirstHit, false) => Always,
                (_, false) => Within,
            };
            Step {
                value,
                algorithm,
                requests_per_unit,
                hits,
                operation: Operation::of(hits, charge),
            }
        },
    )
}

fn any_calls(algorithm: impl Strategy<Value = Algorithm>) -> impl Strategy<Value = Vec<Call>> {
    let pause = prop_oneof![
        4 => 0_i64..3_000,
        2 => Just(0),
        1 => 3_000_i64..25_000,
        1 => Just(10_000),
        1 => -4_000_i64..0,
    ];
    // The clock of each of three callers, relative to the first.
    let apart = prop_oneof![
        2 => Just(0_i64),
        3 => -3_i64..=3,
        1 => -12_000_i64..12_000,
        1 => -3_600_000_i64..3_600_000,
    ];
    let apart = prop::collection::vec(apart, 3);
    // All steps of a call are resets, or none is.
    let is_reset = prop_oneof![9 => Just(false), 1 => Just(true)];
    let steps = prop::collection::vec(any_step(algorithm), 1..4);
    let steps = (steps, is_reset).prop_map(|(mut steps, is_reset)| {
        for step in steps.iter_mut().filter(|_| is_reset) {
            step.operation = Reset;
            step.hits = Hits::give_back(Hits::MAX);
        }
        steps
    });
    let calls = prop::collection::vec((pause, 0..3_usize, steps), 1..20);
    (apart, calls).prop_map(|(apart, calls)| {
        let mut now = START;
        let call = |(pause, caller, steps): (_, usize, _)| {
            now = now.saturating_add_signed(pause);
            let now = now.saturating_add_signed(apart[caller]);
            Call { now, steps }
        };
        calls.into_iter().map(call).collect()
    })
}

fn config() -> Config {
    Config {
        source_file: Some(file!()),
        ..Config::default()
    }
}

/// Compares each history with the model.
#[track_caller]
fn check_histories(backend: &Backend, algorithm: impl Strategy<Value = Algorithm>) {
    // Each history has its own counters.
    let histories = Cell::new(0_u32);
    TestRunner::new(config())
        .run(&any_calls(algorithm), |calls| {
            histories.set(histories.get() + 1);
            let mut model = Model::of(backend);
            let expected: Vec<_> = calls.iter().map(|call| model.send(call)).collect();
            let reported = backend.open(async |handle| {
                let mut reported = Vec::new();
                for call in &calls {
                    reported.push(send(&handle, histories.get(), call).await);
                }
                reported
            });
            prop_assert_eq!(reported, expected);
            Ok(())
        })
        .unwrap();
}

fn any_history_of_each_algorithm(backend: &Backend) {
    for algorithm in algorithms() {
        check_histories(backend, algorithm);
    }
}

fn any_history_of_everything_together(backend: &Backend) {
    check_histories(backend, any_algorithm());
}

/// The results of eight clients whose calls arrive at one time, each client's in order.
fn at_once(backend: &Backend, history: u32, clients: &[Vec<Call>]) -> Vec<(Step, Reported)> {
    let one = |calls: Vec<Call>| {
        backend.open(async |handle| {
            let calls = calls.into_iter().map(|call| {
                let handle = handle.clone();
                async move {
                    let reported = send(&handle, history, &call).await;
                    (call.steps[0].clone(), reported[0])
                }
            });
            calls.collect::<JoinSet<_>>().join_all().await
        })
    };
    thread::scope(|scope| {
        let start = |calls: &Vec<Call>| {
            let calls = calls.clone();
            scope.spawn(move || one(calls))
        };
        let clients: Vec<_> = clients.iter().map(start).collect();
        let ends = clients.into_iter().map(|client| client.join().unwrap());
        ends.flatten().collect()
    })
}

/// While time stands still, some order explains all results: admitted hits fill the limit one by one, and refused
/// hits found it too full.
fn hits_that_come_at_once_are_admitted_in_some_order(backend: &Backend) {
    let hits = prop::collection::vec(prop::collection::vec(1_u64..4, 1..6), 8);
    let histories = Cell::new(1_000_000_u32);
    TestRunner::new(config())
        .run(
            &(any_algorithm(), 1_u64..30, hits),
            |(algorithm, limit, clients)| {
                histories.set(histories.get() + 1);
                let algorithm = match algorithm {
                    TokenBucket { .. } => TokenBucket { burst: limit },
                    other => other,
                };
                let call = |hits: &u64| {
                    let mut call = one_hit(&algorithm, START);
                    call.steps[0].requests_per_unit = limit;
                    call.steps[0].hits = Hits::add(*hits);
                    call.steps[0].operation = Add(Admitted);
                    call
                };
                let most = call(&1).steps[0].limit().capacity();
                let calls = |hits: &Vec<u64>| hits.iter().map(call).collect();
                let clients: Vec<Vec<Call>> = clients.iter().map(calls).collect();
                let reported = at_once(backend, histories.get(), &clients).into_iter();
                let (mut admitted, refused): (Vec<_>, Vec<_>) =
                    reported.partition(|(_, reported)| reported.is_charged);
                admitted.sort_by_key(|(_, reported)| reported.after);
                let mut held = 0;
                for (step, reported) in &admitted {
                    held += step.hits.added();
                    prop_assert_eq!(reported.after, held);
                }
                prop_assert!(held <= most);
                for (step, reported) in &refused {
                    prop_assert!(reported.after + step.hits.added() > most);
                    prop_assert!(reported.after <= held);
                }
                Ok(())
            },
        )
        .unwrap();
}

/// Earlier versions could leave such counts.
fn a_count_below_zero_is_judged_as_0(backend: &Backend) {
    for (history, algorithm) in (2_000_000..).zip([FixedWindow, FirstHit]) {
        let passed = backend.open(async |handle| {
            let mut passed = 0;
            for nth in 0..20 {
                let reported = send(&handle, history, &one_hit(&algorithm, START)).await;
                if nth == 0 && !backend.set_below_zero() {
                    return 5;
                }
                passed += usize::from(nth > 0 && reported[0].is_charged);
            }
            passed
        });
        assert_eq!(passed, 5, "{algorithm:?}");
    }
}

/// A log does not grow with refused hits, and one millisecond is one entry.
fn what_is_refused_takes_no_room(backend: &Backend) {
    let times = (0..100).map(|n| START + n / 2);
    assert_eq!(admitted(backend, 7, &SlidingLog, times), 5);
    if let Backend::Redis(redis) = backend {
        let script = "return redis.call('LLEN', redis.call('KEYS', '*')[1])";
        // Three times, and the mark where counting begins.
        assert_eq!(redis.number(&["EVAL", script, "0"]), 4);
    }
}

/// How many of the hits at these times pass.
fn admitted(
    backend: &Backend,
    history: u32,
    algorithm: &Algorithm,
    times: impl IntoIterator<Item = u64>,
) -> usize {
    backend.open(async |handle| {
        let mut admitted = 0;
        for now in times {
            let reported = send(&handle, history, &one_hit(algorithm, now)).await;
            admitted += usize::from(reported[0].is_charged);
        }
        admitted
    })
}

/// One hit of a replica with the clock `now`.
fn one_hit(algorithm: &Algorithm, now: u64) -> Call {
    Call {
        now,
        steps: vec![Step {
            value: 0,
            algorithm: algorithm.clone(),
            requests_per_unit: 5,
            hits: Hits::ONE,
            operation: Add(Within),
        }],
    }
}

#[test]
fn replicas_an_hour_apart_share_one_limit() {
    const APART: u64 = 60 * 60 * 1000;
    let backend = Backend::redis("redis-server");
    for (history, algorithm) in (0..).zip(all().skip(1)) {
        // Within one aligned window, so that no algorithm admits more than one limit of it.
        let times = (0..30).map(|n| START + n * 200 + (n + 1) % 2 * APART);
        let admitted = admitted(&backend, history, &algorithm, times);
        // Five, and the tokens that a bucket gains meanwhile.
        let most = match algorithm {
            TokenBucket { .. } => 5 + 2,
            _ => 5,
        };
        assert_eq!(admitted, most, "{algorithm:?}");
    }
}

/// A Redis, and what one hit at a time is told there.
fn in_redis(test: impl FnOnce(&Redis, &dyn Fn(&Algorithm, u64) -> Reported)) {
    let backend = Backend::redis("redis-server");
    let Backend::Redis(redis) = &backend else {
        unreachable!("it was made as one");
    };
    test(redis, &|algorithm, now| {
        backend.open(async |handle| send(&handle, 0, &one_hit(algorithm, now)).await[0])
    });
}

/// The expiry of the only key, by the clock of Redis.
fn ends_at(redis: &Redis) -> i64 {
    let script = "return redis.call('PEXPIRETIME', redis.call('KEYS', '*')[1])";
    redis.number(&["EVAL", script, "0"])
}

#[test]
fn a_replica_whose_clock_is_ahead_shortens_no_life() {
    for algorithm in all().skip(1) {
        in_redis(|redis, hit| {
            let ends_after = |now| {
                assert!(hit(&algorithm, now).is_charged);
                ends_at(redis)
            };
            let first = ends_after(START);
            assert!(ends_after(START + 1_500) >= first, "{algorithm:?}");
        });
    }
}

#[test]
fn a_window_ends_for_no_replica_before_its_own_clock_says_so() {
    let window = START - START % PERIOD;
    in_redis(|redis, hit| {
        assert!(hit(&FixedWindow, window + 1_000).is_charged);
        let script = "local now = redis.call('TIME') return now[1] * 1000";
        let before = redis.number(&["EVAL", script, "0"]);
        assert!(hit(&FixedWindow, window + 8_000).is_charged);
        // The first one has nine seconds left.
        assert!(ends_at(redis) >= before + 9_000);
    });
}

#[test]
fn a_bucket_of_an_earlier_version_is_read_and_can_be_read_by_it() {
    in_redis(|redis, hit| {
        let hit = |now| hit(&TokenBucket { burst: 5 }, now);
        // One token in two seconds.
        assert_eq!(hit(START).after, 1);
        let get = "return redis.call('GET', redis.call('KEYS', '*')[1])";
        let state = redis.cli(&["EVAL", get, "0"]);
        let full_at = START + 2_000;
        assert!(state.starts_with(&format!("{full_at}:0:5")), "{state}");
        let set = "return redis.call('SET', redis.call('KEYS', '*')[1], ARGV[1], 'PX', 60000)";
        redis.cli(&["EVAL", set, "0", &format!("{}:0:5", START + 8_000)]);
        // Four tokens are missing, then five.
        assert_eq!(hit(START).after, 5);
        assert!(!hit(START).is_charged);
        assert!(hit(START + 2_000).is_charged);
    });
}
