//! Reads a long list of a document piece by piece, in less memory and in less time.
//!
//! A piece is valid YAML by itself only if it ends outside of quotes and brackets and has no line further left than
//! its items. Then the next piece continues where this one ends, and reading the pieces one by one equals reading the
//! whole. Anything else is an error in one of the pieces, and then nothing is read in pieces: a quote closed in the
//! next piece, a key after the list, an anchor from another piece. A piece is one level less deep than its document,
//! so a document in pieces may have one level more.

use super::{
    node::{NodeKind, YamlNode},
    one_pass::only_document,
};

/// The tree of a document that ends with a block list below a key of its root and is longer than `piece_bytes`, the
/// least length of a piece. `None` if this is no such document, if it may have tags, or if the value of a key for which
/// `is_scalar` holds is no scalar.
pub(super) fn read(
    text: &str,
    piece_bytes: usize,
    is_scalar: fn(&str) -> bool,
) -> Option<YamlNode<'_>> {
    let pieces = DocumentPieces::of(text, piece_bytes)?;
    pieces.read(text, is_scalar)
}

/// A document that ends with a block list below a key of its root, cut between items of the list.
pub(super) struct DocumentPieces<'t> {
    /// The document up to the list.
    head: &'t str,
    pub(super) items: Vec<&'t str>,
}

impl<'t> DocumentPieces<'t> {
    /// Cuts a document, if it has such a list.
    pub(super) fn of(text: &'t str, piece_bytes: usize) -> Option<Self> {
        if text.len() <= piece_bytes || may_have_tags(text) {
            return None;
        }
        let mut at = 0;
        let mut is_below_key = false;
        for line in text.split_inclusive('\n') {
            let first = line.trim_start_matches(' ');
            if is_below_key && first.starts_with("- ") {
                let indent = line.len() - first.len();
                let (head, rest) = text.split_at(at);
                // Text after the end of the document is no part of it.
                if rest.contains("\n---") || rest.contains("\n...") {
                    return None;
                }
                let items = cut(rest, &format!("\n{:indent$}- ", ""), piece_bytes);
                return Some(Self { head, items });
            }
            if !matches!(first.trim_end().bytes().next(), None | Some(b'#')) {
                // A key after a question mark can be a map, and the list its value.
                is_below_key = line.trim_end().ends_with(':') && !line.starts_with([' ', '?']);
            }
            at += line.len();
        }
        None
    }

    /// Joins the pieces, if each is a list by itself.
    pub(super) fn read(
        &self,
        source: &'t str,
        is_scalar: fn(&str) -> bool,
    ) -> Option<YamlNode<'t>> {
        let read = |part| Some(only_document(source, part, is_scalar)?.kind);
        let NodeKind::Map(mut entries) = read(self.head)? else {
            return None;
        };
        let mut items = Vec::new();
        for part in &self.items {
            let NodeKind::List(more) = read(part)? else {
                return None;
            };
            items.extend(more);
        }
        let (_, list) = entries.last_mut().filter(|(_, value)| value.is_null())?;
        *list = YamlNode::list(items);
        Some(YamlNode::map(entries))
    }
}

/// Whether an exclamation mark can begin a tag; one at the end of a word cannot.
fn may_have_tags(text: &str) -> bool {
    text.match_indices('!').any(|(at, _)| {
        let before = text.as_bytes()[..at].last();
        !before.is_some_and(u8::is_ascii_alphanumeric)
    })
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
