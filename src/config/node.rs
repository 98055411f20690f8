//! Text → a tree of YAML nodes, each with its place in the text.
//!
//! serde_yaml tells no places but those of its own errors. It does lend plain and quoted scalars
//! out of the text they were read from, so where they lie in it says their line and column, and
//! the bytes around them say whether they were quoted. But it lends a scalar only to who asks for
//! a text, whatever the scalar looks like, and so has to be told the shape of the document.
//!
//! Who knows what to expect below each key tells a [`Guess`], and one pass is enough while it holds.
//! Without one, or where it does not hold, there are two: the first learns the shape, the second
//! reads. Both lead to the same tree.

use std::{borrow::Cow, fmt};

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// A value of a YAML document, whose texts are those of the file where they stand there as they
/// are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node<'t> {
    pub(crate) kind: Kind<'t>,
    /// Where it starts, in bytes; nothing for what has no text of its own, such as `{}`.
    pub(crate) offset: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind<'t> {
    /// The text of a scalar as it stands in the file, without its quotes.
    Scalar {
        text: Cow<'t, str>,
        is_plain: bool,
    },
    List(Vec<Node<'t>>),
    /// In the order of the file; keys may repeat.
    Map(Vec<(Node<'t>, Node<'t>)>),
    /// Something with a tag of its own, such as `!include`.
    Tagged,
}

/// What most likely stands somewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Guess {
    Scalar,
    /// A map; what stands below a key is told by the key.
    Map(fn(&str) -> Guess),
    /// A list of such items.
    List(&'static Guess),
    /// Anything, as long as it holds no number, boolean or null.
    Any(fn(&str) -> Guess),
}

impl<'t> Node<'t> {
    /// The first document of `text`; an empty file is an empty map.
    ///
    /// # Errors
    ///
    /// If the text is not YAML. The error knows the line and the column.
    pub(crate) fn parse(text: &'t str) -> Result<Self, serde_yaml::Error> {
        check_nesting(text)?;
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

    /// The same in half the time if the document is what `guess` says.
    ///
    /// # Errors
    ///
    /// Those of [`Node::parse`].
    pub(crate) fn parse_as(text: &'t str, guess: Guess) -> Result<Self, serde_yaml::Error> {
        match Self::guessed(text, guess, PIECE_BYTES) {
            Some(root) => Ok(root),
            None => Self::parse(text),
        }
    }

    /// What [`Node::parse`] returns, or nothing if it cannot be known in one pass. Long lists are
    /// read in pieces of `piece_bytes` and more.
    pub(super) fn guessed(text: &'t str, guess: Guess, piece_bytes: usize) -> Option<Self> {
        // A text is lent out without its tag.
        if may_have_tags(text) || check_nesting(text).is_err() {
            return None;
        }
        if let Guess::Map(below) = guess
            && let Some(pieces) = Pieces::of(text, below, piece_bytes)
            && let Some(root) = pieces.read(text)
        {
            return Some(root);
        }
        let document = serde_yaml::Deserializer::from_str(text).next()?;
        let seed = GuessSeed {
            guess,
            source: text,
            levels: MAX_GUESSED_LEVELS,
        };
        seed.deserialize(document).ok()
    }

    fn empty() -> Self {
        Self {
            kind: Kind::Map(Vec::new()),
            offset: None,
        }
    }

    /// The scalar `lent`, which is a part of `source`.
    fn lent(source: &'t str, lent: &'t str) -> Self {
        let offset = offset_in(source, lent);
        let is_quoted = offset.is_some_and(|at| {
            let bytes = source.as_bytes();
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            matches!(before, Some(b'"' | b'\'')) && before == bytes.get(at + lent.len())
        });
        Self {
            kind: Kind::Scalar {
                text: Cow::Borrowed(lent),
                is_plain: !is_quoted,
            },
            offset,
        }
    }

    /// What had to be rewritten: quoted with escapes, in a block, or over several lines. None of
    /// these can be read as anything but a string.
    fn rewritten(text: &str) -> Self {
        Self {
            kind: Kind::Scalar {
                text: Cow::Owned(text.to_owned()),
                is_plain: false,
            },
            offset: None,
        }
    }

    fn list(items: Vec<Self>) -> Self {
        Self {
            offset: items.first().and_then(|item| item.offset),
            kind: Kind::List(items),
        }
    }

    fn map(entries: Vec<(Self, Self)>) -> Self {
        Self {
            offset: entries.first().and_then(|(key, _)| key.offset),
            kind: Kind::Map(entries),
        }
    }

    /// Whether it is `null`, `~` or nothing at all.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, is_plain: true }
            if matches!(&**text, "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The same with texts of its own.
    pub(crate) fn into_owned(self) -> Node<'static> {
        let kind = match self.kind {
            Kind::Scalar { text, is_plain } => Kind::Scalar {
                text: Cow::Owned(text.into_owned()),
                is_plain,
            },
            Kind::List(items) => Kind::List(items.into_iter().map(Node::into_owned).collect()),
            Kind::Map(entries) => {
                let owned =
                    |(key, value): (Node<'_>, Node<'_>)| (key.into_owned(), value.into_owned());
                Kind::Map(entries.into_iter().map(owned).collect())
            }
            Kind::Tagged => Kind::Tagged,
        };
        Node {
            kind,
            offset: self.offset,
        }
    }
}

/// So many brackets that are open at once are looked at before all of a document is read.
const MAX_OPEN_BRACKETS: usize = 256;

/// What is read behind them: longer than any key, so that what precedes it is what it is.
const BEHIND_BRACKETS_BYTES: usize = 4096;

/// Refuses what serde_yaml refuses as nested too deeply, in less time: it looks at the nesting when it has
/// read all of a document, and for that it looks at all open brackets again at each word. 100,000 of
/// them take it more than half a minute. Brackets may stand in texts too, so they are only counted
/// to know when to ask.
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
            let shape = beginning.map(|beginning| ShapeSeed.deserialize(beginning));
            return match shape {
                Some(Err(error)) if error.to_string().contains("recursion limit") => Err(error),
                _ => Ok(()),
            };
        }
    }
    Ok(())
}

