use Enforcement::{Quota, Refuses, Silent};

use crate::core::{
    counter::{CounterKind, Operation, sample},
    kind::Algorithm,
    limit::{Allows, CountPolicy, Limit, Modes, Rule},
    matcher::tests::Rules,
    plan::Plan,
    request::{Hits, Request},
    window::{Timestamp, Unit},
};

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

impl Rules {
    /// Adds a rule of five requests per hour.
    fn five(self, key: &str, change: impl FnOnce(&mut Rule)) -> Self {
        self.with(key, five(|_| ()), change)
    }
}

fn five(change: impl FnOnce(&mut Limit)) -> Allows {
    let mut limit = Limit::fixed(5, Unit::Hour);
    change(&mut limit);
    Allows::Within([limit].into())
}

/// A request with a descriptor for each key.
fn request<'a>(keys: &[&'a str], hits: u64) -> Request<'a> {
    let mut request = Request::for_keys(keys.iter().copied());
    request.set_hits(Hits::add(hits));
    request
}

/// The answer to a look at a counter that holds `count`.
fn looked_at(count: u64) -> CounterState {
    CounterState {
        is_charged: false,
        ..CounterState::from(count)
    }
}

#[test]
fn a_look_asks_for_every_counter_and_charges_none() {
    let log = five(|limit| limit.algorithm = Algorithm::SlidingLog);
    let rules = Rules::default().five("a", |_| ()).with("log", log, |_| ());
    let check = |hits: u64, retry_in: Option<u64>| {
        let request = request(&["a", "log"], hits);
        let batch = Plan::new(&rules.0, &request, Modes::default(), NOW).batch;
        let mut look = Plan::new(&rules.0, &request, Modes::default(), NOW).batch;
        look.look();
        let keys = |batch: &Batch| -> Vec<_> {
            batch
                .iter()
                .map(|one| (one.key.to_vec(), one.spec.method))
                .collect()
        };
        assert_eq!(keys(&look), keys(&batch));
        assert!(
            look.all_specs()
                .all(|spec| spec.operation == Operation::Look)
        );
        let [window, log] = &empty_look(&batch)[..] else {
            panic!("{batch:?}");
        };
        assert_eq!(batch.spec(1).method, CounterKind::SlidingLog);
        assert_eq!(
            (window.after, window.is_charged, window.ends),
            (0, false, None)
        );
        assert!(!log.is_charged);
        let ends = log.ends.unwrap();
        assert_eq!((ends.resets_in, ends.retry_in), (0, retry_in));
    };
    check(5, Some(0));
    check(6, None);
}

#[test]
fn a_counter_that_is_asked_for_twice_predicts_the_hits_in_front() {
    let rules = Rules::default().five("a", |rule| rule.counts = CountPolicy::Admitted);
    let request = request(&["a", "a"], 1);
    let batch = Plan::new(&rules.0, &request, Modes::default(), NOW).batch;
    let predicted = |count| {
        let counts = predicted(&batch, &[count; 2].map(looked_at));
        counts
            .iter()
            .map(|count| (count.after, count.is_charged))
            .collect::<Vec<_>>()
    };
    assert_eq!(predicted(3), [(4, true), (5, true)]);
    assert_eq!(predicted(4), [(4, false), (5, false)]);
}

const ALWAYS: Operation = Operation::Add(Charge::Always);
const WITHIN: Operation = Operation::Add(Charge::Within);
const ADMITTED: Operation = Operation::Add(Charge::Admitted);
const STOPPING: Operation = Operation::Add(Charge::Stopping);

fn spec(operation: Operation, enforcement: Enforcement, descriptor: u32) -> IncrementSpec {
    IncrementSpec {
        operation,
        enforcement,
        descriptor,
        ..sample::spec(1, Hits::ONE)
    }
}

/// Each case is an increment, whether its limit refuses it, and whether it is charged.
#[track_caller]
fn check<const N: usize>(cases: [(Operation, Enforcement, u32, bool, bool); N]) {
    let spec = cases.map(|(operation, enforcement, at, is_over, _)| {
        (spec(operation, enforcement, at), is_over)
    });
    let charging = Charging::new(spec.iter().map(|(spec, is_over)| (spec, *is_over)));
    let charged = spec.map(|(spec, is_over)| charging.charges(&spec, is_over));
    assert_eq!(charged, cases.map(|(.., is_charged)| is_charged));
}

#[test]
fn what_one_limit_refuses_is_charged_to_none() {
    check([
        (ADMITTED, Refuses, 0, false, false),
        (ADMITTED, Refuses, 0, true, false),
        (ADMITTED, Refuses, 1, false, false),
        (ALWAYS, Refuses, 2, false, true),
        (WITHIN, Refuses, 2, false, true),
    ]);
    check([
        (ADMITTED, Refuses, 0, false, true),
        (ADMITTED, Refuses, 1, false, true),
    ]);
}

