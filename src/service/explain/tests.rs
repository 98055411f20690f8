use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::{
    config::{files::Files, rule_defaults::Options},
    core::{
        counter::{CounterState, KeyFormat},
        decision::{Code, Decision, decide},
        plan::Outcome,
        request::Request,
    },
    service::explain::account::{Explanation, MatchResult},
    store::memory::MemoryStore,
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000_007);

fn matcher(rules: &str) -> Matcher {
    let loaded = Files::of("rules.yaml", rules).compile(Options::default());
    loaded
        .unwrap_or_else(|problems| panic!("{problems:?}\n{rules}"))
        .matcher
}

/// Decides `request` by a store, as a limiter does.
fn decided(
    matcher: &Matcher,
    request: &Request<'_>,
    modes: Modes,
    store: &MemoryStore,
) -> (Decision, Vec<Option<String>>) {
    let plan = Plan::new(matcher, request, modes, NOW);
    let counts = store.apply_all(&plan.batch, NOW);
    let rules = plan.outcomes.iter().map(|outcome| match outcome {
        Outcome::Counted(counted) => counted.rule.map(|rule| rule.path.to_string()),
        _ => None,
    });
    let rules = rules.collect();
    (decide(&plan, &counts, modes, NOW), rules)
}

/// The path of the rule whose limits apply to each descriptor.
fn explained_rules(explanation: &Explanation) -> Vec<Option<String>> {
    let accounts = explanation.descriptors.iter();
    let rules = accounts.map(|account| match &account.result {
        MatchResult::Limited { rule } => Some(rule.path.clone()),
        MatchResult::OwnLimit | MatchResult::Order | MatchResult::NoLimit(_) => None,
    });
    rules.collect()
}

const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

const LIMITS: [&str; 9] = [
    "rate_limit: { unit: year, requests_per_unit: 2 }",
    "rate_limit: { unit: year, requests_per_unit: 3, name: big }",
    "rate_limits: [{ unit: year, requests_per_unit: 2, name: small }, { unit: day, requests_per_unit: 1, name: big }]",
    "rate_limit: { unlimited: true }",
    "rate_limit: { unit: year, requests_per_unit: 2, algorithm: sliding_window }",
    "rate_limit: { unit: year, requests_per_unit: 2, algorithm: sliding_log }",
    "rate_limit: { unit: year, requests_per_unit: 1, algorithm: token_bucket, burst: 3 }",
    "rate_limit: { unit: year, requests_per_unit: 2, replaces: [{ name: big }] }",
    "rate_limit: { unit: year, requests_per_unit: 2, window: first_hit }",
];

const MODES: [&str; 4] = [
    "",
    "shadow_mode: true",
    "quota_mode: true",
    "count: admitted",
];

/// A rule file of these nodes: key, value, limit, mode, and a rule for the key `c` below.
fn rule_file(nodes: &[(String, String, usize, usize, Option<usize>)]) -> String {
    let mut file = "domain: d\ndescriptors:\n".to_owned();
    let mut known = std::collections::HashSet::new();
    for (key, value, limit, mode, below) in nodes {
        let joined = if value.is_empty() {
            key.clone()
        } else {
            format!("{key}_{value}")
        };
        if !known.insert(joined) {
            continue;
        }
        file += &format!("  - key: {key}\n");
        if !value.is_empty() {
            file += &format!("    value: \"{value}\"\n");
        }
        if let Some(limit) = LIMITS.get(*limit) {
            file += &format!("    {limit}\n    {}\n", MODES[*mode]);
        }
        if let Some(below) = below {
            file += &format!(
                "    descriptors:\n      - key: c\n        {}\n",
                LIMITS[*below]
            );
        }
    }
    file
}

/// The entries of a request's descriptors, and their hits.
type Asked = (Vec<Vec<(String, String)>>, u64);

