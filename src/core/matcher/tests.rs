use proptest::prelude::*;

use super::*;
use crate::core::{
    limit::{Allows, Limit},
    window::Unit,
};

/// A matcher for domain `d` with a rule at the end of each path, named by that path.
pub(in crate::core) fn matcher(paths: &[&[&str]]) -> Matcher {
    filled(Matcher::default(), paths)
}

/// Adds the paths to `matcher`, each with a rule.
pub(super) fn filled(matcher: Matcher, paths: &[&[&str]]) -> Matcher {
    let rules: Vec<(&[&str], Change)> = paths.iter().map(|path| (*path, UNLIMITED)).collect();
    with_rules(matcher, &rules)
}

/// The change that makes an unlimited rule the one of a node, or `None` for a node without a rule.
pub(in crate::core) type Change = Option<fn(&mut Rule)>;

pub(in crate::core) const UNLIMITED: Change = Some(|_| ());

/// A rule of one request per hour.
pub(super) const LIMITED: Change = Some(|rule: &mut Rule| {
    rule.allows = Allows::Within([Limit::fixed(1, Unit::Hour)].into());
});

/// Adds a rule for `key` to domain `d`.
pub(in crate::core) fn add_rule(
    matcher: &mut Matcher,
    key: &str,
    allows: Allows,
    change: impl FnOnce(&mut Rule),
) {
    let root = matcher.insert_domain(b"d");
    let node = insert(matcher, root, key);
    matcher.set_rule(node, |id| {
        let mut rule = Rule::plain(id, key, allows);
        change(&mut rule);
        rule
    });
}

/// Rules of domain `d`, each for its own key.
#[derive(Default)]
pub(in crate::core) struct Rules(pub(in crate::core) Matcher);

impl Rules {
    pub(in crate::core) fn with(
        mut self,
        key: &str,
        allows: Allows,
        change: impl FnOnce(&mut Rule),
    ) -> Self {
        add_rule(&mut self.0, key, allows, change);
        self
    }
}

/// A matcher for domain `d` with these nodes, and those that lead to them.
pub(in crate::core) fn matcher_of(nodes: &[(&[&str], Change)]) -> Matcher {
    with_rules(Matcher::default(), nodes)
}

/// Adds the nodes to `matcher`; the first `=` of a text separates key and value.
fn with_rules(mut matcher: Matcher, nodes: &[(&[&str], Change)]) -> Matcher {
    let root = matcher.insert_domain(b"d");
    let mut known: HashMap<Vec<&str>, NodeId> = HashMap::new();
    for (path, change) in nodes {
        let mut node = root;
        for depth in 1..=path.len() {
            node = *known
                .entry(path[..depth].to_vec())
                .or_insert_with(|| insert(&mut matcher, node, path[depth - 1]));
        }
        let Some(change) = change else {
            continue;
        };
        matcher.set_rule(node, |id| {
            let mut rule = Rule::plain(id, &path.join("."), Allows::Unlimited);
            change(&mut rule);
            rule
        });
    }
    matcher
}

fn insert(matcher: &mut Matcher, parent: NodeId, text: &str) -> NodeId {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    let node = matcher.insert(parent, key.as_bytes(), value.as_bytes());
    node.unwrap()
}

/// Entries of these keys and values.
pub(super) fn entries<'a>(pairs: &[(&'a str, &'a str)]) -> Vec<Entry<'a>> {
    let entry = |(key, value): &(&'a str, &'a str)| Entry {
        key: key.as_bytes(),
        value: value.as_bytes(),
    };
    pairs.iter().map(entry).collect()
}

fn find<'m>(matcher: &'m Matcher, pairs: &[(&str, &str)]) -> Option<&'m str> {
    let entries = entries(pairs);
    let found = matcher.domain(b"d")?.find(&entries, &mut Joined::new());
    Some(&found.ok()?.rule.path)
}

#[track_caller]
fn check(paths: &[&[&str]], entries: &[(&str, &str)], expected: Option<&str>) {
    assert_eq!(find(&matcher(paths), entries), expected);
}

