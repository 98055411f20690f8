//! Text → trees of YAML nodes, in one pass of serde_yaml. Refuses brackets without end early. A caller can read a part
//! of a text, with its positions in the whole.
//!
//! serde_yaml borrows the text of a string from the document, so its address gives its position, and the neighbouring
//! bytes show whether it was quoted. Numbers, booleans and nulls arrive as values without a text. Their visitor fails
//! on purpose, because only errors of serde_yaml have a position: the list or map around the scalar catches the error
//! and reads the text at its line and column. serde_yaml has consumed the scalar by then and continues after it. An
//! alias leads to the position of the scalar that it names.

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell},
    fmt,
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use crate::config::node::{NULLS, NodeKind, YamlNode};

#[cfg(test)]
mod tests;

/// All documents of `text` but empty ones; an empty file is one empty map.
///
/// # Errors
///
/// If any part of the text is not YAML. The error has the line and the column.
pub(crate) fn parse_all(text: &str) -> Result<Vec<YamlNode<'_>>, serde_yaml::Error> {
    check_nesting(text)?;
    let mut found = documents(text)?;
    if found.iter().any(|document| !document.is_null()) {
        found.retain(|document| !document.is_null());
    } else {
        found.truncate(1);
    }
    if found.is_empty() {
        found.push(YamlNode::empty());
    }
    Ok(found)
}

/// The most beginnings and ends of lists and maps and scalars of a text that is read at once, or one in so many bytes
/// of a long one: the parser takes 100 to 250 bytes for each.
const MAX_EVENTS: usize = 180_000;
pub(super) const BYTES_PER_EVENT: usize = 6;

/// Whether a text has more of them, by its marks and lines.
pub(crate) fn is_too_dense(text: &str, bytes_per_event: usize) -> bool {
    let bytes = text.as_bytes();
    let is_quote = |at: Option<&u8>| matches!(at, Some(b'"' | b'\''));
    let events = |(at, byte): (usize, &u8)| match byte {
        b'[' | b'{' => 2,
        b',' | b'\n' => 1,
        b':' | b'-' | b'?' if bytes.get(at + 1).is_none_or(u8::is_ascii_whitespace) => 1,
        b':' if is_quote(bytes.get(at.wrapping_sub(1))) => 1,
        _ => 0,
    };
    let all: usize = bytes.iter().enumerate().map(events).sum();
    all > MAX_EVENTS.max(text.len() / bytes_per_event)
}

/// The tag `!!binary`, which serde_yaml drops, in both spellings; and a local tag of the same length for each.
const BINARY: [(&str, &str); 2] = [
    ("!<tag:yaml.org,2002:binary>", "!~binary                   "),
    ("!!binary", "!~binary"),
];

/// The text with a local tag in the place of `!!binary`, which no position notices.
pub(super) fn with_local_tag(text: &str) -> Cow<'_, str> {
    let used = BINARY.iter().filter(|(tag, _)| text.contains(tag));
    used.fold(Cow::Borrowed(text), |text, (tag, local)| {
        text.replace(tag, local).into()
    })
}

/// The text that stands behind the tag `!!binary` in base64; blanks and line breaks do not count.
fn decoded(text: &str) -> Option<String> {
    let text: String = text.split_ascii_whitespace().collect();
    String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()
}

/// More open brackets than this start the check of the nesting.
const MAX_OPEN_BRACKETS: usize = 256;

/// Bytes read after the brackets: longer than any key, so that the parser sees the structure before them.
const AFTER_BRACKETS_BYTES: usize = 4096;

