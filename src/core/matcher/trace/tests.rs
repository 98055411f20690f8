use Dismissal::{Hidden, KeptApart, OtherKey, OtherPattern, OtherValue};
use MatchForm::{BareKey, Exact, JoinedExact, JoinedKey, Wildcard as Star};
use proptest::prelude::*;

use crate::core::matcher::tests::{LIMITED, entries, filled, matcher_of};

use super::*;

/// `key` or `key=value` of a node.
fn name(matcher: &Matcher, node: NodeId) -> String {
    let (key, value) = matcher.key_and_value(node);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match text(value).as_str() {
        "" => text(key),
        value => format!("{}={value}", text(key)),
    }
}

/// The step of the last entry: the node and its form, and the others with their reasons.
#[track_caller]
fn check(
    matcher: &Matcher,
    pairs: &[(&str, &str)],
    chosen: Option<(&str, MatchForm)>,
    others: &[(&str, Dismissal)],
) {
    let entries = entries(pairs);
    let steps = matcher.trace(b"d", &entries).steps();
    assert_eq!(steps.len(), pairs.len());
    let step = steps.last().unwrap();
    let found = step.chosen.map(|(node, form)| (name(matcher, node), form));
    assert_eq!(found, chosen.map(|(node, form)| (node.to_owned(), form)));
    let found: Vec<_> = step
        .others
        .iter()
        .map(|(why, node)| (name(matcher, *node), *why))
        .collect();
    let expected: Vec<_> = others
        .iter()
        .map(|(node, why)| ((*node).to_owned(), *why))
        .collect();
    assert_eq!(found, expected);
}

const fn hidden(chosen: MatchForm, own: MatchForm, would_reach: bool) -> Dismissal {
    Hidden {
        chosen,
        own,
        would_reach,
    }
}

#[test]
fn each_sibling_has_a_reason() {
    let matcher = matcher_of(&[
        (&["k"], LIMITED),
        (&["k=v*"], LIMITED),
        (&["k=va*"], LIMITED),
        (&["k=value"], LIMITED),
        (&["k=other"], LIMITED),
        (&["k=x*"], LIMITED),
        (&["j"], LIMITED),
    ]);
    check(
        &matcher,
        &[("k", "value")],
        Some(("k=value", Exact)),
        &[
            ("k=v*", hidden(Exact, Star, true)),
            ("k=va*", hidden(Exact, Star, true)),
            ("k", hidden(Exact, BareKey, true)),
            ("k=other", OtherValue),
            ("k=x*", OtherPattern),
            ("j", OtherKey),
        ],
    );
    check(
        &matcher,
        &[("k", "vault")],
        Some(("k=v*", Star)),
        &[
            ("k=va*", hidden(Star, Star, true)),
            ("k", hidden(Star, BareKey, true)),
            ("k=value", OtherValue),
            ("k=other", OtherValue),
            ("k=x*", OtherPattern),
            ("j", OtherKey),
        ],
    );
}

#[test]
fn a_sibling_that_would_have_led_to_a_limit_is_marked() {
    let matcher = matcher_of(&[(&["a=1", "x"], LIMITED), (&["a", "y"], LIMITED)]);
    let entries = entries(&[("a", "1"), ("y", "")]);
    let steps = matcher.trace(b"d", &entries).steps();
    let (why, _) = steps[0].others[0];
    assert_eq!(why, hidden(Exact, BareKey, true));
    assert!(steps[1].chosen.is_none());
    check(
        &matcher,
        &[("a", "1")],
        Some(("a=1", Exact)),
        &[("a", hidden(Exact, BareKey, false))],
    );
}

#[test]
fn joined_texts_are_marked_and_strict_matching_keeps_them_apart() {
    let rules: &[&[&str]] = &[&["a_b"], &["p=q_r"]];
    let joined = filled(Matcher::default(), rules);
    let other = ("p=q_r", OtherKey);
    check(&joined, &[("a", "b")], Some(("a_b", JoinedExact)), &[other]);
    let other = ("a_b", OtherKey);
    check(
        &joined,
        &[("p_q", "r")],
        Some(("p=q_r", JoinedExact)),
        &[other],
    );
    check(
        &joined,
        &[("p_q_r", "any")],
        Some(("p=q_r", JoinedKey)),
        &[other],
    );
    let strict = filled(Matcher::strict(), rules);
    check(
        &strict,
        &[("a", "b")],
        None,
        &[("a_b", KeptApart), ("p=q_r", OtherKey)],
    );
}