/// Explains each request before it is decided, and compares both.
fn check_requests(
    matcher: &Matcher,
    modes: Modes,
    requests: &[Asked],
) -> Result<(), TestCaseError> {
    let store = MemoryStore::new(1_000);
    for (descriptors, hits) in requests {
        let entries: Vec<_> = descriptors
            .iter()
            .map(|pairs| Entries(pairs.clone()))
            .collect();
        let message = question("d", &entries, Some(hits.cast_signed()));
        let request = wire::request(&message).unwrap();
        let mut look = Plan::new(matcher, &request, modes, NOW).batch;
        look.look();
        let before = store.live_counters();
        let looked: Vec<CounterState> = store.apply_all(&look, NOW).to_vec();
        prop_assert_eq!(store.live_counters(), before, "a look makes no counter");
        let again: Vec<CounterState> = store.apply_all(&look, NOW).to_vec();
        prop_assert_eq!(&looked, &again, "a look costs no hit");
        let explanation = explain(matcher, &request, modes, NOW, Some(Ok(known(&looked))));
        let (decision, rules) = decided(matcher, &request, modes, &store);
        prop_assert_eq!(explanation.code.as_deref(), Some(name(decision.overall)));
        let is_shadowed = explanation.why.contains("shadow mode of the server");
        prop_assert_eq!(is_shadowed, decision.is_shadowed);
        prop_assert_eq!(explained_rules(&explanation), rules);
        for (account, status) in explanation.descriptors.iter().zip(&decision.statuses) {
            prop_assert_eq!(account.code.as_deref(), Some(name(status.code)));
            let is_over = status
                .binding
                .as_ref()
                .is_some_and(|binding| binding.is_over);
            prop_assert_eq!(account.over, Some(is_over));
            let is_limited = !matches!(account.result, MatchResult::NoLimit(_));
            prop_assert_eq!(is_limited, status.binding.is_some());
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn an_explanation_predicts_the_rule_and_the_code_of_the_decision(
        nodes in prop::collection::vec(
            ("[ab]", "[ab*]{0,2}", 0..=LIMITS.len(), 0..MODES.len(),
                prop::option::of(0..LIMITS.len())), 0..6),
        requests in prop::collection::vec(
            (prop::collection::vec(
                prop::collection::vec(("[abc]", "[ab]{0,2}"), 0..3), 1..4), 0_u64..4), 1..12),
        shadow in prop::bool::weighted(0.1),
        quota in prop::bool::weighted(0.2),
        stops_when_over in prop::bool::weighted(0.3),
    ) {
        let matcher = matcher(&rule_file(&nodes));
        let modes = Modes { shadow, quota, stops_when_over, ..Modes::default() };
        check_requests(&matcher, modes, &requests)?;
    }
}

fn pairs(descriptors: &[&str]) -> Vec<Entries> {
    descriptors
        .iter()
        .map(|text| text.parse().unwrap())
        .collect()
}

/// The explanation of a request by rules alone.
#[track_caller]
fn account(rules: &str, domain: &str, descriptors: &[&str]) -> Value {
    let message = question(domain, &pairs(descriptors), None);
    serde_json::from_str(&by_rules(&matcher(rules), &message, NOW).unwrap()).unwrap()
}

const SHOP: &str = "
domain: shop
descriptors:
  - key: remote_address
    rate_limits: [{ unit: year, requests_per_unit: 5, name: yearly }, 100/2y]
  - key: plan
    value: free
    descriptors:
      - key: user
        rate_limit: { unit: hour, requests_per_unit: 100 }
  - key: closed
    rate_limit: { unit: day }
  - key: other
    rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: yearly }] }
";

#[test]
fn a_limit_has_its_counter_and_its_place() {
    let account = account(SHOP, "shop", &["remote_address=192.0.2.1"]);
    assert_eq!(account["code"], "OK");
    assert_eq!(account["counters"], "empty");
    let one = &account["descriptors"][0];
    assert_eq!(one["rule"]["path"], "shop.remote_address");
    assert_eq!(
        (&one["rule"]["file"], &one["rule"]["line"]),
        (&"rules.yaml".into(), &4.into())
    );
    assert_eq!(one["path"][0]["match"], "key");
    let limit = &one["limits"][0];
    assert_eq!(
        limit["counter"],
        "{4:shop14:remote_address9:192.0.2.1}31536000@31"
    );
    assert_eq!(limit["window"]["ends"], "2001-12-24T00:00:00Z");
    assert_eq!(limit["charged"], true);
    assert_eq!(limit["count"], Value::Null);
    assert_eq!(one["limits"][1]["rate"], "100/2years");
}

