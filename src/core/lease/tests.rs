use std::collections::HashMap;

use proptest::prelude::*;

use super::{
    mark,
    order::{LeaseMemory, OrderOutcome, ordered_hits},
    token::{LeaseId, LeasePart, LeaseToken, version_1},
};
use crate::core::{
    algorithm::AlgorithmState,
    counter::{Batch, CounterState, Enforcement, KeyFormat, Operation, Reservation},
    decision::{Decision, decide},
    kind::{Algorithm, CounterKind},
    limit::{Allows, LeasePolicy, Limit, MissingCost, Modes, OnStoreLoss, Reserve, Rule},
    matcher::{Matcher, tests::add_rule},
    plan::{Outcome, Plan},
    request::{Entry, Hits, Request},
    window::{Period, Timestamp, Unit},
};

/// The beginning of an hour.
const NOW: Timestamp = Timestamp::from_secs(1_000 * 3600);

/// Counters as in a store, for rules with `count: admitted` and for settlements.
#[derive(Clone, Debug, Default)]
struct Counters {
    windows: HashMap<Vec<u8>, u64>,
    buckets: HashMap<Vec<u8>, AlgorithmState>,
    /// Whether any bucket was charged more than it had: such hits are lost.
    is_any_lost: bool,
}

impl Counters {
    fn held(&mut self, batch: &Batch, now: Timestamp) -> Vec<u64> {
        let held = |increment: crate::core::counter::Increment<'_>| match increment.method {
            CounterKind::Window => self.windows.get(increment.key).copied().unwrap_or(0),
            method => {
                let state = self.buckets.entry(increment.key.to_vec());
                let state = state.or_insert_with(|| AlgorithmState::new(method).unwrap());
                state.held(&increment, now.millis())
            }
        };
        batch.iter().map(held).collect()
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) {
        for (index, increment) in batch.iter().enumerate() {
            let held = self.held(batch, now)[index];
            if increment.method == CounterKind::Window {
                let moved = increment.moves(held);
                self.windows.insert(increment.key.to_vec(), moved);
                continue;
            }
            self.is_any_lost |= increment.refuses(held);
            let state = self.buckets.get_mut(increment.key).unwrap();
            state.charge(&increment, now.millis());
        }
    }

    /// Charges a batch if none of its limits refuses it.
    fn admit(&mut self, batch: &Batch, now: Timestamp) -> Vec<CounterState> {
        let held = self.held(batch, now);
        let refused =
            |(spec, held): (&crate::core::counter::IncrementSpec, &u64)| spec.refuses(*held);
        let is_refused = batch.all_specs().zip(&held).any(refused);
        if !is_refused {
            self.apply(batch, now);
        }
        let state = |(increment, held): (crate::core::counter::Increment<'_>, u64)| {
            let bucket = self.buckets.get_mut(increment.key);
            CounterState {
                is_charged: !is_refused,
                place: bucket
                    .as_ref()
                    .map_or_else(Default::default, |bucket| bucket.place()),
                ends: bucket.map(|bucket| bucket.ends(&increment, held, now.millis())),
                ..CounterState::from(increment.moves(held))
            }
        };
        batch.iter().zip(held).map(state).collect()
    }
}

const RESERVE: Reserve = Reserve {
    estimate: Some(200),
    missing: MissingCost::Estimate,
};

fn hour(requests: u64) -> Limit {
    Limit::fixed(requests, Unit::Hour)
}

fn bucket(burst: u64, rate: u64) -> Limit {
    Limit {
        algorithm: Algorithm::TokenBucket { burst },
        ..Limit::fixed(rate, Unit::Minute)
    }
}

/// The number of each rule.
const RULE: u32 = 5;

/// A rule that reserves, for each key.
fn matcher(rules: &[(&str, Reserve, &[Limit])]) -> Matcher {
    let mut matcher = Matcher::default();
    for (key, reserve, limits) in rules {
        let change = |rule: &mut Rule| {
            rule.number = RULE;
            rule.lease = Some(LeasePolicy::Reserve(*reserve));
            rule.counts = crate::core::limit::CountPolicy::Admitted;
        };
        add_rule(&mut matcher, key, Allows::Within((*limits).into()), change);
    }
    matcher
}

/// The counters of a matcher, with the ids that were settled.
struct World {
    matcher: Matcher,
    counters: Counters,
    memory: Memory,
    leases: u64,
}

#[derive(Default)]
struct Memory {
    settled: Vec<(LeaseId, u32)>,
    resets: HashMap<Vec<u8>, Timestamp>,
    /// When all counters were reset.
    all_reset: Option<Timestamp>,
}

impl LeaseMemory for Memory {
    fn knows(&self, epoch: u32) -> bool {
        epoch == 7
    }

    fn is_first(&mut self, id: LeaseId, descriptor: u32) -> bool {
        let is_first = !self.settled.contains(&(id, descriptor));
        self.settled.push((id, descriptor));
        is_first
    }

    fn was_reset(&self, key: &[u8], since: Timestamp) -> bool {
        let at = self.resets.get(key).copied().or(self.all_reset);
        at.is_some_and(|at| at >= since)
    }
}

