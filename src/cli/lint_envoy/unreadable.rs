//! Why nothing can be said about a file.

use crate::config::position::Position;

/// Why a file cannot be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("{}{text}", at(*position))]
    Syntax {
        position: Option<Position>,
        text: String,
    },
    #[error("not an Envoy configuration: there is no listener, cluster, filter or route in it")]
    NoEnvoy,
}

impl Unreadable {
    /// Where reading ended, if known. The message begins with it.
    pub(crate) fn position(&self) -> Option<Position> {
        match self {
            Self::Syntax { position, .. } => *position,
            Self::NoEnvoy => None,
        }
    }
}

pub(super) fn at(position: Option<Position>) -> String {
    // The caller has printed the file's name and a colon before it.
    position.map_or_else(
        || " ".to_owned(),
        |Position { line, column }| format!("{line}:{column}: "),
    )
}
