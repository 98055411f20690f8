//! Orders to tollgate: reservations, their settlement, and hits that are given back.

use super::{NAMED, Trap, filter, lint, manager, matcher};

const TENANT: &str = "{request_headers: {header_name: ':authority', descriptor_key: tenant}}";
const UNRESERVED: &str =
    "{generic_key: {descriptor_key: tollgate.unreserved, descriptor_value: '1'}}";
const AT_END: &str = "apply_on_stream_done: true";
const COST: &str =
    "hits_addend: {format: '%DYNAMIC_METADATA(llm:tokens)%'}, apply_on_stream_done: true";
const PER_ROUTE: &str =
    "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";

/// An action that reads a field of tollgate's metadata.
fn metadata(key: &str, field: &str) -> String {
    format!(
        "{{metadata: {{descriptor_key: {key}, metadata_key: {{key: envoy.filters.http.ratelimit, path: [{{key: \
         {field}}}]}}}}}}"
    )
}

fn reservation() -> String {
    metadata("tollgate.reservation", "reservation")
}

fn release() -> String {
    metadata("tollgate.release", "reservation")
}

/// An item with these actions and settings.
fn item(actions: &[&str], more: &str) -> String {
    format!("  - {{actions: [{}], {more}}}\n", actions.join(", "))
}

/// The items of a reservation without any trap.
fn complete() -> [String; 4] {
    [
        item(&[TENANT], ""),
        item(&[TENANT, &reservation()], COST),
        item(&[TENANT, UNRESERVED], COST),
        item(&[TENANT, &release()], AT_END),
    ]
}

/// A filter with these items.
fn limits(items: &[String]) -> String {
    filter(&format!(
        "  timeout: 1s\n  rate_limits:\n{}",
        items.concat()
    ))
}

/// The traps in a text but `stream-done`, each with its severity. `rule` has the settings of the rule for `tenant`.
fn found(text: &str, rule: Option<&str>) -> Vec<String> {
    let rules = rule.map(|rule| {
        matcher(&format!(
            "domain: d\ndescriptors:\n- key: tenant\n  rate_limit: {{unit: day, requests_per_unit: 1000}}\n  \
             {rule}\n- key: generic_key\n  rate_limit: {{unit: day, requests_per_unit: 1}}\n"
        ))
    });
    let mut found = lint(text, rules.as_ref()).unwrap().findings;
    found.retain(|finding| finding.trap != Trap::StreamDone);
    let show = |finding: &super::Finding| format!("{:?} {}", finding.severity, finding.trap);
    found.iter().map(show).collect()
}

/// Checks these items with a rule that gives back, and without rules.
#[track_caller]
fn check(items: &[String], expected: &[&str]) {
    let text = limits(items);
    assert_eq!(found(&text, Some(ZERO)), expected, "{text}");
    assert_eq!(found(&text, None), expected, "{text}");
}

const ZERO: &str = "reserve: {estimate: 800, missing: zero}";
const ESTIMATE: &str = "reserve: {estimate: 800}";
const ADMITTED: &str = "count: admitted";
const ALL: &str = "count: all";

#[test]
fn a_whole_reservation_has_no_trap() {
    check(&complete(), &[]);
    let mut items = complete();
    items.reverse();
    check(&items, &[]);
}

#[test]
fn a_cost_that_nothing_was_reserved_for_needs_an_entry_for_the_same_counters() {
    let mut items = complete();
    items[2] = String::new();
    check(&items, &["Warning lost-cost"]);
    items[2] = item(&[NAMED, UNRESERVED], COST);
    check(&items, &["Warning lost-cost"]);
    items[2] = item(&[TENANT, UNRESERVED], COST);
    check(&items, &[]);
    // Envoy sends no addend from a route.
    let on_route = format!(
        "domains: ['*']\nroutes: []\nrate_limits:\n{}",
        complete().concat()
    );
    assert_eq!(
        found(&on_route, None),
        ["Error hits-addend", "Error hits-addend"]
    );
}

#[test]
fn a_cost_must_not_have_a_value_on_refusals() {
    let with = |order: &str, more: &str| {
        let mut items = complete();
        let at = if order == UNRESERVED { 2 } else { 1 };
        items[at] = item(&[TENANT, order], &format!("{more}, {AT_END}"));
        items
    };
    for always in [
        "hits_addend: {number: 3}",
        "hits_addend: {format: '%BYTES_SENT%'}",
        "hits_addend: {format: '%BYTES_RECEIVED%'}",
        "hits_addend: {format: '%DURATION%'}",
        "hits_addend: {format: '%CEL(response.size)%'}",
        "hits_addend: {format: '%REQ(x-tokens):5%'}",
        "stage: 0",
    ] {
        check(&with(UNRESERVED, always), &["Warning charged-refusals"]);
        // Only requests that were not refused have a reservation.
        check(&with(&reservation(), always), &[]);
        let by_default =
            reservation().replace("descriptor_key", "default_value: x, descriptor_key");
        check(&with(&by_default, always), &["Warning charged-refusals"]);
    }
    for (answer, expected) in [
        ("%DYNAMIC_METADATA(llm:tokens)%", &[][..]),
        ("%RESP(x-tokens)%", &["Warning late-header"]),
        ("%RESPONSE_HEADER(x-tokens)%", &["Warning late-header"]),
        ("%TRAILER(x-tokens)%", &["Warning late-header"]),
    ] {
        let addend = format!("hits_addend: {{format: '{answer}'}}");
        check(&with(UNRESERVED, &addend), expected);
    }
}

