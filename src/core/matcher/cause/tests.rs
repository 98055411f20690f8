use proptest::prelude::*;

use super::*;
use crate::core::{
    counter::Joined,
    matcher::tests::{Change, LIMITED, UNLIMITED, entries, matcher_of},
};

/// A node without a rule.
const NONE: Change = None;

/// The cause and its text, for a descriptor of domain `d`.
#[track_caller]
fn check(
    rules: &[(&[&str], Change)],
    pairs: &[(&str, &str)],
    expected: Option<(Cause<'_>, usize, &str)>,
) {
    let matcher = matcher_of(rules);
    let entries = entries(pairs);
    let found = matcher.cause(b"d", &entries);
    let text = found.as_ref().map(ToString::to_string);
    let expected_text = expected.map(|(_, _, text)| text.to_owned());
    assert_eq!(text, expected_text);
    let expected = expected.map(|(cause, matched, _)| NoLimit { cause, matched });
    assert_eq!(found, expected);
}

#[test]
fn an_unknown_domain_is_a_cause() {
    let matcher = matcher_of(&[(&["a"], LIMITED)]);
    let found = matcher.cause(b"e", &[]).unwrap();
    assert_eq!(found.cause, Cause::UnknownDomain);
    assert_eq!(found.to_string(), "no rules are for this domain");
}

#[test]
fn a_domain_without_rules_is_a_cause() {
    check(
        &[],
        &[("a", "b")],
        Some((Cause::EmptyDomain, 0, "the domain has no rules")),
    );
}

#[test]
fn an_unknown_key_is_a_cause_and_the_nearest_key_is_named() {
    let rules: &[(&[&str], Change)] = &[
        (&["remote_address"], LIMITED),
        (&["plan=free", "user"], LIMITED),
    ];
    let unknown = |key: &'static str, near: Option<&'static str>| Cause::UnknownKey {
        key: key.as_bytes(),
        near: near.map(str::as_bytes),
    };
    check(
        rules,
        &[("remote_adress", "x")],
        Some((
            unknown("remote_adress", Some("remote_address")),
            0,
            "`remote_adress` is no key here (entry 1); did you mean `remote_address`?",
        )),
    );
    check(
        rules,
        &[("plan", "free"), ("User", "x")],
        Some((
            unknown("User", Some("user")),
            1,
            "`User` is no key here (entry 2); did you mean `user`?",
        )),
    );
    check(
        rules,
        &[("colour", "x")],
        Some((
            unknown("colour", None),
            0,
            "`colour` is no key here (entry 1)",
        )),
    );
}

#[test]
fn an_unknown_value_is_a_cause_and_no_value_of_the_rules_is_shown() {
    check(
        &[(&["plan=free"], LIMITED)],
        &[("plan", "gold")],
        Some((
            Cause::UnknownValue { key: b"plan" },
            0,
            "no rule is for this value of `plan` (entry 1)",
        )),
    );
}

#[test]
fn a_wrong_depth_is_a_cause() {
    let rules: &[(&[&str], Change)] = &[(&["a"], LIMITED), (&["b", "c"], LIMITED)];
    check(
        rules,
        &[("a", "x"), ("b", "y")],
        Some((
            Cause::TooManyEntries,
            1,
            "the rules end at entry 1; leave out the entries after it, or add rules below",
        )),
    );
    check(
        rules,
        &[("b", "x")],
        Some((
            Cause::TooFewEntries,
            1,
            "the limits are deeper; the descriptor needs more entries after entry 1",
        )),
    );
    check(
        rules,
        &[],
        Some((Cause::TooFewEntries, 0, "the descriptor is empty")),
    );
}

#[test]
fn a_node_without_a_limit_is_a_cause() {
    check(
        &[(&["a"], NONE)],
        &[("a", "x")],
        Some((Cause::WithoutLimit, 1, "the rule has no limit")),
    );
}

#[test]
fn an_unlimited_rule_is_a_cause() {
    check(
        &[(&["a"], UNLIMITED)],
        &[("a", "x")],
        Some((Cause::Unlimited, 1, "the rule is `unlimited`")),
    );
}

#[test]
fn a_limit_has_no_cause() {
    check(&[(&["a"], LIMITED)], &[("a", "x")], None);
}

#[test]
fn a_long_key_is_cut_and_one_that_is_no_text_is_shown() {
    let long = "k".repeat(1000);
    let no_limit = |key| NoLimit {
        cause: Cause::UnknownValue { key },
        matched: 0,
    };
    assert!(no_limit(long.as_bytes()).to_string().len() < 150);
    assert!(no_limit(b"\xff").to_string().contains('\u{fffd}'));
}

proptest! {
    #[test]
    fn a_cause_exists_exactly_if_there_is_no_limit(
        rules in prop::collection::vec(
            (prop::collection::vec("[ab](_[ab*]{0,2})?", 1..4), 0_u8..3), 0..12),
        pairs in prop::collection::vec(("[abc]", "[ab]{0,2}"), 0..5),
        domain in "[de]",
    ) {
        let borrowed: Vec<(Vec<&str>, Change)> = rules
            .iter()
            .map(|(path, kind)| {
                let change = [NONE, UNLIMITED, LIMITED][usize::from(*kind)];
                (path.iter().map(String::as_str).collect(), change)
            })
            .collect();
        let slices: Vec<(&[&str], Change)> =
            borrowed.iter().map(|(path, change)| (path.as_slice(), *change)).collect();
        let matcher = matcher_of(&slices);
        let pairs: Vec<(&str, &str)> =
            pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let entries = entries(&pairs);
        let found = matcher
            .domain(domain.as_bytes())
            .and_then(|rules| rules.find(&entries, &mut Joined::new()).ok());
        let is_limited = found.is_some_and(|found| !found.rule.is_unlimited());
        let cause = matcher.cause(domain.as_bytes(), &entries);
        prop_assert_eq!(cause.is_none(), is_limited, "{:?}", cause);
        prop_assert!(cause.is_none_or(|cause| cause.matched <= entries.len()));
    }
}

#[test]
fn each_cause_has_a_name() {
    let names = [
        (Cause::UnknownDomain, "unknown_domain"),
        (Cause::EmptyDomain, "empty_domain"),
        (
            Cause::UnknownKey {
                key: b"k",
                near: None,
            },
            "unknown_key",
        ),
        (Cause::UnknownValue { key: b"k" }, "unknown_value"),
        (Cause::TooManyEntries, "too_many_entries"),
        (Cause::TooFewEntries, "too_few_entries"),
        (Cause::WithoutLimit, "without_limit"),
        (Cause::Unlimited, "unlimited"),
        (Cause::Replaced, "replaced"),
    ];
    for (cause, name) in names {
        assert_eq!(cause.name(), name);
    }
}

#[test]
fn a_bounded_number_of_levels_is_searched() {
    let cause = |first: &str, children: usize| {
        let names: Vec<_> = (0..children).map(|number| format!("x{number}")).collect();
        let paths: Vec<_> = names.iter().map(|name| [first, name.as_str()]).collect();
        let paths = paths.iter().map(|path| {
            if first.is_empty() {
                &path[1..]
            } else {
                &path[..]
            }
        });
        let rules: Vec<_> = paths.map(|path| (path, NONE)).collect();
        let pairs = [(if first.is_empty() { "user" } else { first }, "1")];
        let (matcher, entries) = (matcher_of(&rules), entries(&pairs));
        let found = matcher.cause(b"d", &entries).unwrap();
        found.cause.name()
    };
    // Of more keys none is compared, and limits can be below more levels.
    assert_eq!(cause("", MAX_NODES), "unknown_key");
    assert_eq!(cause("", MAX_NODES + 1), "unknown_value");
    assert_eq!(cause("a", MAX_NODES), "without_limit");
    assert_eq!(cause("a", MAX_NODES + 1), "too_few_entries");
}

#[test]
fn similar_keys_differ_in_a_third_of_their_letters_at_most() {
    let near =
        |key: &str, known: &str| nearest(key.as_bytes(), [known.as_bytes()].into_iter()).is_some();
    assert!(near("user", "usr") && !near("user", "ur"));
    assert!(near("tenant", "tent") && !near("tenant", "ten"));
    let longest = "k".repeat(MAX_KEY_BYTES);
    assert!(near(&longest, &longest[1..]));
    assert!(!near(&format!("{longest}k"), &longest));
}

// --- advice ---

/// The text and the path of the rule in the advice on a descriptor of `domain`.
fn advice(
    rules: &[(&[&str], Change)],
    domain: &[u8],
    pairs: &[(&str, &str)],
) -> Option<(String, Option<String>)> {
    let matcher = matcher_of(rules);
    let entries = entries(pairs);
    let trace = matcher.trace(domain, &entries);
    let (text, rule) = trace.suggestion(&trace.cause().unwrap())?;
    Some((text, rule.map(|rule| rule.path.to_string())))
}

#[track_caller]
fn check_advice(
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
    check_advice(
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
    check_advice(
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
    check_advice(&[(&["plan"], LIMITED)], &[("user", "1")], None);
}

#[test]
fn a_bounded_number_of_levels_is_searched_for_advice() {
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
    // The children of the root, and the only child of the first of these.
    check(MAX_NODES - 1, true);
    check(MAX_NODES, false);
}

#[test]
fn a_similar_value_is_named_or_the_first_rule_of_the_key() {
    let rules: &[(&[&str], Change)] = &[
        (&["other=gold"], LIMITED),
        (&["plan=free"], LIMITED),
        (&["plan=silver"], LIMITED),
    ];
    check_advice(
        rules,
        &[("plan", "silvr")],
        Some((
            "write `silver` as the value; a rule without `value` is for all other values",
            Some("plan=silver"),
        )),
    );
    check_advice(
        rules,
        &[("plan", "gold")],
        Some((
            "a rule without `value` is for all other values",
            Some("plan=free"),
        )),
    );
}

#[test]
fn entries_after_the_rules_are_too_many() {
    let pairs = [("a", "1"), ("b", "2"), ("c", "3")];
    check_advice(
        &[(&["a"], LIMITED)],
        &pairs,
        Some((
            "a descriptor of entry 1 alone would have the limits of this rule",
            Some("a"),
        )),
    );
    check_advice(
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
    check_advice(
        rules,
        &[("a", "1")],
        Some(("add an entry with the key `b` as entry 2", Some("a.b.c"))),
    );
    check_advice(
        rules,
        &[("a", "1"), ("b", "2")],
        Some(("add an entry with the key `c` as entry 3", Some("a.b.c"))),
    );
}

#[test]
fn a_level_without_a_limit_needs_one() {
    check_advice(
        &[(&["a"], None)],
        &[("a", "1")],
        Some(("add a `rate_limit` to this level", None)),
    );
}

#[test]
fn an_unlimited_rule_needs_a_limit_even_if_it_hides_another_rule() {
    check_advice(
        &[(&["plan=free"], UNLIMITED), (&["plan"], LIMITED)],
        &[("plan", "free")],
        Some(("give the rule a limit instead of `unlimited`", None)),
    );
}

#[test]
fn a_rule_that_another_one_hides_is_named_with_the_entry_where_they_part() {
    check_advice(
        &[(&["plan=free"], LIMITED), (&["plan", "user"], LIMITED)],
        &[("plan", "free"), ("user", "1")],
        Some((
            "entry 1 would lead to this rule by `plan`, but `plan=free` matches first; repeat the levels there",
            Some("plan.user"),
        )),
    );
    check_advice(
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