/// A descriptor: its entries, and its addend.
pub(crate) type Sent<'a> = (&'a [(&'a str, &'a str)], Option<u64>);

pub(crate) fn request<'a>(sent: &[Sent<'a>]) -> Request<'a> {
    let mut request = Request::new(b"d");
    for (entries, addend) in sent {
        for (key, value) in *entries {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            request.push_entry(Entry { key, value });
        }
        request.push_descriptor(addend.map(Hits::add), None);
    }
    request
}

impl World {
    fn new(rules: &[(&str, Reserve, &[Limit])]) -> Self {
        Self {
            matcher: matcher(rules),
            counters: Counters::default(),
            memory: Memory::default(),
            leases: 0,
        }
    }

    /// Sends a request. Returns its decision, and the text of its token if it leases.
    fn send(&mut self, sent: &[Sent<'_>], now: Timestamp) -> (Decision, Option<String>) {
        let request = request(sent);
        let plan = Plan::new(&self.matcher, &request, Modes::default(), now);
        let counts = self.counters.admit(&plan.batch, now);
        let decision = decide(&plan, &counts, Modes::default(), now);
        self.leases += 1;
        let token = decision.leased.as_ref().and_then(|leased| {
            let parts = leased.reserved.iter().map(|(_, part)| part.clone());
            LeaseToken::new(now, LeaseId(self.leases), 7, parts)
        });
        (decision, token.map(|token| token.to_string()))
    }

    /// Carries out the orders of a message. Returns what became of them, and the number of strays.
    fn order(&mut self, sent: &[Sent<'_>], now: Timestamp) -> (Vec<(OrderOutcome, bool)>, u64) {
        let request = request(sent);
        let plan = Plan::new(&self.matcher, &request, Modes::default(), now);
        assert!(plan.batch.is_empty());
        assert!(
            plan.outcomes
                .iter()
                .all(|outcome| matches!(outcome, Outcome::Ordered))
        );
        let orders = &plan.leases.as_ref().expect("there are orders").orders;
        let hits = ordered_hits(orders, &mut self.memory, now);
        self.counters.apply(&hits.adds, now);
        self.counters.apply(&hits.gives_back, now);
        let outcomes = hits
            .outcomes
            .iter()
            .map(|(_, outcome, is_late)| (*outcome, *is_late));
        (outcomes.collect(), hits.strays)
    }

    /// The hits that the counters of these entries hold.
    fn held(&mut self, entries: &[(&str, &str)], now: Timestamp) -> Vec<u64> {
        let request = request(&[(entries, Some(0))]);
        let plan = Plan::new(&self.matcher, &request, Modes::default(), now);
        self.counters.held(&plan.batch, now)
    }
}

fn reserved(decision: &Decision) -> &[(usize, LeasePart)] {
    let leased = decision.leased.as_ref();
    leased.map_or(&[], |leased| &leased.reserved)
}

const TENANT: &[(&str, &str)] = &[("tenant", "a")];

fn settling(token: &str) -> [(&str, &str); 2] {
    [("tenant", "a"), ("tollgate.reservation", token)]
}

#[test]
fn a_request_leases_its_estimate_or_what_it_says_if_all_its_counters_are_charged() {
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    let (decision, token) = world.send(&[(TENANT, None)], NOW);
    assert_eq!(reserved(&decision)[0].1.hits, 200);
    assert!(token.is_some());
    let (decision, _) = world.send(&[(TENANT, Some(500))], NOW);
    assert_eq!(reserved(&decision)[0].1.hits, 500);
    // A look leases nothing, and neither does a refused request.
    assert_eq!(world.send(&[(TENANT, Some(0))], NOW).1, None);
    assert_eq!(world.send(&[(TENANT, Some(500))], NOW).1, None);
    assert_eq!(world.held(TENANT, NOW), [700]);
}

#[test]
fn a_cost_takes_the_place_of_the_estimate_once() {
    let mut world = World::new(&[(
        "tenant",
        RESERVE,
        &[hour(1000), Limit::fixed(5000, Unit::Day)],
    )]);
    for (cost, held) in [(123, 123), (200, 323), (777, 1100)] {
        let (_, token) = world.send(&[(TENANT, None)], NOW);
        let token = token.unwrap();
        let settled = OrderOutcome::Settled { leased: 200, cost };
        let order = settling(&token);
        assert_eq!(
            world.order(&[(&order, Some(cost))], NOW).0,
            [(settled, false)]
        );
        assert_eq!(world.held(TENANT, NOW), [held, held]);
        let again = world.order(&[(&order, Some(cost))], NOW);
        assert_eq!(again.0, [(OrderOutcome::Repeated, false)]);
        assert_eq!(world.held(TENANT, NOW), [held, held]);
    }
    // The cost is above the limit, and the next request is refused.
    assert_eq!(world.send(&[(TENANT, None)], NOW).1, None);
}

#[test]
fn a_stream_without_a_cost_costs_what_its_rule_says() {
    let zero = Reserve {
        missing: MissingCost::Zero,
        ..RESERVE
    };
    let released = [
        (OrderOutcome::Released { leased: 200 }, false),
        (OrderOutcome::Repeated, false),
    ];
    let kept = [(OrderOutcome::Kept { leased: 200 }, false); 2];
    for (reserve, held, outcomes) in [(RESERVE, 200, kept), (zero, 0, released)] {
        let mut world = World::new(&[("tenant", reserve, &[hour(1000)])]);
        let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
        let release = [("tenant", "a"), ("tollgate.release", &*token)];
        for outcome in outcomes {
            assert_eq!(world.order(&[(&release, None)], NOW).0, [outcome]);
            assert_eq!(world.held(TENANT, NOW), [held]);
        }
        // With a cost in the same message a release does nothing, in either order.
        for settles_first in [true, false] {
            let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
            let (settle, release) = (
                settling(&token),
                [("tenant", "a"), ("tollgate.release", &*token)],
            );
            let mut both: [Sent<'_>; 2] = [(&settle, Some(30)), (&release, Some(1))];
            if !settles_first {
                both.reverse();
            }
            let settled = OrderOutcome::Settled {
                leased: 200,
                cost: 30,
            };
            assert_eq!(world.order(&both, NOW).0, [(settled, false)]);
        }
        assert_eq!(world.held(TENANT, NOW), [held + 60]);
        // A settlement without a number costs what was reserved.
        let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
        world.order(&[(&settling(&token), None)], NOW);
        assert_eq!(world.held(TENANT, NOW), [held + 260]);
    }
}

#[test]
fn a_cost_without_a_reservation_is_charged_unless_the_message_settles_one() {
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    let unreserved = [("tenant", "a"), ("tollgate.unreserved", "1")];
    let charged = OrderOutcome::Unreserved { cost: 70 };
    assert_eq!(
        world.order(&[(&unreserved, Some(70))], NOW).0,
        [(charged, false)]
    );
    assert_eq!(world.held(TENANT, NOW), [70]);
    let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
    let settle = settling(&token);
    world.order(&[(&unreserved, Some(70)), (&settle, Some(70))], NOW);
    assert_eq!(world.held(TENANT, NOW), [140]);
}

#[test]
fn changes_of_orders_refuse_nothing_and_name_their_outcome() {
    let World {
        matcher,
        mut memory,
        ..
    } = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    let [a, b] = ["a", "b"].map(|tenant| [("tenant", tenant), ("tollgate.unreserved", "1")]);
    let request = request(&[(&a, Some(70)), (&b, Some(30))]);
    let plan = Plan::new(&matcher, &request, Modes::default(), NOW);
    let orders = &plan.leases.as_ref().expect("there are orders").orders;
    let hits = ordered_hits(orders, &mut memory, NOW);
    let changes = hits.adds.all_specs();
    let changes: Vec<_> = changes
        .map(|spec| (spec.descriptor, spec.hits, spec.enforcement))
        .collect();
    let expected = [(0, 70, Enforcement::Silent), (1, 30, Enforcement::Silent)];
    assert_eq!(changes, expected);
}

#[test]
fn a_cost_that_comes_after_a_window_is_late_and_the_next_one_gets_what_is_missing() {
    let limits = [hour(1000), Limit::fixed(5000, Unit::Day)];
    let mut world = World::new(&[("tenant", RESERVE, &limits)]);
    let later = Timestamp::from_secs(NOW.secs() + 3600);
    for (cost, held) in [(50, [0, 50]), (250, [50, 300])] {
        let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
        let settled = OrderOutcome::Settled { leased: 200, cost };
        let outcomes = world.order(&[(&settling(&token), Some(cost))], later).0;
        assert_eq!(outcomes, [(settled, true)]);
        assert_eq!(world.held(TENANT, later), held);
    }
}

#[test]
fn a_cost_is_lost_with_the_store_only_if_that_is_known_or_its_rule_counts_by_itself() {
    for (on_store_loss, expected) in [
        (OnStoreLoss::Error, OnStoreLoss::Error),
        (OnStoreLoss::Allow, OnStoreLoss::Error),
        (OnStoreLoss::Deny, OnStoreLoss::Error),
        (OnStoreLoss::Local, OnStoreLoss::Local),
    ] {
        let mut matcher = Matcher::default();
        let limits = Allows::Within([hour(1000)].into());
        add_rule(&mut matcher, "tenant", limits, |rule| {
            rule.lease = Some(LeasePolicy::Reserve(RESERVE));
            rule.on_store_loss = on_store_loss;
        });
        let unreserved: &[_] = &[("tenant", "a"), ("tollgate.unreserved", "1")];
        let request = request(&[(unreserved, Some(70))]);
        let plan = Plan::new(&matcher, &request, Modes::default(), NOW);
        let orders = &plan.leases.as_ref().unwrap().orders;
        let adds = ordered_hits(orders, &mut Memory::default(), NOW).adds;
        let found: Vec<_> = adds.all_specs().map(|spec| spec.on_loss).collect();
        assert_eq!(found, [expected]);
    }
}

#[test]
fn a_cost_finds_the_counters_of_its_request_in_either_format_of_keys() {
    for format in [KeyFormat::Native, KeyFormat::Reference] {
        let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
        world.matcher.key_format = format;
        let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
        world.order(&[(&settling(&token), Some(50))], NOW);
        assert_eq!(world.held(TENANT, NOW), [50], "{format:?}");
    }
}

/// Hits that a reset took off are not given back once more.
#[test]
fn a_reset_counter_gets_nothing_back_of_what_was_reserved_before() {
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    let tokens = [(); 2].map(|()| world.send(&[(TENANT, None)], NOW).1.unwrap());
    for (key, held) in &mut world.counters.windows {
        *held = 0;
        world.memory.resets.insert(key.clone(), NOW);
    }
    let after = Timestamp::from_millis(NOW.millis() + 1);
    let token = world.send(&[(TENANT, None)], after).1.unwrap();
    world.order(&[(&settling(&tokens[0]), Some(50))], after);
    assert_eq!(world.held(TENANT, after), [200]);
    world.order(&[(&settling(&tokens[1]), Some(250))], after);
    assert_eq!(world.held(TENANT, after), [250]);
    world.order(&[(&settling(&token), Some(50))], after);
    assert_eq!(world.held(TENANT, after), [100]);
}

#[test]
fn a_stream_of_an_unknown_token_that_ends_without_a_cost_charges_nothing() {
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    let order = [("tenant", "a"), ("tollgate.release", "x")];
    assert_eq!(world.order(&[(&order, None)], NOW), (Vec::new(), 0));
}

/// The clock that settles is half a second behind the one that reserved, in the hour before.
#[test]
fn a_cost_from_a_clock_that_is_behind_is_settled_in_the_window_of_the_reservation() {
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
    let behind = Timestamp::from_millis(NOW.millis() - 500);
    world.order(&[(&settling(&token), Some(50))], behind);
    assert_eq!(world.held(TENANT, NOW), [50]);
}

#[test]
fn a_cost_that_was_estimated_exactly_changes_no_window_and_ends_the_reservation_of_a_bucket() {
    for (limit, changes) in [(hour(1000), 0), (bucket(1000, 60), 1)] {
        let mut world = World::new(&[("tenant", RESERVE, &[limit])]);
        let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
        let later = Timestamp::from_millis(NOW.millis() + 1);
        let order = settling(&token);
        let request = request(&[(&order, Some(200))]);
        let plan = Plan::new(&world.matcher, &request, Modes::default(), later);
        let orders = &plan.leases.as_ref().unwrap().orders;
        let hits = ordered_hits(orders, &mut world.memory, later);
        assert!(hits.adds.is_empty());
        let specs: Vec<_> = hits.gives_back.all_specs().collect();
        assert_eq!(specs.len(), changes);
        for spec in specs {
            assert_eq!(spec.operation, Operation::GiveBack);
            assert_eq!((spec.hits, spec.ends_reservation()), (0, true));
            assert_eq!(spec.rule, RULE);
        }
    }
}

/// Both reserve from one bucket: what flowed in between them is no part of what has drained.
#[test]
fn a_descriptor_that_stands_twice_is_settled_from_the_place_of_its_first_reservation() {
    let mut world = World::new(&[("tenant", RESERVE, &[bucket(1000, 60)])]);
    let parts = [0, 5_000].map(|millis| {
        let at = Timestamp::from_millis(NOW.millis() + millis);
        let (decision, _) = world.send(&[(TENANT, None)], at);
        reserved(&decision)[0].1.clone()
    });
    let mut place = |parts: &[&LeasePart]| {
        let parts = parts.iter().map(|part| (*part).clone());
        let token = LeaseToken::new(NOW, LeaseId(world.leases), 7, parts).unwrap();
        world.leases += 1;
        let order = token.to_string();
        let order = settling(&order);
        let request = request(&[(&order, Some(10))]);
        let plan = Plan::new(&world.matcher, &request, Modes::default(), NOW);
        let orders = &plan.leases.as_ref().unwrap().orders;
        let hits = ordered_hits(orders, &mut world.memory, NOW);
        match hits.gives_back.increment(0).reservation {
            Reservation::Ends { place, .. } => place,
            other => panic!("{other:?}"),
        }
    };
    let [first, second] = &parts;
    let (one, other) = (place(&[first]), place(&[second]));
    assert_ne!(one, other);
    assert_eq!(place(&[first, second]), one);
}

#[test]
fn orders_that_name_no_reserving_rule_do_nothing() {
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    add_rule(
        &mut world.matcher,
        "plain",
        Allows::Within([hour(5)].into()),
        |_| (),
    );
    add_rule(
        &mut world.matcher,
        "sliced",
        Allows::Within([hour(5)].into()),
        |rule| rule.lease = Some(LeasePolicy::Slices),
    );
    let sliced = [("sliced", "a"), ("tollgate.unreserved", "1")];
    let (unknown, plain, other) = (
        [("tenant", "a"), ("tollgate.reserve", "x")],
        [("plain", "a"), ("tollgate.unreserved", "1")],
        [("other", "a"), ("tollgate.release", "x")],
    );
    let alone = [("tollgate.unreserved", "1")];
    let all: [Sent<'_>; 5] = [
        (&unknown, Some(9)),
        (&plain, Some(9)),
        (&sliced, Some(9)),
        (&other, Some(9)),
        (&alone, Some(9)),
    ];
    assert_eq!(world.order(&all, NOW), (Vec::new(), 5));
    assert!(world.counters.windows.values().all(|held| *held == 0));
}

/// The ids of the slots that the orders of a message free, what becomes of them, and how many are strays. An order is
/// the end of its key and its value.
fn freed(
    orders: &[(&str, &str)],
    memory: &mut Memory,
    now: Timestamp,
) -> (Vec<u64>, Vec<OrderOutcome>, u64) {
    let slots = Limit {
        algorithm: Algorithm::Concurrency,
        ..Limit::fixed(2, Unit::Minute)
    };
    let mut matcher = Matcher::default();
    let limits = Allows::Within([slots, hour(3)].into());
    let change = |rule: &mut Rule| rule.lease = Some(LeasePolicy::Slots);
    add_rule(&mut matcher, "tenant", limits, change);
    let keys: Vec<_> = orders
        .iter()
        .map(|(name, _)| format!("tollgate.{name}"))
        .collect();
    let entries: Vec<_> = keys
        .iter()
        .zip(orders)
        .map(|(key, (_, value))| [("tenant", "a"), (&**key, *value)])
        .collect();
    let sent: Vec<Sent<'_>> = entries.iter().map(|entries| (&entries[..], None)).collect();
    let request = request(&sent);
    let plan = Plan::new(&matcher, &request, Modes::default(), now);
    let orders = &plan.leases.as_ref().unwrap().orders;
    let hits = ordered_hits(orders, memory, now);
    assert!(hits.adds.is_empty() && hits.gives_back.is_empty());
    let lease = |spec: &crate::core::counter::IncrementSpec| match spec.method {
        CounterKind::Slots { lease } if spec.taken_off() > 0 => lease.get(),
        other => panic!("{other:?}"),
    };
    let outcomes = hits.outcomes.iter().map(|(_, outcome, _)| *outcome);
    let ids = hits.frees.all_specs().map(lease).collect();
    (ids, outcomes.collect(), hits.strays)
}

#[test]
fn a_message_frees_the_slots_of_each_token_once() {
    let token = |id| LeaseToken::new(NOW, LeaseId(id), 99, []).unwrap();
    let [one, two] = [5, 6].map(|id| token(id).to_string());
    for (orders, ids, strays) in [
        (&[("release", &*one)][..], &[5][..], 0),
        (&[("reservation", &*one)], &[5], 0),
        (&[("reservation", &*one), ("release", &*one)], &[5], 0),
        (&[("release", &*two), ("release", &*one)], &[6, 5], 0),
        (&[("release", "x"), ("release", &*one)], &[5], 1),
        (&[("unreserved", "1")], &[], 1),
    ] {
        let mut memory = Memory::default();
        let later = Timestamp::from_millis(NOW.millis() + 61_000);
        let before = Timestamp::from_millis(NOW.millis() - 61_000);
        for (is_first, now, age_secs) in [(true, later, 61), (false, before, 0)] {
            let age = std::time::Duration::from_secs(age_secs);
            let outcomes = vec![OrderOutcome::Freed { is_first, age }; ids.len()];
            let found = freed(orders, &mut memory, now);
            assert_eq!(found, (ids.to_vec(), outcomes, strays), "{orders:?}");
        }
    }
}

#[test]
fn slots_that_a_reset_has_freed_are_not_freed_for_the_first_time() {
    let token = LeaseToken::new(NOW, LeaseId(5), 99, [])
        .unwrap()
        .to_string();
    let later = Timestamp::from_millis(NOW.millis() + 1_000);
    for (reset_at, is_first) in [
        (later, false),
        (NOW, false),
        (Timestamp::from_secs(1), true),
    ] {
        let mut memory = Memory {
            all_reset: Some(reset_at),
            ..Memory::default()
        };
        let outcomes = freed(&[("release", &token)], &mut memory, later).1;
        let age = std::time::Duration::from_secs(1);
        assert_eq!(outcomes, [OrderOutcome::Freed { is_first, age }]);
    }
}

#[test]
fn a_token_of_other_counters_charges_the_cost_in_full() {
    let rules: &[(&str, Reserve, &[Limit])] = &[("tenant", RESERVE, &[hour(1000)])];
    let mut world = World::new(rules);
    let token = world.send(&[(&[("tenant", "b")], None)], NOW).1.unwrap();
    let part = LeaseToken::parse(token.as_bytes()).unwrap().parts()[0].clone();
    let forged = |at: Timestamp, epoch, part: LeasePart| {
        LeaseToken::new(at, LeaseId(99), epoch, [part])
            .unwrap()
            .to_string()
    };
    let own = world.send(&[(TENANT, None)], NOW).1.unwrap();
    let own = LeaseToken::parse(own.as_bytes()).unwrap().parts()[0].clone();
    let later = |secs| Timestamp::from_secs(NOW.secs() + secs);
    let much = LeasePart {
        hits: Limit::MAX_REQUESTS + 1,
        ..own.clone()
    };
    let mut held = 200;
    for text in [
        token.as_str(),
        "",
        "garbage",
        &forged(NOW, 7, part),
        &forged(NOW, 8, own.clone()),
        &forged(later(2), 7, own.clone()),
        &forged(Timestamp::from_secs(NOW.secs() - 3601), 7, own.clone()),
        &forged(NOW, 7, much),
    ] {
        let unknown = OrderOutcome::Unknown { cost: 10 };
        let order = settling(text);
        assert_eq!(
            world.order(&[(&order, Some(10))], NOW).0,
            [(unknown, false)],
            "{text}"
        );
        held += 10;
        assert_eq!(world.held(TENANT, NOW), [held]);
    }
    // A clock that is a little ahead is none.
    let ahead = forged(later(1), 7, own);
    let settled = OrderOutcome::Settled {
        leased: 200,
        cost: 10,
    };
    assert_eq!(
        world.order(&[(&settling(&ahead), Some(10))], NOW).0,
        [(settled, false)]
    );
}

/// The counters of a tenant after a reservation of 200 under an hour of 1,000 and a day of 9,000, and a cost of 10 under
/// other limits.
#[track_caller]
fn check_reload(limits: &[Limit], outcome: OrderOutcome, held: &[u64]) {
    let day = Limit::fixed(9000, Unit::Day);
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000), day])]);
    let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
    world.matcher = matcher(&[("tenant", RESERVE, limits)]);
    let outcomes = world.order(&[(&settling(&token), Some(10))], NOW).0;
    assert_eq!(outcomes, [(outcome, false)]);
    assert_eq!(world.held(TENANT, NOW), held);
}

