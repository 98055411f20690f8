//! Why a call of a control plane ended.

use std::error::Error as _;

use tonic::{Code, Status};

use super::connect::ConnectError;

/// Why a call ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamEnd {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server answered the call with an error only.
    #[error("it refuses the call with {:?}: {}", .0.code(), .0.message())]
    Refused(Status),
    #[error("{:?}: {}", .0.code(), .0.message())]
    Broken(Status),
    #[error("it ended the call")]
    Ended,
}

impl StreamEnd {
    /// The end of a call that was not answered. A status without a local `source` came from the peer.
    pub(super) fn unanswered(status: Status) -> Self {
        match status.source() {
            Some(_) => Self::Broken(status),
            None => Self::Refused(status),
        }
    }

    /// Whether a message arrived that could not be read.
    pub(super) fn is_unreadable(&self) -> bool {
        let unreadable = [Code::OutOfRange, Code::InvalidArgument];
        matches!(self, Self::Broken(status) if unreadable.contains(&status.code()))
    }

    /// Advice for the operator.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::Broken(status) if status.code() == Code::OutOfRange => {
                " (XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES, --xds-max-message-bytes, allows larger pushes)"
            }
            Self::Connect(_) | Self::Refused(_) | Self::Broken(_) | Self::Ended => "",
        }
    }
}