#[test]
fn an_exact_value_wins_over_a_wildcard_and_that_over_a_bare_key() {
    let paths: &[&[&str]] = &[&["k"], &["k_v*"], &["k_value"]];
    check(paths, &[("k", "value")], Some("k_value"));
    check(paths, &[("k", "vault")], Some("k_v*"));
    check(paths, &[("k", "other")], Some("k"));
    check(paths, &[("other", "v")], None);
}

#[test]
fn the_first_wildcard_wins_not_the_longest() {
    let paths: &[&[&str]] = &[&["k_a*"], &["k_ab*"]];
    check(paths, &[("k", "abc")], Some("k_a*"));
}

#[test]
fn a_value_of_a_star_hides_the_bare_key_even_from_an_empty_value() {
    check(&[&["k"], &["k_*"]], &[("k", "")], Some("k_*"));
}

#[test]
fn only_the_node_of_the_last_entry_counts() {
    let paths: &[&[&str]] = &[&["a"], &["a", "b", "c"]];
    check(paths, &[("a", "1")], Some("a"));
    check(paths, &[("a", "1"), ("b", "2")], None);
    check(paths, &[("a", "1"), ("b", "2"), ("c", "3")], Some("a.b.c"));
    check(
        paths,
        &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")],
        None,
    );
    check(paths, &[], None);
}

#[test]
fn a_descriptor_without_a_rule_has_a_reason() {
    let mut matcher = matcher(&[&["a", "b"]]);
    matcher.insert_domain(b"e");
    let check = |domain: &[u8], keys: &[&'static str], expected| {
        let entry = |key: &&'static str| Entry {
            key: key.as_bytes(),
            value: b"",
        };
        let entries: Vec<_> = keys.iter().map(entry).collect();
        let domain = matcher.domain(domain).unwrap();
        let found = domain.find(&entries, &mut Joined::new());
        assert_eq!(found.err(), expected, "{keys:?}");
    };
    let [first, second] = [DomainId(0), DomainId(1)];
    check(b"d", &["a", "b"], None);
    check(b"d", &["a"], Some(NoMatch::NoLimit(first)));
    check(b"d", &["c"], Some(NoMatch::NoRule(first)));
    check(b"d", &["a", "b", "c"], Some(NoMatch::NoRule(first)));
    check(b"d", &[], Some(NoMatch::NoRule(first)));
    check(b"e", &["a"], Some(NoMatch::NoRule(second)));
}

#[test]
fn a_chosen_node_is_not_left_again() {
    let paths: &[&[&str]] = &[&["a_1", "x"], &["a", "y"]];
    check(paths, &[("a", "1"), ("y", "")], None);
    check(paths, &[("a", "2"), ("y", "")], Some("a.y"));
}

#[test]
fn joined_texts_match_as_in_the_reference() {
    check(&[&["a_b"]], &[("a", "b")], Some("a_b"));
    // Either of its two `_` can part the key from the value.
    check(&[&["p_q_r"]], &[("p_q", "r")], Some("p_q_r"));
    check(&[&["p_q_r"]], &[("p", "q_r")], Some("p_q_r"));
}

#[test]
fn a_star_in_the_key_is_a_wildcard_too() {
    check(&[&["x-*_v"]], &[("x-user", "v")], Some("x-*_v"));
}

#[track_caller]
fn check_strict(paths: &[&[&str]], entries: &[(&str, &str)], expected: Option<&str>) {
    assert_eq!(find(&filled(Matcher::strict(), paths), entries), expected);
}

/// All key lengths from 63 bytes on share one bit.
#[test]
fn keys_of_any_length_are_matched_by_value_and_without() {
    for length in [1, 62, 63, 64, 200] {
        let key = "k".repeat(length);
        let exact = format!("{key}=v");
        let paths: &[&[&str]] = &[&[&exact], &[&key]];
        check_strict(paths, &[(&key, "v")], Some(&exact));
        check_strict(paths, &[(&key, "w")], Some(&key));
        let joined = format!("{key}_v");
        let paths: &[&[&str]] = &[&[&joined], &[&key]];
        check(paths, &[(&key, "v")], Some(&joined));
        check(paths, &[(&key, "w")], Some(&key));
    }
}