#[test]
fn a_refusal_is_of_the_descriptor_that_is_over() {
    let account = account(SHOP, "shop", &["remote_address=x", "closed=x"]);
    assert_eq!(account["code"], "OVER_LIMIT");
    let why = "descriptor 2 is over the limit; counters are taken as empty";
    assert_eq!(account["why"], why);
    assert_eq!(account["descriptors"][0]["code"], "OK");
    assert_eq!(account["descriptors"][1]["limits"][0]["over"], true);
}

#[test]
fn a_replaced_limit_names_the_descriptor_that_replaces_it() {
    let account = account(SHOP, "shop", &["remote_address=x", "other=x"]);
    let limits = &account["descriptors"][0]["limits"];
    assert_eq!(limits[0]["replacedBy"], 2);
    assert_eq!(limits[0]["counter"], Value::Null);
    assert_eq!(limits[1]["replaced"], Value::Null);
}

#[test]
fn no_limit_has_a_cause_and_the_nearest_rule() {
    let check = |domain: &str, descriptor: &str, cause: &str, suggestion: Value, nearest: Value| {
        let account = account(SHOP, domain, &[descriptor]);
        let one = &account["descriptors"][0];
        assert_eq!(one["cause"], cause, "{one:#}");
        assert_eq!(one["suggestion"], suggestion);
        assert_eq!(one["nearest"]["path"], nearest);
    };
    let (address, user) = ("shop.remote_address", "shop.plan_free.user");
    let typo = "write `remote_address` as the key";
    check(
        "shop",
        "remote_adress=x",
        "unknown_key",
        typo.into(),
        address.into(),
    );
    let order =
        "`user` is the key of entry 2 in this rule; the order and the number of entries count";
    check("shop", "user=x", "unknown_key", order.into(), user.into());
    let value = "write `free` as the value; a rule without `value` is for all other values";
    check(
        "shop",
        "plan=fre",
        "unknown_value",
        value.into(),
        user.into(),
    );
    let deeper = "add an entry with the key `user` as entry 2";
    check(
        "shop",
        "plan=free",
        "too_few_entries",
        deeper.into(),
        user.into(),
    );
    let shorter = "a descriptor of entry 1 alone would have the limits of this rule";
    check(
        "shop",
        "remote_address=x,y=z",
        "too_many_entries",
        shorter.into(),
        address.into(),
    );
    check(
        "shpo",
        "a=b",
        "unknown_domain",
        "write `shop` as the domain".into(),
        Value::Null,
    );
    check("nothing", "a=b", "unknown_domain", Value::Null, Value::Null);
}

#[test]
fn hostile_texts_are_escaped_and_cut() {
    let long = "k".repeat(16 << 10);
    let hostile = format!("<script>alert('1')</script>\r\n\u{1b}[31m\u{0}\u{202e}&amp;{long}");
    let message = question(
        &hostile,
        &[Entries(vec![(hostile.clone(), hostile.clone())])],
        None,
    );
    let rules = matcher(
        &format!("domain: {hostile:?}\ndescriptors:\n  - key: a\n")
            .replace("\\u{", "\\u00{")
            .replace("\\u00{1b}", "\\x1b")
            .replace("\\u00{202e}", "\\u202e"),
    );
    for rules in [rules, matcher(SHOP)] {
        let json = by_rules(&rules, &message, NOW).unwrap();
        assert!(json.len() < 4_000, "{} bytes", json.len());
        let is_plain = |byte: u8| (b' '..0x7f).contains(&byte) && !b"<>&'".contains(&byte);
        assert!(json.bytes().all(is_plain), "{json}");
        let account: Value = serde_json::from_str(&json).unwrap();
        let shown = account["domain"].as_str().unwrap();
        assert!(
            shown.starts_with("<script>") && shown.ends_with(" bytes more"),
            "{shown}"
        );
    }
}

#[test]
fn many_descriptors_are_explained_in_part() {
    let account = account(SHOP, "shop", &["closed=x"; 20]);
    assert_eq!(account["descriptors"].as_array().unwrap().len(), 16);
    assert_eq!(account["omitted"], 4);
    assert_eq!(account["code"], "OVER_LIMIT");
}

#[test]
fn a_request_without_a_domain_or_descriptors_is_refused() {
    let matcher = matcher(SHOP);
    let refused = |message: &RateLimitRequest| by_rules(&matcher, message, NOW).unwrap_err();
    let bad = refused(&question("", &pairs(&["a=b"]), None));
    assert_eq!(bad, Unexplained::BadRequest(BadRequest::EmptyDomain));
    let bad = refused(&question("shop", &[], None));
    assert_eq!(bad, Unexplained::BadRequest(BadRequest::NoDescriptors));
}

