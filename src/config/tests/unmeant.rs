//! Values that mean something elsewhere: templates before they are rendered, patterns of other systems, and words for
//! no limit.

use super::{
    compile_texts,
    mistakes::{check, check_bodies},
};
use crate::config::{fault::FaultLevel, rule_defaults::Options};

const HELM: &str = "is a template that has not been rendered; render it first, such as with `helm template` or \
                    `envsubst`, and check the result";

/// Checks files, each with the place and the template of its only line.
#[track_caller]
fn check_templates(cases: &[(&str, &str, &str)]) {
    let lines: Vec<_> = cases
        .iter()
        .map(|(_, start, end)| format!("{start} {end}"))
        .collect();
    let texts = cases.iter().map(|(text, ..)| *text);
    let cases: Vec<_> = texts.zip(lines.iter().map(String::as_str)).collect();
    check(&cases);
}

/// Helm's braces are maps in YAML.
#[test]
fn a_template_in_the_place_of_a_value_is_named() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let file = |domain: &str, key: &str, more: &str| {
        format!("domain: {domain}\ndescriptors:\n- key: {key}\n  {more}\n")
    };
    let cases = [
        (
            file("{{ .Values.domain }}", "k", limit),
            "1:9: `{{ .Values.domain }}`",
            HELM,
        ),
        (
            file("{{.Values.domain}}", "k", limit),
            "1:9: `{{ .Values.domain }}`",
            HELM,
        ),
        (
            file("{{ include \"a\" . | quote }}", "k", limit),
            "1:9: `{{ include \"a\" . | quote }}`",
            HELM,
        ),
        (file("d", "{{ .key }}", limit), "3:8: d: `{{ .key }}`", HELM),
        (
            file("d", "a$b: {{ .key }}: c", limit),
            "3:13: `{{ .key }}`",
            HELM,
        ),
        (
            file("d", "k", &format!("value: {{{{ .value }}}}\n  {limit}")),
            "4:10: d: `{{ .value }}`",
            HELM,
        ),
        (
            file("d", "k", "rate_limit: {{ toYaml .limit }}"),
            "4:15: d.k: `{{ toYaml .limit }}`",
            HELM,
        ),
        (
            file("d", "k", "rate_limits: {{ .limits }}"),
            "4:16: d.k: `{{ .limits }}`",
            HELM,
        ),
        (
            file("d", "k", "rate_limits: [{{ .limit }}]"),
            "4:17: d.k: `{{ .limit }}`",
            HELM,
        ),
        (
            file("d", "k", "rate_limits: [\"{{ .count }}/day\"]"),
            "4:18: d.k: `{{ .count }}`",
            HELM,
        ),
        (
            file("d", "k", "rate_limits: [\"${COUNT}/day\"]"),
            "4:18: d.k: `${COUNT}`",
            HELM,
        ),
        (
            file(
                "d",
                "k",
                "rate_limit:\n    unit: {{ .unit }}\n    requests_per_unit: 1",
            ),
            "5:11: d.k: `{{ .unit }}`",
            HELM,
        ),
        (
            file(
                "d",
                "k",
                "rate_limit:\n    unit: ${UNIT}\n    requests_per_unit: 1",
            ),
            "5:5: d.k: `${UNIT}`",
            HELM,
        ),
        (
            file(
                "d",
                "k",
                "rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: {{ .name }}}]}",
            ),
            "4:67: d.k: `{{ .name }}`",
            HELM,
        ),
        (
            file(
                "d",
                "k",
                "rate_limit:\n    unit: day\n    requests_per_unit: {{ .count }}",
            ),
            "6:24: d.k: `{{ .count }}`",
            HELM,
        ),
        (
            file(
                "d",
                "k",
                "rate_limit:\n    unit: day\n    requests_per_unit: \"{{ .count }}\"",
            ),
            "6:25: d.k: `{{ .count }}`",
            HELM,
        ),
        (
            file("d", "k", "rate_limit: {unlimited: \"{{ .all }}\"}"),
            "4:28: d.k: `{{ .all }}`",
            HELM,
        ),
        (
            file("d", "k", &format!("count: ${{COUNT}}\n  {limit}")),
            "4:10: d.k: `${COUNT}`",
            HELM,
        ),
        (
            file(
                "d",
                "k",
                &format!("shadow_mode: {{{{ .shadow }}}}\n  {limit}"),
            ),
            "4:16: d.k: `{{ .shadow }}`",
            HELM,
        ),
        (
            "domain: d\ndescriptors: {{ toYaml .rules }}\n".to_owned(),
            "2:14: d: `{{ toYaml .rules }}`",
            HELM,
        ),
        (
            "domain: d\ndescriptors:\n- {{ .rule }}\n".to_owned(),
            "3:3: d: `{{ .rule }}`",
            HELM,
        ),
        (
            "domain: d\ndescriptors:\n- '{{ .rule }}'\n".to_owned(),
            "3:4: d: `{{ .rule }}`",
            HELM,
        ),
        (
            file("d", "k", &format!("{{{{ .name }}}}: v\n  {limit}")),
            "4:3: d.k: `{{ .name }}`",
            HELM,
        ),
        (
            "{{ .Files.Get \"rules.yaml\" }}\n".to_owned(),
            "1:1: `{{ .Files.Get \"rules.yaml\" }}`",
            HELM,
        ),
    ];
    let cases: Vec<_> = cases
        .iter()
        .map(|(text, start, end)| (text.as_str(), *start, *end))
        .collect();
    check_templates(&cases);
}

