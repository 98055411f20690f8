use super::*;
use crate::core::{
    counter::{Charge, CounterKind},
    limit::{CountPolicy, Rule},
    matcher::tests::add_rule,
    request::{Entry, Hits},
    window::Unit,
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

/// Rules of domain `d`, each for its own key.
#[derive(Default)]
struct Rules(Matcher);

impl Rules {
    fn with(mut self, key: &str, allows: Allows, change: impl FnOnce(&mut Rule)) -> Self {
        add_rule(&mut self.0, key, allows, change);
        self
    }

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

/// The reason for the overall code, and that code, where the counters of `keys` hold `counts`.
fn settled(rules: &Rules, keys: &[&str], counts: &[u64], modes: Modes) -> (SettledBy, Code) {
    let looked: Vec<_> = counts.iter().copied().map(looked_at).collect();
    let request = request(keys, 1);
    let explanation = explain(&rules.0, &request, modes, NOW, Some(&looked));
    (explanation.settled_by, explanation.decision.overall)
}

fn quota(rule: &mut Rule) {
    rule.quota_mode = true;
}

fn shadow(rule: &mut Rule) {
    rule.shadow_mode = true;
}

#[test]
fn the_overall_code_has_its_reason() {
    let rules = Rules::default()
        .five("a", |_| ())
        .five("b", |_| ())
        .five("shadow", shadow)
        .five("quota", quota)
        .five("other_quota", quota)
        .five("shadow_quota", |rule| {
            shadow(rule);
            quota(rule);
        });
    let check = |keys: &[&str], counts: &[u64], settled_by: SettledBy, code: Code| {
        let found = settled(&rules, keys, counts, Modes::default());
        assert_eq!(found, (settled_by, code), "{keys:?} {counts:?}");
    };
    check(&["none"], &[], SettledBy::NoLimits, Code::Ok);
    check(&["none", "a"], &[4], SettledBy::Room, Code::Ok);
    check(
        &["a", "b", "shadow", "quota", "other_quota"],
        &[0, 5, 5, 5, 0],
        SettledBy::Over(vec![1]),
        Code::OverLimit,
    );
    check(
        &["a", "quota", "other_quota"],
        &[0, 5, 5],
        SettledBy::Quotas(vec![1, 2]),
        Code::OverLimit,
    );
    let spared = |shadowed: &[usize], quotas: &[usize]| SettledBy::Spared {
        shadowed: shadowed.into(),
        quotas: quotas.into(),
    };
    check(
        &["a", "shadow", "quota", "other_quota"],
        &[0, 5, 0, 5],
        spared(&[1], &[3]),
        Code::Ok,
    );
    check(
        &["shadow_quota", "a", "shadow", "quota"],
        &[5, 0, 5, 0],
        spared(&[0, 2], &[]),
        Code::Ok,
    );
    // The answer is OK, and the reason is that of a refusal.
    let modes = Modes {
        shadow: true,
        ..Modes::default()
    };
    let found = settled(&rules, &["a", "b"], &[0, 5], modes);
    assert_eq!(found, (SettledBy::Over(vec![1]), Code::Ok));
}

#[test]
fn counters_are_empty_if_the_look_is_of_another_request() {
    let rules = Rules::default().five("a", |_| ());
    for (looked, remaining) in [(&[3_u64][..], 1), (&[3, 3], 4), (&[], 4)] {
        let looked: Vec<_> = looked.iter().copied().map(looked_at).collect();
        let request = request(&["a"], 1);
        let explanation = explain(&rules.0, &request, Modes::default(), NOW, Some(&looked));
        assert_eq!(explanation.decision.statuses[0].remaining, remaining);
    }
}

#[test]
fn a_limit_has_its_window_and_its_counter() {
    let sliding = five(|limit| limit.algorithm = Algorithm::SlidingLog);
    let rules = Rules::default()
        .five("a", |_| ())
        .with("log", sliding, |_| ());
    let looked = [4, 4].map(looked_at);
    let request = request(&["a", "log"], 2);
    let explanation = explain(&rules.0, &request, Modes::default(), NOW, Some(&looked));
    let [fixed, log] = &explanation.descriptors[..] else {
        panic!("{explanation:?}");
    };
    assert!(matches!(fixed.result, MatchResult::Rule(_)));
    assert_eq!((fixed.steps.len(), fixed.is_over), (1, true));
    let window = ["1970-01-12T13:00:00Z", "1970-01-12T14:00:00Z"].map(str::to_owned);
    assert_eq!(fixed.limits[0].window, Some(window));
    assert_eq!(log.limits[0].window, None);
    // A fixed window counts what it refuses, and a log does not.
    for (account, is_charged) in [(fixed, true), (log, false)] {
        let [limit] = &account.limits[..] else {
            panic!("{account:?}");
        };
        let counter = limit.counter.as_ref().unwrap();
        assert_eq!((counter.count, counter.remaining), (4, 1));
        assert_eq!((counter.is_over, counter.is_charged), (true, is_charged));
        assert!(counter.key.starts_with(b"{1:d"));
    }
}

#[test]
fn keys_of_the_reference_have_windows_for_all_algorithms() {
    let mut rules = Rules::default().with(
        "a",
        five(|limit| limit.algorithm = Algorithm::SlidingLog),
        |_| (),
    );
    rules.0.key_format = KeyFormat::Reference;
    let request = request(&["a"], 1);
    let explanation = explain(&rules.0, &request, Modes::default(), NOW, None);
    assert!(explanation.descriptors[0].limits[0].window.is_some());
}

#[test]
fn a_replaced_limit_names_the_descriptor_that_replaces_it() {
    let named = five(|limit| limit.name = Some("small".into()));
    let rules = Rules::default()
        .with("a", named, |_| ())
        .five("b", |_| ())
        .five("big", |rule| rule.replaces = ["small".into()].into());
    let request = request(&["a", "b", "big"], 1);
    let explanation = explain(&rules.0, &request, Modes::default(), NOW, None);
    let replaced = &explanation.descriptors[0];
    let [limit] = &replaced.limits[..] else {
        panic!("{replaced:?}");
    };
    assert_eq!(limit.counter.as_ref().err(), Some(&Some(2)));
    assert!(matches!(
        &replaced.result,
        MatchResult::NoLimit {
            why: NoLimit {
                cause: Cause::Replaced,
                ..
            },
            ..
        }
    ));
}

#[test]
fn a_limit_of_the_request_has_no_way_through_the_rules() {
    let rules = Rules::default().with("free", Allows::Unlimited, |_| ());
    let mut request = Request::new(b"d");
    for (key, limit) in [("own", Some(Limit::fixed(5, Unit::Hour))), ("free", None)] {
        request.push_entry(Entry {
            key: key.as_bytes(),
            value: b"v",
        });
        request.push_descriptor(Hits::ONE, limit);
    }
    let explanation = explain(&rules.0, &request, Modes::default(), NOW, None);
    let [own, free] = &explanation.descriptors[..] else {
        panic!("{explanation:?}");
    };
    assert!(matches!(own.result, MatchResult::OwnLimit));
    assert_eq!((own.steps.len(), own.limits.len()), (0, 1));
    assert!(matches!(free.result, MatchResult::NoLimit { .. }));
    assert_eq!((free.steps.len(), free.limits.len()), (1, 0));
}

#[test]
fn a_look_asks_for_every_counter_and_charges_none() {
    let log = five(|limit| limit.algorithm = Algorithm::SlidingLog);
    let rules = Rules::default().five("a", |_| ()).with("log", log, |_| ());
    let check = |hits: u64, retry_in: Option<u64>| {
        let request = request(&["a", "log"], hits);
        let batch = Plan::new(&rules.0, &request, Modes::default(), NOW).batch;
        let look = look_of(&batch);
        let keys = |batch: &crate::core::counter::Batch| -> Vec<_> {
            batch
                .iter()
                .map(|one| (one.key.to_vec(), one.spec.method))
                .collect()
        };
        assert_eq!(keys(&look), keys(&batch));
        assert!(look.all_specs().all(|spec| spec.charge == Charge::Never));
        let [window, log] = &prediction::empty_look(&batch)[..] else {
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
fn no_refusal_is_predicted_that_a_grant_prevents() {
    for counts in [CountPolicy::All, CountPolicy::Admitted] {
        let rules = Rules::default().five("a", |rule| rule.counts = counts);
        // Five of the limit and 90 that it owes; the descriptor may stand twice.
        for (keys, hits, code) in [
            (&["a"][..], 95, Code::Ok),
            (&["a"], 96, Code::OverLimit),
            (&["a", "a"], 47, Code::Ok),
            (&["a", "a"], 48, Code::OverLimit),
        ] {
            let request = request(keys, hits);
            let looked = CounterState {
                is_charged: false,
                ..CounterState::of(-90)
            };
            let looked = vec![looked; keys.len()];
            let explanation = explain(&rules.0, &request, Modes::default(), NOW, Some(&looked));
            assert_eq!(explanation.decision.overall, code, "{keys:?} {hits}");
            let counter = explanation.descriptors[0].limits[0].counter.as_ref();
            assert_eq!(counter.unwrap().owed, 90);
        }
    }
}

#[test]
fn a_counter_that_is_asked_for_twice_predicts_the_hits_in_front() {
    let rules = Rules::default().five("a", |rule| rule.counts = CountPolicy::Admitted);
    let request = request(&["a", "a"], 1);
    let batch = Plan::new(&rules.0, &request, Modes::default(), NOW).batch;
    let predicted = |count| {
        let counts = prediction::predicted(&batch, &[count; 2].map(looked_at));
        counts
            .iter()
            .map(|count| (count.after, count.is_charged))
            .collect::<Vec<_>>()
    };
    assert_eq!(predicted(3), [(4, true), (5, true)]);
    assert_eq!(predicted(4), [(4, false), (5, false)]);
}
