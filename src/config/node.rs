//! Text → a tree of YAML nodes, each with its position in the text.
//!
//! serde_yaml reports no positions except in its errors. But it borrows plain and quoted scalars from the text, so
//! their address gives their line and column, and the neighbouring bytes show whether they were quoted. It borrows a
//! scalar only for a caller that asks for a string, whatever the scalar looks like. So this reader has to know the
//! shape of the document beforehand.
//!
//! A caller that knows the expected value of each key passes an `ExpectedNode`, and one pass is enough while the guess
//! holds. Without a guess, or where it fails, there are two passes: the first learns the shape, the second reads.
//! Both lead to equal trees.

use std::{borrow::Cow, fmt};

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// A value in a YAML document. Its texts are borrowed from the file unless the parser had to rewrite them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct YamlNode<'t> {
    pub(crate) kind: NodeKind<'t>,
    /// Its start in bytes; `None` for a value without a text of its own, such as `{}`.
    pub(crate) offset: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeKind<'t> {
    /// The text of a scalar without its quotes.
    Scalar {
        text: Cow<'t, str>,
        is_plain: bool,
    },
    List(Vec<YamlNode<'t>>),
    /// In the order of the file; keys may repeat.
    Map(Vec<(YamlNode<'t>, YamlNode<'t>)>),
    /// A value with a tag, such as `!include`.
    Tagged,
}

/// The expected kind of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpectedNode {
    Scalar,
    /// A map; the function gives the guess for the value of a key.
    Map(fn(&str) -> ExpectedNode),
    /// A list of such items.
    List(&'static ExpectedNode),
    /// Any value without numbers, booleans or nulls.
    Any(fn(&str) -> ExpectedNode),
}