/// Refuses, in less time, a text that serde_yaml refuses as nested too deeply. serde_yaml checks the nesting after
/// reading the whole document, and for that visits all open brackets again at each word: 100,000 brackets take it
/// more than half a minute. Brackets can be part of texts too, so their count only decides when to ask serde_yaml
/// about the beginning of the text.
///
/// # Errors
///
/// That of serde_yaml.
pub(super) fn check_nesting(text: &str) -> Result<(), serde_yaml::Error> {
    let mut open = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => continue,
        }
        if open > MAX_OPEN_BRACKETS {
            let end = text.ceil_char_boundary(text.len().min(at + AFTER_BRACKETS_BYTES));
            return match documents(&text[..end]) {
                Err(error) if error.to_string().contains("recursion limit") => Err(error),
                _ => Ok(()),
            };
        }
    }
    Ok(())
}

/// Characters between two offsets that are remembered.
const STEP: usize = 64;

/// The lines of a text as serde_yaml counts them: YAML has more line breaks than `\n`.
pub(super) struct Marks {
    /// The number of characters before each line.
    lines: Vec<usize>,
    /// The offset of each character whose number [`STEP`] divides, so that a long line costs no more than a short one.
    steps: Vec<usize>,
}

impl Marks {
    pub(super) fn of(text: &str) -> Self {
        let (mut lines, mut steps) = (vec![0], Vec::new());
        let mut chars = text.char_indices().enumerate().peekable();
        while let Some((number, (offset, next))) = chars.next() {
            if number % STEP == 0 {
                steps.push(offset);
            }
            let is_break = match next {
                '\r' => !matches!(chars.peek(), Some((_, (_, '\n')))),
                '\n' | '\u{85}' | '\u{2028}' | '\u{2029}' => true,
                _ => false,
            };
            if is_break {
                lines.push(number + 1);
            }
        }
        Self { lines, steps }
    }

    /// The offset of a line and a column, both from 1; `text` must be the text of these marks.
    pub(super) fn offset(&self, text: &str, line: usize, column: usize) -> Option<usize> {
        let Some(before) = self.lines.get(line.checked_sub(1)?) else {
            // The end of a text is on a line of its own, even without a break before it.
            return Some(text.len());
        };
        let number = before + column.checked_sub(1)?;
        let Some(step) = self.steps.get(number / STEP) else {
            return Some(text.len());
        };
        let mut offsets = text[*step..].char_indices().map(|(at, _)| step + at);
        Some(offsets.nth(number % STEP).unwrap_or(text.len()))
    }
}

/// All documents of `text`, empty ones included.
///
/// # Errors
///
/// If any part of the text is not YAML. The error has the line and the column.
pub(super) fn documents(text: &str) -> Result<Vec<YamlNode<'_>>, serde_yaml::Error> {
    let room = Cell::new(most_nodes(text));
    let source = YamlText::of(text, text, &room);
    let mut documents = Vec::new();
    let mut is_last_unchecked = false;
    for document in serde_yaml::Deserializer::from_str(text) {
        let node = NodeSeed(&source, 0).deserialize(document);
        is_last_unchecked = node.is_err();
        documents.push(node.or_else(|error| source.scalar(error))?);
    }
    // The document may have an error after its only scalar. An earlier one has none, since an error ends the text.
    if is_last_unchecked {
        let last = serde_yaml::Deserializer::from_str(text).nth(documents.len() - 1);
        let last = last.map(|last| last.deserialize_ignored_any(IgnoredAny));
        last.transpose()?;
    }
    Ok(documents)
}

/// The most nodes of a text: one for two bytes, aliases included, unless it is short. A node takes 48 bytes, and a long
/// text counts as several: an alias copies it.
pub(super) fn most_nodes(text: &str) -> usize {
    (text.len() / 2).max(1 << 19)
}

/// The message of serde_yaml's error for a text whose aliases stand for too many values.
pub(super) const TOO_MANY: &str = "repetition limit exceeded";

/// The most bytes of a key and all keys above it, which serde_yaml writes down for each number below them.
const MAX_KEYS_BYTES: usize = 4 << 10;

/// The message of the error for longer ones.
const LONG_KEYS: &str = "the keys above one value are longer than 4096 bytes together";

