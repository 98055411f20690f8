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
    reported: Reported,
}

/// The last report.
#[derive(Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    Connected,
    /// The control plane is away, for this reason.
    Away(String),
}

impl Presence {
    /// A control plane that has not been reached yet.
    pub(super) fn new(server: String, metrics: Arc<Metrics>) -> Self {
        metrics.record_control_plane(false);
        Self {
            server,
            metrics,
            reported: Reported::Nothing,
        }
    }

    /// The address of the control plane.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Reports that the control plane serves the call, once after it was away.
    pub(super) fn find(&mut self) {
        self.metrics.record_control_plane(true);
        let again = match self.reported {
            Reported::Connected => return,
            Reported::Nothing => "",
            Reported::Away(_) => " again",
        };
        tracing::info!("the control plane at {} is connected{again}", self.server);
        self.reported = Reported::Connected;
    }

    /// Reports that the control plane is away, once for each new reason.
    pub(super) fn lose(&mut self, lost: &StreamEnd) {
        self.metrics.record_control_plane(false);
        if lost.is_unreadable() {
            self.metrics
                .record_refused_load(crate::service::grpc::now(), &[]);
        }
        let server = &self.server;
        // The server's text can have line breaks; a log entry must stay one line.
        let reason = format!("{}{}", chain(lost), lost.hint()).replace(char::is_control, "?");
        if matches!(&self.reported, Reported::Away(reported) if *reported == reason) {
            tracing::debug!("the control plane at {server} is still away: {reason}");
        } else {
            tracing::warn!(
                "the control plane at {server} is away: {reason}; the rules stay as they are"
            );
            self.reported = Reported::Away(reason);
        }
    }

    /// Reports that an answer without rules was not believed.
    pub(super) fn doubt(&self) {
        tracing::warn!(
            "the control plane at {} sent no rules when asked for all after a reconnect, as one does that has just \
             started; the rules stay as they are until it sends others (TOLLGATE_XDS_EMPTY_PUSH=always, \
             --xds-empty-push always, accepts such an answer)",
            self.server
        );
    }
}
