//! Findings: a trap at one place of a configuration, and its fix.

use std::fmt;

use crate::{config::position::Position, foundation::printable::on_one_line};

pub(crate) use crate::settings::command_line::lint_envoy::TrapSeverity;

/// A trap at one place, and how to avoid it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// `None` for JSON, which is read without positions.
    pub position: Option<Position>,
    /// The path in the file, such as `static_resources.clusters[0]`.
    pub path: String,
    pub severity: TrapSeverity,
    /// The name of the trap, stable across versions.
    pub trap: &'static str,
    pub text: String,
    pub fix: String,
}

impl fmt::Display for Finding {
    /// `error: static_resources.clusters[0]: [http2] the cluster speaks HTTP/1.1, …; add …`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}: [{}] {}; {}",
            self.severity.name(),
            on_one_line(&self.path),
            self.trap,
            on_one_line(&self.text),
            on_one_line(&self.fix)
        )
    }
}