/// The message of the error that stands for a number or a boolean.
const VALUE: &str = "a value without its text";
/// The message of the error that stands for a null.
const NULL: &str = "a null without its text";

/// The text that is read.
pub(super) struct YamlText<'t, 'r> {
    /// The whole file, in which positions are.
    whole: &'t str,
    /// The part of it that serde_yaml gets.
    text: &'t str,
    marks: OnceCell<Marks>,
    /// How many more nodes it may have: an alias makes a map of thousands of nodes from a few bytes.
    room: &'r Cell<usize>,
}

impl<'t, 'r> YamlText<'t, 'r> {
    pub(super) fn of(whole: &'t str, text: &'t str, room: &'r Cell<usize>) -> Self {
        Self {
            whole,
            text,
            marks: OnceCell::new(),
            room,
        }
    }

    /// The only document, if it is a list or a map.
    pub(super) fn only_document(&self) -> Option<YamlNode<'t>> {
        let document = serde_yaml::Deserializer::from_str(self.text);
        NodeSeed(self, 0).deserialize(document).ok()
    }

    /// Takes the place of so many nodes.
    fn take<E: serde::de::Error>(&self, nodes: usize) -> Result<(), E> {
        let room = self.room.get().checked_sub(nodes);
        self.room.set(room.ok_or_else(|| E::custom(TOO_MANY))?);
        Ok(())
    }

    /// A text as the file has it.
    fn text<E: serde::de::Error>(&self, mut node: YamlNode<'t>) -> Result<YamlNode<'t>, E> {
        if let NodeKind::Scalar { text, .. } = &mut node.kind {
            self.take::<E>(text.len() / 16)?;
            if text.contains(BINARY[1].1) {
                for (tag, local) in BINARY {
                    *text = text.replace(local, tag).into();
                }
            }
        }
        Ok(node)
    }

    /// The scalar that an error stands for, or the error itself.
    fn scalar<E: fmt::Display>(&self, error: E) -> Result<YamlNode<'t>, E> {
        let text = error.to_string();
        // A mark at the very beginning is not shown.
        let (message, mark) = text
            .rsplit_once(" at line ")
            .unwrap_or((&text, "1 column 1"));
        let is_null = message.ends_with(NULL);
        if !is_null && !message.ends_with(VALUE) {
            return Err(error);
        }
        let marks = self.marks.get_or_init(|| Marks::of(self.text));
        let offset = mark.split_once(" column ").and_then(|(line, column)| {
            marks.offset(self.text, line.parse().ok()?, column.parse().ok()?)
        });
        Ok(match offset {
            Some(offset) if is_null => self.null_at(offset),
            Some(offset) => self.value_at(offset),
            None => return Err(error),
        })
    }

    /// The null that begins at `offset`, perhaps with a tag or an anchor; an empty text if none is written there.
    fn null_at(&self, offset: usize) -> YamlNode<'t> {
        let mut rest = &self.text[offset..];
        let mut text = &rest[..0];
        while let Some(after) = without_property(rest) {
            text = &after[..0];
            rest = after.trim_start_matches([' ', '\t']);
        }
        let word = word(rest);
        if NULLS.contains(&word) {
            text = word;
        }
        YamlNode::borrowed(self.whole, text)
    }

    /// The number or boolean that begins at `offset`, perhaps with a tag or an anchor.
    fn value_at(&self, offset: usize) -> YamlNode<'t> {
        let mut rest = &self.text[offset..];
        while let Some(after) = without_property(rest) {
            rest = after.trim_start();
            while rest.starts_with('#') {
                let end = rest.find(['\n', '\r']).unwrap_or(rest.len());
                rest = rest[end..].trim_start();
            }
        }
        let text = match rest.chars().next() {
            Some(quote @ ('"' | '\'')) => rest[1..].split(quote).next().unwrap_or_default(),
            _ => word(rest),
        };
        if text.is_empty() {
            // A number in a block, after a tag such as `!!int`.
            return YamlNode::tagged();
        }
        YamlNode::borrowed(self.whole, text)
    }
}

