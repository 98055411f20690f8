use super::{unreadable::at, *};

/// A filter without traps except those in `more`, in an EnvoyFilter or the like.
fn filter(more: &str) -> String {
    format!(
        "value:\n  '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit\n  \
         domain: d\n  failure_mode_deny: false\n  enable_x_ratelimit_headers: DRAFT_VERSION_03\n{more}"
    )
}

/// The traps in a text: `line:column severity trap`.
fn traps(text: &str) -> Vec<String> {
    let findings = lint(text, None).unwrap();
    let show = |finding: &Finding| {
        let place = at(finding.position);
        format!("{place}{:?} {}", finding.severity, finding.trap)
    };
    findings.iter().map(show).collect()
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    assert_eq!(traps(text), expected);
}

#[test]
fn a_timeout_is_looked_at_closely() {
    check(&filter("  timeout: 0.25s\n"), &[]);
    check(&filter(""), &["2:4: Warning timeout"]);
    check(&filter("  timeout: 250ms\n"), &["6:12: Error timeout"]);
    check(&filter("  timeout: 0.020s\n"), &["6:12: Warning timeout"]);
    check(&filter("  timeout: 0s\n"), &["6:12: Warning timeout"]);
}

#[test]
fn a_refusal_has_a_code_of_a_refusal() {
    let coded = |code: &str| {
        filter(&format!(
            "  timeout: 1s\n  rate_limited_status: {{ code: {code} }}\n"
        ))
    };
    for good in ["429", "Forbidden", "\"503\""] {
        check(&coded(good), &[]);
    }
    for bad in ["200", "OK", "TemporaryRedirect"] {
        check(&coded(bad), &["7:26: Warning status"]);
    }
}

#[test]
fn both_spellings_and_typed_structs_are_read() {
    let json = r#"{"value": {
        "@type": "type.googleapis.com/xds.type.v3.TypedStruct",
        "type_url": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "value": {"domain": "d", "failureModeDeny": true, "timeout": "0.01s",
                  "enableXRatelimitHeaders": "DRAFT_VERSION_03"}}}"#;
    let findings = lint(json, None).unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].path, "value.value.timeout");
    assert_eq!(findings[0].position, None);
}

#[test]
fn documents_of_one_file_are_told_apart() {
    let text = format!("# nothing\n---\n{}---\n{}", filter(""), filter(""));
    let findings = lint(&text, None).unwrap();
    let shown: Vec<_> = findings
        .iter()
        .map(|finding| format!("{}{}", at(finding.position), finding.path))
        .collect();
    assert_eq!(shown, ["4:4: document 1: value", "10:4: document 2: value"]);
}

/// A request may bring values that an action leaves open; only impossible matches are reported.
#[test]
fn rules_answer_what_some_request_could_bring() {
    use crate::{
        config::{files::Files, options::Options, source::Source},
        core::matcher::Matcher,
    };
    let matcher = |text: &str| -> Matcher {
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::write(folder.path().join("d.yaml"), text).unwrap();
        let source = Source::Paths(vec![folder.path().to_owned()]);
        let loaded = Files::read(&source).compile(Options::default());
        loaded.unwrap().matcher
    };
    let rules = matcher(
        "domain: d\ndescriptors:\n- key: a\n  value: x.y\n  rate_limit: {unit: day, requests_per_unit: 1}\n  \
         descriptors: [{key: b, value: '*z', rate_limit: {unit: day, requests_per_unit: 1}}]\n",
    );
    let answered = |actions: &str| {
        let text = filter(&format!(
            "  timeout: 1s\n  rate_limits:\n  - actions: {actions}\n"
        ));
        lint(&text, Some(&rules)).unwrap().is_empty()
    };
    let a = "{request_headers: {header_name: a, descriptor_key: a}}";
    let b = "{metadata: {descriptor_key: b}}";
    assert!(answered(&format!("[{a}]")));
    assert!(answered(&format!("[{a}, {b}]")));
    assert!(answered(
        "[{generic_key: {descriptor_key: a, descriptor_value: x.y}}]"
    ));
    assert!(answered(
        "[{generic_key: {descriptor_key: a, descriptor_value: '%REQ(a)%'}}]"
    ));
    assert!(answered("[{extension: {name: expr}}]"), "it is not known");
    for nothing in [
        format!("[{b}]"),
        format!("[{b}, {a}]"),
        format!("[{a}, {b}, {b}]"),
        "[{generic_key: {descriptor_key: a, descriptor_value: x}}]".to_owned(),
        "[{remote_address: {}}]".to_owned(),
    ] {
        assert!(!answered(&nothing), "{nothing}");
    }
}

#[test]
fn what_is_no_configuration_is_refused_with_its_place() {
    let error = |text: &str| lint(text, None).unwrap_err().to_string();
    assert!(error("").contains("not an Envoy configuration"));
    assert!(error("domain: shop").contains("not an Envoy configuration"));
    assert!(error("[1, 2]").contains("not an Envoy configuration"));
    assert!(error("a: [1,\nb: }").starts_with("2:"));
    assert!(error("a: 1\n---\n- b: }").starts_with("3:"));
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    assert!(!error(&deep).is_empty());
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(1_000), "]".repeat(1_000));
    assert!(!error(&deep).is_empty());
}