/// A text can hold anything, so it is a warning there.
#[test]
fn a_template_inside_of_a_text_is_doubted() {
    let limit = "rate_limits: [5/day]";
    check(&[
        (
            &format!("domain: \"{{{{ .Values.domain }}}}\"\ndescriptors:\n- key: k\n  {limit}\n"),
            &format!("1:10: {{{{ .Values.domain }}}}: warning: `{{{{ .Values.domain }}}}` {HELM}"),
        ),
        (
            &format!("domain: shop-${{STAGE}}\ndescriptors:\n- key: k\n  {limit}\n"),
            &format!("1:9: shop-${{STAGE}}: warning: `${{STAGE}}` {HELM}"),
        ),
        (
            &format!(
                "domain: d\nrefusal: {{body: \"${{TEXT}}\"}}\ndescriptors:\n- key: k\n  {limit}\n"
            ),
            &format!("2:18: d: warning: `${{TEXT}}` {HELM}"),
        ),
    ]);
    let no_template = [
        "${jndi:ldap*}",
        "$100",
        "a}}b",
        "{{",
        "${}",
        "$(date -u)",
        "{ {x} }",
        "%s",
    ];
    for value in no_template {
        check(&[(
            &format!("domain: d\ndescriptors:\n- key: k\n  value: '{value}'\n  {limit}\n"),
            "",
        )]);
    }
}

#[test]
fn a_template_that_is_no_yaml_is_named() {
    check_templates(&[
        (
            "domain: d\ndescriptors:\n{{- range .Values.rules }}\n- key: {{ .key }}\n{{- end }}\n",
            "3:1: `{{- range .Values.rules }}`",
            HELM,
        ),
        (
            "domain: d\ndescriptors:\n{% for rule in rules %}\n- key: k\n{% endfor %}\n",
            "3:1: `{% for rule in rules %}`",
            HELM,
        ),
        (
            "domain: {{- .Values.domain }}\ndescriptors: []\n",
            "1:9: `{{- .Values.domain }}`",
            HELM,
        ),
        (
            "domain: {{ .Values.domain }}-shop\ndescriptors: []\n",
            "1:9: `{{ .Values.domain }}`",
            HELM,
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  rate_limits: [{{ .count }}/day]\n",
            "4:17: `{{ .count }}`",
            HELM,
        ),
    ]);
}

#[test]
fn a_word_for_no_limit_is_one_error_with_and_without_a_unit() {
    const NUMBER: &str =
        "`requests_per_unit` must be a whole number from 0 to 9007199254740991, not";
    let limit = |count: &str| format!("rate_limit:\n  unit: day\n  requests_per_unit: {count}");
    for word in ["unlimited", ".inf", "-1", "no"] {
        check_bodies(&[(&limit(word), &format!("6:26: d.k: {NUMBER} {word}"))]);
    }
    check_bodies(&[
        (&limit("'-1'"), &format!("6:27: d.k: {NUMBER} \"-1\"")),
        (
            "rate_limit: {requests_per_unit: unlimited}",
            &format!("4:37: d.k: {NUMBER} unlimited"),
        ),
        (
            "reserve: {estimate: 5}\nrate_limit: {requests_per_unit: abc}",
            &format!("5:37: d.k: {NUMBER} abc"),
        ),
        (
            &limit("~"),
            "5:7: d.k: warning: `requests_per_unit` is missing, so every request is refused; write it, 0 included",
        ),
        (
            "rate_limit: unlimited",
            "4:17: d.k: `rate_limit` must be a map, not unlimited",
        ),
    ]);
}

