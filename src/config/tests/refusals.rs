//! Bodies of refusals in rule files.

use super::{
    load,
    mistakes::{check, check_bodies},
};
use crate::core::refusal::{Placeholder, RefusalBody, RuleRefusal};

/// The refusal of the rule of `k`, with these settings of the file and of the descriptor.
fn refusal(file: &str, own: &str) -> Option<RuleRefusal> {
    let text = format!(
        "domain: d\n{file}\ndescriptors:\n  - key: k\n    {own}\n    rate_limits: [5/day]\n"
    );
    let loaded = load(&text);
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings[0]);
    loaded.matcher.rules()[0].refusal.as_deref().cloned()
}

fn content_type(own: &str) -> Option<String> {
    refusal("", own).map(|refusal| refusal.content_type)
}

#[test]
fn a_body_is_a_problem_or_a_text_of_a_known_type() {
    assert_eq!(refusal("", ""), None);
    let problem = refusal("", "refusal: {body: problem+json, status: 503}").unwrap();
    assert_eq!(problem.content_type, "application/problem+json");
    assert_eq!((problem.body, problem.status), (RefusalBody::Problem, 503));
    for (given, sent) in [
        ("", "text/plain; charset=utf-8"),
        (", content_type: text/plain", "text/plain; charset=utf-8"),
        (
            ", content_type: text/html;charset=UTF-8",
            "text/html; charset=utf-8",
        ),
        (", content_type: text/xml", "text/xml; charset=utf-8"),
        (", content_type: application/json", "application/json"),
        (
            ", content_type: application/problem+json",
            "application/problem+json",
        ),
        (
            ", content_type: 'application/json; charset=utf-8'",
            "application/json; charset=utf-8",
        ),
        (
            ", content_type: application/xhtml+xml",
            "application/xhtml+xml",
        ),
    ] {
        let body = "refusal: {body: '[\"{limit}\", {retry_after}]'";
        let found = content_type(&format!("{body}{given}}}"));
        assert_eq!(found.as_deref(), Some(sent), "{given}");
    }
}

