//! Warnings of rules that are valid and have no effect: nodes that no request reaches, or that limit nothing.

use std::fmt;

use crate::{
    config::{
        fault::{Fault, shortened},
        file::{File, ParsedFile},
        mirror::{DescriptorNode, Limits},
        problems::{DescriptorPath, Problems, joined},
    },
    core::matcher::{Matcher, NodeId},
};

/// The bytes of wildcards that are compared with the nodes of one level, which can have thousands of both.
const MAX_COMPARED_BYTES: usize = 32 << 20;

/// Adds the warnings of rules that compiled to `matcher` without an error.
pub(super) fn warn(sources: &[ParsedFile<'_>], matcher: &Matcher, problems: &mut Problems) {
    for ParsedFile { file, rules } in sources {
        if let Some(root) = matcher.root(rules.domain.as_bytes()) {
            let top = (root, &rules.domain as &dyn fmt::Display);
            without_effect(file, top, &rules.descriptors, matcher, problems);
        }
    }
}

fn without_effect(
    file: &File,
    (level, parent): (NodeId, &dyn fmt::Display),
    descriptors: &[DescriptorNode],
    matcher: &Matcher,
    problems: &mut Problems,
) {
    let mut compared = 0;
    for descriptor in descriptors {
        let (key, value, at) = (&descriptor.key, &descriptor.value, descriptor.at);
        let Some(node) = matcher.child(level, key.as_bytes(), value.as_bytes()) else {
            continue;
        };
        let path = DescriptorPath { parent, key, value };
        compared += matcher.wildcard_bytes(level);
        if compared <= MAX_COMPARED_BYTES
            && let Some(other) = matcher.hidden_by(level, node)
        {
            let (key, value) = matcher.key_and_value(other);
            let [key, value] = [key, value].map(String::from_utf8_lossy);
            let fault = Fault::NeverReached(shortened(&joined(&key, &value)));
            problems.push(file.problem(at, &path.to_string(), fault));
        }
        let is_empty = match &descriptor.limits {
            Limits::None => true,
            Limits::One(_) => false,
            Limits::List(limits) => limits.is_empty(),
        };
        if is_empty && descriptor.descriptors.is_empty() {
            problems.push(file.problem(at, &path.to_string(), Fault::NoLimitHere));
        }
        let below = &descriptor.descriptors;
        without_effect(file, (node, &path), below, matcher, problems);
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{files::Files, rule_defaults::Options};

    /// Checks a file of domain `d` with these descriptors, from line 3 on, and the beginnings of its warnings.
    #[track_caller]
    fn check(descriptors: &[&str], expected: &[&str]) {
        let items = descriptors.iter().map(|item| format!("- {{{item}}}\n"));
        let text = format!("domain: d\ndescriptors:\n{}", items.collect::<String>());
        let loaded = Files::of("a.yaml", &text).compile(Options::default());
        let loaded = loaded.unwrap_or_else(|problems| panic!("{}", problems[0]));
        let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
        let mut both = warnings.iter().zip(expected);
        let is_as_expected = both.all(|(warning, start)| warning.starts_with(start));
        assert!(
            warnings.len() == expected.len() && is_as_expected,
            "{warnings:#?}"
        );
    }

    #[test]
    fn a_leaf_without_a_limit_is_doubted() {
        let child = "key: b, rate_limits: [1/s]";
        check(
            &["key: a", "key: c, rate_limit: null", child],
            &[
                "a.yaml:3:9: d.a: warning: no limit, and no descriptors below: requests that end here pass",
                "a.yaml:4:9: d.c: warning: no limit",
            ],
        );
        check(
            &[
                &format!("key: a, descriptors: [{{{child}}}]"),
                "key: c, rate_limit: {unlimited: true}",
            ],
            &[],
        );
        check(
            &[&format!("key: a, descriptors: [{{{child}}}, {{key: c}}]")],
            &["a.yaml:3:62: d.a.c: warning: no limit"],
        );
    }

    #[test]
    fn rules_that_nothing_reaches_are_doubted_on_every_level() {
        let limit = "rate_limits: [1/s]";
        let [first, second, bare] =
            ["value: a*, ", "value: ab*, ", ""].map(|value| format!("key: k, {value}{limit}"));
        check(
            &[&first, &second, &bare],
            &[
                "a.yaml:4:9: d.k_ab*: warning: never reached: 'k_a*' on the same level takes every value",
            ],
        );
        check(&[&second, &first, &bare], &[]);
        let all = format!("key: k, value: \"*\", {limit}");
        let expected = "warning: never reached: 'k_*' on the same level takes every value that this could match";
        check(&[&bare, &all], &[&format!("a.yaml:3:9: d.k: {expected}")]);
        let below = format!("key: p, descriptors: [{{{bare}}}, {{{all}}}]");
        check(&[&below], &[&format!("a.yaml:3:32: d.p.k: {expected}")]);
    }

    /// Rules with an error are not doubted: what is missing may be the error.
    #[test]
    fn errors_come_alone() {
        let text = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: x, requests_per_unit: 1}}\n- {key: b}\n";
        let problems = Files::of("a.yaml", text)
            .compile(Options::default())
            .unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
    }
}