#[test]
fn after_any_reload_the_limits_that_were_charged_are_settled_and_new_ones_get_the_cost() {
    let settled = OrderOutcome::Settled {
        leased: 200,
        cost: 10,
    };
    let unknown = OrderOutcome::Unknown { cost: 10 };
    let half_hours = Period::new(Unit::Minute, 30.try_into().unwrap()).unwrap();
    let half_hours = Limit::fixed(1000, half_hours);
    let day = |requests| Limit::fixed(requests, Unit::Day);
    check_reload(&[hour(900), day(9000)], settled, &[10, 10]);
    // Another order, and less than what is reserved.
    check_reload(&[day(9000), hour(1000)], settled, &[10, 10]);
    check_reload(&[hour(150), day(9000)], settled, &[10, 10]);
    // One that is gone, and one that is new.
    check_reload(&[day(9000)], settled, &[10]);
    let month = Limit::fixed(9000, Unit::Month);
    check_reload(&[month, hour(1000)], settled, &[10, 10]);
    check_reload(&[half_hours.clone(), day(9000)], settled, &[10, 10]);
    // All are new.
    check_reload(&[half_hours], unknown, &[10]);
    check_reload(&[bucket(1000, 1000)], unknown, &[10]);
}

/// Streams that run during an update.
#[test]
fn a_token_of_version_1_is_settled() {
    for limit in [hour(1000), bucket(1000, 60)] {
        let rules: &[(&str, Reserve, &[Limit])] =
            &[("tenant", RESERVE, std::slice::from_ref(&limit))];
        let mut world = World::new(rules);
        world.send(&[(TENANT, None)], NOW);
        let mark = {
            let request = request(&[(TENANT, None)]);
            let plan = Plan::new(&world.matcher, &request, Modes::default(), NOW);
            mark::of_version_1(
                plan.batch.increment(0).identity(),
                std::slice::from_ref(&limit),
            )
        };
        let token = version_1(NOW, LeaseId(9), 7, &[(mark + 1, 200), (mark, 200)]);
        let settled = OrderOutcome::Settled {
            leased: 200,
            cost: 10,
        };
        let orders = settling(&token);
        let outcomes = world.order(&[(&orders, Some(10))], NOW).0;
        assert_eq!(outcomes, [(settled, false)]);
        // It does not say what was missing from a bucket.
        let is_window = limit == hour(1000);
        assert_eq!(world.held(TENANT, NOW), [if is_window { 10 } else { 200 }]);
    }
}

