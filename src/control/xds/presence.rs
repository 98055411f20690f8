//! Whether the control plane is there, in the log and as a metric.

use std::sync::Arc;

use super::end::StreamEnd;
use crate::{foundation::causes::chain, observe::metrics::Metrics};

/// Whether the control plane is there, as it was last reported.
#[derive(Debug)]
pub(super) struct Presence {
    /// The address of the control plane.
    server: String,
    metrics: Arc<Metrics>,
    /// The reason in the log why the control plane is away; `None` while it is connected.
    reported: Option<String>,
}

impl Presence {
    /// A control plane that has not been reached yet.
    pub(super) fn new(server: String, metrics: Arc<Metrics>) -> Self {
        metrics.record_control_plane(false);
        Self {
            server,
            metrics,
            reported: None,
        }
    }

    /// The address of the control plane.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Logs that the control plane is back, if it was away.
    pub(super) fn find(&mut self) {
        self.metrics.record_control_plane(true);
        if self.reported.take().is_some() {
            tracing::info!("the control plane at {} is back", self.server);
        }
    }

    /// Logs that the control plane is away, once for each new reason.
    pub(super) fn lose(&mut self, lost: &StreamEnd) {
        self.metrics.record_control_plane(false);
        if lost.is_unreadable() {
            self.metrics
                .record_load(crate::service::grpc::now(), Err(&[]));
        }
        let server = &self.server;
        // The server's text may have line breaks; a log entry must stay one line.
        let reason = format!("{}{}", chain(lost), lost.hint()).replace(char::is_control, "?");
        if self.reported.as_ref() == Some(&reason) {
            tracing::debug!("the control plane at {server} is still away: {reason}");
        } else {
            tracing::warn!(
                "the control plane at {server} is away: {reason}; the rules stay as they are"
            );
            self.reported = Some(reason);
        }
    }
}