impl<'t> YamlNode<'t> {
    /// The first document of `text`; an empty file is an empty map.
    ///
    /// # Errors
    ///
    /// If the text is not YAML. The error has the line and the column.
    pub(crate) fn parse(text: &'t str) -> Result<Self, serde_yaml::Error> {
        check_nesting(text)?;
        let Some(first) = serde_yaml::Deserializer::from_str(text).next() else {
            return Ok(Self::empty());
        };
        let shape = NodeShapeSeed.deserialize(first)?;
        if let NodeShape::Nothing = shape {
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

    /// Like [`YamlNode::parse`], in half the time if `expected` is right.
    ///
    /// # Errors
    ///
    /// As for [`YamlNode::parse`].
    pub(crate) fn parse_as(
        text: &'t str,
        expected: ExpectedNode,
    ) -> Result<Self, serde_yaml::Error> {
        match Self::parse_expected(text, expected, PIECE_BYTES) {
            Some(root) => Ok(root),
            None => Self::parse(text),
        }
    }

    /// The result of [`YamlNode::parse`], or `None` if one pass is not enough. Long lists are read in pieces of at
    /// least
    /// `piece_bytes`.
    pub(super) fn parse_expected(
        text: &'t str,
        expected: ExpectedNode,
        piece_bytes: usize,
    ) -> Option<Self> {
        // A borrowed scalar does not show its tag.
        if may_have_tags(text) || check_nesting(text).is_err() {
            return None;
        }
        if let ExpectedNode::Map(below) = expected
            && let Some(pieces) = DocumentPieces::of(text, below, piece_bytes)
            && let Some(root) = pieces.read(text)
        {
            return Some(root);
        }
        let document = serde_yaml::Deserializer::from_str(text).next()?;
        let seed = ExpectedSeed {
            expected,
            source: text,
            levels: MAX_EXPECTED_LEVELS,
        };
        seed.deserialize(document).ok()
    }

    fn empty() -> Self {
        Self {
            kind: NodeKind::Map(Vec::new()),
            offset: None,
        }
    }

    /// A scalar that borrows from `source`.
    fn borrowed(source: &'t str, borrowed: &'t str) -> Self {
        let offset = offset_in(source, borrowed);
        let is_quoted = offset.is_some_and(|at| {
            let bytes = source.as_bytes();
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            matches!(before, Some(b'"' | b'\'')) && before == bytes.get(at + borrowed.len())
        });
        Self {
            kind: NodeKind::Scalar {
                text: Cow::Borrowed(borrowed),
                is_plain: !is_quoted,
            },
            offset,
        }
    }

    /// A scalar that the parser rewrote: quoted with escapes, in a block, or over several lines. All of these are
    /// strings.
    fn rewritten(text: &str) -> Self {
        Self {
            kind: NodeKind::Scalar {
                text: Cow::Owned(text.to_owned()),
                is_plain: false,
            },
            offset: None,
        }
    }

    fn list(items: Vec<Self>) -> Self {
        Self {
            offset: items.first().and_then(|item| item.offset),
            kind: NodeKind::List(items),
        }
    }

    fn map(entries: Vec<(Self, Self)>) -> Self {
        Self {
            offset: entries.first().and_then(|(key, _)| key.offset),
            kind: NodeKind::Map(entries),
        }
    }

    /// Whether the node is `null`, `~` or empty.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { text, is_plain: true }
            if matches!(&**text, "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Copies borrowed texts.
    pub(crate) fn into_owned(self) -> YamlNode<'static> {
        let kind = match self.kind {
            NodeKind::Scalar { text, is_plain } => NodeKind::Scalar {
                text: Cow::Owned(text.into_owned()),
                is_plain,
            },
            NodeKind::List(items) => {
                NodeKind::List(items.into_iter().map(YamlNode::into_owned).collect())
            }
            NodeKind::Map(entries) => {
                let owned = |(key, value): (YamlNode<'_>, YamlNode<'_>)| {
                    (key.into_owned(), value.into_owned())
                };
                NodeKind::Map(entries.into_iter().map(owned).collect())
            }
            NodeKind::Tagged => NodeKind::Tagged,
        };
        YamlNode {
            kind,
            offset: self.offset,
        }
    }
}

/// More open brackets than this start the check of the nesting.
const MAX_OPEN_BRACKETS: usize = 256;

/// Bytes read after the brackets: longer than any key, so that the parser sees the structure before them.
const BEHIND_BRACKETS_BYTES: usize = 4096;

/// Refuses, in less time, a text that serde_yaml refuses as nested too deeply. serde_yaml checks the nesting after
/// reading the whole document, and for that visits all open brackets again at each word: 100,000 brackets take it
/// more than half a minute. Brackets may be part of texts too, so their count only decides when to ask serde_yaml
/// about the beginning of the text.
fn check_nesting(text: &str) -> Result<(), serde_yaml::Error> {
    let mut open = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => continue,
        }
        if open > MAX_OPEN_BRACKETS {
            let end = text.ceil_char_boundary(text.len().min(at + BEHIND_BRACKETS_BYTES));
            let beginning = serde_yaml::Deserializer::from_str(&text[..end]).next();
            let shape = beginning.map(|beginning| NodeShapeSeed.deserialize(beginning));
            return match shape {
                Some(Err(error)) if error.to_string().contains("recursion limit") => Err(error),
                _ => Ok(()),
            };
        }
    }
    Ok(())
}

/// serde_yaml gets long lists in pieces of this many bytes, each extended to the end of an item: it needs a hundred
/// bytes per word, and data that fits the caches is read faster.
const PIECE_BYTES: usize = 64 << 10;

/// Deeper nodes are not read by a guess. serde_yaml gives up at 128 levels, and a piece contains fewer of them than
/// the document.
const MAX_EXPECTED_LEVELS: u8 = 64;

/// A document that ends with a long block list below a key of its root, cut between items of the list.
///
/// A piece is valid YAML by itself only if it ends outside of quotes and brackets and has no line further left than
/// its items. Then the next piece continues where this one ends, and reading the pieces one by one equals reading the
/// whole. Anything else is an error in one of the pieces, and then nothing is read in pieces: a quote closed in the
/// next piece, a key after the list, an anchor from another piece.
struct DocumentPieces<'t> {
    /// The document up to the list.
    head: &'t str,
    item: &'static ExpectedNode,
    items: Vec<&'t str>,
}