#[test]
fn strict_matching_keeps_keys_and_values_apart() {
    check_strict(&[&["a_b"]], &[("a", "b")], None);
    check_strict(&[&["a_b"], &["a=b"]], &[("a", "b")], Some("a=b"));
    check_strict(&[&["p=q_r"]], &[("p_q", "r")], None);
    check_strict(&[&["p=q*"], &["p"]], &[("p", "qr")], Some("p=q*"));
    check_strict(&[&["p=q*"], &["p"]], &[("p_q", "r")], None);
    check_strict(&[&["p=q*"], &["p"]], &[("p", "x")], Some("p"));
    check_strict(&[&["x-*"]], &[("x-user", "any")], Some("x-*"));
    check_strict(&[&["x-*=v"]], &[("x-user", "w")], None);
    check_strict(&[&["a=b", "c"]], &[("a", "b"), ("c", "")], Some("a=b.c"));
}

#[test]
fn an_unknown_domain_has_no_rules() {
    assert!(matcher(&[&["a"]]).domain(b"e").is_none());
}

#[test]
fn rules_are_listed_by_their_id_and_a_domain_is_made_once() {
    let mut matcher = matcher(&[&["a"], &["b"], &["a", "c"]]);
    let paths: Vec<_> = matcher.rules().iter().map(|rule| &*rule.path).collect();
    assert_eq!(paths, ["a", "b", "a.c"]);
    for (at, rule) in matcher.rules().iter().enumerate() {
        assert_eq!(rule.id, RuleId(at));
    }
    for (name, count) in [(b"d", 1), (b"e", 2), (b"f", 3), (b"e", 3)] {
        let root = matcher.insert_domain(name);
        assert_eq!(matcher.insert_domain(name), root);
        assert_eq!(matcher.domain_count(), count);
    }
}

#[test]
fn a_text_is_taken_once_a_level() {
    let mut matcher = Matcher::default();
    let root = matcher.insert_domain(b"d");
    let child = matcher.insert(root, b"a", b"b").unwrap();
    assert!(matcher.insert(root, b"a_b", b"").is_none());
    assert!(matcher.insert(child, b"a_b", b"").is_some());
}

#[test]
fn all_values_of_a_wildcard_share_its_own_text_included() {
    let mut matcher = matcher(&[&["f_a/*"]]);
    let node = matcher.nodes[0].below().children[b"f_a/*".as_slice()];
    matcher.share(node, b"a/*");
    let shared = |value: &'static str| {
        let entry = Entry {
            key: b"f",
            value: value.as_bytes(),
        };
        let found = matcher
            .domain(b"d")
            .unwrap()
            .find(&[entry], &mut Joined::new());
        found.unwrap().shared
    };
    assert_eq!(shared("a/1"), [(0, b"a/*".as_slice())]);
    assert_eq!(shared("a/*"), [(0, b"a/*".as_slice())]);
}

#[test]
fn wildcards_count_their_bytes_and_no_pattern_or_piece_less_than_16() {
    for (mut matcher, sums) in [
        (Matcher::default(), [0, 16, 40, 60]),
        (Matcher::strict(), [0, 16, 39, 58]),
    ] {
        let root = matcher.insert_domain(b"d");
        for (text, bytes) in ["a=b", "k=v*", "k=a_value_of_22_letters*", "k=*four*"]
            .into_iter()
            .zip(sums)
        {
            insert(&mut matcher, root, text);
            assert_eq!(matcher.wildcard_bytes(root), bytes, "{text}");
        }
    }
}

#[test]
fn pieces_of_a_pattern_do_not_overlap() {
    let matches = |pattern: &str, text: &str| {
        Pattern::new(pattern.as_bytes())
            .unwrap()
            .matches(text.as_bytes())
    };
    assert!(!matches("ab*bc", "abc"));
    assert!(matches("ab*bc", "abbc"));
    assert!(matches("a*b*c", "a-b-b-c"));
    assert!(!matches("a*b*b*c", "a-b-c"));
    assert!(matches("**", ""));
}

/// Matches a pattern by trying every split: slow and plainly right.
fn naive_match(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|cut| naive_match(rest, &text[cut..])),
        Some((byte, rest)) => text
            .split_first()
            .is_some_and(|(first, text)| first == byte && naive_match(rest, text)),
    }
}

