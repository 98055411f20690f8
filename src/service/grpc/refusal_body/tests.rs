use std::sync::Arc;

use prost::Message as _;

use super::*;
use crate::{
    core::{
        counter::CounterState,
        decision::decide,
        limit::{Allows, Limit, Modes, RuleId},
        matcher::Matcher,
        plan::Plan,
        refusal::{Syntax, Template},
        request::{Entry, Hits, Request},
        window::Unit,
    },
    service::grpc::{
        append, fast_path, proto::envoy::service::ratelimit::v3::RateLimitResponse, wire,
    },
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

/// A rule of one hit an hour, with a body that is its key.
fn rule(id: RuleId, key: &str) -> Rule {
    let template = Template::parse(key, Syntax::Plain).unwrap();
    Rule {
        id,
        path: format!("d.{key}").into(),
        number: 0,
        allows: Allows::Within([Limit::fixed(1, Unit::Hour)].into()),
        replaces: Box::default(),
        shadow_mode: false,
        quota_mode: false,
        counts: Default::default(),
        lease: None,
        on_store_loss: Default::default(),
        refusal: Some(Arc::new(RuleRefusal {
            content_type: "text/plain".to_owned(),
            body: RefusalBody::Template(template),
            status: 429,
            headers: Box::default(),
        })),
        metric: Default::default(),
        metadata: Default::default(),
    }
}

type Change = fn(&mut Rule);

/// The body of a request with a descriptor for each of the rules `a`, `b` and so on, whose counters hold `counts`.
fn body_for(changes: &[Change], counts: &[u64], modes: Modes) -> Option<RefusalText> {
    let mut matcher = Matcher::default();
    let root = matcher.insert_domain(b"d");
    let keys = ["a", "b", "c"];
    for (key, change) in keys.iter().zip(changes) {
        let node = matcher.insert(root, key.as_bytes(), b"").unwrap();
        matcher.set_rule(node, |id| {
            let mut rule = rule(id, key);
            change(&mut rule);
            rule
        });
    }
    let mut request = Request::new(b"d");
    for key in keys {
        request.push_entry(Entry {
            key: key.as_bytes(),
            value: b"\"}<script>\r\n",
        });
        request.push_descriptor(Hits::ONE, None);
    }
    let plan = Plan::new(&matcher, &request, modes, NOW);
    let counts: Vec<_> = counts.iter().copied().map(CounterState::from).collect();
    let decision = decide(&plan, &counts, modes, NOW);
    let basis = Basis {
        plan: &plan,
        counts: &counts,
    };
    body(&decision, &basis, NOW)
}

#[track_caller]
fn check(changes: &[Change], counts: &[u64], expected: Option<&str>) {
    let body = body_for(changes, counts, Modes::default());
    assert_eq!(body.map(|body| body.text).as_deref(), expected);
}

const PLAIN: Change = |_| {};
const SHADOWED: Change = |rule| rule.shadow_mode = true;
const QUOTA: Change = |rule| rule.quota_mode = true;
const SILENT: Change = |rule| rule.refusal = None;
const UNLIMITED: Change = |rule| rule.allows = Allows::Unlimited;

#[test]
fn the_rule_that_refuses_sends_its_body() {
    check(&[PLAIN, PLAIN], &[1, 1], None);
    check(&[PLAIN, PLAIN], &[1, 2], Some("b"));
    check(&[PLAIN, PLAIN], &[2, 1], Some("a"));
    // As `RateLimit-Limit`: the last one.
    check(&[PLAIN, PLAIN], &[2, 2], Some("b"));
    check(&[PLAIN, SILENT], &[2, 2], None);
    check(&[UNLIMITED, PLAIN], &[2], Some("b"));
}

#[test]
fn a_rule_in_shadow_mode_sends_none() {
    check(&[SHADOWED], &[2], None);
    // It has the least remaining and comes first, but refuses nothing.
    check(&[SHADOWED, QUOTA], &[2, 2], Some("b"));
    let shadow = Modes {
        shadow: true,
        ..Modes::default()
    };
    assert_eq!(body_for(&[PLAIN], &[2], shadow), None);
}

#[test]
fn quotas_send_a_body_when_all_of_them_are_over() {
    check(&[QUOTA, QUOTA], &[2, 1], None);
    check(&[QUOTA, QUOTA], &[2, 2], Some("a"));
}

#[test]
fn a_problem_names_the_limits_that_are_over_and_nothing_of_the_request() {
    const NAMED: Change = |rule| {
        let hourly = Limit {
            name: Some("a \"\u{e9}\n".into()),
            ..Limit::fixed(1, Unit::Hour)
        };
        let limits = [
            hourly,
            Limit::fixed(9, Unit::Day),
            Limit::fixed(0, Unit::Week),
        ];
        rule.allows = Allows::Within(limits.into());
        rule.refusal = Some(Arc::new(RuleRefusal {
            content_type: "application/problem+json".to_owned(),
            body: RefusalBody::Problem,
            status: 503,
            headers: Box::default(),
        }));
    };
    let body = |changes: &[Change], counts: &[u64]| {
        let body = body_for(changes, counts, Modes::default()).unwrap();
        assert_eq!(body.content_type, "application/problem+json");
        serde_json::from_str::<serde_json::Value>(&body.text).unwrap()
    };
    let never = body(&[SHADOWED, NAMED], &[2, 2, 9, 1]);
    assert_eq!(
        never,
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 503,
            "detail": "The limit of 0/week never lets such a request pass.",
            "violated-policies": ["a \"%c3%a9%0a", "0/week"],
        })
    );
    const TWO: Change = |rule| {
        NAMED(rule);
        let Allows::Within(limits) = &mut rule.allows else {
            return;
        };
        *limits = limits[..2].into();
    };
    let later = body(&[TWO], &[2, 8]);
    // An hour began 2800 seconds ago.
    let detail = "The limit a \"\u{e9}\n (1/hour) is used up; try again in 800 s.";
    assert_eq!(later["detail"], detail);
    assert_eq!(
        later["violated-policies"],
        serde_json::json!(["a \"%c3%a9%0a"])
    );
}

#[test]
fn a_body_appended_to_a_reply_is_read_as_part_of_it() {
    let mut decision = Decision::default();
    let text = || RefusalText {
        content_type: "text/html; charset=utf-8".to_owned(),
        text: "no".to_owned(),
        headers: [("x-should-retry".to_owned(), "false".to_owned())].into(),
    };
    let mut bytes = fast_path::reply(&decision);
    append(&mut bytes, Some(text()), None);
    let mut expected = wire::response(&mut decision, &Default::default(), &wire::Extras::default());
    wire::add_body(&mut expected, text());
    let read = |bytes: &[u8]| RateLimitResponse::decode(bytes).unwrap();
    assert_eq!(read(&bytes), expected);
    assert_eq!(&*read(&bytes).raw_body, b"no");
    let headers = read(&bytes).response_headers_to_add;
    let headers: Vec<_> = headers
        .iter()
        .map(|header| (&*header.key, &*header.value))
        .collect();
    let html = ("content-type", "text/html; charset=utf-8");
    assert_eq!(headers, [("x-should-retry", "false"), html]);
}

#[test]
fn a_type_that_would_break_the_response_is_not_sent() {
    let mut reply = RateLimitResponse::default();
    let body = RefusalText {
        content_type: "text/html\r\nx: y".to_owned(),
        text: "no".to_owned(),
        headers: Box::default(),
    };
    wire::add_body(&mut reply, body);
    assert_eq!(reply, RateLimitResponse::default());
}
