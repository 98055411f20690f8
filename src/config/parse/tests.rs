use std::{fmt, sync::LazyLock};

use proptest::prelude::*;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

use super::super::{
    node::{NodeKind, YamlNode},
    position::{Lines, Position},
};
use super::parse_all;

/// The tree of `text` read in two passes, to compare with: the first learns the kind of each node, so that the second
/// can ask for the text of every scalar.
fn two_passes(text: &str) -> Result<YamlNode<'_>, serde_yaml::Error> {
    let Some(first) = serde_yaml::Deserializer::from_str(text).next() else {
        return Ok(YamlNode::empty());
    };
    let shape = NodeShapeSeed.deserialize(first)?;
    if let NodeShape::Nothing = shape {
        return Ok(YamlNode::empty());
    }
    let again = serde_yaml::Deserializer::from_str(text).next();
    let seed = NodeSeed {
        shape: &shape,
        source: text,
    };
    let found = seed.deserialize(again.expect("it was there before"))?;
    for document in serde_yaml::Deserializer::from_str(text).skip(1) {
        // Ignored, a text with the tag of a number would be no error.
        NodeShapeSeed.deserialize(document)?;
    }
    Ok(found)
}

/// A node as one line: plain scalars bare, others in quotes, each with its position.
fn show(text: &str, node: &YamlNode<'_>) -> String {
    let at = node.offset.map_or_else(String::new, |offset| {
        let Position { line, column } = Lines::of(text).position(text, offset);
        format!("@{line}:{column}")
    });
    match &node.kind {
        NodeKind::Scalar {
            text,
            is_plain: true,
        } => format!("{text}{at}"),
        NodeKind::Scalar {
            text,
            is_plain: false,
        } => format!("'{text}'{at}"),
        NodeKind::List(items) => {
            let items: Vec<_> = items.iter().map(|item| show(text, item)).collect();
            format!("[{}]", items.join(" "))
        }
        NodeKind::Map(entries) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(key, value)| format!("{}={}", show(text, key), show(text, value)))
                .collect();
            format!("{{{}}}", entries.join(" "))
        }
        NodeKind::Tagged => "!".to_owned(),
    }
}

fn parse_any(text: &str) -> Result<YamlNode<'_>, serde_yaml::Error> {
    Ok(parse_all(text)?.swap_remove(0))
}

#[track_caller]
fn check(text: &str, expected: &str) {
    let node = parse_any(text).unwrap();
    assert_eq!(show(text, &node), expected);
    assert_eq!(two_passes(text).unwrap(), node);
}

#[test]
fn scalars_keep_their_text_their_place_and_their_quotes() {
    check("a: 0x10\nb: \"0x10\"", "{a@1:1=0x10@1:4 b@2:1='0x10'@2:5}");
    check("a: yes\nb: 'yes'", "{a@1:1=yes@1:4 b@2:1='yes'@2:5}");
    check("é: 1_000 # why", "{é@1:1=1_000@1:4}");
    check("a: 2020-01-01", "{a@1:1=2020-01-01@1:4}");
    check("'a': 1.50", "{'a'@1:2=1.50@1:6}");
}

#[test]
fn rewritten_scalars_are_strings_without_a_place() {
    check("a: \"x\\ty\"", "{a@1:1='x\ty'}");
    check("a: |\n  x\n  y\n", "{a@1:1='x\ny\n'}");
}

#[test]
fn nothing_is_not_an_empty_string() {
    let is_null = |text: &str| match parse_any(text).unwrap().kind {
        NodeKind::Map(entries) => entries[0].1.is_null(),
        other => panic!("{other:?}"),
    };
    assert!(is_null("a:"));
    assert!(is_null("a: ~"));
    assert!(is_null("a: null"));
    assert!(is_null("{\"a\"}"));
    assert!(!is_null("a: ''"));
    assert!(!is_null("a: \"\""));
    assert!(!is_null("a: 'null'"));
}

#[test]
fn nested_nodes_begin_at_their_first_scalar() {
    check(
        "- a: {b: [1, 2]}\n  c:\n    - d\n- e",
        "[{a@1:3={b@1:7=[1@1:11 2@1:14]} c@2:3=[d@3:7]} e@4:3]",
    );
}

#[test]
fn an_alias_is_the_node_it_names() {
    check(
        "a: &x {b: 1}\nc: *x\nd: [*x, 2]",
        "{a@1:1={b@1:8=1@1:11} c@2:1={b@1:8=1@1:11} d@3:1=[{b@1:8=1@1:11} 2@3:9]}",
    );
}

#[test]
fn repeated_keys_are_kept() {
    check("a: 1\na: 2", "{a@1:1=1@1:4 a@2:1=2@2:4}");
}

#[test]
fn empty_files_are_empty_maps() {
    check("", "{}");
    check("# nothing\n", "{}");
}

