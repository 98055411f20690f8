use std::{num::NonZeroU32, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::core::{
    counter::KeyFormat,
    kind::Algorithm,
    limit::{Allows, Rule},
    matcher::tests::Rules,
    metadata::MetadataValue,
    request::{Hits, Request},
    window::{Period, Unit},
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn limit(requests_per_unit: u64, unit: Unit) -> Limit {
    Limit::fixed(requests_per_unit, unit)
}

fn named(name: &str, limit: Limit) -> Limit {
    Limit {
        name: Some(name.into()),
        ..limit
    }
}

impl Rules {
    fn limits(self, key: &str, limits: &[Limit]) -> Self {
        self.with(key, Allows::Within(limits.into()), |_| ())
    }

    /// Decides a request for `keys` whose counters stand at `counts` afterwards.
    fn decide(&self, keys: &[&str], counts: &[u64], modes: Modes) -> Decision {
        let request = Request::for_keys(keys.iter().copied());
        let plan = Plan::new(&self.0, &request, modes, NOW);
        assert_eq!(plan.batch.len(), counts.len());
        let counts: Vec<CounterState> = counts.iter().map(|&count| count.into()).collect();
        decide(&plan, &counts, modes, NOW)
    }

    fn overall(&self, keys: &[&str], counts: &[u64], modes: Modes) -> Code {
        self.decide(keys, counts, modes).overall
    }
}

fn quota(rule: &mut Rule) {
    rule.quota_mode = true;
}

fn within(limits: &[Limit]) -> Allows {
    Allows::Within(limits.into())
}

#[track_caller]
fn check_one(count: u64, code: Code, remaining: u64) {
    let rules = Rules::default().limits("k", &[limit(10, Unit::Minute)]);
    let decision = rules.decide(&["k"], &[count], Modes::default());
    assert_eq!(decision.overall, code);
    assert_eq!(decision.statuses[0].code, code);
    assert_eq!(decision.statuses[0].remaining, remaining);
}

#[test]
fn the_last_hit_within_a_limit_leaves_nothing() {
    check_one(1, Code::Ok, 9);
    check_one(10, Code::Ok, 0);
    check_one(11, Code::OverLimit, 0);
    check_one(u64::MAX, Code::OverLimit, 0);
}

/// A request of nine hits under a limit of 10 whose counter holds `held` without them.
#[track_caller]
fn check_uncharged(held: u64, code: Code, retry_secs: Option<u64>) {
    let rules = Rules::default().limits("k", &[limit(10, Unit::Minute)]);
    let mut request = Request::for_keys(["k"]);
    request.set_hits(Hits::add(9));
    let plan = Plan::new(&rules.0, &request, Modes::default(), NOW);
    let count = CounterState {
        is_charged: false,
        ..CounterState::from(held)
    };
    let decision = decide(&plan, &[count], Modes::default(), NOW);
    assert_eq!(decision.overall, code, "{held}");
    assert_eq!(decision.statuses[0].retry_secs, retry_secs);
}

#[test]
fn a_limit_that_would_pass_the_hits_has_room_now() {
    check_uncharged(2, Code::OverLimit, Some(20));
    // Another limit refused these, for which this one has room.
    check_uncharged(1, Code::Ok, Some(0));
}

#[test]
fn a_limit_of_zero_refuses_every_hit_but_not_a_look() {
    let rules = Rules::default().limits("k", &[limit(0, Unit::Day)]);
    assert_eq!(
        rules.overall(&["k"], &[1], Modes::default()),
        Code::OverLimit
    );
    assert_eq!(rules.overall(&["k"], &[0], Modes::default()), Code::Ok);
}

#[test]
fn the_largest_limit_is_not_passed_by_its_own_count() {
    let rules = Rules::default().limits("k", &[limit(Limit::MAX_REQUESTS, Unit::Day)]);
    let at = Limit::MAX_REQUESTS;
    assert_eq!(rules.overall(&["k"], &[at], Modes::default()), Code::Ok);
    assert_eq!(
        rules.overall(&["k"], &[at + 1], Modes::default()),
        Code::OverLimit
    );
}

/// The binding limit of 3/second, 20/minute and 300/30 minutes at these counts.
#[track_caller]
fn check_binding(counts: [u64; 3], expected: usize, remaining: u64, reset_secs: u64) {
    let half_hours = Period::new(Unit::Minute, NonZeroU32::new(30).unwrap()).unwrap();
    let slow = Limit::fixed(300, half_hours);
    let limits = [limit(3, Unit::Second), limit(20, Unit::Minute), slow];
    let rules = Rules::default().limits("k", &limits);
    let status = &rules.decide(&["k"], &counts, Modes::default()).statuses[0];
    let binding = status.binding.as_ref().unwrap();
    assert_eq!(binding.counter, expected);
    assert_eq!(binding.limit, limits[expected]);
    assert_eq!(status.remaining, remaining);
    assert_eq!(binding.reset_secs, reset_secs);
}

#[test]
fn the_binding_limit_is_over_first_then_least_remaining_then_latest_reset() {
    check_binding([1, 1, 1], 0, 2, 1);
    check_binding([1, 19, 19], 1, 1, 20);
    check_binding([4, 4, 4], 0, 0, 1);
    check_binding([1, 21, 21], 1, 0, 20);
    // All over, then all equally close: the limit that resets last binds.
    check_binding([4, 21, 301], 2, 0, 800);
    check_binding([2, 19, 299], 2, 1, 800);
}

#[test]
fn all_limits_of_a_descriptor_are_reported_each_with_its_own_count() {
    let limits = [limit(10, Unit::Minute), limit(3, Unit::Hour)];
    let rules = Rules::default().limits("k", &limits);
    let request = Request::for_keys(["k"]);
    let plan = Plan::new(&rules.0, &request, Modes::default(), NOW);
    let [Outcome::Counted(counted)] = &plan.outcomes[..] else {
        panic!("{:?}", plan.outcomes);
    };
    let counts = [4, 5].map(CounterState::from);
    let reports = all_limits(counted, &plan, &counts, NOW).map(|report| {
        let (remaining, resets) = (report.remaining, report.reset_secs);
        (
            report.limit,
            report.is_over,
            remaining,
            resets,
            report.retry_secs,
        )
    });
    let expected = [
        (&limits[0], false, 6, 20, Some(0)),
        (&limits[1], true, 0, 800, Some(800)),
    ];
    assert_eq!(reports.collect::<Vec<_>>(), expected);
}

#[test]
fn codes_have_the_names_of_the_protocol() {
    let names = [Code::Ok, Code::OverLimit].map(Code::name);
    assert_eq!(names, ["OK", "OVER_LIMIT"]);
}

#[test]
fn callers_are_told_no_reset_of_a_limit_of_requests_in_flight() {
    for (algorithm, shown) in [
        (Algorithm::FixedWindow, Some(20)),
        (Algorithm::Concurrency, None),
    ] {
        let limit = Limit {
            algorithm,
            ..limit(10, Unit::Minute)
        };
        let rules = Rules::default().limits("k", &[limit]);
        let status = &rules.decide(&["k"], &[1], Modes::default()).statuses[0];
        assert_eq!(status.binding.as_ref().unwrap().shown_reset_secs(), shown);
    }
}

#[test]
fn a_descriptor_without_a_limit_is_ok() {
    let rules = Rules::default().with("free", Allows::Unlimited, |_| ());
    let decision = rules.decide(&["free", "other"], &[], Modes::default());
    assert_eq!(decision.overall, Code::Ok);
    let remaining: Vec<_> = decision
        .statuses
        .iter()
        .map(|status| status.remaining)
        .collect();
    assert_eq!(remaining, [u32::MAX.into(), 0]);
    assert!(
        decision
            .statuses
            .iter()
            .all(|status| status.binding.is_none())
    );
}

#[test]
fn a_rule_in_shadow_mode_reports_its_limit_and_lets_pass() {
    let rules = Rules::default().with("k", within(&[limit(1, Unit::Day)]), |rule| {
        rule.shadow_mode = true;
    });
    let decision = rules.decide(&["k"], &[2], Modes::default());
    assert_eq!(decision.overall, Code::Ok);
    assert_eq!(decision.statuses[0].code, Code::Ok);
    assert!(decision.statuses[0].binding.as_ref().unwrap().is_over);
    assert!(!decision.is_shadowed);
}

#[test]
fn the_global_shadow_mode_changes_only_the_overall_code() {
    let rules = Rules::default().limits("k", &[limit(1, Unit::Day)]);
    let shadow = Modes {
        shadow: true,
        ..Modes::default()
    };
    let decision = rules.decide(&["k"], &[2], shadow);
    assert_eq!(decision.overall, Code::Ok);
    assert_eq!(decision.statuses[0].code, Code::OverLimit);
    assert!(decision.is_shadowed);
}

#[test]
fn quota_descriptors_refuse_only_together() {
    let rules = Rules::default()
        .with("q1", within(&[limit(1, Unit::Day)]), quota)
        .with("q2", within(&[limit(1, Unit::Day)]), quota)
        .limits("plain", &[limit(1, Unit::Day)]);
    let overall = |keys: &[&str], counts: &[u64]| rules.overall(keys, counts, Modes::default());
    assert_eq!(overall(&["q1"], &[2]), Code::OverLimit);
    assert_eq!(overall(&["q1", "q2"], &[2, 1]), Code::Ok);
    assert_eq!(overall(&["q1", "q2"], &[2, 2]), Code::OverLimit);
    assert_eq!(overall(&["q1", "plain"], &[2, 1]), Code::OverLimit);
    assert_eq!(overall(&["q1", "q2", "plain"], &[1, 2, 2]), Code::OverLimit);
    // A descriptor without a rule is no quota descriptor.
    assert_eq!(overall(&["q1", "unmatched"], &[2]), Code::OverLimit);
}

#[test]
fn a_quota_rule_in_shadow_mode_counts_as_passed() {
    let rules = Rules::default().with("k", within(&[limit(1, Unit::Day)]), |rule| {
        rule.quota_mode = true;
        rule.shadow_mode = true;
    });
    assert_eq!(rules.overall(&["k"], &[2], Modes::default()), Code::Ok);
}

#[test]
fn under_the_global_quota_mode_an_unmatched_descriptor_is_a_passed_quota() {
    let rules = Rules::default().limits("k", &[limit(1, Unit::Day)]);
    let modes = Modes {
        quota: true,
        ..Modes::default()
    };
    assert_eq!(rules.overall(&["k"], &[2], modes), Code::OverLimit);
    assert_eq!(rules.overall(&["k", "unmatched"], &[2], modes), Code::Ok);
}

#[test]
fn a_replaced_limit_is_not_counted() {
    let replaces = |name: &str| {
        let names: Box<[Arc<str>]> = [name.into()].into();
        move |rule: &mut Rule| rule.replaces = names
    };
    let a = [named("a", limit(1, Unit::Day))];
    let rules = Rules::default()
        .limits("a", &a)
        .limits(
            "two",
            &[named("a", limit(1, Unit::Day)), limit(1, Unit::Hour)],
        )
        .with(
            "b",
            within(&[named("b", limit(5, Unit::Day))]),
            replaces("a"),
        )
        .with("free", Allows::Unlimited, replaces("a"))
        .with(
            "c",
            within(&[named("c", limit(5, Unit::Day))]),
            replaces("b"),
        );
    let decide = |keys: &[&str], counts: &[u64]| rules.decide(keys, counts, Modes::default());

    let decision = decide(&["a", "b"], &[1]);
    assert_eq!(decision.statuses[0].binding, None);
    assert_eq!(decision.statuses[0].remaining, 0);
    assert_eq!(decision.statuses[1].remaining, 4);
    // An unlimited rule replaces too, and so does one that is itself replaced.
    assert_eq!(decide(&["a", "free"], &[]).overall, Code::Ok);
    assert_eq!(decide(&["a", "b", "c"], &[1]).statuses[2].remaining, 4);
    // Of several limits only those with that name are replaced.
    assert_eq!(decide(&["two", "b"], &[2, 1]).overall, Code::OverLimit);
}

#[track_caller]
fn check_tally(limit_per_unit: u64, before: u64, hits: u64, expected: [u64; 3]) {
    let limit = limit(limit_per_unit, Unit::Minute);
    let count = (before + hits).into();
    let tally = tally(&limit, NearRatio::default(), hits, count);
    assert_eq!([tally.within, tally.near, tally.over], expected);
}

#[test]
fn hits_fall_as_the_reference_counts_them() {
    check_tally(20, 2, 3, [3, 0, 0]);
    check_tally(8, 5, 2, [2, 1, 0]);
    check_tally(20, 16, 3, [3, 3, 0]);
    check_tally(20, 19, 3, [0, 1, 2]);
    check_tally(20, 15, 7, [0, 4, 2]);
    check_tally(10, 0, 27, [0, 2, 17]);
    check_tally(10, 27, 3, [0, 0, 3]);
    check_tally(1, 0, 1, [1, 1, 0]);
    check_tally(0, 0, 1, [0, 0, 1]);
    check_tally(0, 0, 0, [0, 0, 0]);
}

/// The branches by which the reference counts hits.
fn branches(limit: u64, near: u64, before: u64, after: u64) -> Tally {
    let hits = after - before;
    if after <= limit {
        let near = match (after > near, before >= near) {
            (false, _) => 0,
            (true, true) => hits,
            (true, false) => after - near,
        };
        return Tally {
            within: hits,
            near,
            over: 0,
        };
    }
    Tally {
        within: 0,
        near: if before < limit {
            limit - near.max(before)
        } else {
            0
        },
        over: if before >= limit { hits } else { after - limit },
    }
}

proptest! {
    #[test]
    fn tallies_are_those_of_the_branches(
        per_unit in prop_oneof![0_u64..50, 0..=Limit::MAX_REQUESTS],
        before in prop_oneof![0_u64..60, 0..=u64::from(u32::MAX)],
        hits in prop_oneof![0_u64..60, 0..=u64::from(u32::MAX)],
    ) {
        let limit = limit(per_unit, Unit::Minute);
        let near = NearRatio::default().threshold(per_unit);
        let count = (before + hits).into();
    let tally = tally(&limit, NearRatio::default(), hits, count);
        let expected = if hits == 0 {
            Tally::default()
        } else {
            branches(per_unit, near, before, before + hits)
        };
        prop_assert_eq!(tally, expected);
    }
}

#[track_caller]
fn check_retry(requests_per_unit: u64, times: usize, retry_secs: Option<u64>) {
    let rules = Rules::default().limits("k", &[limit(requests_per_unit, Unit::Minute)]);
    // The counters held `times` hits before.
    let counts: Vec<_> = (1..=times as u64)
        .map(|count| count + times as u64)
        .collect();
    let decision = rules.decide(&vec!["k"; times], &counts, Modes::default());
    assert_eq!(decision.overall, Code::OverLimit);
    assert_eq!(
        decision.retry_secs, retry_secs,
        "{times} of {requests_per_unit}"
    );
}

#[test]
fn a_descriptor_that_stands_more_often_than_its_limit_allows_never_passes() {
    for times in [1, 2, 15, 16, 40] {
        let fits = u64::try_from(times).unwrap();
        check_retry(fits, times, Some(20));
        check_retry(fits - 1, times, None);
    }
}

#[test]
fn hits_that_were_not_charged_are_over_or_fell_nowhere() {
    let reported = |after: u64, is_cached| CounterState {
        is_charged: false,
        is_cached,
        ..CounterState::from(after)
    };
    let tally = |hits, count| {
        let limit = limit(10, Unit::Minute);
        let Tally { within, near, over } = tally(&limit, NearRatio::default(), hits, count);
        [within, near, over]
    };
    // Refused by their own limit, and by another one.
    assert_eq!(tally(3, reported(8, false)), [0, 0, 3]);
    assert_eq!(tally(2, reported(8, false)), [0, 0, 0]);
    assert_eq!(tally(0, reported(11, false)), [0, 0, 0]);
    // Refused without asking the store.
    assert_eq!(tally(3, reported(10, true)), [0, 0, 3]);
}

/// Asserts when a request for `a` and `b`, one hit each, would pass if it is decided `millis` before the
/// end of a minute, at most 20 seconds before.
#[track_caller]
fn check_retry_of_two(rules: &Rules, counts: [u64; 2], millis: u64, retry_secs: u64) {
    let now = NOW.plus(std::time::Duration::from_millis(20_000 - millis));
    let request = Request::for_keys(["a", "b"]);
    let plan = Plan::new(&rules.0, &request, Modes::default(), now);
    let decision = decide(
        &plan,
        &counts.map(CounterState::from),
        Modes::default(),
        now,
    );
    assert_eq!(decision.overall, Code::OverLimit);
    assert_eq!(decision.retry_secs, Some(retry_secs), "{counts:?} {millis}");
}

#[test]
fn a_request_would_pass_when_the_last_of_its_limits_that_refuse_it_lets_it() {
    let two = |change: fn(&mut Rule)| {
        Rules::default()
            .limits("a", &[limit(2, Unit::Minute)])
            .with("b", within(&[limit(2, Unit::Hour)]), change)
    };
    let plain = two(|_| ());
    // 800 seconds of the hour are left when 20 of the minute are.
    check_retry_of_two(&plain, [3, 1], 20_000, 20);
    check_retry_of_two(&plain, [1, 3], 20_000, 800);
    check_retry_of_two(&plain, [3, 3], 20_000, 800);
    // The refused hit was the last that the hour had room for.
    check_retry_of_two(&plain, [3, 2], 20_000, 800);
    // Rounded up, and never 0.
    check_retry_of_two(&plain, [3, 1], 19_500, 20);
    check_retry_of_two(&plain, [3, 1], 500, 1);
    // A rule in shadow mode causes no wait.
    let shadowed = two(|rule| rule.shadow_mode = true);
    check_retry_of_two(&shadowed, [3, 3], 20_000, 20);
}

#[test]
fn quotas_that_refuse_together_let_pass_as_soon_as_one_of_them_does() {
    let rules = Rules::default()
        .with("q1", within(&[limit(1, Unit::Minute)]), quota)
        .with("q2", within(&[limit(1, Unit::Hour)]), quota)
        .limits("day", &[limit(5, Unit::Day)])
        .limits("minute", &[limit(1, Unit::Minute)])
        .with("free", Allows::Unlimited, |_| ());
    let check = |keys: &[&str], counts: &[u64], modes, retry_secs| {
        let decision = rules.decide(keys, counts, modes);
        assert_eq!(decision.overall, Code::OverLimit, "{keys:?} {counts:?}");
        assert_eq!(decision.retry_secs, Some(retry_secs), "{keys:?} {counts:?}");
    };
    let plain = Modes::default();
    check(&["q1"], &[2], plain, 20);
    check(&["q2"], &[2], plain, 800);
    check(&["q1", "q2"], &[2, 2], plain, 20);
    check(&["q1", "q2", "day"], &[2, 2, 1], plain, 20);
    // All plain limits have to let it pass.
    check(&["q1", "q2", "day"], &[2, 2, 6], plain, 36_800);
    check(&["q1", "day"], &[1, 6], plain, 36_800);
    check(&["q2", "minute"], &[2, 2], plain, 800);
    // A rule without a limit is no quota.
    let quotas = Modes {
        quota: true,
        ..plain
    };
    check(&["minute", "free"], &[2], quotas, 20);
}

#[test]
fn limits_that_share_a_key_for_one_window_do_not_refuse_for_ever() {
    let twenty_secs = Period::new(Unit::Second, NonZeroU32::new(20).unwrap()).unwrap();
    let limits = [limit(1, Unit::Second), Limit::fixed(1, twenty_secs)];
    let mut rules = Rules::default().limits("k", &limits);
    // Both windows begin now, so their keys in the reference's format are equal.
    rules.0.key_format = KeyFormat::Reference;
    let decision = rules.decide(&["k"], &[1, 2], Modes::default());
    assert_eq!(decision.overall, Code::OverLimit);
    assert_eq!(decision.retry_secs, Some(20));
}

#[test]
fn of_limits_that_stand_alike_the_first_is_the_binding_one() {
    let twenty_secs = Period::new(Unit::Second, NonZeroU32::new(20).unwrap()).unwrap();
    // Both end in twenty seconds.
    let (short, long) = (Limit::fixed(3, twenty_secs), limit(3, Unit::Minute));
    for limits in [[short.clone(), long.clone()], [long, short]] {
        let rules = Rules::default().limits("k", &limits);
        let decision = rules.decide(&["k"], &[1, 1], Modes::default());
        let binding = decision.statuses[0].binding.as_ref().unwrap();
        assert_eq!((&binding.limit, binding.reset_secs), (&limits[0], 20));
    }
}

#[test]
fn the_headline_is_the_least_remaining_or_the_last_plain_one_that_is_over() {
    let ten = || [limit(10, Unit::Minute)];
    let rules = Rules::default()
        .limits("a", &ten())
        .limits("b", &ten())
        .limits("c", &ten())
        .with("quota", within(&ten()), quota)
        .with("free", Allows::Unlimited, |_| ());
    let check = |keys: &[&str], counts: &[u64], headline| {
        let decision = rules.decide(keys, counts, Modes::default());
        assert_eq!(decision.headline, headline, "{keys:?} {counts:?}");
    };
    check(&["free", "unmatched"], &[], None);
    check(&["a"], &[1], Some(0));
    check(&["free", "a"], &[1], Some(1));
    check(&["unmatched", "a", "unmatched"], &[1], Some(1));
    check(&["a", "b", "c"], &[5, 9, 7], Some(1));
    check(&["a", "b", "c"], &[9, 5, 9], Some(0));
    check(&["a", "b", "c"], &[11, 11, 10], Some(1));
    check(&["a", "b", "c"], &[10, 10, 11], Some(2));
    check(&["a", "quota"], &[5, 11], Some(1));
    check(&["a", "quota"], &[10, 11], Some(0));
    check(&["quota", "a"], &[11, 10], Some(0));
    check(&["quota", "a", "b"], &[11, 11, 5], Some(1));
}

#[test]
fn metadata_is_put_together_from_the_rules_that_let_pass() {
    let map = |entries: &[(&str, &str)]| -> Metadata {
        let own = |(key, value): &(&str, &str)| {
            (Box::<str>::from(*key), MetadataValue::Text((*value).into()))
        };
        entries.iter().map(own).collect()
    };
    let one = [limit(1, Unit::Day)];
    let rules = Rules::default()
        .with("a", within(&one), |rule| {
            rule.metadata = Some(map(&[("x", "a")]).into())
        })
        .with("b", within(&one), |rule| {
            rule.metadata = Some(map(&[("x", "b"), ("y", "b")]).into());
        });
    let metadata = |counts: &[u64], metadata| {
        let modes = Modes {
            metadata,
            ..Modes::default()
        };
        rules.decide(&["a", "b"], counts, modes).metadata
    };
    assert_eq!(
        metadata(&[1, 1], true),
        Some(map(&[("x", "a"), ("y", "b")]))
    );
    assert_eq!(
        metadata(&[2, 1], true),
        Some(map(&[("x", "b"), ("y", "b")]))
    );
    assert_eq!(metadata(&[1, 2], true), Some(map(&[("x", "a")])));
    assert_eq!(metadata(&[2, 2], true), None);
    assert_eq!(metadata(&[1, 1], false), None);
}
