//! Text → a tree of YAML nodes, each with its place in the text.
//!
//! serde_yaml tells no places but those of its own errors. It does lend plain and quoted scalars
//! out of the text they were read from, so where they lie in it says their line and column, and
//! the bytes around them say whether they were quoted. That needs two passes: the first learns
//! the shape of the document, the second reads every scalar as text, whatever it looks like.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

/// A value of a YAML document.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Where it starts, in bytes; nothing for what has no text of its own, such as `{}`.
    pub(crate) offset: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// The text of a scalar as it stands in the file, without its quotes.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<Node>),
    /// In the order of the file; keys may repeat.
    Map(Vec<(Node, Node)>),
    /// Something with a tag of its own, such as `!include`.
    Tagged,
}

impl Node {
    /// The first document of `text`; an empty file is an empty map.
    ///
    /// # Errors
    ///
    /// If the text is not YAML. The error knows the line and the column.
    pub(crate) fn parse(text: &str) -> Result<Self, serde_yaml::Error> {
        let Some(first) = serde_yaml::Deserializer::from_str(text).next() else {
            return Ok(Self::empty());
        };
        let shape = ShapeSeed.deserialize(first)?;
        if let Shape::Nothing = shape {
            return Ok(Self::empty());
        }
        let Some(again) = serde_yaml::Deserializer::from_str(text).next() else {
            return Ok(Self::empty());
        };
        let seed = NodeSeed {
            shape: &shape,
            source: text,
        };
        seed.deserialize(again)
    }

    fn empty() -> Self {
        Self {
            kind: Kind::Map(Vec::new()),
            offset: None,
        }
    }

    /// Whether it is `null`, `~` or nothing at all.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, is_plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }
}

/// What kind of node stands where.
enum Shape {
    Scalar,
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Tagged,
    /// A file of comments.
    Nothing,
}

#[derive(Clone, Copy)]
struct ShapeSeed;

impl<'de> DeserializeSeed<'de> for ShapeSeed {
    type Value = Shape;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Visits whatever a scalar may look like to serde_yaml.
macro_rules! scalars {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> Result<Shape, E> {
            Ok(Shape::Scalar)
        })*
    };
}

