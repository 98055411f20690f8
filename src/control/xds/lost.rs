//! Why there is no connection to a control plane, why a call ended, and how the log and a metric say so.

use std::{error::Error as _, io, path::PathBuf, sync::Arc, time::Duration};

use tonic::{Code, Status, transport};

use crate::{
    control::xds::options::{ClientTlsError, ControlPlaneTls},
    foundation::causes::chain,
    net::tls::failure::TlsFailure,
    observe::metrics::Metrics,
};

/// Why there is no connection, or none any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("no connection within {} s", .0.as_secs())]
    TooSlow(Duration),
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("TLS failed")]
    Handshake {
        #[source]
        source: io::Error,
        /// Advice for the operator; can be empty.
        hint: String,
    },
    #[error("it refused the client certificate {}: {reason}", file.display())]
    CertificateRefused { file: PathBuf, reason: String },
    #[error(
        "it requires a client certificate; set CONFIG_GRPC_XDS_CLIENT_TLS_CERT (--xds-tls-cert) and \
         CONFIG_GRPC_XDS_CLIENT_TLS_KEY (--xds-tls-key)"
    )]
    CertificateRequired,
    #[error("it ended TLS with an alert: {0}")]
    Alert(String),
    #[error(transparent)]
    Tls(#[from] ClientTlsError),
    #[error("reading the certificates panicked")]
    Panicked,
    #[error("HTTP/2 failed")]
    Http(#[source] transport::Error),
    #[error("it closed the connection")]
    Closed,
    #[error(
        "it closed the connection at once; if it expects TLS, set CONFIG_GRPC_XDS_SERVER_USE_TLS (--xds-tls)"
    )]
    ClosedAtOnce,
    #[error(
        "it did not answer a ping within {0:?} (TOLLGATE_XDS_KEEPALIVE, --xds-keepalive, sets how often it is asked)"
    )]
    Silent(Duration),
    #[error("the connection broke")]
    Broken(#[source] io::Error),
}

impl ConnectError {
    /// The error of a handshake.
    pub(super) fn handshake(error: io::Error, tls: &ControlPlaneTls) -> Self {
        Self::refused(&error, tls).unwrap_or_else(|| Self::Handshake {
            hint: TlsFailure::of(&error).map_or_else(String::new, |failure| hint(&failure, tls)),
            source: error,
        })
    }

    /// The end of a connection whose peer has never sent anything but its part of the handshake.
    pub(super) fn never_began(end: io::Error, tls: Option<&ControlPlaneTls>) -> Self {
        match Self::ended(end, tls) {
            Self::Closed if tls.is_none() => Self::ClosedAtOnce,
            other => other,
        }
    }

    /// The end of a connection.
    pub(super) fn ended(end: io::Error, tls: Option<&ControlPlaneTls>) -> Self {
        if let Some(refused) = tls.and_then(|tls| Self::refused(&end, tls)) {
            return refused;
        }
        match end.kind() {
            io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Broken(end),
        }
    }

    /// The alert of the control plane, if it sent one.
    fn refused(error: &io::Error, tls: &ControlPlaneTls) -> Option<Self> {
        match (TlsFailure::of(error)?, &tls.certificate) {
            (TlsFailure::CertificateRefused(reason), Some(file)) => {
                Some(Self::CertificateRefused {
                    file: file.clone(),
                    reason: reason.to_owned(),
                })
            }
            (TlsFailure::CertificateRequired, Some(file)) => Some(Self::CertificateRefused {
                file: file.clone(),
                reason: "certificate required".to_owned(),
            }),
            (TlsFailure::CertificateRefused(_) | TlsFailure::CertificateRequired, None) => {
                Some(Self::CertificateRequired)
            }
            (TlsFailure::Alert(alert), _) => Some(Self::Alert(alert)),
            (
                TlsFailure::Untrusted
                | TlsFailure::OtherName { .. }
                | TlsFailure::Invalid(_)
                | TlsFailure::NotTls,
                _,
            ) => None,
        }
    }
}

/// Advice for the operator.
fn hint(failure: &TlsFailure, tls: &ControlPlaneTls) -> String {
    match (failure, &tls.ca) {
        (TlsFailure::Untrusted, Some(ca)) => format!(
            " (trusted are the authorities in {}; see CONFIG_GRPC_XDS_SERVER_TLS_CACERT, --xds-tls-ca)",
            ca.display()
        ),
        (TlsFailure::Untrusted, None) => {
            " (trusted are the public authorities; see CONFIG_GRPC_XDS_SERVER_TLS_CACERT, --xds-tls-ca)"
                .to_owned()
        }
        (TlsFailure::OtherName { has_short_wildcard }, _) => {
            let rule = if *has_short_wildcard {
                "a wildcard must have at least two labels after the star; "
            } else {
                ""
            };
            format!(
                " ({rule}see CONFIG_GRPC_XDS_SERVER_TLS_SAN, --xds-tls-san, for another name in the certificate)"
            )
        }
        (TlsFailure::Invalid(reason), _) => format!(" ({reason})"),
        (TlsFailure::NotTls, _) => " (does this port speak TLS?)".to_owned(),
        _ => String::new(),
    }
}

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
