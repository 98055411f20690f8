//! Reads a long list of a document piece by piece: serde_yaml takes a hundred bytes for each word of what it reads at
//! once.
//!
//! A piece is valid YAML by itself only if it ends outside of quotes and brackets and has no line further left than
//! its items. Then the next piece continues where this one ends, and reading the pieces one by one equals reading the
//! whole, and so do the keys before and after the list. Anything else is an error in one of the pieces, and then
//! nothing is read in pieces: a quote closed in the next piece, an anchor from another piece.

use std::{cell::Cell, ops::Range};

use crate::config::{
    node::{NodeKind, YamlNode},
    parse::{BYTES_PER_EVENT, YamlText, is_too_dense, most_nodes},
};

/// The least length of a piece.
const PIECE_BYTES: usize = 64 << 10;

/// The tree of a long document with a long block list below a key of its root; `None` if this is no such document, or
/// cannot be read. `last` becomes the last short piece of its list that was read.
pub(super) fn read<'t>(text: &'t str, last: &mut Range<usize>) -> Option<YamlNode<'t>> {
    read_in(text, PIECE_BYTES, last)
}

fn read_in<'t>(text: &'t str, piece_bytes: usize, last: &mut Range<usize>) -> Option<YamlNode<'t>> {
    let (head, list, indent) = halves(text).filter(|_| text.len() > piece_bytes)?;
    let is_key = |next: char| next.is_ascii_alphabetic();
    let mut ends = list.match_indices('\n').map(|(at, _)| at + 1);
    let end = ends.find(|at| list[*at..].starts_with(is_key));
    let (list, tail) = list.split_at(end.unwrap_or(list.len()));
    let room = Cell::new(most_nodes(text));
    let read = |part| match is_too_dense(part, BYTES_PER_EVENT) {
        true => None,
        false => Some(YamlText::of(text, part, &room).only_document()?.kind),
    };
    let NodeKind::Map(mut entries) = read(head)? else {
        return None;
    };
    let (mark, mut rest, mut items) = (format!("\n{:indent$}- ", ""), list, Vec::new());
    while !rest.is_empty() {
        let from = rest.ceil_char_boundary(piece_bytes.min(rest.len()));
        let end = rest[from..].find(&mark).map(|at| from + at + 1);
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        let begin = text.len() - tail.len() - rest.len();
        if piece.len() < 2 * PIECE_BYTES {
            *last = begin..begin + piece.len();
        }
        let NodeKind::List(more) = read(piece)? else {
            return None;
        };
        items.extend(more);
        rest = after;
    }
    // After a null that is written down there can be no list.
    let is_missing = |value: &YamlNode<'_>| value.text() == Some("") && value.is_null();
    let (_, value) = entries.last_mut().filter(|(_, value)| is_missing(value))?;
    *value = YamlNode::list(items);
    let NodeKind::Map(after) = read(tail)? else {
        return None;
    };
    entries.extend(after);
    Some(YamlNode::map(entries))
}

/// The text before the list, the list with all after it, and its indent.
fn halves(text: &str) -> Option<(&str, &str, usize)> {
    let (mut at, mut is_below_key) = (0, false);
    for line in text.split_inclusive('\n') {
        let first = line.trim_start_matches(' ');
        if is_below_key && first.starts_with("- ") {
            let (head, list) = text.split_at(at);
            // Text after the end of the document is no part of it.
            let is_last = !list.contains("\n---") && !list.contains("\n...");
            return is_last.then_some((head, list, line.len() - first.len()));
        }
        if !matches!(first.trim_end().bytes().next(), None | Some(b'#')) {
            // A key after a question mark can be a map, and the list its value.
            is_below_key = line.trim_end().ends_with(':') && !line.starts_with([' ', '?']);
        }
        at += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::config::parse::documents;

    use super::*;

    /// Whether a text that can be cut anywhere is read in pieces; then as if it was read whole.
    #[track_caller]
    fn check(text: &str, is_read: bool) {
        let read = read_in(text, 1, &mut (0..0));
        assert_eq!(read.is_some(), is_read, "{text}");
        if let Some(read) = read {
            assert_eq!([read], *documents(text).unwrap(), "{text}");
        }
    }

    #[test]
    fn a_long_list_is_read_in_pieces() {
        check(
            "a: 1\nl:\n- a: 1\n  b: '2'\n# c\n- a: !x 2\n- \"c\"\n\n-  ~\n",
            true,
        );
        check(
            "---\nl:\n  - a: 1\n\n  - l: [1,\n   2]\n  - b: |\n      - 2\n  - c: é",
            true,
        );
        check("l:\r\n  - a: 1\r\n  - b: 2\r\n", true);
        check("l:\n- a: 1\n- b: 2\nc: 3\nd:\n- 4\n", true);
        check("l:\n  - a: |\n     b\n  - c\n# d\nl: 3", true);
        check("l:\n  - a: &x 1\n    b: *x\n  - c: 2\n", true);
    }

    #[test]
    fn what_depends_on_another_piece_is_read_whole() {
        // Quotes and brackets that continue in the next piece.
        check("l:\n- a: \"x\n- b: y\"\n", false);
        check("l:\n- a: 'x\n\n- b: y'\n", false);
        check("l:\n- {a:\n- b}\n", false);
        check("a: '\nl:\n- a: 1\n- b: 2'", false);
        // Something after the list that is no key, or further left.
        check("l:\n  - a: 1\n  - b: 2\nc\n", false);
        check("l:\n- a: 1\n- b: 2\n'c': 3\n", false);
        check("l:\n- a: 1\n- b: 2\nc:\n- d\n e: 3\n", false);
        check("l:\n  - a: 1\n - b: 2\n  - c: 3\n", false);
        check("l:\n  - a: 1\n...\n  - b: 2\n", false);
        check("l:\n- a: 1\n---\n- b: 2\n", false);
        check("a: 1\n---\nl:\n- a: 1\n- b: 2\n", false);
        // An anchor of another piece.
        check("l:\n- m: &x {a: 1}\n- m: *x\n", false);
        check("m: &x {a: 1}\nl:\n- m: *x\n- a: 1\n", false);
        // No block list at the end of a map.
        check("l: [a]\n", false);
        check("l:\n  a: 1\n", false);
        check("l: ~ # the list:\n- a: 1\n- b: 2\n", false);
        check("- a: 1\n- b: 2\n", false);
    }
}