impl<'de> Visitor<'de> for ShapeSeed {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    scalars!(
        visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128,
        visit_f64: f64, visit_str: &str
    );

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Scalar)
    }

    fn visit_none<E>(self) -> Result<Shape, E> {
        Ok(Shape::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Shape::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Shape, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key_seed(self)? {
            map.push((key, entries.next_value_seed(self)?));
        }
        Ok(Shape::Map(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Shape, A::Error> {
        let (_, content) = data.variant::<IgnoredAny>()?;
        content.newtype_variant::<IgnoredAny>()?;
        Ok(Shape::Tagged)
    }
}

/// Reads the node of a known shape.
struct NodeSeed<'s> {
    shape: &'s Shape,
    source: &'s str,
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        match self.shape {
            Shape::Scalar => deserializer.deserialize_str(self),
            Shape::List(_) => deserializer.deserialize_seq(self),
            Shape::Map(_) => deserializer.deserialize_map(self),
            Shape::Tagged | Shape::Nothing => {
                deserializer.deserialize_ignored_any(IgnoredAny)?;
                Ok(Node {
                    kind: Kind::Tagged,
                    offset: None,
                })
            }
        }
    }
}

impl NodeSeed<'_> {
    fn of<'s>(&'s self, shape: &'s Shape) -> NodeSeed<'s> {
        NodeSeed {
            shape,
            source: self.source,
        }
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Node, E> {
        let offset = offset_in(self.source, text);
        let is_quoted = offset.is_some_and(|at| {
            let bytes = self.source.as_bytes();
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            matches!(before, Some(b'"' | b'\'')) && before == bytes.get(at + text.len())
        });
        Ok(Node {
            kind: Kind::Scalar {
                text: text.to_owned(),
                is_plain: !is_quoted,
            },
            offset,
        })
    }

    /// What had to be rewritten: quoted with escapes, in a block, or over several lines. None of
    /// these can be read as anything but a string.
    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node {
            kind: Kind::Scalar {
                text: text.to_owned(),
                is_plain: false,
            },
            offset: None,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let Shape::List(shapes) = self.shape else {
            unreachable!("only lists are read as lists");
        };
        let mut list = Vec::with_capacity(shapes.len());
        for shape in shapes {
            list.extend(items.next_element_seed(self.of(shape))?);
        }
        // The end of the list is an event of its own, which has to be asked for.
        items.next_element::<IgnoredAny>()?;
        Ok(Node {
            offset: list.first().and_then(|item| item.offset),
            kind: Kind::List(list),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let Shape::Map(shapes) = self.shape else {
            unreachable!("only maps are read as maps");
        };
        let mut map = Vec::with_capacity(shapes.len());
        for (key, value) in shapes {
            if let Some(key) = entries.next_key_seed(self.of(key))? {
                map.push((key, entries.next_value_seed(self.of(value))?));
            }
        }
        entries.next_key::<IgnoredAny>()?;
        Ok(Node {
            offset: map.first().and_then(|(key, _)| key.offset),
            kind: Kind::Map(map),
        })
    }
}

/// Where `part` lies in `source`, in bytes, if it does.
fn offset_in(source: &str, part: &str) -> Option<usize> {
    let offset = (part.as_ptr() as usize).checked_sub(source.as_ptr() as usize)?;
    (offset + part.len() <= source.len()).then_some(offset)
}

/// A line and a column, both from 1; the column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// Where the lines of a text start.
#[derive(Debug)]
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self(
            std::iter::once(0)
                .chain(breaks.map(|(at, _)| at + 1))
                .collect(),
        )
    }

    /// The position of a byte of the text that these lines are of.
    pub(crate) fn position(&self, text: &str, offset: usize) -> Position {
        let line = self.0.partition_point(|&start| start <= offset);
        let before = &text.as_bytes()[self.0[line - 1]..offset.min(text.len())];
        Position {
            line,
            // Bytes that only continue a character do not count.
            column: 1 + before.iter().filter(|&&byte| byte & 0xc0 != 0x80).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node as one line: plain scalars bare, others in quotes, each with its position.
    fn show(text: &str, node: &Node) -> String {
        let at = node.offset.map_or_else(String::new, |offset| {
            let Position { line, column } = Lines::of(text).position(text, offset);
            format!("@{line}:{column}")
        });
        match &node.kind {
            Kind::Scalar {
                text,
                is_plain: true,
            } => format!("{text}{at}"),
            Kind::Scalar {
                text,
                is_plain: false,
            } => format!("'{text}'{at}"),
            Kind::List(items) => {
                let items: Vec<_> = items.iter().map(|item| show(text, item)).collect();
                format!("[{}]", items.join(" "))
            }
            Kind::Map(entries) => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|(key, value)| format!("{}={}", show(text, key), show(text, value)))
                    .collect();
                format!("{{{}}}", entries.join(" "))
            }
            Kind::Tagged => "!".to_owned(),
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(show(text, &Node::parse(text).unwrap()), expected);
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
        let is_null = |text: &str| match Node::parse(text).unwrap().kind {
            Kind::Map(entries) => entries[0].1.is_null(),
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
    fn empty_files_are_empty_maps_and_further_documents_ignored() {
        check("", "{}");
        check("# nothing\n", "{}");
        check("a: 1\n---\n}{", "{a@1:1=1@1:4}");
    }

    #[test]
    fn json_is_yaml() {
        check("{\"a\": [1, true]}", "{'a'@1:3=[1@1:8 true@1:11]}");
    }

    #[test]
    fn broken_text_knows_its_place() {
        let error = Node::parse("a: [1,\nb: }").unwrap_err();
        assert_eq!(error.location().unwrap().line(), 2);
        assert!(Node::parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let below = format!("*a{}, ", level - 1).repeat(10);
            bomb += &format!("a{level}: &a{level} [{}]\n", below.trim_end_matches(", "));
        }
        assert!(Node::parse(&bomb).is_err());
    }

    #[test]
    fn tags_are_seen() {
        check("a: !include b.yaml", "{a@1:1=!}");
        check("a: !!str 5", "{a@1:1=5@1:10}");
    }
}
