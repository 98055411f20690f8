//! Lines and columns of a text, from offsets in bytes.

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