#[test]
fn a_rule_in_shadow_mode_spares_itself_and_nobody_else() {
    check([
        (ADMITTED, Silent, 0, true, false),
        (ADMITTED, Silent, 0, false, false),
        (ADMITTED, Refuses, 1, false, true),
    ]);
}

#[test]
fn an_increment_that_stands_alone_is_charged_unless_its_own_limit_refuses_it() {
    for (operation, held, is_charged) in [
        (ALWAYS, 9, true),
        (STOPPING, 9, true),
        (ADMITTED, 0, true),
        (ADMITTED, 1, false),
        (WITHIN, 0, true),
        (WITHIN, 1, false),
    ] {
        let spec = spec(operation, Refuses, 0);
        assert_eq!(
            charges_alone(&spec, || held),
            is_charged,
            "{operation:?} {held}"
        );
    }
}

#[test]
fn a_look_that_is_over_refuses_and_stops_nothing() {
    check([
        (Operation::Look, Refuses, 0, true, false),
        (STOPPING, Refuses, 1, false, true),
        (ADMITTED, Refuses, 2, false, false),
    ]);
}

#[test]
fn hits_of_one_request_on_one_key_come_one_after_the_other() {
    let mut batch = Batch::default();
    for _ in 0..2 {
        batch.append_one(Increment {
            key: b"k",
            spec: spec(WITHIN, Refuses, 0),
        });
    }
    // The limit is 1, and the counter is empty.
    let judged = BatchCharging::new(&batch, |increment, ahead| Look {
        before: ahead,
        after: increment.moves(ahead),
    });
    let specs = batch.all_specs().enumerate();
    let charged: Vec<_> = specs
        .map(|(index, spec)| judged.charges(index, spec))
        .collect();
    assert_eq!(charged, [true, false]);
}

#[test]
fn hits_in_front_wait_together_with_those_that_a_counter_refuses() {
    let judged = |before| JudgedIncrement {
        is_over: true,
        before,
    };
    assert_eq!(judged(7).waiting(1), 6);
    // Hits that were charged meanwhile are no longer in front.
    assert_eq!(judged(1).waiting(7), 0);
}

#[test]
fn quotas_refuse_together() {
    check([
        (ADMITTED, Quota, 0, true, false),
        (ADMITTED, Quota, 1, false, true),
        (ADMITTED, Refuses, 2, false, true),
    ]);
    check([
        (ADMITTED, Quota, 0, true, false),
        (ADMITTED, Quota, 1, true, false),
        (ADMITTED, Refuses, 2, false, false),
    ]);
}

#[test]
fn a_request_is_refused_by_one_plain_limit_or_by_all_quotas() {
    for (first, second, refuses) in [
        ((Refuses, true), (Refuses, false), true),
        ((Refuses, false), (Quota, false), false),
        ((Silent, true), (Refuses, false), false),
        ((Quota, true), (Quota, false), false),
        ((Quota, true), (Quota, true), true),
    ] {
        let (one, other) = (spec(ALWAYS, first.0, 0), spec(ALWAYS, second.0, 1));
        let charging = Charging::new([(&one, first.1), (&other, second.1)]);
        assert_eq!(charging.refuses, refuses, "{first:?} {second:?}");
    }
}

#[test]
fn each_judges_for_itself_where_all_hits_count() {
    check([
        (ALWAYS, Refuses, 0, true, true),
        (WITHIN, Refuses, 0, true, false),
        (WITHIN, Refuses, 0, false, true),
    ]);
}

#[test]
fn what_a_give_back_leaves_over_refuses_the_request_but_stops_nothing() {
    let charged = |operation| {
        let back = spec(Operation::GiveBack, Refuses, 0);
        let hit = spec(operation, Refuses, 1);
        let charging = Charging::new([(&back, true), (&hit, false)]);
        (charging.charges(&back, true), charging.charges(&hit, false))
    };
    assert_eq!(charged(ADMITTED), (true, false));
    assert_eq!(charged(ALWAYS), (true, true));
    assert_eq!(charged(STOPPING), (true, true));
}

#[test]
fn a_look_is_never_charged_and_refuses_all_the_same() {
    check([
        (Operation::Look, Refuses, 0, true, false),
        (Operation::Look, Refuses, 1, false, false),
        (ADMITTED, Refuses, 2, false, false),
        (ALWAYS, Refuses, 3, false, true),
    ]);
}

#[test]
fn the_references_stop_leaves_out_what_would_have_passed() {
    check([
        (STOPPING, Refuses, 0, true, true),
        (STOPPING, Refuses, 1, false, false),
    ]);
    check([
        (STOPPING, Refuses, 0, false, true),
        (STOPPING, Silent, 1, false, true),
    ]);
}
