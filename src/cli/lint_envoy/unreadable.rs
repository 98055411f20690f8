//! Why nothing can be said about a file.

use crate::config::position::Position;

/// Why a file cannot be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("{text}")]
    Syntax {
        position: Option<Position>,
        text: String,
    },
    #[error("not an Envoy configuration: there is no listener, cluster, filter or route in it")]
    NoEnvoy,
}

impl Unreadable {
    /// Where reading ended, if known.
    pub(crate) fn position(&self) -> Option<Position> {
        match self {
            Self::Syntax { position, .. } => *position,
            Self::NoEnvoy => None,
        }
    }

    /// The error with its place in an outer text.
    pub(super) fn moved(self, to_outer: impl Fn(Position) -> Position) -> Self {
        match self {
            Self::Syntax { position, text } => Self::Syntax {
                position: position.map(to_outer),
                text,
            },
            Self::NoEnvoy => Self::NoEnvoy,
        }
    }
}
