//! Rules from a control plane with each cache of go-control-plane: what a restart with an empty cache, a deletion and
//! a bad push do to the rules in use.

use ::tollgate::rls_conf::RateLimitConfig;

use crate::{
    support::{
        ads::{Ads, Seen, snapshot},
        ask::{self, connect},
        caches::Cache,
        tollgate::Tollgate,
    },
    xds::{LOADED, bad, builder, domain, passing, rlconfig},
};

/// Checks that rules whose limit is used up are in use: many calls, and none passes.
async fn check_rules_in_use(server: &Tollgate, when: &str) {
    let mut client = connect(server.grpc).await;
    let passed = ask::passing(&mut client, "a", &[("k", "x")], 41).await;
    assert_eq!(passed, 0, "{when}");
}

/// A control plane with rules, and a server that has used up its limit. Returns the last version too.
async fn used_up(cache: Cache, settings: &[&str]) -> (Ads, Tollgate, Seen) {
    let ads = Ads::of(cache);
    ads.fill(&[domain("a", 2)]);
    let server = builder(&ads).args(settings.iter().copied()).start();
    let ack = ads.wait_for_ack("1");
    assert_eq!(passing(&server, "a", "x").await, 2);
    (ads, server, ack)
}

/// Waits for the first request of a new call, which names the version in use, and the second, which does not; returns
/// the number of the call.
fn both_questions(ads: &Ads, after: &Seen) -> usize {
    let first = ads.find(|seen| seen.call > after.call);
    let second = ads.next();
    let versions = [&first, &second].map(|seen| {
        let request = &seen.request;
        assert_eq!(request.response_nonce, "");
        request.version_info.clone()
    });
    assert_eq!(versions, [after.request.version_info.as_str(), ""]);
    first.call
}

const DOUBT: &str = "(push): the rules in use stay";
const WARNING: &str = "sent no rules when asked for all after a reconnect";

/// Waits until an answer without rules is not believed.
fn doubted(ads: &Ads, version: &str) -> Seen {
    let seen = ads.next();
    assert_eq!(seen.request.version_info, version);
    assert_ne!(seen.request.response_nonce, "");
    let refusal = seen.refusal().expect("the push is not accepted");
    assert!(refusal.starts_with(DOUBT), "{refusal}");
    seen
}

/// The control plane restarts with an empty cache twice, which is filled later.
#[tokio::test]
async fn a_restarted_cache_that_is_empty_leaves_the_rules_in_use_and_is_warned_of_once() {
    for (name, cache) in Cache::all() {
        let (ads, server, mut last) = used_up(cache(), &[]).await;
        let answers_without_rules = name.contains("linear");
        for _ in 0..2 {
            ads.restart(cache());
            last.call = both_questions(&ads, &last);
            if answers_without_rules {
                doubted(&ads, "1");
                server.log().with(WARNING);
            }
            check_rules_in_use(&server, name).await;
        }
        assert_eq!(server.metric(LOADED), 1, "{name}");
        ads.fill(&[domain("a", 5)]);
        ads.wait_for_ack("1");
        assert!(rlconfig(&server).contains("requests_per_unit=5"));
        let warnings = server.log().text().matches(WARNING).count();
        assert_eq!(warnings, usize::from(answers_without_rules), "{name}");
    }
}

/// A snapshot without rules under the version in use: the last rule was deleted during a restart.
#[tokio::test]
async fn rules_that_were_deleted_under_their_old_version_stay_unless_it_is_set_otherwise() {
    for (setting, goes) in [("allow", false), ("keep", false), ("always", true)] {
        let (ads, server, ack) = used_up(Cache::snapshot(), &["--xds-empty-push", setting]).await;
        let mut empty = Cache::snapshot();
        empty.fill(&[]);
        ads.restart(empty);
        both_questions(&ads, &ack);
        if goes {
            ads.wait_for_ack("1");
            assert_eq!(passing(&server, "a", "x").await, 3, "{setting}");
            continue;
        }
        doubted(&ads, "1");
        check_rules_in_use(&server, "after the deletion").await;
        // The next version is no answer to the question without a version.
        ads.fill(&[]);
        if setting == "allow" {
            ads.wait_for_ack("2");
            assert_eq!(passing(&server, "a", "x").await, 3);
        } else {
            let refusal = ads.wait_for_refusal();
            let refusal = refusal.refusal().unwrap();
            assert!(refusal.contains("--xds-empty-push keep"), "{refusal}");
            check_rules_in_use(&server, "after the refusal").await;
        }
    }
}

/// A control plane that means it says so again to a client that names its version.
#[tokio::test]
async fn rules_that_were_deleted_under_a_new_version_go_though_the_control_plane_was_slow() {
    let ads = Ads::of(Cache::snapshot());
    ads.fill(&[domain("a", 1)]);
    ads.fill(&[domain("a", 2)]);
    let server = builder(&ads).start();
    let ack = ads.wait_for_ack("2");
    assert_eq!(passing(&server, "a", "x").await, 2);
    ads.restart(Cache::snapshot());
    both_questions(&ads, &ack);
    ads.fill(&[]);
    doubted(&ads, "2");
    ads.wait_for_ack("1");
    assert_eq!(passing(&server, "a", "x").await, 3);
}

#[tokio::test]
async fn a_deletion_while_the_control_plane_is_connected_is_believed() {
    for cache in [Cache::snapshot, Cache::ordered] {
        let (ads, server, _) = used_up(cache(), &[]).await;
        ads.fill(&[]);
        ads.wait_for_ack("2");
        assert_eq!(passing(&server, "a", "x").await, 3);
    }
}

/// Good, bad, bad otherwise, good: with settings for reconnects that would make each wait endless.
#[tokio::test]
async fn a_corrected_push_is_taken_at_once_with_every_cache() {
    for (name, cache) in Cache::all() {
        let ads = Ads::of(cache());
        ads.fill(&[domain("a", 2)]);
        let server = builder(&ads)
            .env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1h")
            .env("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "1h")
            .start();
        ads.wait_for_ack("1");
        assert_eq!(passing(&server, "a", "x").await, 2);
        let refused = |push: &[RateLimitConfig], expected: &str| {
            ads.fill(push);
            let is_it = |seen: &Seen| seen.refusal().is_some_and(|text| text.contains(expected));
            ads.find(is_it);
            // A linear cache does not send its resources again.
            if !name.contains("linear") {
                ads.find(is_it);
            }
        };
        refused(&[bad("a")], "a.k: invalid rate limit unit");
        check_rules_in_use(&server, name).await;
        let mut worse = bad("a");
        worse.descriptors[0].key = "worse".to_owned();
        refused(&[worse], "a.worse: invalid rate limit unit");
        check_rules_in_use(&server, name).await;
        ads.fill(&[domain("a", 3)]);
        ads.wait_for_ack("4");
        assert_eq!(passing(&server, "a", "y").await, 3, "{name}");
    }
}

#[tokio::test]
async fn a_push_that_comes_while_a_refusal_is_held_back_takes_its_place() {
    let (ads, server, ack) = used_up(Cache::snapshot(), &[]).await;
    ads.fill(&[bad("a")]);
    // Until the third refusal is held back.
    for _ in 0..2 {
        ads.wait_for_refusal();
    }
    // From a control plane that does not wait for answers.
    ads.send(ack.call, snapshot("unasked", &[domain("a", 3)]));
    let answer = ads.next();
    assert_eq!(answer.request.version_info, "unasked");
    assert_eq!(answer.refusal(), None);
    assert_eq!(passing(&server, "a", "y").await, 3);
}
