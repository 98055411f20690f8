//! Why there is no connection to a control plane.

use std::{io, path::PathBuf, time::Duration};

use tonic::transport;

use super::{error::ClientTlsError, tls::ControlPlaneTls};
use crate::net::tls::failure::TlsFailure;

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
