//! Lines and columns of a text, from offsets in bytes.

/// A line and a column, both from 1; the column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    pub(super) const fn at(line: usize, column: usize) -> Self {
        Self { line, column }
    }
}

/// Bytes between two offsets whose number of characters is remembered, so that a long line costs no more than a short
/// one.
const STEP: usize = 64;

/// The offsets at which the lines of a text start, and its characters.
#[derive(Debug)]
pub(crate) struct Lines {
    starts: Vec<usize>,
    /// The number of characters before each offset that [`STEP`] divides.
    chars: Vec<usize>,
}

impl Lines {
    pub(crate) fn of(text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1));
        let steps = text.as_bytes().chunks(STEP);
        let chars = steps.scan(0, |before, step| {
            let now = *before;
            *before += count(step);
            Some(now)
        });
        Self {
            starts: starts.collect(),
            chars: chars.collect(),
        }
    }

    /// The position of a byte; `text` must be the text of these lines.
    pub(crate) fn position(&self, text: &str, offset: usize) -> Position {
        let line = self.starts.partition_point(|&start| start <= offset);
        let offset = offset.min(text.len());
        let before = |offset: usize| {
            let step = (offset / STEP).min(self.chars.len().saturating_sub(1));
            let known = self.chars.get(step).copied().unwrap_or_default();
            known + count(&text.as_bytes()[step * STEP..offset])
        };
        Position {
            line,
            column: 1 + before(offset) - before(self.starts[line - 1]),
        }
    }
}

/// How many characters begin in `bytes`.
fn count(bytes: &[u8]) -> usize {
    // Continuation bytes of a character do not count.
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positions_are_those_that_one_counts(text in "[aé漢\n]{0,400}") {
            let lines = Lines::of(&text);
            let offsets = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            let (mut line, mut column) = (1, 1);
            for (offset, next) in offsets.zip(text.chars().chain(['\n'])) {
                prop_assert_eq!(lines.position(&text, offset), Position { line, column });
                (line, column) = if next == '\n' { (line + 1, 1) } else { (line, column + 1) };
            }
        }
    }
}