#[test]
fn patterns_of_other_systems_are_doubted_at_their_place() {
    let shown = |text: &str, kind: &str, fix: &str| {
        format!(
            "warning: `{text}` looks like {kind}, but is matched as text: only `*` is special, and stands for any \
             characters; {fix}"
        )
    };
    const TEXT: &str = "write the text itself, with `*` for any characters";
    let regex = "a regular expression";
    check_bodies(&[
        (
            "value: /part1/.*\nrate_limits: [5/s]",
            &format!("4:12: d.k_/part1/.*: {}", shown("/part1/.*", regex, TEXT)),
        ),
        (
            "value: '^/v1/[0-9]+$'\nrate_limits: [5/s]",
            &format!(
                "4:13: d.k_^/v1/[0-9]+$: {}",
                shown("^/v1/[0-9]+$", regex, TEXT)
            ),
        ),
        ("value: /v1/{id}\nrate_limits: [5/s]", ""),
        ("value: /v1/*\nrate_limits: [5/s]", ""),
    ]);
    check(&[
        (
            "domain: d\ndescriptors:\n- key: x-.*\n  rate_limits: [5/s]\n",
            &format!("3:8: d.x-.*: {}", shown("x-.*", regex, TEXT)),
        ),
        // Both sides choose it.
        (
            "domain: d\ndescriptors:\n- key: generic_key\n  value: /v1/{id}\n  rate_limits: [5/s]\n",
            "",
        ),
    ]);
}

#[test]
fn ranges_of_addresses_are_doubted_but_where_envoy_sends_them() {
    let rule = |key: &str, value: &str| {
        format!("domain: d\ndescriptors:\n- key: {key}\n  value: '{value}'\n  rate_limits: [5/s]\n")
    };
    for (range, length) in [
        ("10.0.0.0/8", "v4_prefix_mask_len: 8"),
        ("192.0.2.7/24", "v4_prefix_mask_len: 24"),
        ("0.0.0.0/0", "v4_prefix_mask_len: 0"),
        ("2001:db8::/32", "v6_prefix_mask_len: 32"),
        ("::/0", "v6_prefix_mask_len: 0"),
        ("fe80::1/127", "v6_prefix_mask_len: 127"),
    ] {
        for key in ["remote_address", "client", "x"] {
            let expected = format!(
                "4:11: d.{key}_{range}: warning: `{range}` looks like a range of addresses, but is matched as text: \
                 only `*` is special, and stands for any characters; let Envoy send `masked_remote_address` with \
                 `{length}`, and write that key"
            );
            check(&[(&rule(key, range), &expected)]);
        }
        for key in [
            "masked_remote_address",
            "remote_address_match",
            "generic_key",
        ] {
            check(&[(&rule(key, range), "")]);
        }
    }
    for text in [
        "10.0.0.1",
        "10.0.0.1/32",
        "::1/128",
        "10.0.0.0/33",
        "10.0.0/8",
        "10.0.*",
        "10/8",
        "a/8",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/8/x",
    ] {
        check(&[(&rule("remote_address", text), "")]);
    }
}

/// As in the resources of Envoy Gateway.
#[test]
fn the_name_of_a_resource_is_a_note() {
    let text = "name: eg/listener\ndomain: d\ndescriptors:\n- key: k\n  rate_limits: [5/s]\n";
    let loaded = compile_texts(&[text], Options::default()).unwrap();
    let levels: Vec<_> = loaded
        .warnings
        .iter()
        .map(|found| found.fault.level())
        .collect();
    assert_eq!(levels, [FaultLevel::Note]);
    check(&[(
        text,
        "1:1: note: `name` beside `domain` names the resource of a control plane; it means nothing here",
    )]);
}