/// The rest of a text after the tag or the anchor that it begins with.
fn without_property(text: &str) -> Option<&str> {
    let end = match text.chars().next()? {
        '&' => text[1..].find(|next: char| !(next.is_ascii_alphanumeric() || "-_".contains(next))),
        '!' => text[1..].find(|next: char| next.is_whitespace() || ",]}".contains(next)),
        _ => return None,
    };
    Some(&text[end.map_or(text.len(), |end| 1 + end)..])
}

/// The characters that a plain number, boolean or null can have, up to the first other one.
fn word(text: &str) -> &str {
    let is_other = |next: char| !(next.is_ascii_alphanumeric() || "+-._~".contains(next));
    &text[..text.find(is_other).unwrap_or(text.len())]
}

/// Reads a node of any kind, below keys of so many bytes.
#[derive(Clone, Copy)]
struct NodeSeed<'s, 't, 'r>(&'s YamlText<'t, 'r>, usize);

impl<'t> DeserializeSeed<'t> for NodeSeed<'_, 't, '_> {
    type Value = YamlNode<'t>;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<YamlNode<'t>, D::Error> {
        self.0.take::<D::Error>(1)?;
        deserializer.deserialize_any(self)
    }
}

/// Visits every type of value that has no text.
macro_rules! values {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: serde::de::Error>(self, _: $type) -> Result<YamlNode<'t>, E> {
            Err(E::custom(VALUE))
        })*
    };
}

impl<'t> Visitor<'t> for NodeSeed<'_, 't, '_> {
    type Value = YamlNode<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    values!(
        visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128,
        visit_f64: f64
    );

    fn visit_unit<E: serde::de::Error>(self) -> Result<YamlNode<'t>, E> {
        Err(E::custom(NULL))
    }

    /// Nothing but comments.
    fn visit_none<E>(self) -> Result<YamlNode<'t>, E> {
        Ok(YamlNode::empty())
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, text: &'t str) -> Result<YamlNode<'t>, E> {
        self.0.text(YamlNode::borrowed(self.0.whole, text))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<YamlNode<'t>, E> {
        self.0.text(YamlNode::rewritten(text))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<YamlNode<'t>, A::Error> {
        let mut list = Vec::new();
        loop {
            match items.next_element_seed(self) {
                Ok(Some(item)) => list.push(item),
                Ok(None) => return Ok(YamlNode::list(list)),
                Err(error) => list.push(self.0.scalar(error)?),
            }
        }
    }

    fn visit_map<A: MapAccess<'t>>(self, mut entries: A) -> Result<YamlNode<'t>, A::Error> {
        let mut map = Vec::new();
        loop {
            let key = match entries.next_key_seed(self) {
                Ok(Some(key)) => key,
                Ok(None) => {
                    map.shrink_to_fit();
                    return Ok(YamlNode::map(map));
                }
                Err(error) => self.0.scalar(error)?,
            };
            let keys_bytes = self.1 + key.text().map_or(0, str::len);
            if keys_bytes > MAX_KEYS_BYTES {
                return Err(A::Error::custom(LONG_KEYS));
            }
            let value = entries.next_value_seed(NodeSeed(self.0, keys_bytes));
            if map.is_empty() {
                // A file has a small one for each rule.
                map.reserve_exact(2);
            }
            map.push((key, value.or_else(|error| self.0.scalar(error))?));
        }
    }

    fn visit_enum<A: EnumAccess<'t>>(self, data: A) -> Result<YamlNode<'t>, A::Error> {
        let (tag, content) = data.variant::<String>()?;
        if tag == "~binary" {
            let text = decoded(&content.newtype_variant::<String>()?);
            return text.map_or_else(|| Ok(YamlNode::tagged()), |text| self.visit_str(&text));
        }
        content.newtype_variant::<IgnoredAny>()?;
        Ok(YamlNode::tagged())
    }
}
