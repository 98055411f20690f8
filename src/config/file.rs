//! A rule file in memory, and the positions in it.

use super::fault::{Fault, Problem};

use std::sync::OnceLock;

use super::position::{Lines, Position};

/// Some editors begin UTF-8 text with it. serde_yaml would take it for a column, and end the document at the next line.
pub(crate) const BYTE_ORDER_MARK: char = '\u{feff}';

/// A rule file: its name in messages, and its text.
#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) lines: OnceLock<Lines>,
}

impl File {
    /// A file without the byte order mark that its text may begin with.
    pub(super) fn new(name: String, mut text: String) -> Self {
        if text.starts_with(BYTE_ORDER_MARK) {
            text.drain(..BYTE_ORDER_MARK.len_utf8());
        }
        Self {
            name,
            text,
            lines: OnceLock::new(),
        }
    }

    pub(super) fn position(&self, offset: usize) -> Position {
        let lines = self.lines.get_or_init(|| Lines::of(&self.text));
        lines.position(&self.text, offset)
    }

    pub(super) fn problem(&self, offset: Option<usize>, path: &str, fault: Fault) -> Problem {
        Problem {
            file: self.name.clone(),
            position: offset.map(|offset| self.position(offset)),
            path: path.to_owned(),
            fault,
        }
    }
}