impl<'t> DocumentPieces<'t> {
    /// Cuts a document, if it has such a list.
    fn of(text: &'t str, below: fn(&str) -> ExpectedNode, piece_bytes: usize) -> Option<Self> {
        if text.len() <= piece_bytes {
            return None;
        }
        let mut at = 0;
        let mut list = None;
        for line in text.split_inclusive('\n') {
            if let Some(item) = list {
                let first = line.trim_start_matches(' ');
                if first.starts_with("- ") {
                    let indent = line.len() - first.len();
                    let (head, rest) = text.split_at(at);
                    // Text after the end of the document is no part of it.
                    if rest.contains("\n---") || rest.contains("\n...") {
                        return None;
                    }
                    let items = cut(rest, &format!("\n{:indent$}- ", ""), piece_bytes);
                    return Some(Self { head, item, items });
                }
                if !matches!(first.trim_end().bytes().next(), None | Some(b'#')) {
                    return None;
                }
            } else if let Some(key) = line.trim_end().strip_suffix(':')
                && let ExpectedNode::List(item) = below(key)
            {
                list = Some(item);
            }
            at += line.len();
        }
        None
    }

    /// Joins the pieces, if each matches the guess.
    fn read(&self, source: &'t str) -> Option<YamlNode<'t>> {
        let read = |part, expected| {
            let seed = ExpectedSeed {
                expected,
                source,
                levels: MAX_EXPECTED_LEVELS,
            };
            let document = serde_yaml::Deserializer::from_str(part);
            Some(seed.deserialize(document).ok()?.kind)
        };
        let NodeKind::Map(mut entries) =
            read(self.head, ExpectedNode::Map(|_| ExpectedNode::Scalar))?
        else {
            return None;
        };
        let mut items = Vec::new();
        for part in &self.items {
            let NodeKind::List(more) = read(part, ExpectedNode::List(self.item))? else {
                return None;
            };
            items.extend(more);
        }
        let (_, list) = entries.last_mut().filter(|(_, value)| value.is_null())?;
        *list = YamlNode::list(items);
        Some(YamlNode::map(entries))
    }
}

/// Cuts `text` after line breaks, at occurrences of `mark`, into pieces of at least `piece_bytes`.
fn cut<'t>(mut text: &'t str, mark: &str, piece_bytes: usize) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    loop {
        let from = text.ceil_char_boundary(piece_bytes);
        let Some(at) = text[from..].find(mark) else {
            pieces.push(text);
            return pieces;
        };
        let (piece, rest) = text.split_at(from + at + 1);
        pieces.push(piece);
        text = rest;
    }
}

/// Whether an exclamation mark may begin a tag; one at the end of a word cannot.
fn may_have_tags(text: &str) -> bool {
    text.match_indices('!').any(|(at, _)| {
        let before = text.as_bytes()[..at].last();
        !before.is_some_and(u8::is_ascii_alphanumeric)
    })
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

/// Visits every type that serde_yaml may give a scalar.
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
                Ok(YamlNode {
                    kind: NodeKind::Tagged,
                    offset: None,
                })
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

/// Reads a node that matches a guess, and fails on any other.
struct ExpectedSeed<'t> {
    expected: ExpectedNode,
    source: &'t str,
    /// Levels that may still follow below.
    levels: u8,
}

impl<'t> DeserializeSeed<'t> for ExpectedSeed<'t> {
    type Value = YamlNode<'t>;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<YamlNode<'t>, D::Error> {
        match self.expected {
            ExpectedNode::Scalar => deserializer.deserialize_str(self),
            ExpectedNode::Map(_) => deserializer.deserialize_map(self),
            ExpectedNode::List(_) => deserializer.deserialize_seq(self),
            ExpectedNode::Any(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'t> ExpectedSeed<'t> {
    /// The seed for one level further down.
    fn below<E: serde::de::Error>(&self, expected: ExpectedNode) -> Result<Self, E> {
        let levels = self.levels.checked_sub(1);
        Ok(Self {
            expected,
            source: self.source,
            levels: levels.ok_or_else(|| E::custom("nested deeper than was guessed"))?,
        })
    }
}

/// Numbers, booleans and null arrive without their text, so they have no visit method.
impl<'t> Visitor<'t> for ExpectedSeed<'t> {
    type Value = YamlNode<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what was guessed")
    }

    fn visit_borrowed_str<E>(self, text: &'t str) -> Result<YamlNode<'t>, E> {
        Ok(YamlNode::borrowed(self.source, text))
    }

    fn visit_str<E>(self, text: &str) -> Result<YamlNode<'t>, E> {
        Ok(YamlNode::rewritten(text))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<YamlNode<'t>, A::Error> {
        let expected = match self.expected {
            ExpectedNode::List(item) => *item,
            expected => expected,
        };
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.below(expected)?)? {
            list.push(item);
        }
        if list.is_empty() {
            return Err(A::Error::custom("an empty list, or nothing at all"));
        }
        Ok(YamlNode::list(list))
    }

    fn visit_map<A: MapAccess<'t>>(self, mut entries: A) -> Result<YamlNode<'t>, A::Error> {
        let (ExpectedNode::Map(below) | ExpectedNode::Any(below)) = self.expected else {
            unreachable!("only maps are read as maps");
        };
        let mut map = Vec::new();
        while let Some(key) = entries.next_key_seed(self.below(ExpectedNode::Scalar)?)? {
            let expected = match &key.kind {
                NodeKind::Scalar { text, .. } => below(text),
                NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Tagged => ExpectedNode::Scalar,
            };
            map.push((key, entries.next_value_seed(self.below(expected)?)?));
        }
        if map.is_empty() {
            return Err(A::Error::custom("an empty map, or nothing at all"));
        }
        Ok(YamlNode::map(map))
    }
}