#[test]
fn all_documents_are_read_but_empty_ones() {
    let text = "---\n---\na: 1\n---\n# nothing\n---\nb: ~\n---\n7\n...\n---\n";
    let found = parse_all(text).unwrap();
    let found: Vec<_> = found.iter().map(|node| show(text, node)).collect();
    assert_eq!(found, ["{a@3:1=1@3:4}", "{b@7:1=~@7:4}", "7@9:1"]);
    assert_eq!(parse_all("---\n---\n").unwrap().len(), 1);
}

/// Nothing after the first document is ignored.
#[test]
fn text_after_a_document_is_an_error_with_its_place() {
    for (text, line) in [
        ("a: 1\n---\n}{", 3),
        (" a: 1\nb: 2\n", 2),
        ("{\"a\": 1}\nb", 2),
        ("a: 1\n...\nb: 2\n", 3),
        ("5 # five\n@\n---\na: 1\n", 2),
        ("a: 1\n---\n5 # five\n@\n", 4),
    ] {
        let error = parse_any(text).unwrap_err();
        assert_eq!(error.location().unwrap().line(), line, "{text:?}: {error}");
    }
}

#[test]
fn json_is_yaml() {
    check("{\"a\": [1, true]}", "{'a'@1:3=[1@1:8 true@1:11]}");
}

#[test]
fn broken_text_knows_its_place() {
    let error = parse_any("a: [1,\nb: }").unwrap_err();
    assert_eq!(error.location().unwrap().line(), 2);
}

/// Millions of levels are refused quickly.
#[test]
fn what_is_nested_too_deeply_is_refused_at_once() {
    for bracket in ["[", "{a: ", "[{? "] {
        let error = parse_any(&bracket.repeat(1 << 20)).unwrap_err().to_string();
        assert!(error.starts_with("recursion limit exceeded at "), "{error}");
    }
    let error = parse_any(&format!("a: 1\nb: {}", "[".repeat(500))).unwrap_err();
    assert_eq!(error.location().unwrap().line(), 2);
}

#[test]
fn brackets_in_texts_are_no_levels() {
    let texts = "- '[[[['\n# {\n".repeat(200);
    let text = "['[[[[']";
    assert!(matches!(parse_any(&texts).unwrap().kind, NodeKind::List(items) if items.len() == 200));
    check(
        &text.replace("[[[[", &"[".repeat(500)),
        &format!("['{}'@1:3]", "[".repeat(500)),
    );
}

#[test]
fn a_bomb_of_aliases_is_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("a{level}: &a{level} [{}]\n", below.trim_end_matches(", "));
    }
    assert!(parse_any(&bomb).is_err());
}

#[test]
fn tags_are_seen() {
    check("a: !include b.yaml", "{a@1:1=!}");
    check("a: !!str 5", "{a@1:1=5@1:10}");
}

#[test]
fn numbers_booleans_and_nulls_have_a_position_wherever_they_stand() {
    for text in [
        "5",
        "- 5\n- true\n- 1.5\n- ~\n-\n- -7\n- 1e3\n- .inf",
        "{1: 2, true: null}",
        "? 1\n: 2\n? 3",
        "a: &x 5\nb: *x\nc: {d: *x}",
        "a: &x !!int 5\nb: !!int '6'\nc: !!null ~\nd: !!bool\n  true # why\ne: !!int # why\n  # and\n  7",
        "a: &x\nb: *x",
        "a:\nb: 1\nc:",
        "é: [1, ü, 2]\rb: 3\r\nc: 4\u{2028}d: 5\u{85}e: 6",
        "a: [1, {b: 2}, [3]]\n",
        "a: 'x\n\n  y'\nb: 1\nc: |\n  2\n\nd: 3",
    ] {
        let node = parse_any(text).unwrap();
        assert_eq!(
            show(text, &node),
            show(text, &two_passes(text).unwrap()),
            "{text}"
        );
    }
    check(
        &format!("{{é: {}, b: 7}}", "é".repeat(1_000)),
        &format!("{{é@1:2={}@1:5 b@1:1007=7@1:1010}}", "é".repeat(1_000)),
    );
}

#[test]
fn a_scalar_with_an_error_after_it_is_an_error() {
    assert!(parse_any("5 # five\n@").is_err());
    assert!(parse_any("null: ]").is_err());
}

/// Short texts with a special meaning in YAML or in the format.
fn bits() -> Vec<&'static str> {
    let bits = "!x ·!!int ·&a ·*a·<<: ·[·]·{·}·{}·[]·\"·'·: ·:·- ·? ·, ·#·| ·  ·~·null·0x10·1.5·true·!·\\·%·é·key: ·\
                rate_limit: ·rate_limits: ·metadata: ·\n·\n  - ·\n- ·\n---\n·\n...\n·\ndescriptors:\n·\r·\u{2028}·\u{85}";
    bits.split('·').collect()
}

/// The position of a null that is not written: it lies somewhere between its neighbours.
static UNWRITTEN: LazyLock<regex::Regex> =
    LazyLock::new(|| regex::Regex::new(r"([\[{ =])@\d+:\d+").unwrap());