#[test]
fn a_cost_is_at_most_the_largest_limit() {
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    let token = world.send(&[(TENANT, None)], NOW).1.unwrap();
    let order = settling(&token);
    let cost = Limit::MAX_REQUESTS;
    let settled = OrderOutcome::Settled { leased: 200, cost };
    let both: [Sent<'_>; 2] = [(&order, Some(u64::MAX)), (&order, Some(u64::MAX))];
    assert_eq!(world.order(&both, NOW).0, [(settled, false)]);
    assert_eq!(world.held(TENANT, NOW), [cost]);
}

#[test]
fn a_descriptor_that_stands_twice_is_one_lease_and_two_descriptors_are_two() {
    let rules: &[(&str, Reserve, &[Limit])] = &[
        ("tenant", RESERVE, &[hour(1000)]),
        ("model", RESERVE, &[hour(1000)]),
    ];
    let mut world = World::new(rules);
    let model: &[(&str, &str)] = &[("model", "m")];
    let sent = [(TENANT, None), (model, None), (TENANT, None)];
    let token = world.send(&sent, NOW).1.unwrap();
    assert_eq!(world.held(TENANT, NOW), [400]);
    let of_tenant = settling(&token);
    let of_model = [("model", "m"), ("tollgate.reservation", &*token)];
    let orders: [Sent<'_>; 3] = [
        (&of_tenant, Some(50)),
        (&of_model, Some(60)),
        (&of_tenant, Some(50)),
    ];
    let outcomes = world.order(&orders, NOW).0;
    let settled = |leased, cost| (OrderOutcome::Settled { leased, cost }, false);
    assert_eq!(outcomes, [settled(400, 100), settled(200, 60)]);
    assert_eq!(world.held(TENANT, NOW), [100]);
    assert_eq!(world.held(model, NOW), [60]);
}

#[test]
fn slots_of_a_descriptor_that_stands_twice_are_one_lease_and_of_two_descriptors_two() {
    let slots = Limit {
        algorithm: Algorithm::Concurrency,
        ..Limit::fixed(9, Unit::Minute)
    };
    let mut matcher = Matcher::default();
    for key in ["tenant", "model"] {
        let limits = Allows::Within([slots.clone()].into());
        let change = |rule: &mut Rule| rule.lease = Some(LeasePolicy::Slots);
        add_rule(&mut matcher, key, limits, change);
    }
    let model: &[(&str, &str)] = &[("model", "m")];
    let request = request(&[(TENANT, None), (model, None), (TENANT, None)]);
    let plan = Plan::new(&matcher, &request, Modes::default(), NOW);
    let counts = vec![CounterState::from(1); plan.batch.len()];
    let decision = decide(&plan, &counts, Modes::default(), NOW);
    assert_eq!(decision.leased.expect("it holds slots").slots, [0, 1]);
}

#[test]
fn no_more_than_eight_descriptors_lease_and_the_others_count_as_they_are_sent() {
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    let names: Vec<_> = (0..10).map(|name| name.to_string()).collect();
    let entries: Vec<_> = names.iter().map(|name| [("tenant", &**name)]).collect();
    let sent: Vec<Sent<'_>> = entries.iter().map(|entries| (&entries[..], None)).collect();
    let (decision, token) = world.send(&sent, NOW);
    assert_eq!(reserved(&decision).len(), 8);
    let token = token.unwrap();
    assert!(token.len() <= 200);
    for (index, entries) in entries.iter().enumerate() {
        let held = if index < 8 { 200 } else { 1 };
        assert_eq!(world.held(entries, NOW), [held]);
        let settle = [entries[0], ("tollgate.reservation", &*token)];
        world.order(&[(&settle, Some(7))], NOW);
        let held = if index < 8 { 7 } else { 8 };
        assert_eq!(world.held(entries, NOW), [held]);
    }
}

/// Two values whose counters have one mark, found by trying.
fn values_of_one_mark() -> [String; 2] {
    let mut marks = HashMap::new();
    let matcher = matcher(&[("tenant", RESERVE, &[hour(1000)])]);
    for number in 0_u32.. {
        let value = number.to_string();
        let entries = [("tenant", &*value)];
        let request = request(&[(&entries, None)]);
        let plan = Plan::new(&matcher, &request, Modes::default(), NOW);
        let mark = mark::of_counter(plan.batch.increment(0).identity(), plan.limits[0]);
        drop(plan);
        drop(request);
        if let Some(other) = marks.insert(mark, value.clone()) {
            return [other, value];
        }
    }
    unreachable!("there are 2^30 marks")
}

/// Otherwise the estimates of both would be given back to each.
#[test]
fn counters_whose_marks_are_equal_have_no_part_in_a_token() {
    let [one, other] = values_of_one_mark();
    let mut world = World::new(&[("tenant", RESERVE, &[hour(1000)])]);
    let values = [&*one, &*other, "a"];
    let entries = values.map(|value| [("tenant", value)]);
    let sent: Vec<Sent<'_>> = entries.iter().map(|entries| (&entries[..], None)).collect();
    let (decision, token) = world.send(&sent, NOW);
    let leased: Vec<_> = reserved(&decision)
        .iter()
        .map(|(index, _)| *index)
        .collect();
    assert_eq!(leased, [2]);
    let token = token.unwrap();
    for (entries, held) in entries.iter().zip([210, 210, 10]) {
        let settle = [entries[0], ("tollgate.reservation", &*token)];
        world.order(&[(&settle, Some(10))], NOW);
        assert_eq!(world.held(entries, NOW), [held]);
    }
}

/// How many requests pass in `secs` seconds if so many come in each. Their bucket gets 600 tokens a second, and `spent`
/// are missing at first. They reserve 500, cost 50 and last for 2 s, but for each fifth, which ends at once.
fn long_streams(spent: u64, secs: u64, per_second: u64) -> u64 {
    let reserve = Reserve {
        estimate: Some(500),
        ..RESERVE
    };
    let mut world = World::new(&[("tenant", reserve, &[bucket(30_000, 36_000)])]);
    let unreserved = [("tenant", "a"), ("tollgate.unreserved", "1")];
    world.order(&[(&unreserved, Some(spent))], NOW);
    let mut open = std::collections::VecDeque::<(Timestamp, String)>::new();
    let mut passed = 0;
    for step in 0..secs * per_second {
        let now = Timestamp::from_millis(NOW.millis() + step * 1_000 / per_second);
        while let Some((_, token)) = open.pop_front_if(|(ends, _)| *ends <= now) {
            world.order(&[(&settling(&token), Some(50))], now);
        }
        if let (_, Some(token)) = world.send(&[(TENANT, None)], now) {
            passed += 1;
            if step % 5 == 4 {
                world.order(&[(&settling(&token), Some(50))], now);
            } else {
                open.push_back((Timestamp::from_millis(now.millis() + 2_000), token));
            }
        }
    }
    passed
}

#[test]
fn long_streams_get_back_from_an_empty_bucket_what_they_did_not_cost() {
    // 99 if none ended at once, by r(t) = 1.2 + 0.9 r(t - 2 s).
    let passed = long_streams(30_000, 20, 30);
    assert!((90..=240).contains(&passed), "{passed}");
}

#[test]
fn long_streams_that_cost_less_than_flows_in_all_pass() {
    assert_eq!(long_streams(0, 120, 10), 1_200);
    // A full bucket and the inflow are enough for 2,040.
    let passed = long_streams(0, 120, 30);
    assert!((1_600..=2_040).contains(&passed), "{passed}");
}

#[test]
fn a_full_bucket_is_full_again_after_a_request_that_cost_nothing() {
    let day = Limit {
        algorithm: Algorithm::TokenBucket { burst: 1000 },
        ..Limit::fixed(1000, Unit::Day)
    };
    let mut world = World::new(&[("tenant", RESERVE, &[day])]);
    let later = |millis| Timestamp::from_millis(NOW.millis() + millis);
    for (reserved, cost, held) in [(200, 0, 0), (250, 50, 50)] {
        let token = world.send(&[(TENANT, Some(reserved))], NOW).1.unwrap();
        world.order(&[(&settling(&token), Some(cost))], later(500));
        assert_eq!(world.held(TENANT, later(500)), [held]);
    }
}

/// A lease whose cost comes `after` milliseconds later, and what comes between.
#[derive(Clone, Debug)]
struct Settling {
    leased: u64,
    cost: u64,
    after: u64,
    others: Vec<(u64, u64)>,
}

fn any_settling() -> impl Strategy<Value = Settling> {
    let after = prop_oneof![0_u64..50, 0_u64..5_000, 0_u64..200_000];
    let others = prop::collection::vec((0_u64..60_000, 1_u64..300), 0..6);
    (1_u64..1000, 0_u64..2000, after, others).prop_map(|(leased, cost, after, others)| Settling {
        leased,
        cost,
        after,
        others,
    })
}

proptest! {
    /// Compares with counters that were charged the cost at once: they never hold more.
    #[test]
    fn a_settled_counter_is_never_emptier_than_if_the_cost_had_been_charged_at_once(
        history in any_settling(),
        limit in prop_oneof![
            Just(Limit::fixed(1000, Unit::Minute)),
            Just(Limit::fixed(1000, Unit::Hour)),
            Just(bucket(1000, 1)),
            Just(bucket(1000, 60)),
            Just(bucket(1000, 100_000)),
        ],
        start in 0_u64..120_000,
    ) {
        let Settling { leased, cost, after, others } = history;
        let start = Timestamp::from_millis(NOW.millis() + start);
        let end = Timestamp::from_millis(start.millis() + after);
        let mut world = World::new(&[("tenant", Reserve::default(), &[limit])]);
        let mut truth = World::new(&[("tenant", Reserve::default(), &[
            match &world.matcher.rules()[0].allows {
                Allows::Within(limits) => limits[0].clone(),
                Allows::Unlimited => unreachable!(),
            },
        ])]);
        let Some(token) = world.send(&[(TENANT, Some(leased))], start).1 else {
            return Ok(());
        };
        let unreserved = [("tenant", "a"), ("tollgate.unreserved", "1")];
        truth.order(&[(&unreserved, Some(cost))], start);
        // Hits of others, between the two.
        let mut others: Vec<_> = others.into_iter().filter(|(at, _)| *at < after).collect();
        others.sort_unstable();
        for (at, hits) in others {
            let at = Timestamp::from_millis(start.millis() + at);
            for world in [&mut world, &mut truth] {
                world.order(&[(&unreserved, Some(hits))], at);
            }
        }
        let text = settling(&token);
        world.order(&[(&text, Some(cost))], end);
        if world.counters.is_any_lost || truth.counters.is_any_lost {
            return Ok(());
        }
        let is_bucket = !world.counters.buckets.is_empty();
        for later in [0, 1, 1000, 30_000, 60_000] {
            let at = Timestamp::from_millis(end.millis() + later);
            let (held, true_held) = (world.held(TENANT, at)[0], truth.held(TENANT, at)[0]);
            prop_assert!(held >= true_held, "{held} < {true_held} after {later} ms");
            if is_bucket {
                prop_assert!(cost > leased || held == true_held, "{held} {true_held}");
            } else if later == 0 {
                // A window that lasts holds just as much.
                let windows = [&world, &truth].map(|world| world.counters.windows.len());
                prop_assert!(windows != [1, 1] || held == true_held);
            }
        }
    }
}
