//! Where the text of a file stands that is part of another file, such as of a Kubernetes manifest.

use super::position::{Lines, Position};

/// The place of an inner text in the outer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextPlace {
    /// Its lines are lines of the outer text, from this one on, each this many characters further right.
    Lines { first: usize, indent: usize },
    /// It is written in another way, folded or with escapes. This is the position of its key.
    Elsewhere(Position),
}

impl TextPlace {
    /// The place of `inner`, the value of a key at `key` in `outer`; `at` is the offset of a value that was not
    /// rewritten.
    pub(super) fn of(
        inner: &str,
        at: Option<usize>,
        (outer, lines): (&str, &Lines),
        key: Option<usize>,
    ) -> Self {
        let key = lines.position(outer, key.unwrap_or(0));
        if let Some(at) = at {
            let Position { line, column } = lines.position(outer, at);
            return Self::Lines {
                first: line,
                indent: column - 1,
            };
        }
        match block_indent(inner, outer.lines().skip(key.line)) {
            Some(indent) => Self::Lines {
                first: key.line + 1,
                indent,
            },
            None => Self::Elsewhere(key),
        }
    }

    /// The position in the outer text of `inner`, a position in the inner one; for a text that is written in another
    /// way only that of its key.
    pub(crate) fn position(self, inner: Position) -> Position {
        match self {
            Self::Lines { first, indent } => Position {
                line: first + inner.line - 1,
                column: indent + inner.column,
            },
            Self::Elsewhere(key) => key,
        }
    }

    /// Whether positions in the inner text have positions in the outer one.
    pub(crate) fn is_exact(self) -> bool {
        matches!(self, Self::Lines { .. })
    }
}

/// The indentation of the block that `inner` is, if it is one: each line of `outer` is one of `inner`, indented.
fn block_indent<'t>(inner: &str, mut outer: impl Iterator<Item = &'t str>) -> Option<usize> {
    let mut indent = None;
    for line in inner.lines() {
        let found = outer.next()?;
        if line.is_empty() && found.trim().is_empty() {
            continue;
        }
        let blanks = found.strip_suffix(line)?;
        if blanks.contains(|next| next != ' ')
            || *indent.get_or_insert(blanks.len()) != blanks.len()
        {
            return None;
        }
    }
    indent
}