#[test]
fn headers_of_an_answer_are_gone_at_its_end_before_a_version() {
    let late = |more: &str| limits(&[item(&[TENANT], ""), item(&[NAMED], more)]);
    let of_answer = "hits_addend: {format: '%RESP(x-tokens)%'}";
    let text = late(&format!("{of_answer}, {AT_END}"));
    assert_eq!(found(&text, None), ["Warning late-header"]);
    // At the request there are none either, and a route sends no addend.
    assert_eq!(found(&late(of_answer), None), [""; 0]);
    let on_route = format!(
        "domains: ['*']\nroutes: []\nrate_limits:\n{}",
        item(&[TENANT], COST)
    )
    .replace("%DYNAMIC_METADATA(llm:tokens)%", "%RESP(x-tokens)%");
    assert_eq!(found(&on_route, None), ["Error hits-addend"]);
    let dump = |version: &str| {
        let of_dump = "type.googleapis.com/envoy.admin.v3";
        format!(
            "configs:\n- '@type': {of_dump}.BootstrapConfigDump\n  bootstrap: {{node: {{user_agent_build_version: \
             {{version: {{{version}}}}}}}}}\n- {}",
            text.replace('\n', "\n  ")
        )
    };
    for (version, expected) in [
        (
            "major_number: 1, minor_number: 39, patch: 1",
            &["Warning late-header"][..],
        ),
        ("major_number: 1, minor_number: 40", &[]),
        ("major_number: 2", &[]),
        ("", &["Warning late-header"]),
    ] {
        assert_eq!(found(&dump(version), None), expected, "{version}");
        // Trailers are gone in all versions.
        let trailers = dump(version).replace("RESP(", "TRAILER(");
        assert_eq!(found(&trailers, None), ["Warning late-header"], "{version}");
    }
}

#[test]
fn missing_costs_are_zero_only_if_something_releases() {
    let without = |at: usize, other: String| {
        let mut items = complete();
        items[at] = other;
        limits(&items)
    };
    let text = without(3, String::new());
    assert_eq!(found(&text, Some(ZERO)), ["Warning no-release"]);
    for other in [Some(ESTIMATE), Some(ADMITTED), Some(ALL), None] {
        assert_eq!(found(&text, other), [""; 0], "{other:?}");
    }
    let text = without(3, item(&[NAMED, &release()], AT_END));
    assert_eq!(found(&text, Some(ZERO)), ["Warning no-release"]);
    // Another rule.
    let text = limits(&[item(&[NAMED], "")]);
    assert_eq!(found(&text, Some(ZERO)), [""; 0]);
}

#[test]
fn hits_are_given_back_for_admitted_requests_only() {
    let gives = |actions: &[&str], hits: &str| {
        let addend = format!("hits_addend: {{{hits}, is_negative_hits: true}}, {AT_END}");
        limits(&[item(&[NAMED], ""), item(actions, &addend)])
    };
    let text = gives(&[TENANT], "number: 1");
    for (rule, severity) in [
        (Some(ADMITTED), "Warning"),
        (Some(ESTIMATE), "Warning"),
        (Some(ALL), "Advice"),
        (None, "Advice"),
    ] {
        let expected = format!("{severity} ungated-give-back");
        assert_eq!(found(&text, rule), [expected]);
    }
    let gate = metadata("x", "reservation");
    for gated in [
        gives(&[TENANT, &gate], "number: 1"),
        gives(&[TENANT], "format: '%DYNAMIC_METADATA(llm:tokens)%'"),
        text.replace(AT_END, "apply_on_stream_done: false"),
        text.replace("is_negative_hits: true", "is_negative_hits: false"),
    ] {
        assert_eq!(found(&gated, None), [""; 0], "{gated}");
    }
    let skipped = gate.replace("descriptor_key", "skip_if_absent: true, descriptor_key");
    let text = gives(&[TENANT, &skipped], "number: 1");
    assert_eq!(found(&text, None), ["Advice ungated-give-back"]);
}

#[test]
fn a_reservation_needs_no_header_of_the_client() {
    let reserves = |format: &str| {
        let mut items = complete();
        items[0] = item(&[TENANT], &format!("hits_addend: {{format: '{format}'}}"));
        items
    };
    for optional in ["%REQ(x-estimate)%", "%REQUEST_HEADER(x-a?x-b)%"] {
        check(&reserves(optional), &["Warning addend-without-estimate"]);
    }
    for always in [
        "%REQ(:path)%",
        "%REQ(x-estimate?:path)%",
        "%BYTES_RECEIVED%",
    ] {
        check(&reserves(always), &[]);
    }
    // Without orders only the rule reserves.
    let text = limits(&reserves("%REQ(x-estimate)%")[..1]);
    let expected = ["Warning addend-without-estimate"];
    assert_eq!(found(&text, Some(ESTIMATE)), expected);
    assert_eq!(found(&text, Some(ADMITTED)), [""; 0]);
    assert_eq!(found(&text, None), [""; 0]);
}

