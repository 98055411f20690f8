//! A rule file in memory, and the positions in it.

use std::sync::OnceLock;

use super::{
    fault::{Fault, Problem, shortened},
    mirror::RuleDocument,
    position::{Lines, Position},
};

/// Some editors begin UTF-8 text with it. serde_yaml would take it for a column, and end the document at the next line.
pub(crate) const BYTE_ORDER_MARK: char = '\u{feff}';

/// A rule file: its name in messages, and its text.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(super) lines: OnceLock<Lines>,
}

impl File {
    /// A file without the byte order mark that its text can begin with.
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

    /// The position of a byte.
    pub(super) fn position(&self, offset: usize) -> Position {
        let lines = self.lines.get_or_init(|| Lines::of(&self.text));
        lines.position(&self.text, offset)
    }

    /// The line of a byte.
    pub(super) fn line(&self, offset: usize) -> u32 {
        u32::try_from(self.position(offset).line).unwrap_or(u32::MAX)
    }

    pub(super) fn problem(&self, offset: Option<usize>, path: &str, fault: Fault) -> Problem {
        self.problem_at(offset.map(|offset| self.position(offset)), path, fault)
    }

    /// A problem at a position in this file.
    pub(super) fn problem_at(
        &self,
        position: Option<Position>,
        path: &str,
        fault: Fault,
    ) -> Problem {
        Problem {
            file: self.name.clone(),
            position,
            path: shortened(path),
            fault,
        }
    }
}

/// A file and the parsed rules of one of its documents.
pub(super) struct ParsedFile<'a> {
    pub(super) file: &'a File,
    pub(super) rules: RuleDocument,
}

impl ParsedFile<'_> {
    /// Its name in a message about `file`; in a file of that name, also its line and column.
    pub(super) fn location_beside(&self, file: &File) -> String {
        let name = &self.file.name;
        match self.rules.at.map(|at| self.file.position(at)) {
            Some(Position { line, column }) if self.file.name == file.name => {
                format!("{name}:{line}:{column}")
            }
            _ => name.clone(),
        }
    }
}