/// Of a long list, serde_yaml gets so many bytes at a time, and then to the end of an item: it
/// holds a hundred bytes for each word of what it reads, and what fits the caches is read faster.
const PIECE_BYTES: usize = 64 << 10;

/// What is nested deeper is not read as it was guessed. serde_yaml itself gives up at 128 levels, of
/// which it sees fewer in a piece.
const MAX_GUESSED_LEVELS: u8 = 64;

/// A document that ends with a long block list below a key of its root, cut before items of it.
///
/// A piece is good YAML by itself only if it ends outside of quotes and brackets, and if nothing in
/// it stands further left than its items. Then the next piece goes on where this one ends, and
/// all of them together say what each says by itself. Anything else is an error in one of them, and
/// nothing is read in pieces: a quote that is closed in the next piece, a key below the list, a name
/// that another piece gave to a node.
struct Pieces<'t> {
    /// The document up to the list.
    head: &'t str,
    item: &'static Guess,
    items: Vec<&'t str>,
}

impl<'t> Pieces<'t> {
    /// Cuts a document, if there is anything to cut.
    fn of(text: &'t str, below: fn(&str) -> Guess, piece_bytes: usize) -> Option<Self> {
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
                    // What follows the end of a document is no part of it.
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
                && let Guess::List(item) = below(key)
            {
                list = Some(item);
            }
            at += line.len();
        }
        None
    }

    /// Puts together what they say, if each is as it was guessed.
    fn read(&self, source: &'t str) -> Option<Node<'t>> {
        let read = |part, guess| {
            let seed = GuessSeed {
                guess,
                source,
                levels: MAX_GUESSED_LEVELS,
            };
            let document = serde_yaml::Deserializer::from_str(part);
            Some(seed.deserialize(document).ok()?.kind)
        };
        let Kind::Map(mut entries) = read(self.head, Guess::Map(|_| Guess::Scalar))? else {
            return None;
        };
        let mut items = Vec::new();
        for part in &self.items {
            let Kind::List(more) = read(part, Guess::List(self.item))? else {
                return None;
            };
            items.extend(more);
        }
        let (_, list) = entries.last_mut().filter(|(_, value)| value.is_null())?;
        *list = Node::list(items);
        Some(Node::map(entries))
    }
}

/// Cuts `text` behind line breaks where `mark` stands, into pieces of at least `piece_bytes`.
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

