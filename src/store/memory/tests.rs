//! Counts in memory, and the room that they take.

use std::{collections::HashMap, num::NonZeroU32};

use proptest::prelude::*;

use super::*;
use crate::core::{
    counter::{BucketPlace, Charge, Identity},
    kind::Algorithm,
    limit::Limit,
    request::Entry,
    window::{Period, Unit},
};

const MINUTE: u64 = 60;

impl MemoryStore {
    /// [`Self::apply_into`] with counts of its own.
    pub(crate) fn apply_all(&self, batch: &Batch, now: Timestamp) -> CounterStates {
        let mut counts = CounterStates::new();
        self.apply_into(&mut counts, batch, now);
        counts
    }
}

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

fn overflow_hits(store: &MemoryStore) -> u64 {
    store.overflow_hits.load(Relaxed)
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
fn a_full_store_counts_exactly_what_it_knows_and_all_other_values_together() {
    let store = MemoryStore::new(2);
    check(&store, ["a", "b"], 0, [1, 1]);
    check(&store, ["c", "d", "c"], 0, [1, 2, 3]);
    check(&store, ["a", "c"], 0, [2, 4]);
    assert_eq!(store.live_counters(), 2);
    assert_eq!(overflow_hits(&store), 4);
    store.sweep(Timestamp::from_secs(MINUTE));
    assert_eq!(store.capacity.bytes(), 0);
    check(&store, ["c", "d"], MINUTE, [1, 1]);
    assert_eq!(store.live_counters(), 2);
    assert_eq!(overflow_hits(&store), 4);
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
fn a_counter_begins_with_the_hits_of_the_common_one_when_there_is_room_again() {
    for algorithm in every_algorithm() {
        let store = MemoryStore::new(1);
        let of = |value: &str, secs| {
            let now = Timestamp::from_secs(secs);
            (one(value, &algorithm, 5, Charge::Within, now), now)
        };
        let send = |value: &str, secs| {
            let (batch, now) = of(value, secs);
            store.apply_all(&batch, now)[0].is_charged
        };
        // In another shard, which is not searched for expired counters.
        let shard = |value: &str| store.place(of(value, 0).0.key(0)).1;
        let mut values = (0..).map(|number| number.to_string());
        let new = &values.find(|value| shard(value) != shard("known")).unwrap();
        // For two minutes at most, whatever the algorithm.
        assert!(send("known", 0));
        let early: usize = (0..3).filter(|_| send(new, 130)).count();
        assert_eq!(store.live_counters(), 1, "{algorithm:?}");
        store.sweep(Timestamp::from_secs(130));
        let late = (0..20).filter(|_| send(new, 131)).count();
        let most = algorithm.capacity(5);
        assert_eq!(
            (early + late) as u64,
            most,
            "{algorithm:?}: {early} and {late}"
        );
        assert_eq!(overflow_hits(&store), early as u64, "{algorithm:?}");
    }
}

/// Two requests in flight, and five tokens of which requests reserve some.
fn leased() -> [Limit; 2] {
    let limit = |algorithm| Limit {
        algorithm,
        ..Limit::fixed(2, Unit::Minute)
    };
    [
        limit(Algorithm::Concurrency),
        limit(Algorithm::TokenBucket { burst: 5 }),
    ]
}

#[test]
fn slots_and_reservations_are_refused_without_room() {
    for limit in leased() {
        let store = MemoryStore::new(1);
        let now = Timestamp::from_secs(0);
        for (value, operation, is_admitted) in [
            ("a", Operation::Look, true),
            ("a", Operation::Add(Charge::Admitted), true),
            ("b", Operation::Add(Charge::Admitted), false),
            ("a", Operation::Add(Charge::Admitted), true),
        ] {
            let spec = IncrementSpec {
                operation,
                reservation: Reservation::Begins,
                ..IncrementSpec::charged(Hits::ONE, Charge::Admitted)
            };
            let mut batch = Batch::default();
            batch.push_value(value.as_bytes(), &limit, now, spec);
            let count = store.apply_all(&batch, now)[0];
            let is_add = operation != Operation::Look;
            assert_eq!(count.is_charged, is_add && is_admitted, "{limit:?}");
            assert_eq!(
                !count.is_over(limit.capacity(), 1),
                is_admitted,
                "{limit:?}"
            );
        }
        assert_eq!(store.live_counters(), 1);
        assert_eq!(overflow_hits(&store), 0);
    }
}

#[test]
fn hits_that_are_given_back_without_a_counter_leave_the_common_one() {
    for algorithm in every_algorithm() {
        let store = MemoryStore::new(0);
        let now = Timestamp::from_secs(600);
        let send = |value: &str, operation, hits| {
            let limit = Limit {
                algorithm: algorithm.clone(),
                ..Limit::fixed(10, Unit::Minute)
            };
            let spec = IncrementSpec {
                operation,
                hits,
                ..IncrementSpec::charged(Hits::ONE, Charge::Always)
            };
            let mut batch = Batch::default();
            batch.push_value(value.as_bytes(), &limit, now, spec);
            store.apply_all(&batch, now)[0].after
        };
        send("a", Operation::Add(Charge::Within), 1);
        assert_eq!(send("b", Operation::GiveBack, 1), 1, "{algorithm:?}");
        assert_eq!(send("a", Operation::GiveBack, 1), 1, "{algorithm:?}");
        assert_eq!(send("a", Operation::Reset, Hits::MAX), 1, "{algorithm:?}");
        assert_eq!(send("c", Operation::Look, 0), 1, "{algorithm:?}");
    }
}

#[test]
fn there_is_a_bound_on_common_counters_beyond_which_hits_are_refused() {
    let store = MemoryStore::new(0);
    let is_admitted = |rule, secs| {
        let now = Timestamp::from_secs(secs);
        let spec = IncrementSpec {
            rule,
            ..IncrementSpec::charged(Hits::ONE, Charge::Always)
        };
        let mut batch = Batch::default();
        batch.push_value(b"v", &Limit::fixed(9, Unit::Minute), now, spec);
        !store.apply_all(&batch, now)[0].is_over(9, 1)
    };
    for rule in 1..=1_030 {
        assert_eq!(is_admitted(rule, 0), rule <= 1_024, "{rule}");
    }
    assert!(is_admitted(1, 0));
    assert!(is_admitted(1_030, MINUTE));
    assert_eq!(store.live_counters(), 0);
    store.sweep(Timestamp::from_secs(2 * MINUTE));
    assert_eq!(store.capacity.bytes(), 0);
}

#[test]
fn a_refused_request_leaves_no_counter() {
    for max_counters in [0, 10] {
        let store = MemoryStore::new(max_counters);
        let now = Timestamp::from_secs(0);
        let mut batch = Batch::default();
        for (value, requests) in [(b"a", 9), (b"b", 0)] {
            let counting = IncrementSpec::charged(Hits::ONE, Charge::Admitted);
            batch.push_value(value, &Limit::fixed(requests, Unit::Minute), now, counting);
        }
        let counts = store.apply_all(&batch, now);
        assert!(counts.iter().all(|count| !count.is_charged));
        assert_eq!((store.live_counters(), store.capacity.bytes()), (0, 0));
    }
}

#[test]
fn values_of_one_request_that_share_a_counter_are_judged_together() {
    let now = Timestamp::from_secs(0);
    let store = MemoryStore::new(0);
    let mut batch = Batch::default();
    for value in [b"a", b"b"] {
        let counting = IncrementSpec::charged(Hits::ONE, Charge::Admitted);
        batch.push_value(value, &Limit::fixed(3, Unit::Minute), now, counting);
    }
    let after = || {
        let counts = store.apply_all(&batch, now);
        let count = |count: &CounterState| (count.is_charged, count.after);
        counts.iter().map(count).collect::<Vec<_>>()
    };
    assert_eq!(after(), [(true, 1), (true, 2)]);
    assert_eq!(after(), [(false, 2), (false, 3)]);
    assert_eq!(overflow_hits(&store), 2);
}

/// Each algorithm has a column in `docs/rules/algorithms.md`.
#[test]
fn each_counter_is_taken_for_the_bytes_that_the_documents_state() {
    let page = include_str!("../../../docs/rules/algorithms.md");
    let (_, row) = page.split_once("| bytes in memory |").unwrap();
    let row = row.lines().next().unwrap().trim_end_matches('|');
    let stated = |cell: &str| cell.split([' ', ',']).find_map(|word| word.parse().ok());
    let stated: Vec<Option<usize>> = row.split('|').map(stated).collect();
    let counted = Algorithm::one_of_each(3).filter(|one| *one != Algorithm::Concurrency);
    let counted: Vec<_> = counted.collect();
    assert_eq!(stated.len(), counted.len(), "{row}");
    for (algorithm, expected) in counted.into_iter().zip(stated) {
        let store = MemoryStore::new(10);
        let now = Timestamp::from_secs(0);
        let batch = one("value", &algorithm, 5, Charge::Within, now);
        store.apply_all(&batch, now);
        assert_eq!(batch.key(0).len().next_multiple_of(16), 32, "{algorithm:?}");
        assert_eq!(Some(store.capacity.bytes()), expected, "{algorithm:?}");
    }
}

#[test]
fn no_log_grows_beyond_the_bound_on_bytes_or_counts_less_because_of_it() {
    let bytes = 1 << 20;
    let store = MemoryStore::bounded(&CounterBounds {
        counters: 1_000_000,
        bytes,
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

/// Periods of the rules, in seconds.
const PERIODS: [(Unit, u32); 3] = [(Unit::Second, 1), (Unit::Second, 10), (Unit::Minute, 1)];

fn any_pause() -> impl Strategy<Value = Pause> {
    let period = || {
        prop::sample::select(PERIODS.to_vec())
            .prop_map(|(unit, times)| unit.secs() * u64::from(times) * 1000)
    };
    prop_oneof![
        3 => (0_u64..400).prop_map(Pause::Millis),
        3 => (period(), -2_i64..=2).prop_map(|(period, away)| Pause::ToEdge(period, away)),
        2 => (period(), 1_u64..5).prop_map(|(period, parts)| Pause::Part(period, parts)),
    ]
}

/// A step of a history in which there is room at times.
#[derive(Clone, Debug)]
enum Step {
    /// A request that adds hits to counters: a value, a rule and hits for each.
    Add(Vec<(u32, prop::sample::Index, u64)>, Charge),
    GiveBack(u32, prop::sample::Index, u64),
    Reset(u32, prop::sample::Index),
    Look(u32, prop::sample::Index),
    /// Ends one of the open leases, at this cost.
    Settle(prop::sample::Index, u64),
    Pause(Pause),
    Sweep,
    /// Takes most of the bytes away, or gives them back.
    Room(bool),
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let one = || (0_u32..4, any::<prop::sample::Index>());
    let add = (0_u32..4, any::<prop::sample::Index>(), 1_u64..4);
    let charge = [
        Charge::Always,
        Charge::Within,
        Charge::Admitted,
        Charge::Stopping,
    ];
    let step = prop_oneof![
        12 => (prop::collection::vec(add, 1..4), prop::sample::select(charge.to_vec()))
            .prop_map(|(added, charge)| Step::Add(added, charge)),
        2 => (one(), 1_u64..4).prop_map(|((value, rule), hits)| Step::GiveBack(value, rule, hits)),
        1 => one().prop_map(|(value, rule)| Step::Reset(value, rule)),
        1 => one().prop_map(|(value, rule)| Step::Look(value, rule)),
        2 => (any::<prop::sample::Index>(), 0_u64..6).prop_map(|(lease, cost)| Step::Settle(lease, cost)),
        4 => any_pause().prop_map(Step::Pause),
        2 => Just(Step::Sweep),
        2 => any::<bool>().prop_map(Step::Room),
    ];
    prop::collection::vec(step, 1..150)
}

/// A rule of a history. One that reserves hits gives them back by the place where they were reserved.
#[derive(Clone, Debug)]
struct HistoryRule {
    limit: Limit,
    reserves: bool,
}

/// Two rules of each algorithm, and two whose hits are reserved.
fn any_rules() -> impl Strategy<Value = Vec<HistoryRule>> {
    let rule = |algorithm: Algorithm, reserves| {
        let period = prop::sample::select(PERIODS.to_vec());
        period.prop_map(move |(unit, times)| HistoryRule {
            limit: Limit {
                algorithm: algorithm.clone(),
                ..Limit::fixed(
                    LIMIT,
                    Period::new(unit, NonZeroU32::new(times).unwrap()).unwrap(),
                )
            },
            reserves,
        })
    };
    let mut rules: Vec<_> = every_algorithm()
        .into_iter()
        .map(|algorithm| rule(algorithm, false).boxed())
        .collect();
    rules.push(rule(Algorithm::Concurrency, false).boxed());
    rules.push(rule(Algorithm::FixedWindow, true).boxed());
    rules.push(rule(Algorithm::TokenBucket { burst: 6 }, true).boxed());
    let count = rules.len();
    (rules, prop::collection::vec(any::<bool>(), count)).prop_map(|(rules, chosen)| {
        let all = rules.iter().zip(chosen).filter(|(_, is_chosen)| *is_chosen);
        let some: Vec<_> = all.map(|(rule, _)| rule.clone()).collect();
        if some.is_empty() { rules } else { some }
    })
}

const LIMIT: u64 = 5;

/// The counters as they would be with room for all, and the requests in flight.
#[derive(Default)]
struct Model {
    /// By key. Each holds what its value was admitted.
    exact: HashMap<Vec<u8>, CounterValue>,
    /// The hits that windows from the first hit admitted, by key and by the end that the replies reported.
    reported: HashMap<(Vec<u8>, u64), u64>,
    leases: Vec<ModelLease>,
    last_lease: u64,
}

struct ModelLease {
    value: u32,
    rule: usize,
    id: u64,
    hits: u64,
    place: BucketPlace,
    exact_place: BucketPlace,
    at: Timestamp,
}

impl Model {
    /// Checks that `increment`, which the store has admitted, leaves its key within its limit.
    fn admits(
        &mut self,
        increment: &Increment<'_>,
        count: CounterState,
        now: Timestamp,
    ) -> Result<BucketPlace, TestCaseError> {
        if increment.method == CounterKind::FirstHit {
            let admitted = self.window(increment, count, now);
            *admitted += increment.added();
            prop_assert!(*admitted <= increment.limit, "{increment:?}: {admitted}");
            return Ok(BucketPlace::default());
        }
        let exact = self.counter(increment);
        let held = exact.held(increment, now);
        prop_assert!(
            held + increment.added() <= increment.limit,
            "{increment:?}: {held}"
        );
        Ok(exact.apply(increment, true, now).place)
    }

    /// Applies an increment that is never refused.
    fn applies(&mut self, increment: &Increment<'_>, count: CounterState, now: Timestamp) {
        if increment.method == CounterKind::FirstHit {
            let admitted = self.window(increment, count, now);
            *admitted = increment.moves(*admitted);
        } else {
            self.counter(increment).apply(increment, true, now);
        }
    }

    fn counter(&mut self, increment: &Increment<'_>) -> &mut CounterValue {
        let new = || CounterValue::new(increment.method);
        self.exact.entry(increment.key.to_vec()).or_insert_with(new)
    }

    fn window(
        &mut self,
        increment: &Increment<'_>,
        count: CounterState,
        now: Timestamp,
    ) -> &mut u64 {
        let ends = now.millis() + count.ends.unwrap().resets_in;
        self.reported
            .entry((increment.key.to_vec(), ends))
            .or_default()
    }
}

/// An increment of `value` under the rule of this number.
fn push(
    batch: &mut Batch,
    value: u32,
    (number, rule): (usize, &HistoryRule),
    at: Timestamp,
    spec: IncrementSpec,
) {
    let mut identity = Identity::default();
    let entry = Entry {
        key: &number.to_be_bytes(),
        value: &value.to_be_bytes(),
    };
    identity.set(b"d", &[entry], &[]);
    let number = u32::try_from(number).unwrap() + 1;
    let spec = IncrementSpec {
        rule: number,
        descriptor: u32::try_from(batch.len()).unwrap(),
        ..spec
    };
    batch.push(&identity, &rule.limit, at, spec);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever room comes and goes, each value is admitted what a counter of its own would admit at most. Only windows
    /// that begin with the first hit may begin earlier, at the end that replies report.
    #[test]
    fn no_value_passes_more_often_than_its_limit_allows_in_the_windows_that_replies_report(
        rules in any_rules(),
        counters in 0_usize..7,
        steps in any_steps(),
    ) {
        const BYTES: usize = 2_048;
        let store = MemoryStore::bounded(&CounterBounds { counters, bytes: BYTES });
        // The room that something else takes.
        let mut taken = 0;
        let mut model = Model::default();
        let mut now = Timestamp::from_secs(20_000 * 24 * 60 * 60);
        let of = |index: prop::sample::Index| (index.index(rules.len()), index.get(&rules));
        for step in steps {
            let mut batch = Batch::default();
            match step {
                Step::Pause(pause) => now = Timestamp::from_millis(pause.after(now.millis())),
                Step::Sweep => store.sweep(now),
                Step::Room(is_there) => {
                    let before = taken;
                    taken = if is_there { 0 } else { BYTES };
                    store.capacity.resize(before, taken);
                }
                Step::Look(value, rule) => {
                    let look = IncrementSpec::charged(Hits::add(0), Charge::Always);
                    push(&mut batch, value, of(rule), now, look);
                    store.apply_all(&batch, now);
                }
                Step::Reset(value, rule) => {
                    let reset = IncrementSpec {
                        operation: Operation::Reset,
                        ..IncrementSpec::charged(Hits::add(Hits::MAX), Charge::Always)
                    };
                    push(&mut batch, value, of(rule), now, reset);
                    let count = store.apply_all(&batch, now)[0];
                    model.applies(&batch.increment(0), count, now);
                }
                Step::GiveBack(value, rule, hits) => {
                    let back = IncrementSpec::charged(Hits::give_back(hits), Charge::Always);
                    push(&mut batch, value, of(rule), now, back);
                    let count = store.apply_all(&batch, now)[0];
                    model.applies(&batch.increment(0), count, now);
                }
                Step::Settle(lease, cost) => {
                    if model.leases.is_empty() {
                        continue;
                    }
                    let lease = model.leases.swap_remove(lease.index(model.leases.len()));
                    let rule = &rules[lease.rule];
                    let is_slot = rule.limit.is_concurrency();
                    let is_window = rule.limit.algorithm == Algorithm::FixedWindow;
                    let ended = is_window && rule.limit.window(lease.at).end <= now;
                    let (operation, hits) = match cost.checked_sub(lease.hits) {
                        _ if is_slot => (Operation::GiveBack, lease.hits),
                        None if ended => continue,
                        None => (Operation::GiveBack, lease.hits - cost),
                        Some(more) => (Operation::Add(Charge::Always), more),
                    };
                    let settle = |place| IncrementSpec {
                        operation,
                        hits,
                        reservation: match is_slot || is_window {
                            true => Reservation::None,
                            false => Reservation::Ends { hits: lease.hits, place },
                        },
                        ..IncrementSpec::charged(Hits::ONE, Charge::Always)
                    };
                    let at = if ended { now } else { lease.at.max(now) };
                    push(&mut batch, lease.value, (lease.rule, rule), at, settle(lease.place));
                    push(&mut batch, lease.value, (lease.rule, rule), at, settle(lease.exact_place));
                    batch.name_slots(lease.id);
                    let mut sent = Batch::default();
                    sent.append_one(batch.increment(0));
                    let count = store.apply_all(&sent, now)[0];
                    model.applies(&batch.increment(1), count, now);
                }
                Step::Add(added, charge) => {
                    model.last_lease += 1;
                    let id = model.last_lease;
                    for (value, index, hits) in &added {
                        let (number, rule) = of(*index);
                        let looks_first = rule.limit.algorithm.looks_first();
                        let charge = match charge {
                            _ if rule.reserves || rule.limit.is_concurrency() => Charge::Admitted,
                            Charge::Always | Charge::Stopping if looks_first => Charge::Within,
                            other => other,
                        };
                        let spec = IncrementSpec {
                            reservation: match rule.reserves {
                                true => Reservation::Begins,
                                false => Reservation::None,
                            },
                            ..IncrementSpec::charged(Hits::add(*hits), charge)
                        };
                        push(&mut batch, *value, (number, rule), now, spec);
                    }
                    batch.name_slots(id);
                    let counts = store.apply_all(&batch, now);
                    let over: Vec<_> = batch.all_specs().zip(&counts)
                        .map(|(spec, count)| count.is_over(spec.limit, spec.added()))
                        .collect();
                    for (index, increment) in batch.iter().enumerate() {
                        let (count, (value, rule, hits)) = (counts[index], &added[index]);
                        // As in the reference, hits on one counter that can stop others are not judged together.
                        let is_admitted = increment.operation == Operation::Add(Charge::Admitted);
                        if is_admitted && charge != Charge::Stopping {
                            // All or nothing.
                            prop_assert_eq!(count.is_charged, !over.contains(&true), "{:?}", counts);
                        }
                        if over[index] || !count.is_charged {
                            continue;
                        }
                        let exact_place = model.admits(&increment, count, now)?;
                        let (number, rule) = of(*rule);
                        if rule.reserves || rule.limit.is_concurrency() {
                            model.leases.push(ModelLease {
                                value: *value,
                                rule: number,
                                id,
                                hits: *hits,
                                place: count.place,
                                exact_place,
                                at: now,
                            });
                        }
                    }
                }
            }
            prop_assert!(store.live_counters() <= counters);
            prop_assert!(store.capacity.bytes() - taken <= BYTES + 1_024);
        }
        // All counters give their room back.
        store.capacity.resize(taken, 0);
        store.sweep(Timestamp::from_millis(u64::MAX - 1));
        prop_assert_eq!((store.live_counters(), store.capacity.bytes()), (0, 0));
    }
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
        for _ in 0..before {
            send(Operation::Add(Charge::Within), 1);
        }
        send(Operation::Reset, Hits::MAX);
        let passed: u64 = (0..50).map(|_| send(Operation::Add(Charge::Within), 1)).sum();
        prop_assert_eq!(passed, algorithm.capacity(5));
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
    assert_eq!(after, [1, 1, 1]);
    assert_eq!(overflow_hits(&store), 1);
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

#[test]
fn a_request_takes_the_last_room_and_the_rest_of_it_is_counted_together() {
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
        assert_eq!(overflow_hits(&store), 2);
        store.sweep(Timestamp::from_secs(3600));
        add(&["a"], 3600);
        assert_eq!(overflow_hits(&store), 2);
    }
}

#[test]
fn without_room_a_few_counters_at_a_time_are_searched_for_expired_ones() {
    const COUNTERS: usize = 20_000;
    let store = MemoryStore::new(COUNTERS);
    let mut batch = Batch::default();
    let mut send = |value: usize, secs| {
        let now = Timestamp::from_secs(secs);
        batch.clear();
        let limit = Limit::fixed(9, Unit::Minute);
        batch.push_value(&value.to_be_bytes(), &limit, now, Hits::ONE);
        store.apply_all(&batch, now)[0].after
    };
    for value in 0..COUNTERS {
        assert_eq!(send(value, 0), 1);
    }
    for value in 0..100 {
        let before = store.live_counters();
        assert_eq!(send(value, MINUTE), 1);
        assert!(store.live_counters() + 64 > before, "{value}");
    }
    assert_eq!(overflow_hits(&store), 0);
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