/// The offset of `part` in `source`, in bytes, if it is a part of it.
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

/// The offsets at which the lines of a text start.
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

    /// The position of a byte; `text` must be the text of these lines.
    pub(crate) fn position(&self, text: &str, offset: usize) -> Position {
        let line = self.0.partition_point(|&start| start <= offset);
        let before = &text.as_bytes()[self.0[line - 1]..offset.min(text.len())];
        Position {
            line,
            // Continuation bytes of a character do not count.
            column: 1 + before.iter().filter(|&&byte| byte & 0xc0 != 0x80).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn anything(_: &str) -> ExpectedNode {
        ExpectedNode::Any(anything)
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let node = YamlNode::parse(text).unwrap();
        assert_eq!(show(text, &node), expected);
        if let Some(parse_expected) =
            YamlNode::parse_expected(text, ExpectedNode::Any(anything), PIECE_BYTES)
        {
            assert_eq!(parse_expected, node);
        }
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
        let is_null = |text: &str| match YamlNode::parse(text).unwrap().kind {
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
        let error = YamlNode::parse("a: [1,\nb: }").unwrap_err();
        assert_eq!(error.location().unwrap().line(), 2);
    }

    /// Millions of levels are refused quickly.
    #[test]
    fn what_is_nested_too_deeply_is_refused_at_once() {
        for bracket in ["[", "{a: ", "[{? "] {
            let error = YamlNode::parse(&bracket.repeat(1 << 20))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("recursion limit exceeded at "), "{error}");
        }
        let error = YamlNode::parse(&format!("a: 1\nb: {}", "[".repeat(500))).unwrap_err();
        assert_eq!(error.location().unwrap().line(), 2);
    }

    #[test]
    fn brackets_in_texts_are_no_levels() {
        let texts = "- '[[[['\n# {\n".repeat(200);
        let text = "['[[[[']";
        assert!(
            matches!(YamlNode::parse(&texts).unwrap().kind, NodeKind::List(items) if items.len() == 200)
        );
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
        assert!(YamlNode::parse(&bomb).is_err());
    }

    #[test]
    fn tags_are_seen() {
        check("a: !include b.yaml", "{a@1:1=!}");
        check("a: !!str 5", "{a@1:1=5@1:10}");
    }

    fn below(key: &str) -> ExpectedNode {
        match key {
            "m" => ExpectedNode::Map(below),
            "l" => ExpectedNode::List(&ExpectedNode::Map(below)),
            "any" => ExpectedNode::Any(anything),
            _ => ExpectedNode::Scalar,
        }
    }

    /// Whether one pass is enough for a document with a map `m` and a list `l` of maps and scalars.
    #[track_caller]
    fn check_expected(text: &str, is_enough: bool) {
        let parse_expected = YamlNode::parse_expected(text, ExpectedNode::Map(below), PIECE_BYTES);
        assert_eq!(parse_expected.is_some(), is_enough, "{text}");
        if let Some(parse_expected) = parse_expected {
            assert_eq!(parse_expected, YamlNode::parse(text).unwrap());
        }
    }

    #[test]
    fn one_pass_is_enough_for_what_was_guessed() {
        check_expected("a: 1\nb: 'x'\nc: \"x\\ty\"\nd: |\n  text\ne: ~\nf:", true);
        check_expected("m: {a: yes, l: [{a: 1}, {m: {a: 0x10}}]}", true);
        check_expected("m: &x {a: 1}\nl: [*x, *x]", true);
        check_expected("any: [a, {b: 'c', d: [e]}]", true);
        check_expected("a: hear! # loud!", true);
    }

    #[test]
    fn one_pass_is_not_enough_for_what_was_not_guessed() {
        check_expected("a: {}", false);
        check_expected("a: [1]", false);
        check_expected("m: 1", false);
        check_expected("l: 1", false);
        check_expected("l: [1]", false);
        check_expected("[a]: 1", false);
        check_expected("- a", false);
        // An empty value looks like an empty collection.
        check_expected("m:", false);
        check_expected("m: {}", false);
        check_expected("l:", false);
        check_expected("", false);
        check_expected("# nothing", false);
        // Texts arrive without their tags, and numbers without their texts.
        check_expected("a: !b c", false);
        check_expected("any: 0x10", false);
        check_expected("any: {a: [true]}", false);
        check_expected("any: ~", false);
        let levels = usize::from(MAX_EXPECTED_LEVELS);
        let deep = |levels| format!("any: {}a{}", "[".repeat(levels), "]".repeat(levels));
        check_expected(&deep(levels - 1), true);
        check_expected(&deep(levels), false);
    }

    /// The number of pieces of a text that may be cut anywhere, and whether they are valid.
    #[track_caller]
    fn check_pieces(text: &str, expected: Option<usize>) {
        let pieces = DocumentPieces::of(text, below, 1);
        let read = pieces.as_ref().and_then(|pieces| pieces.read(text));
        let count = pieces
            .filter(|_| read.is_some())
            .map(|pieces| pieces.items.len());
        assert_eq!(count, expected, "{text}");
        if let Some(read) = read {
            assert_eq!(read, YamlNode::parse(text).unwrap());
        }
    }

    #[test]
    fn a_long_list_is_read_in_pieces() {
        check_pieces(
            "a: 1\nl:\n  - a: 1\n  - b: 2\n    m:\n      l:\n      - c: |\n         x\n\n  - d: 4\n",
            Some(3),
        );
        check_pieces(
            "---\n'a': 1\nl: \n# why\n\n- a: 1\n- any: [\n two]\n- é: ü",
            Some(3),
        );
        check_pieces("l:\r\n  - a: 1\r\n  - b: 2\r\n", Some(2));
        check_pieces("l:\n  - a: &x 1\n    b: *x\n  - c: 2\n", Some(2));
    }

    #[test]
    fn what_does_not_end_where_it_was_cut_is_read_as_a_whole() {
        // Quotes and brackets that continue in the next piece.
        check_pieces("l:\n- a: \"x\n- b: y\"\n", None);
        check_pieces("l:\n- a: 'x\n\n- b: y'\n", None);
        check_pieces("l:\n- {a:\n- b}\n", None);
        check_pieces("a: '\nl:\n- a: 1\n- b: 2'", None);
        // A line that is no part of the list.
        check_pieces("l:\n  - a: 1\n  - b: 2\nc: 3\n", None);
        check_pieces("l:\n- a: 1\n- b: 2\nc: 3\n", None);
        check_pieces("l:\n  - a: 1\n - b: 2\n  - c: 3\n", None);
        check_pieces("l:\n  - a: 1\n...\n  - b: 2\n", None);
        check_pieces("l:\n- a: 1\n---\n- b: 2\n", None);
        check_pieces("a: 1\n---\nl:\n- a: 1\n- b: 2\n", None);
        // A reference to another piece.
        check_pieces("l:\n- m: &x {a: 1}\n- m: *x\n", None);
        check_pieces("m: &x {a: 1}\nl:\n- m: *x\n- a: 1\n", None);
        // Nothing to cut.
        check_pieces("l: [a]\n", None);
        check_pieces("l:\n  a: 1\n", None);
        check_pieces("- a: 1\n- b: 2\n", None);
    }
}