#[test]
fn an_action_cannot_read_a_number() {
    let reads = |field: &str| limits(&[item(&[&metadata("tenant", field)], "")]);
    for (field, expected) in [
        ("reserved", &["Error string-metadata"][..]),
        ("hitsAddend", &["Error string-metadata"]),
        ("reservation", &[]),
        ("reserved}, {key: x", &[]),
    ] {
        assert_eq!(found(&reads(field), None), expected, "{field}");
    }
    let text = reads("reserved");
    let name = "key: envoy.filters.http.ratelimit";
    let other = text.replace(name, "key: shop");
    assert_eq!(found(&other, None), [""; 0]);
    let own = format!("{other}  metadata_namespace: shop\n");
    assert_eq!(found(&own, None), ["Error string-metadata"]);
    let of_route = text.replace("metadata_key", "source: ROUTE_ENTRY, metadata_key");
    assert_eq!(found(&of_route, None), [""; 0]);
}

#[test]
fn settlements_are_not_retried() {
    let retried = "  rate_limit_service: {grpc_service: {retry_policy: {num_retries: 1}}}\n";
    let text = |items: &[String]| format!("{}{retried}", limits(items));
    let one = "Warning retries";
    assert_eq!(found(&text(&complete()), None), [one, one]);
    assert_eq!(found(&text(&complete()[..1]), None), [one]);
}

#[test]
fn each_filter_of_a_chain_has_metadata_of_its_own() {
    let filters = |actions: &str, namespaces: [&str; 2]| {
        let text = manager("", "", actions);
        let at = text.find("- name: l\n").unwrap();
        let filters =
            namespaces.map(|own| format!("{}    metadata_namespace: {own}\n", &text[at..]));
        format!("{}{}", &text[..at], filters.concat())
    };
    let with_order = format!("{NAMED}, {}", release());
    let usual = "envoy.filters.http.ratelimit";
    for (namespaces, expected) in [
        (["''", "''"], &["Warning shared-metadata"][..]),
        (["''", usual], &["Warning shared-metadata"]),
        (["a", "a"], &["Warning shared-metadata"]),
        (["''", "a"], &[]),
        (["a", "b"], &[]),
    ] {
        let text = filters(&with_order, namespaces);
        assert_eq!(found(&text, None), expected, "{text}");
        assert_eq!(found(&filters(NAMED, namespaces), None), [""; 0]);
    }
    // A filter that reserves nothing writes no reservation, as beside one that a control plane made.
    let text = filters(NAMED, ["''", "''"]);
    let second = text.rfind("- name: l\n").unwrap();
    let own = |name: &str, item: &str| {
        let key = format!(
            "typed_per_filter_config: {{{name}: {{'@type': {PER_ROUTE}, vh_rate_limits: INCLUDE, rate_limits: \
             [{{actions: [{item}]}}]}}}}"
        );
        let text = format!(
            "{}{}",
            &text[..second],
            text[second..].replace("- name: l\n", "- name: m\n")
        );
        text.replace(
            "route: {cluster: a}",
            &format!("route: {{cluster: a}}, {key}"),
        )
    };
    for name in ["l", "m"] {
        assert_eq!(found(&own(name, &with_order), None), [""; 0]);
        assert_eq!(found(&own(name, TENANT), Some(ESTIMATE)), [""; 0]);
    }
    let both = own("m", &with_order).replace(NAMED, &with_order);
    assert_eq!(found(&both, None), ["Warning shared-metadata"]);
    let both = own("m", &with_order).replace(NAMED, TENANT);
    assert_eq!(found(&both, Some(ESTIMATE)), ["Warning shared-metadata"]);
    assert_eq!(found(&both, Some(ADMITTED)), [""; 0]);
    // A filter of a stage without items never calls.
    let text = filters(&with_order, ["''", "''"]);
    let silent = format!("{text}    stage: 3\n");
    assert_eq!(found(&silent, None), ["Error stage"]);
}

#[test]
fn a_slot_needs_a_release() {
    let rules = matcher(
        "domain: d\ndescriptors:\n- key: tenant\n  rate_limit: {algorithm: concurrency, ttl: 2m, \
         requests_per_unit: 5}\n",
    );
    let [slot, _, _, release] = complete();
    let traps = |items: &[String]| {
        let mut found = lint(&limits(items), Some(&rules)).unwrap().findings;
        found.retain(|finding| finding.trap != Trap::StreamDone);
        found.iter().map(|finding| finding.trap).collect::<Vec<_>>()
    };
    assert_eq!(traps(&[slot.clone(), release]), []);
    assert_eq!(traps(&[slot]), [Trap::NoRelease]);
}
