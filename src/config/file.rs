//! A rule file in memory, and the positions in it.

use super::fault::{Fault, Problem};

use std::sync::OnceLock;

use super::position::{Lines, Position};

/// A rule file: its name in messages, and its text.
#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) lines: OnceLock<Lines>,
}

impl File {
    pub(super) fn new(name: String, text: String) -> Self {
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
