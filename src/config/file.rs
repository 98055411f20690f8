//! A rule file in memory, and the positions in it.

use std::sync::OnceLock;

use super::{
    fault::{Fault, Problem},
    mirror::RuleDocument,
    position::{Lines, Position},
    text_place::TextPlace,
};

/// Some editors begin UTF-8 text with it. serde_yaml would take it for a column, and end the document at the next line.
pub(crate) const BYTE_ORDER_MARK: char = '\u{feff}';

/// A rule file: its name in messages, and its text.
#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) lines: OnceLock<Lines>,
    /// For a file inside the file of this name.
    inside: Option<Inside>,
}

/// A rule file that is part of another file.
#[derive(Debug)]
pub(super) struct Inside {
    /// Its name inside of the other file.
    pub(super) name: String,
    pub(super) place: TextPlace,
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
            inside: None,
        }
    }

    /// A file inside the file of this name.
    pub(super) fn inside(name: String, text: String, inside: Inside) -> Self {
        Self {
            inside: Some(inside),
            ..Self::new(name, text)
        }
    }

    /// The name of a file inside another one.
    pub(super) fn inside_name(&self) -> Option<&str> {
        Some(&self.inside.as_ref()?.name)
    }

    /// The position of a byte; in a file inside another one, that in the other one.
    pub(super) fn position(&self, offset: usize) -> Position {
        self.placed(self.own_position(offset))
    }

    /// The line of a byte; in a file inside another one, that in the other one.
    pub(super) fn line(&self, offset: usize) -> u32 {
        u32::try_from(self.position(offset).line).unwrap_or(u32::MAX)
    }

    fn own_position(&self, offset: usize) -> Position {
        let lines = self.lines.get_or_init(|| Lines::of(&self.text));
        lines.position(&self.text, offset)
    }

    fn placed(&self, own: Position) -> Position {
        let inside = self.inside.as_ref();
        inside.map_or(own, |inside| inside.place.position(own))
    }

    pub(super) fn problem(&self, offset: Option<usize>, path: &str, fault: Fault) -> Problem {
        self.problem_at(offset.map(|offset| self.own_position(offset)), path, fault)
    }

    /// A problem at a position in the text of this file.
    pub(super) fn problem_at(&self, own: Option<Position>, path: &str, fault: Fault) -> Problem {
        let inside = self.inside.as_ref().map(|inside| match own {
            Some(Position { line, column }) if !inside.place.is_exact() => {
                format!("{}:{line}:{column}", inside.name)
            }
            _ => inside.name.clone(),
        });
        let start = Position { line: 1, column: 1 };
        // Even a problem of the whole text has a place in the other file.
        let own = own.or_else(|| inside.as_ref().map(|_| start));
        Problem {
            file: self.name.clone(),
            position: own.map(|own| self.placed(own)),
            inside,
            path: path.to_owned(),
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
