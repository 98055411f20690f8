//! Findings: a trap at one place of a configuration, and its fix.

use std::fmt;

use super::unreadable::at;
use crate::config::position::Position;

/// How much a trap does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Nothing is limited there, or every request is refused.
    Error,
    /// Limits apply, but not always or not as the text suggests.
    Warning,
    /// It works, but may surprise.
    Advice,
}

/// A trap at one place, and how to avoid it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// `None` for JSON, which is read without positions.
    pub position: Option<Position>,
    /// The path in the file, such as `static_resources.clusters[0]`.
    pub path: String,
    pub severity: Severity,
    /// The name of the trap, stable across versions.
    pub trap: &'static str,
    pub text: String,
    pub fix: String,
}

impl fmt::Display for Finding {
    /// `12:9: error: static_resources.clusters[0]: [http2] it speaks HTTP/1.1, …; add …`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Advice => "advice",
        };
        write!(
            f,
            "{}{severity}: {}: [{}] {}; {}",
            at(self.position),
            self.path.escape_debug(),
            self.trap,
            self.text.escape_debug(),
            self.fix.escape_debug()
        )
    }
}