/// The entries match a rule, but another one takes the first entry.
#[test]
fn a_way_that_another_node_hides_is_suggested() {
    let rules = "
domain: shop
descriptors:
  - key: path
    value: /login
    descriptors: [{ key: user, rate_limits: [1/day] }]
  - key: path
    descriptors:
      - { key: remote_address, rate_limits: [1/day] }
";
    let account = account(rules, "shop", &["path=/login,remote_address=x"]);
    let one = &account["descriptors"][0];
    let suggestion = "entry 1 would lead to this rule by `path`, but `path=/login` matches first; repeat the levels there";
    assert_eq!(one["suggestion"], suggestion);
    assert_eq!(one["nearest"]["path"], "shop.path.remote_address");
    assert_eq!(one["path"][0]["node"]["line"], 4);
    assert_eq!(one["path"][0]["others"][0]["wouldReach"], true);
}

#[test]
fn limits_without_an_effect_say_why() {
    let rules = "
domain: shop
descriptors:
  - { key: trial, shadow_mode: true, rate_limit: { unit: day } }
  - { key: first, quota_mode: true, rate_limit: { unit: day } }
  - { key: second, quota_mode: true, rate_limits: [1/day] }
";
    let why = |descriptors: &[&str]| {
        let account = account(rules, "shop", descriptors);
        let why = account["why"].as_str().unwrap().to_owned();
        let code = account["code"].as_str().unwrap().to_owned();
        (code, why.replace("; counters are taken as empty", ""))
    };
    let check = |descriptors: &[&str], code: &str, expected: &str| {
        assert_eq!(why(descriptors), (code.to_owned(), expected.to_owned()));
    };
    check(
        &["trial=x"],
        "OK",
        "descriptor 1 is over the limit, but in shadow mode",
    );
    let quota = "descriptor 1 is over the limit, but another quota has room";
    check(&["first=x", "second=x"], "OK", quota);
    let all = "all quotas are over the limit: descriptors 1, 2";
    check(&["first=x", "first=y"], "OVER_LIMIT", all);
}

/// The explanation of `hits` for descriptors of these keys, from a look at counters.
#[track_caller]
fn looked_account(
    matcher: &Matcher,
    modes: Modes,
    keys: &[&str],
    hits: u64,
    looked: &[CounterState],
) -> Value {
    let descriptors: Vec<_> = keys.iter().map(|key| format!("{key}=x")).collect();
    let descriptors: Vec<_> = descriptors.iter().map(String::as_str).collect();
    let message = question("d", &pairs(&descriptors), Some(hits.cast_signed()));
    let request = wire::request(&message).unwrap();
    serde_json::from_str(&explain(matcher, &request, modes, NOW, Some(Ok(known(looked)))).json())
        .unwrap()
}

/// These states, of which no hit is leased.
fn known(counts: &[CounterState]) -> CounterLook<'_> {
    CounterLook {
        counts,
        leased: &[],
    }
}

/// The answers to looks at counters that hold `counts`.
fn looks(counts: &[u64]) -> Vec<CounterState> {
    let look = |&count| CounterState {
        is_charged: false,
        ..CounterState::from(count)
    };
    counts.iter().map(look).collect()
}

const FIVES: &str = "
domain: d
descriptors:
  - { key: a, rate_limits: [5/hour] }
  - { key: b, rate_limits: [5/hour] }
  - { key: shadow, shadow_mode: true, rate_limits: [5/hour] }
  - { key: quota, quota_mode: true, rate_limits: [5/hour] }
  - { key: other_quota, quota_mode: true, rate_limits: [5/hour] }
  - { key: shadow_quota, shadow_mode: true, quota_mode: true, rate_limits: [5/hour] }
  - { key: admitted, count: admitted, rate_limits: [5/hour] }
  - { key: log, rate_limit: { unit: hour, requests_per_unit: 5, algorithm: sliding_log } }
";

