//! Why a call of a control plane ended.

use std::error::Error as _;

use tonic::{Code, Status};

use super::lost::ConnectError;
use crate::foundation::causes::chain;

/// Why a call ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamEnd {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server answered the call with an error only.
    #[error("it refuses the call with {:?}: {}", .0.code(), .0.message())]
    Refused(Status),
    /// The server ended the call with an error, or sent something unreadable.
    #[error("{:?}: {}", .0.code(), .0.message())]
    Failed(Status),
    /// The connection failed under the call.
    #[error("the call broke: {}", cause(.0))]
    Broken(Status),
    #[error("it ended the call")]
    Ended,
}

impl StreamEnd {
    /// The end of a call that was not answered.
    pub(super) fn unanswered(status: Status) -> Self {
        match is_local(&status) {
            true => Self::Broken(status),
            false => Self::Refused(status),
        }
    }

    /// The end of a call that was answered.
    pub(super) fn answered(status: Status) -> Self {
        match is_local(&status) {
            true => Self::Broken(status),
            false => Self::Failed(status),
        }
    }

    /// Whether a message arrived that could not be read.
    pub(super) fn is_unreadable(&self) -> bool {
        let unreadable = [Code::OutOfRange, Code::InvalidArgument];
        matches!(self, Self::Failed(status) if unreadable.contains(&status.code()))
    }

    /// Advice for the operator.
    pub(super) fn hint(&self) -> &str {
        match self {
            Self::Failed(status) if status.code() == Code::OutOfRange => {
                " (XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES, --xds-max-message-bytes, allows larger pushes)"
            }
            Self::Connect(ConnectError::Handshake { hint, .. }) => hint,
            Self::Connect(_)
            | Self::Refused(_)
            | Self::Failed(_)
            | Self::Broken(_)
            | Self::Ended => "",
        }
    }
}

/// Why the library made a status. Its own text is only that of the outermost cause.
fn cause(status: &Status) -> String {
    let source = status.source();
    source.map_or_else(|| status.message().to_owned(), chain)
}

/// Whether this process made the status. Those of the peer have no source.
fn is_local(status: &Status) -> bool {
    status.source().is_some()
}
