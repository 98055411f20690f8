//! Why rules cannot come from a control plane.

use crate::net::tls::TlsError;

/// Why the client cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum XdsError {
    #[error("CONFIG_GRPC_XDS_SERVER_URL (--xds-server)")]
    Server(#[from] BadServer),
    #[error(
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS (--xds-headers): item {0} is not NAME:VALUE"
    )]
    Header(usize),
    #[error("TLS to the control plane")]
    Tls(#[from] ClientTlsError),
}

/// The address cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an address; write host:port or unix:/path")]
pub(crate) struct BadServer(pub(super) String);

/// Why TLS cannot be set up. Every message names the file or the setting at fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientTlsError {
    #[error(
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT (--xds-tls-cert) and CONFIG_GRPC_XDS_CLIENT_TLS_KEY (--xds-tls-key) \
             need each other"
    )]
    Half,
    #[error(
        "`{0}` cannot be the name in a certificate; set CONFIG_GRPC_XDS_SERVER_TLS_SAN (--xds-tls-san)"
    )]
    NoName(String),
    #[error(transparent)]
    Files(#[from] TlsError),
}