proptest! {
    /// A tree read in one pass equals the tree read in two.
    #[test]
    fn one_pass_reads_what_two_passes_read(
        is_full: bool,
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..12_usize, prop::sample::select(bits())), 0..4),
    ) {
        let text = if is_full {
            include_str!("../../../config/full.yaml")
        } else {
            include_str!("../../../config/small.yaml")
        };
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let mut text: Vec<char> = lines.flat_map(|line| line.chars().chain(['\n'])).collect();
        for (at, length, bit) in changes {
            let at = at.index(text.len());
            let end = text.len().min(at + length);
            text.splice(at..end, bit.chars());
        }
        let text = String::from_iter(text);
        let expected = two_passes(&text);
        let show = |node: &YamlNode<'_>| UNWRITTEN.replace_all(&show(&text, node), "$1").into_owned();
        let found = parse_any(&text).map(|node| show(&node)).map_err(|error| error.to_string());
        let expected = expected.map(|node| show(&node)).map_err(|error| error.to_string());
        prop_assert_eq!(found, expected);
    }
}

/// The kinds of a node and of the nodes below it.
enum NodeShape {
    Scalar,
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Tagged,
    /// A file with only comments.
    Nothing,
}

#[derive(Clone, Copy)]
struct NodeShapeSeed;

impl<'de> DeserializeSeed<'de> for NodeShapeSeed {
    type Value = NodeShape;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<NodeShape, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Visits every type that serde_yaml can give a scalar.
macro_rules! scalars {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> Result<NodeShape, E> {
            Ok(NodeShape::Scalar)
        })*
    };
}

impl<'de> Visitor<'de> for NodeShapeSeed {
    type Value = NodeShape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    scalars!(
        visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128,
        visit_f64: f64, visit_str: &str
    );

    fn visit_unit<E>(self) -> Result<NodeShape, E> {
        Ok(NodeShape::Scalar)
    }

    fn visit_none<E>(self) -> Result<NodeShape, E> {
        Ok(NodeShape::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<NodeShape, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(NodeShape::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<NodeShape, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key_seed(self)? {
            map.push((key, entries.next_value_seed(self)?));
        }
        Ok(NodeShape::Map(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<NodeShape, A::Error> {
        let (_, content) = data.variant::<IgnoredAny>()?;
        content.newtype_variant::<IgnoredAny>()?;
        Ok(NodeShape::Tagged)
    }
}

/// Reads a node of a known shape.
struct NodeSeed<'s, 't> {
    shape: &'s NodeShape,
    source: &'t str,
}

impl<'t> DeserializeSeed<'t> for NodeSeed<'_, 't> {
    type Value = YamlNode<'t>;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<YamlNode<'t>, D::Error> {
        match self.shape {
            NodeShape::Scalar => deserializer.deserialize_str(self),
            NodeShape::List(_) => deserializer.deserialize_seq(self),
            NodeShape::Map(_) => deserializer.deserialize_map(self),
            NodeShape::Tagged | NodeShape::Nothing => {
                deserializer.deserialize_ignored_any(IgnoredAny)?;
                Ok(YamlNode::tagged())
            }
        }
    }
}

impl<'t> NodeSeed<'_, 't> {
    fn of<'s>(&self, shape: &'s NodeShape) -> NodeSeed<'s, 't> {
        NodeSeed {
            shape,
            source: self.source,
        }
    }
}

impl<'t> Visitor<'t> for NodeSeed<'_, 't> {
    type Value = YamlNode<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_borrowed_str<E>(self, text: &'t str) -> Result<YamlNode<'t>, E> {
        Ok(YamlNode::borrowed(self.source, text))
    }

    fn visit_str<E>(self, text: &str) -> Result<YamlNode<'t>, E> {
        Ok(YamlNode::rewritten(text))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<YamlNode<'t>, A::Error> {
        let NodeShape::List(shapes) = self.shape else {
            unreachable!("only lists are read as lists");
        };
        let mut list = Vec::with_capacity(shapes.len());
        for shape in shapes {
            list.extend(items.next_element_seed(self.of(shape))?);
        }
        // The end of the list is a separate event, which this call consumes.
        items.next_element::<IgnoredAny>()?;
        Ok(YamlNode::list(list))
    }

    fn visit_map<A: MapAccess<'t>>(self, mut entries: A) -> Result<YamlNode<'t>, A::Error> {
        let NodeShape::Map(shapes) = self.shape else {
            unreachable!("only maps are read as maps");
        };
        let mut map = Vec::with_capacity(shapes.len());
        for (key, value) in shapes {
            if let Some(key) = entries.next_key_seed(self.of(key))? {
                map.push((key, entries.next_value_seed(self.of(value))?));
            }
        }
        entries.next_key::<IgnoredAny>()?;
        Ok(YamlNode::map(map))
    }
}

#[test]
fn serde_yaml_ends_an_error_with_the_place_in_the_words_that_positions_are_read_from() {
    let error = serde_yaml::from_str::<Vec<u8>>("- 1\n- 2\n-   true\n").unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with(" at line 3 column 5"),
        "serde_yaml has another text for a place: `parse.rs` would find no number, boolean or null: {text}"
    );
}