#[test]
fn a_level_of_many_rules_shows_some_of_them() {
    let names: Vec<String> = (0..3_000).map(|number| format!("k=v{number}")).collect();
    let paths: Vec<[&str; 1]> = names.iter().map(|name| [name.as_str()]).collect();
    let mut paths: Vec<&[&str]> = paths.iter().map(|path| &path[..]).collect();
    paths.extend([&["k=v2*"][..], &["k"]]);
    let matcher = filled(Matcher::default(), &paths);
    let entries = entries(&[("k", "v2999")]);
    let steps = matcher.trace(b"d", &entries).steps();
    let (node, form) = steps[0].chosen.unwrap();
    assert_eq!((name(&matcher, node), form), ("k=v2999".to_owned(), Exact));
    let others = steps[0].others.iter();
    let others: Vec<_> = others.map(|(_, node)| name(&matcher, *node)).collect();
    assert_eq!(others, ["k=v2*", "k"]);
    assert_eq!(steps[0].omitted, 2_999);
}

/// The order in which nodes win.
fn rank(form: MatchForm) -> u8 {
    match form {
        Exact | JoinedExact => 0,
        Star => 1,
        BareKey | JoinedKey => 2,
    }
}

proptest! {
    #[test]
    fn the_steps_are_those_of_the_matcher_and_no_sibling_is_stronger(
        paths in prop::collection::hash_set(
            prop::collection::vec("[ab](_[ab*]{0,2})?(=[ab*]{1,2})?", 1..4), 1..12),
        pairs in prop::collection::vec(("[ab](_[ab])?", "[ab]{0,2}"), 0..4),
        is_strict: bool,
    ) {
        let mut matcher = if is_strict { Matcher::strict() } else { Matcher::default() };
        let root = matcher.insert_domain(b"d");
        for path in &paths {
            let mut node = root;
            for text in path {
                let (key, value) = text.split_once('=').unwrap_or((text, ""));
                let [key, value] = [key.as_bytes(), value.as_bytes()];
                let known = matcher.child(node, key, value);
                node = known.or_else(|| matcher.insert(node, key, value)).unwrap();
            }
        }
        let pairs: Vec<(&str, &str)> =
            pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let entries = entries(&pairs);
        let steps = matcher.trace(b"d", &entries).steps();
        let mut walked = Vec::new();
        let end = matcher.domain(b"d").unwrap().walk(&entries, &mut Joined::new(), |_, _, level| {
            walked.push((level.key(), level.value(), level.is_wildcard()));
        });
        let chosen = steps.iter().filter_map(|step| step.chosen);
        let chosen = chosen.map(|(node, form)| {
            let (key, value) = matcher.key_and_value(node);
            (key, value, form == Star)
        });
        let chosen: Vec<_> = chosen.collect();
        prop_assert_eq!(&chosen, &walked);
        prop_assert_eq!(end.is_some(), chosen.len() == entries.len());
        for step in &steps {
            for (why, _) in &step.others {
                let Hidden { chosen, own, .. } = *why else {
                    continue;
                };
                let is_weaker = step.chosen.is_some_and(|(_, form)| form == chosen)
                    && (rank(own) > rank(chosen) || (own, chosen) == (Star, Star));
                prop_assert!(is_weaker, "{:?}", step);
            }
        }
    }
}

#[test]
fn an_outline_has_nodes_as_they_are_declared() {
    let mut matcher = Matcher::default();
    let other = matcher.insert_domain(b"other");
    matcher.insert(other, b"x", b"").unwrap();
    let root = matcher.insert_domain(b"d");
    let z = matcher.insert(root, b"z", b"").unwrap();
    matcher.insert(z, b"c", b"2").unwrap();
    let a = matcher.insert(root, b"a", b"1").unwrap();
    matcher.insert(a, b"b", b"*").unwrap();
    matcher.insert(z, b"c", b"1").unwrap();
    let outline = matcher.outline(b"d").into_iter().map(|found| {
        let (key, value) = matcher.key_and_value(found.node);
        let text = [key, b"=", value].concat();
        (found.depth, String::from_utf8(text).unwrap())
    });
    let outline: Vec<_> = outline.collect();
    let expected = [(1, "z="), (2, "c=2"), (2, "c=1"), (1, "a=1"), (2, "b=*")];
    assert_eq!(
        outline,
        expected.map(|(depth, text)| (depth, text.to_owned()))
    );
    assert_eq!(matcher.outline(b"unknown"), []);
}
