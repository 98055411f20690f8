use super::*;
use crate::core::matcher::tests::{Change, LIMITED, UNLIMITED, entries, matcher_of};

/// The text and the path of the rule in the advice on a descriptor of `domain`.
fn advice(
    rules: &[(&[&str], Change)],
    domain: &[u8],
    pairs: &[(&str, &str)],
) -> Option<(String, Option<String>)> {
    let matcher = matcher_of(rules);
    let entries = entries(pairs);
    let no_limit = matcher.cause(domain, &entries).unwrap();
    let advice = matcher.suggestion(domain, &entries, &no_limit)?;
    Some((advice.text, advice.rule.map(|rule| rule.path.to_string())))
}

#[track_caller]
fn check(
    rules: &[(&[&str], Change)],
    pairs: &[(&str, &str)],
    expected: Option<(&str, Option<&str>)>,
) {
    let expected = expected.map(|(text, rule)| (text.to_owned(), rule.map(str::to_owned)));
    assert_eq!(advice(rules, b"d", pairs), expected);
}

#[test]
fn a_similar_domain_is_named() {
    let rules: &[(&[&str], Change)] = &[(&["a"], LIMITED)];
    let expected = "write `d` as the domain".to_owned();
    assert_eq!(advice(rules, b"e", &[("a", "1")]), Some((expected, None)));
    assert_eq!(advice(rules, b"other", &[("a", "1")]), None);
}

#[test]
fn a_similar_key_is_named_with_the_first_rule_below_it() {
    check(
        &[
            (&["plan"], LIMITED),
            (&["remote_address", "user"], LIMITED),
            (&["remote_address", "path"], LIMITED),
        ],
        &[("remote_adress", "1")],
        Some((
            "write `remote_address` as the key",
            Some("remote_address.user"),
        )),
    );
}

#[test]
fn a_key_of_another_level_is_named_with_that_level() {
    check(
        &[
            (&["plan", "area", "user"], LIMITED),
            (&["tenant", "user"], LIMITED),
        ],
        &[("user", "1")],
        Some((
            "`user` is the key of entry 3 in this rule; the order and the number of entries count",
            Some("plan.area.user"),
        )),
    );
    check(&[(&["plan"], LIMITED)], &[("user", "1")], None);
}

#[test]
fn a_bounded_number_of_levels_is_searched() {
    let check = |siblings: usize, is_found: bool| {
        let names: Vec<_> = (1..siblings).map(|number| format!("x{number}")).collect();
        let paths: Vec<_> = names.iter().map(|name| [name.as_str()]).collect();
        let paths = paths.iter().map(|path| (&path[..], LIMITED));
        let deep: (&[&str], Change) = (&["first", "user"], LIMITED);
        let rules: Vec<_> = [deep].into_iter().chain(paths).collect();
        assert_eq!(
            advice(&rules, b"d", &[("user", "1")]).is_some(),
            is_found,
            "{siblings}"
        );
    };
    // The root with its children, and the first of these with its only child.
    check(MAX_NODES - 3, true);
    check(MAX_NODES - 2, false);
}

#[test]
fn a_similar_value_is_named_or_the_first_rule_of_the_key() {
    let rules: &[(&[&str], Change)] = &[
        (&["other=gold"], LIMITED),
        (&["plan=free"], LIMITED),
        (&["plan=silver"], LIMITED),
    ];
    check(
        rules,
        &[("plan", "silvr")],
        Some((
            "write `silver` as the value; a rule without `value` is for all other values",
            Some("plan=silver"),
        )),
    );
    check(
        rules,
        &[("plan", "gold")],
        Some((
            "a rule without `value` is for all other values",
            Some("plan=free"),
        )),
    );
}

#[test]
fn entries_behind_the_rules_are_too_many() {
    let pairs = [("a", "1"), ("b", "2"), ("c", "3")];
    check(
        &[(&["a"], LIMITED)],
        &pairs,
        Some((
            "a descriptor of entry 1 alone would have the limits of this rule",
            Some("a"),
        )),
    );
    check(
        &[(&["a", "b"], LIMITED)],
        &pairs,
        Some((
            "a descriptor of entries 1 to 2 alone would have the limits of this rule",
            Some("a.b"),
        )),
    );
}

#[test]
fn an_entry_is_missing_where_limits_follow() {
    let rules: &[(&[&str], Change)] = &[(&["a", "b", "c"], LIMITED)];
    check(
        rules,
        &[("a", "1")],
        Some(("add an entry with the key `b` as entry 2", Some("a.b.c"))),
    );
    check(
        rules,
        &[("a", "1"), ("b", "2")],
        Some(("add an entry with the key `c` as entry 3", Some("a.b.c"))),
    );
}

#[test]
fn a_level_without_a_limit_needs_one() {
    check(
        &[(&["a"], None)],
        &[("a", "1")],
        Some(("add a `rate_limit` to this level", None)),
    );
}

#[test]
fn an_unlimited_rule_needs_a_limit_even_if_it_hides_another_rule() {
    check(
        &[(&["plan=free"], UNLIMITED), (&["plan"], LIMITED)],
        &[("plan", "free")],
        Some(("give the rule a limit instead of `unlimited`", None)),
    );
}

#[test]
fn a_rule_that_another_one_hides_is_named_with_the_entry_where_they_part() {
    check(
        &[(&["plan=free"], LIMITED), (&["plan", "user"], LIMITED)],
        &[("plan", "free"), ("user", "1")],
        Some((
            "entry 1 would lead to this rule by `plan`, but `plan=free` matches first; repeat the levels there",
            Some("plan.user"),
        )),
    );
    check(
        &[
            (&["tenant", "plan=free"], LIMITED),
            (&["tenant", "plan", "user"], LIMITED),
        ],
        &[("tenant", "1"), ("plan", "free"), ("user", "1")],
        Some((
            "entry 2 would lead to this rule by `plan`, but `plan=free` matches first; repeat the levels there",
            Some("tenant.plan.user"),
        )),
    );
}