#[test]
fn a_refusal_has_headers_of_its_own() {
    let headers = |own: &str| refusal("", own).unwrap().headers;
    let own = "refusal: {body: problem+json, headers: {x-should-retry: 'false', x-Code: a b}}";
    let expected = [("x-should-retry", "false"), ("x-Code", "a b")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(*headers(own), expected);
    assert!(headers("refusal: {body: no, headers: {}}").is_empty());
    assert!(headers("refusal: {body: no, headers: }").is_empty());
}

#[test]
fn a_header_that_cannot_be_sent_is_told() {
    let name = |name: &str| format!("a rule cannot set the header `{name}`; use another name");
    let value = |name: &str| {
        format!(
            "the value of the header `{name}` must be a text of printable ASCII; write numbers and booleans in quotes"
        )
    };
    for (headers, said) in [
        ("{content-type: a}", name("content-type")),
        ("{Transfer-Encoding: a}", name("Transfer-Encoding")),
        ("{Retry-After: '5'}", name("Retry-After")),
        ("{':status': '200'}", name(":status")),
        ("{'a b': c}", name("a b")),
        ("{'': c}", name("")),
        ("{x: a, X: b}", name("X")),
        ("{x: false}", value("x")),
        ("{x: 5}", value("x")),
        ("{x: [a]}", value("x")),
        ("{x: }", value("x")),
        ("{x: \"a\\r\\nb\"}", value("x")),
        ("{x: \u{e9}}", value("x")),
    ] {
        let body = format!("refusal: {{body: no, headers: {headers}}}\nrate_limits: [5/day]");
        let text = super::descriptor(&body);
        let problems = super::compile_texts(&[&text], super::Options::default()).unwrap_err();
        assert_eq!(problems.len(), 1, "{headers}: {problems:?}");
        assert!(
            problems[0].to_string().ends_with(&said),
            "{headers}: {problems:?}"
        );
    }
    let many: Vec<_> = (0..17).map(|number| format!("x{number}: a")).collect();
    let many = format!(
        "refusal: {{body: no, headers: {{{}}}}}\nrate_limits: [5/day]",
        many.join(", ")
    );
    check_bodies(&[
        (&many, "4:158: d.k: more than 16 headers; remove some"),
        (
            "refusal: {body: none, headers: {x: a}}\nrate_limits: [5/day]",
            "4:40: d.k: `headers` does not go with `body: none`; remove them",
        ),
        (
            "refusal: {body: 'no', headers: [x]}\nrate_limits: [5/day]",
            "4:37: d.k: `headers` must be a map, not a list",
        ),
    ]);
}

#[test]
fn a_body_can_have_several_lines() {
    let own = "refusal:
      content_type: application/json
      body: |
        {
          \"limit\": {limit},
          \"status\": {status}
        }";
    let refusal = refusal("", own).unwrap();
    let RefusalBody::Template(template) = refusal.body else {
        panic!("it is a text");
    };
    assert!(template.has(Placeholder::Limit) && template.has(Placeholder::Status));
}

#[test]
fn a_file_has_a_body_for_all_rules_without_one() {
    let file = "refusal: {body: problem+json}";
    assert_eq!(refusal(file, "").unwrap().body, RefusalBody::Problem);
    let text = refusal(file, "refusal: {body: no}").unwrap();
    assert_eq!(text.content_type, "text/plain; charset=utf-8");
    assert_eq!(refusal(file, "refusal: {body: none}"), None);
    assert!(refusal(file, "refusal:").is_some());
    let shadowed = refusal(file, "shadow_mode: true");
    assert!(shadowed.is_some());
}

#[test]
fn a_mistake_in_a_body_is_told_with_its_fix() {
    check_bodies(&[
        (
            "refusal: {content_type: text/html}\nrate_limits: [5/day]",
            "4:15: d.k: `refusal` has no `body`; write `body: problem+json`, a text, or `none`",
        ),
        (
            "refusal: {body: ''}\nrate_limits: [5/day]",
            "4:15: d.k: `refusal` has no `body`; write `body: problem+json`, a text, or `none`",
        ),
        (
            "refusal: {bdy: none}\nrate_limits: [5/day]",
            "4:15: d.k: unknown key 'bdy' (expected `body`)",
        ),
        (
            "refusal: problem+json\nrate_limits: [5/day]",
            "4:14: d.k: `refusal` must be a map, not problem+json",
        ),
        (
            "refusal: Too many requests\nrate_limits: [5/day]",
            "4:14: d.k: `refusal` must be a map, not Too many requests",
        ),
        (
            "refusal: {body: 'in {retry_afer} s'}\nrate_limits: [5/day]",
            "4:22: d.k: unknown placeholder {retry_afer} ({limit}, {rate}, {requests}, {period}, {retry_after}, \
                 {reset_after} or {status}; for the text itself, write a blank after its brace)",
        ),
        (
            "refusal: {body: 'of {remote_address}'}\nrate_limits: [5/day]",
            "4:22: d.k: unknown placeholder {remote_address} ({limit}, {rate}, {requests}, {period}, {retry_after}, \
             {reset_after} or {status}; for the text itself, write a blank after its brace)",
        ),
        (
            "refusal: {body: 'no', content_type: image/png}\nrate_limits: [5/day]",
            "4:41: d.k: unknown content_type 'image/png' (text/plain, text/html, application/json or another type of \
                 text, XML or JSON)",
        ),
        (
            "refusal: {body: problem+json, content_type: text/html}\nrate_limits: [5/day]",
            "4:49: d.k: `content_type` does not go with `body: problem+json`; its type is application/problem+json",
        ),
        (
            "refusal: {body: none, status: 503}\nrate_limits: [5/day]",
            "4:35: d.k: `status` does not go with `body: none`; remove it",
        ),
        (
            "refusal: {body: 'no', status: 503}\nrate_limits: [5/day]",
            "4:35: d.k: `status` does not go with a `body` without `{status}`; remove it: Envoy's \
             `rate_limited_status` decides the status",
        ),
        (
            "refusal: {body: 'no {status}', status: 200}\nrate_limits: [5/day]",
            "4:44: d.k: `status` must be a whole number from 400 to 599, not 200",
        ),
        (
            "refusal: {body: '{\"error\": {limit}', content_type: application/json}\nrate_limits: [5/day]",
            "4:22: d.k: the body would not be JSON: EOF while parsing an object at line 1 column 16; correct it, or \
             its `content_type`",
        ),
        (
            "refusal: {body: '{requests}0', content_type: application/json}\nrate_limits: [5/day]",
            "4:22: d.k: the body would not be JSON: invalid number at line 1 column 2; correct it, or its \
             `content_type`",
        ),
        (
            "refusal: {body: problem+json}\nrate_limit: {unlimited: true}",
            "4:15: d.k: `refusal` does not go with `unlimited`; remove it: such a rule refuses nothing",
        ),
        (
            "rate_limits: [{unit: day, requests_per_unit: 1, refusal: {body: none}}]",
            "4:53: d.k: warning: `refusal` means nothing here and is ignored; it belongs at the top of the file",
        ),
    ]);
    check(&[(
        "domain: d\nrefusal: {body: '{x}'}\ndescriptors: [{key: k, rate_limits: [5/day]}]\n",
        "2:18: d: unknown placeholder {x} ({limit}, {rate}, {requests}, {period}, {retry_after}, {reset_after} or \
         {status}; for the text itself, write a blank after its brace)",
    )]);
    let long = format!(
        "domain: d\nrefusal: {{body: '{}'}}\ndescriptors: [{{key: k, rate_limits: [5/day]}}]\n",
        "{limit}".repeat(50)
    );
    let said = "2:18: d: this body is sent with every refusal, and can become 19300 bytes long; 16384 is the most";
    check(&[(&long, said)]);
}