/// Finds the rule by reading all siblings in order, level by level.
fn naive_find(paths: &[Vec<String>], entries: &[(String, String)]) -> Option<String> {
    let mut prefix: Vec<String> = Vec::new();
    for (key, value) in entries {
        let joined = format!("{key}_{value}");
        let siblings: Vec<&String> = paths
            .iter()
            .filter(|path| path.len() > prefix.len() && path.starts_with(&prefix))
            .map(|path| &path[prefix.len()])
            .collect();
        let chosen = siblings
            .iter()
            .find(|text| ***text == joined)
            .or_else(|| {
                siblings.iter().find(|text| {
                    text.contains('*') && naive_match(text.as_bytes(), joined.as_bytes())
                })
            })
            .or_else(|| siblings.iter().find(|text| **text == key))?;
        prefix.push((*chosen).clone());
    }
    paths.contains(&prefix).then(|| prefix.join("."))
}

proptest! {
    #[test]
    fn patterns_match_as_every_split_tried_would(
        pattern in "[ab]{0,3}\\*[ab*]{0,5}",
        text in "[ab]{0,8}",
    ) {
        let fast = Pattern::new(pattern.as_bytes()).unwrap().matches(text.as_bytes());
        prop_assert_eq!(fast, naive_match(pattern.as_bytes(), text.as_bytes()));
    }

    #[test]
    fn finds_what_a_scan_of_all_siblings_finds(
        paths in prop::collection::hash_set(
            prop::collection::vec("[ab](_[ab*]{0,2})?", 1..4), 1..12),
        entries in prop::collection::vec(("[ab]", "[ab]{0,2}"), 0..4),
    ) {
        // Siblings are ordered by their first appearance, in the matcher and in the scan.
        let paths: Vec<Vec<String>> = paths.into_iter().collect();
        let borrowed: Vec<Vec<&str>> =
            paths.iter().map(|path| path.iter().map(String::as_str).collect()).collect();
        let slices: Vec<&[&str]> = borrowed.iter().map(Vec::as_slice).collect();
        let pairs: Vec<(&str, &str)> =
            entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let matcher = matcher(&slices);
        let found = find(&matcher, &pairs).map(str::to_owned);
        prop_assert_eq!(found, naive_find(&paths, &entries));
    }
}

#[test]
fn rules_have_the_place_of_their_node() {
    let mut matcher = matcher_of(&[(&["a"], UNLIMITED), (&["b", "c"], None)]);
    matcher.insert_domain(b"e");
    let nodes = [b"a", b"b"].map(|key: &[u8; 1]| {
        let root = &matcher.nodes[matcher.root(b"d").unwrap().0];
        *root
            .below()
            .children
            .values()
            .find(|id| *matcher.nodes[id.0].key == *key)
            .unwrap()
    });
    let line = |line| RuleOrigin {
        file: "rules.yaml".into(),
        line: Some(line),
    };
    matcher.set_origin(nodes[0], line(3));
    matcher.set_origin(nodes[1], line(7));
    let rule = matcher.rule(nodes[0]).unwrap();
    assert_eq!(&*rule.path, "a");
    assert!(matcher.rule(nodes[1]).is_none());
    assert_eq!(matcher.origin(rule.id), &line(3));
    assert_eq!(matcher.origin(rule.id), &line(3));
    assert_eq!(matcher.node_origin(nodes[1]), &line(7));
}

#[test]
fn a_domain_has_rules_if_one_of_its_levels_has() {
    let mut matcher = matcher_of(&[(&["a"], None), (&["b", "c"], UNLIMITED)]);
    matcher.insert_domain(b"empty");
    assert!(matcher.has_rules_in(b"d"));
    assert!(!matcher.has_rules_in(b"empty") && !matcher.has_rules_in(b"none"));
    assert!(!matcher_of(&[(&["a", "b"], None)]).has_rules_in(b"d"));
    let names: Vec<_> = matcher.domain_names().iter().map(|name| &**name).collect();
    assert_eq!(names, [&b"d"[..], b"empty"]);
}
