//! Slots: how requests take and free them.

use std::time::Duration;

use super::*;
use crate::{
    core::{
        decision::{Code, Decision, decide},
        kind::Algorithm,
        lease::{order::OrderOutcome, tests::request},
        limit::{Allows, CountPolicy, LeasePolicy, Limit, Modes, Rule},
        matcher::Matcher,
        plan::Plan,
        window::Unit,
    },
    store::memory::MemoryStore,
};

const NOW: Timestamp = Timestamp::from_secs(1_000 * 3600);

const TENANT: &[(&str, &str)] = &[("tenant", "a")];

/// A rule of two slots for a minute, and of three hits an hour.
fn concurrency() -> Matcher {
    let mut matcher = Matcher::default();
    let slots = Limit {
        algorithm: Algorithm::Concurrency,
        ..Limit::fixed(2, Unit::Minute)
    };
    let root = matcher.insert_domain(b"d");
    let node = matcher.insert(root, b"tenant", b"").unwrap();
    let limits = [slots, Limit::fixed(3, Unit::Hour)];
    matcher.set_rule(node, |id| Rule {
        lease: Some(LeasePolicy::Slots),
        counts: CountPolicy::Admitted,
        ..Rule::plain(id, "d.tenant", Allows::Within(limits.into()))
    });
    matcher
}

/// The decision on a request, and the text of its token if it leases.
fn take_slot(
    matcher: &Matcher,
    store: &MemoryStore,
    id: u64,
    now: Timestamp,
) -> (Decision, Option<String>) {
    let request = request(&[(TENANT, None)]);
    let mut plan = Plan::new(matcher, &request, Modes::default(), now);
    plan.name_leases(|| LeaseId(id));
    let counts = store.apply_all(&plan.batch, now);
    let decision = decide(&plan, &counts, Modes::default(), now);
    let leased = decision.leased.as_ref();
    let token = leased.and_then(|leased| LeaseToken::new(now, leased.id, 0, []));
    (decision, token.map(|token| token.to_string()))
}

/// The slots that are taken and the hits of the hour.
fn held(matcher: &Matcher, store: &MemoryStore, now: Timestamp) -> Vec<u64> {
    let request = request(&[(TENANT, Some(0))]);
    let plan = Plan::new(matcher, &request, Modes::default(), now);
    let counts = store.apply_all(&plan.batch, now);
    counts.iter().map(|count| count.after).collect()
}

#[test]
fn a_slot_is_freed_by_the_id_of_its_request_alone() {
    let (matcher, store) = (concurrency(), MemoryStore::new(100));
    let book = LeaseBook::of_memory();
    let [one, two] = [1, 2].map(|id| take_slot(&matcher, &store, id, NOW));
    assert_eq!(one.0.overall, Code::Ok);
    assert_eq!(two.0.leased.as_ref().unwrap().slots, [0]);
    // A refused request takes none, and no hit of the other limit.
    let (refused, token) = take_slot(&matcher, &store, 3, NOW);
    assert_eq!((refused.overall, token), (Code::OverLimit, None));
    assert_eq!(refused.retry_secs, Some(60));
    let binding = refused.statuses[0].binding.as_ref().unwrap();
    assert_eq!(binding.shown_reset_secs(), None);
    assert_eq!(held(&matcher, &store, NOW), [2, 2]);
    let order = |key: &str, token: &str, now: Timestamp| {
        let entries = [("tenant", "a"), (key, token)];
        let request = request(&[(&entries, None)]);
        let plan = Plan::new(&matcher, &request, Modes::default(), now);
        let orders = &plan.leases.as_ref().unwrap().orders;
        let hits = book.ordered_hits(orders, now);
        assert!(hits.adds.is_empty() && hits.gives_back.is_empty());
        store.apply_all(&hits.frees, NOW);
        let outcomes: Vec<_> = hits
            .outcomes
            .iter()
            .map(|(_, outcome, is_late)| (*outcome, *is_late))
            .collect();
        (outcomes, hits.strays)
    };
    let freed = |is_first, age_secs| {
        let age = Duration::from_secs(age_secs);
        (vec![(OrderOutcome::Freed { is_first, age }, false)], 0)
    };
    let token = one.1.unwrap();
    // The clock of the replica that frees it can be wrong by any time.
    let before = NOW.minus(Duration::from_secs(3_600));
    assert_eq!(order("tollgate.release", &token, before), freed(true, 0));
    assert_eq!(held(&matcher, &store, NOW), [1, 2]);
    assert_eq!(order("tollgate.release", &token, NOW), freed(false, 0));
    // Another request's.
    let other = LeaseToken::new(NOW, LeaseId(77), 5, [])
        .unwrap()
        .to_string();
    assert_eq!(order("tollgate.release", &other, NOW), freed(true, 0));
    assert_eq!(held(&matcher, &store, NOW), [1, 2]);
    for (key, token) in [("tollgate.release", "x"), ("tollgate.unreserved", "1")] {
        assert_eq!(order(key, token, NOW), (vec![], 1), "{key}");
    }
    // A settlement is the end of the request, too; this one comes after the minute.
    let later = NOW.plus(Duration::from_secs(61));
    assert_eq!(
        order("tollgate.reservation", &two.1.unwrap(), later),
        freed(true, 61)
    );
    assert_eq!(held(&matcher, &store, NOW), [0, 2]);
}