/// Whether there is an exclamation mark that may begin a tag; one that ends a word cannot.
fn may_have_tags(text: &str) -> bool {
    text.match_indices('!').any(|(at, _)| {
        let before = text.as_bytes()[..at].last();
        !before.is_some_and(u8::is_ascii_alphanumeric)
    })
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
struct NodeSeed<'s, 't> {
    shape: &'s Shape,
    source: &'t str,
}

impl<'t> DeserializeSeed<'t> for NodeSeed<'_, 't> {
    type Value = Node<'t>;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<Node<'t>, D::Error> {
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

impl<'t> NodeSeed<'_, 't> {
    fn of<'s>(&self, shape: &'s Shape) -> NodeSeed<'s, 't> {
        NodeSeed {
            shape,
            source: self.source,
        }
    }
}

impl<'t> Visitor<'t> for NodeSeed<'_, 't> {
    type Value = Node<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_borrowed_str<E>(self, text: &'t str) -> Result<Node<'t>, E> {
        Ok(Node::lent(self.source, text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node<'t>, E> {
        Ok(Node::rewritten(text))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<Node<'t>, A::Error> {
        let Shape::List(shapes) = self.shape else {
            unreachable!("only lists are read as lists");
        };
        let mut list = Vec::with_capacity(shapes.len());
        for shape in shapes {
            list.extend(items.next_element_seed(self.of(shape))?);
        }
        // The end of the list is an event of its own, which has to be asked for.
        items.next_element::<IgnoredAny>()?;
        Ok(Node::list(list))
    }

    fn visit_map<A: MapAccess<'t>>(self, mut entries: A) -> Result<Node<'t>, A::Error> {
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
        Ok(Node::map(map))
    }
}

/// Reads a node that is what it is guessed to be, and fails on any other.
struct GuessSeed<'t> {
    guess: Guess,
    source: &'t str,
    /// So many levels may be below.
    levels: u8,
}

impl<'t> DeserializeSeed<'t> for GuessSeed<'t> {
    type Value = Node<'t>;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<Node<'t>, D::Error> {
        match self.guess {
            Guess::Scalar => deserializer.deserialize_str(self),
            Guess::Map(_) => deserializer.deserialize_map(self),
            Guess::List(_) => deserializer.deserialize_seq(self),
            Guess::Any(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'t> GuessSeed<'t> {
    /// What is one level further down.
    fn below<E: serde::de::Error>(&self, guess: Guess) -> Result<Self, E> {
        let levels = self.levels.checked_sub(1);
        Ok(Self {
            guess,
            source: self.source,
            levels: levels.ok_or_else(|| E::custom("nested deeper than was guessed"))?,
        })
    }
}

/// Numbers, booleans and null come without their text, and are not visited.
impl<'t> Visitor<'t> for GuessSeed<'t> {
    type Value = Node<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what was guessed")
    }

    fn visit_borrowed_str<E>(self, text: &'t str) -> Result<Node<'t>, E> {
        Ok(Node::lent(self.source, text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node<'t>, E> {
        Ok(Node::rewritten(text))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<Node<'t>, A::Error> {
        let guess = match self.guess {
            Guess::List(item) => *item,
            guess => guess,
        };
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.below(guess)?)? {
            list.push(item);
        }
        if list.is_empty() {
            return Err(A::Error::custom("an empty list, or nothing at all"));
        }
        Ok(Node::list(list))
    }

    fn visit_map<A: MapAccess<'t>>(self, mut entries: A) -> Result<Node<'t>, A::Error> {
        let (Guess::Map(below) | Guess::Any(below)) = self.guess else {
            unreachable!("only maps are read as maps");
        };
        let mut map = Vec::new();
        while let Some(key) = entries.next_key_seed(self.below(Guess::Scalar)?)? {
            let guess = match &key.kind {
                Kind::Scalar { text, .. } => below(text),
                Kind::List(_) | Kind::Map(_) | Kind::Tagged => Guess::Scalar,
            };
            map.push((key, entries.next_value_seed(self.below(guess)?)?));
        }
        if map.is_empty() {
            return Err(A::Error::custom("an empty map, or nothing at all"));
        }
        Ok(Node::map(map))
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
    fn show(text: &str, node: &Node<'_>) -> String {
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

    fn anything(_: &str) -> Guess {
        Guess::Any(anything)
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let node = Node::parse(text).unwrap();
        assert_eq!(show(text, &node), expected);
        if let Some(guessed) = Node::guessed(text, Guess::Any(anything), PIECE_BYTES) {
            assert_eq!(guessed, node);
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
    }

    /// Millions of levels are refused before anybody would have the patience to read them.
    #[test]
    fn what_is_nested_too_deeply_is_refused_at_once() {
        for bracket in ["[", "{a: ", "[{? "] {
            let error = Node::parse(&bracket.repeat(1 << 20))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("recursion limit exceeded at "), "{error}");
        }
        let error = Node::parse(&format!("a: 1\nb: {}", "[".repeat(500))).unwrap_err();
        assert_eq!(error.location().unwrap().line(), 2);
    }

    #[test]
    fn brackets_in_texts_are_no_levels() {
        let texts = "- '[[[['\n# {\n".repeat(200);
        let text = "['[[[[']";
        assert!(
            matches!(Node::parse(&texts).unwrap().kind, Kind::List(items) if items.len() == 200)
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
        assert!(Node::parse(&bomb).is_err());
    }

    #[test]
    fn tags_are_seen() {
        check("a: !include b.yaml", "{a@1:1=!}");
        check("a: !!str 5", "{a@1:1=5@1:10}");
    }

    fn below(key: &str) -> Guess {
        match key {
            "m" => Guess::Map(below),
            "l" => Guess::List(&Guess::Map(below)),
            "any" => Guess::Any(anything),
            _ => Guess::Scalar,
        }
    }

    /// Whether one pass is enough for a document of a map `m`, a list `l` of maps and scalars.
    #[track_caller]
    fn check_guess(text: &str, is_enough: bool) {
        let guessed = Node::guessed(text, Guess::Map(below), PIECE_BYTES);
        assert_eq!(guessed.is_some(), is_enough, "{text}");
        if let Some(guessed) = guessed {
            assert_eq!(guessed, Node::parse(text).unwrap());
        }
    }

    #[test]
    fn one_pass_is_enough_for_what_was_guessed() {
        check_guess("a: 1\nb: 'x'\nc: \"x\\ty\"\nd: |\n  text\ne: ~\nf:", true);
        check_guess("m: {a: yes, l: [{a: 1}, {m: {a: 0x10}}]}", true);
        check_guess("m: &x {a: 1}\nl: [*x, *x]", true);
        check_guess("any: [a, {b: 'c', d: [e]}]", true);
        check_guess("a: hear! # loud!", true);
    }

    #[test]
    fn one_pass_is_not_enough_for_what_was_not_guessed() {
        check_guess("a: {}", false);
        check_guess("a: [1]", false);
        check_guess("m: 1", false);
        check_guess("l: 1", false);
        check_guess("l: [1]", false);
        check_guess("[a]: 1", false);
        check_guess("- a", false);
        // Nothing looks like an empty collection.
        check_guess("m:", false);
        check_guess("m: {}", false);
        check_guess("l:", false);
        check_guess("", false);
        check_guess("# nothing", false);
        // Texts come without their tags, and numbers without their texts.
        check_guess("a: !b c", false);
        check_guess("any: 0x10", false);
        check_guess("any: {a: [true]}", false);
        check_guess("any: ~", false);
        let levels = usize::from(MAX_GUESSED_LEVELS);
        let deep = |levels| format!("any: {}a{}", "[".repeat(levels), "]".repeat(levels));
        check_guess(&deep(levels - 1), true);
        check_guess(&deep(levels), false);
    }

    /// Into how many pieces a text is cut that may be cut anywhere, and whether they are good.
    #[track_caller]
    fn check_pieces(text: &str, expected: Option<usize>) {
        let pieces = Pieces::of(text, below, 1);
        let read = pieces.as_ref().and_then(|pieces| pieces.read(text));
        let count = pieces
            .filter(|_| read.is_some())
            .map(|pieces| pieces.items.len());
        assert_eq!(count, expected, "{text}");
        if let Some(read) = read {
            assert_eq!(read, Node::parse(text).unwrap());
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
        // Quotes and brackets that go on.
        check_pieces("l:\n- a: \"x\n- b: y\"\n", None);
        check_pieces("l:\n- a: 'x\n\n- b: y'\n", None);
        check_pieces("l:\n- {a:\n- b}\n", None);
        check_pieces("a: '\nl:\n- a: 1\n- b: 2'", None);
        // Something that is no part of the list.
        check_pieces("l:\n  - a: 1\n  - b: 2\nc: 3\n", None);
        check_pieces("l:\n- a: 1\n- b: 2\nc: 3\n", None);
        check_pieces("l:\n  - a: 1\n - b: 2\n  - c: 3\n", None);
        check_pieces("l:\n  - a: 1\n...\n  - b: 2\n", None);
        check_pieces("l:\n- a: 1\n---\n- b: 2\n", None);
        check_pieces("a: 1\n---\nl:\n- a: 1\n- b: 2\n", None);
        // Something that another piece says.
        check_pieces("l:\n- m: &x {a: 1}\n- m: *x\n", None);
        check_pieces("m: &x {a: 1}\nl:\n- m: *x\n- a: 1\n", None);
        // Nothing to cut.
        check_pieces("l: [a]\n", None);
        check_pieces("l:\n  a: 1\n", None);
        check_pieces("- a: 1\n- b: 2\n", None);
    }
}