#[test]
fn the_overall_code_has_its_reason() {
    let rules = matcher(FIVES);
    let check = |modes: Modes, keys: &[&str], counts: &[u64], expected: [&str; 3]| {
        let account = looked_account(&rules, modes, keys, 1, &looks(counts));
        let found = [&account["code"], &account["settledBy"], &account["why"]];
        assert_eq!(found, expected, "{keys:?} {counts:?}");
    };
    let plain = Modes::default();
    let none = "no limit applies to any descriptor";
    check(plain, &["none"], &[], ["OK", "no_limits", none]);
    check(
        plain,
        &["none", "a"],
        &[4],
        ["OK", "room", "no limit is over"],
    );
    let over = "descriptor 2 is over the limit";
    let keys = ["a", "b", "shadow", "quota", "other_quota"];
    check(plain, &keys, &[0, 5, 5, 5, 0], ["OVER_LIMIT", "over", over]);
    let quotas = "all quotas are over the limit: descriptors 2, 3";
    let keys = ["a", "quota", "other_quota"];
    check(plain, &keys, &[0, 5, 5], ["OVER_LIMIT", "quotas", quotas]);
    let spared = "descriptor 2 is over the limit, but in shadow mode; \
        descriptor 4 is over the limit, but another quota has room";
    let keys = ["a", "shadow", "quota", "other_quota"];
    check(plain, &keys, &[0, 5, 0, 5], ["OK", "spared", spared]);
    let spared = "descriptors 1, 3 are over the limit, but in shadow mode";
    let keys = ["shadow_quota", "a", "shadow", "quota"];
    check(plain, &keys, &[5, 0, 5, 0], ["OK", "spared", spared]);
    // The answer is OK, but the reason is the reason for a refusal.
    let shadow = Modes {
        shadow: true,
        ..plain
    };
    let over = "descriptor 2 is over the limit, and shadow mode of the server answers OK";
    check(shadow, &["a", "b"], &[0, 5], ["OK", "over", over]);
}

#[test]
fn counters_are_empty_if_the_look_is_of_another_request() {
    for (looked, remaining) in [(&[3_u64][..], 2), (&[3, 3], 5), (&[], 5)] {
        let looked = looks(looked);
        let account = looked_account(&matcher(FIVES), Modes::default(), &["a"], 1, &looked);
        let limit = &account["descriptors"][0]["limits"][0];
        assert_eq!(limit["remaining"], remaining, "{limit}");
    }
}

#[test]
fn a_counter_has_its_count_and_the_effect_of_the_hits() {
    let looked = looks(&[4, 4]);
    let account = looked_account(&matcher(FIVES), Modes::default(), &["a", "log"], 2, &looked);
    // A fixed window counts what it refuses, and a log does not.
    for (at, is_charged) in [(0, true), (1, false)] {
        let limit = &account["descriptors"][at]["limits"][0];
        assert_eq!(
            (&limit["count"], &limit["remaining"]),
            (&4.into(), &1.into())
        );
        let effect = (&limit["over"], &limit["charged"]);
        assert_eq!(effect, (&true.into(), &is_charged.into()));
        assert_eq!(limit["window"].is_object(), is_charged);
    }
}

#[test]
fn keys_of_the_reference_have_windows_for_all_algorithms() {
    let mut rules = matcher(FIVES);
    rules.key_format = KeyFormat::Reference;
    let account = looked_account(&rules, Modes::default(), &["log"], 1, &[]);
    assert!(account["descriptors"][0]["limits"][0]["window"].is_object());
}

#[test]
fn a_limit_of_the_request_has_no_way_through_the_rules() {
    let body = br#"{"domain":"d","descriptors":[{"entries":[{"key":"own"}],"limit":{"requestsPerUnit":5,"unit":"HOUR"}}]}"#;
    let account = by_rules(&matcher(FIVES), &grpc::proto::request(body).unwrap(), NOW);
    let account: Value = serde_json::from_str(&account.unwrap()).unwrap();
    let own = &account["descriptors"][0];
    assert_eq!(
        (&own["result"], &own["path"]),
        (&"own_limit".into(), &Value::Array(vec![]))
    );
    assert_eq!(own["limits"][0]["rate"], "5/hour");
    assert_eq!(own.get("rule"), None);
}

#[test]
fn an_account_can_be_read() {
    let rules = matcher(FIVES);
    let descriptors = pairs(&["a=x", "none=x", "log=x"]);
    let written = by_rules(&rules, &question("d", &descriptors, None), NOW).unwrap();
    let read: Explanation = serde_json::from_str(&written).unwrap();
    assert_eq!(read.json(), written);
}
