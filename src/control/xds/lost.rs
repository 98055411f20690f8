//! Why there is no call to a control plane, and how the log and a metric say so.

use std::{error::Error as _, fmt, sync::Arc};

use tonic::{Code, Status};

use crate::{foundation::causes::chain, observe::metrics::Metrics};

/// Why a call ended, or did not begin.
#[derive(Debug)]
pub(super) enum StreamEnd {
    /// There is no connection, for this reason.
    Away(String),
    /// The server answered the call with an error only.
    Refused(Status),
    /// The server ended the call with an error, or sent something unreadable.
    Failed(Status),
    /// The connection failed under the call.
    Broken(Status),
}

impl StreamEnd {
    /// The end by an error that is `theirs` unless this process made it: statuses of the peer have no source.
    pub(super) fn by(status: Status, theirs: fn(Status) -> Self) -> Self {
        match status.source() {
            Some(_) => Self::Broken(status),
            None => theirs(status),
        }
    }

    /// Whether a message arrived that could not be read.
    fn is_unreadable(&self) -> bool {
        let unreadable = [Code::OutOfRange, Code::InvalidArgument];
        matches!(self, Self::Failed(status) if unreadable.contains(&status.code()))
    }
}

impl fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(why) => f.write_str(why),
            Self::Refused(status) => {
                let (code, message) = (status.code(), status.message());
                write!(f, "it refuses the call with {code:?}: {message}")
            }
            Self::Failed(status) => {
                write!(f, "{:?}: {}", status.code(), status.message())?;
                match status.code() {
                    Code::OutOfRange => f.write_str(
                        " (XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES, --xds-max-message-bytes, allows larger pushes)",
                    ),
                    _ => Ok(()),
                }
            }
            Self::Broken(status) => match status.source() {
                // The text of the status is only that of the outermost cause.
                Some(source) => write!(f, "the call broke: {}", chain(source)),
                None => write!(f, "the call broke: {}", status.message()),
            },
        }
    }
}

/// Whether the control plane is there, as it was last reported.
#[derive(Debug)]
pub(super) struct Presence {
    /// The address of the control plane.
    pub server: String,
    metrics: Arc<Metrics>,
    /// The last report: nothing yet, connected, or away for this reason.
    reported: Option<Result<(), String>>,
}

impl Presence {
    /// A control plane that has not been reached yet.
    pub(super) fn new(server: String, metrics: Arc<Metrics>) -> Self {
        metrics.config.record_control_plane(false);
        Self {
            server,
            metrics,
            reported: None,
        }
    }

    /// Reports that the control plane serves the call, once after it was away.
    pub(super) fn find(&mut self) {
        self.metrics.config.record_control_plane(true);
        let again = match self.reported {
            Some(Ok(())) => return,
            None => "",
            Some(Err(_)) => " again",
        };
        tracing::info!("the control plane at {} is connected{again}", self.server);
        self.reported = Some(Ok(()));
    }

    /// Reports that the control plane is away, once for each new reason.
    pub(super) fn lose(&mut self, lost: &StreamEnd) {
        self.metrics.config.record_control_plane(false);
        if lost.is_unreadable() {
            self.metrics
                .config
                .record_refused_load(crate::service::grpc::now(), &[]);
        }
        let server = &self.server;
        // The server's text can have line breaks; a log entry must stay one line.
        let reason = lost.to_string().replace(char::is_control, "?");
        if matches!(&self.reported, Some(Err(reported)) if *reported == reason) {
            tracing::debug!("the control plane at {server} is still away: {reason}");
        } else {
            tracing::warn!(
                "the control plane at {server} is away: {reason}; the rules stay as they are"
            );
            self.reported = Some(Err(reason));
        }
    }
}
