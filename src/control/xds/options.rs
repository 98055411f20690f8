//! How to get rules from a control plane: its address, TLS, the identity of this process, and the errors in them.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use prost_types::{Struct, Value, value::Kind};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

use crate::{
    foundation::backoff::Backoff,
    net::tls::{TlsError, client::ClientTls},
    service::grpc::proto::envoy::config::core::v3::{Node, node::UserAgentVersionType},
};

/// gRPC's default for the largest message, 4 MiB.
pub(crate) const DEFAULT_MESSAGE_BYTES: usize = 4 << 20;

/// How to get rules from a control plane. It is not printed: fields may be secret.
pub(crate) struct Options {
    /// `host:port` or `unix:path`, as gRPC writes targets.
    pub server: String,
    pub node_id: String,
    pub node_metadata: Vec<(String, String)>,
    /// Each is `name:value`, with one colon. They may be secret.
    pub headers: Vec<String>,
    /// `None` means without TLS.
    pub tls: Option<ControlPlaneTls>,
    pub empty: OnEmptyPush,
    /// Largest message accepted.
    pub max_message_bytes: usize,
    /// Waits between attempts to connect.
    pub backoff: Backoff,
    /// The wait after a refused call, times the refusals in a row; `None` means the usual back-off.
    pub retry_interval: Option<Duration>,
    /// How often to ping a silent control plane; `None` means never.
    pub keepalive: Option<Duration>,
}

/// The effect of a push without any rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnEmptyPush {
    /// It is accepted like any other, so that nothing is limited, unless it only answers the question that the client
    /// repeats after a reconnect.
    Allow,
    /// It is refused while there are rules.
    Keep,
    /// It is always accepted.
    Always,
}

/// Why the client cannot start. Every message names the file or the setting at fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum XdsError {
    #[error(
        "CONFIG_GRPC_XDS_SERVER_URL (--xds-server): `{0}` is not an address; write host:port or unix:/path"
    )]
    Server(String),
    #[error(
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS (--xds-headers): item {0} is not NAME:VALUE"
    )]
    Header(usize),
    #[error(
        "TLS to the control plane: CONFIG_GRPC_XDS_CLIENT_TLS_CERT (--xds-tls-cert) and \
         CONFIG_GRPC_XDS_CLIENT_TLS_KEY (--xds-tls-key) need each other"
    )]
    Half,
    #[error(
        "TLS to the control plane: `{0}` cannot be the name in a certificate; set CONFIG_GRPC_XDS_SERVER_TLS_SAN \
         (--xds-tls-san)"
    )]
    NoName(String),
    #[error("TLS to the control plane")]
    Files(#[from] TlsError),
}

/// TLS to a control plane.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControlPlaneTls {
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Trusted instead of the public authorities.
    pub ca: Option<PathBuf>,
    /// Name that the control plane's certificate must be valid for, if not its host.
    pub name: Option<String>,
}

impl ControlPlaneTls {
    pub(super) fn files(&self) -> Result<ClientTls, XdsError> {
        let pair = match (self.certificate.clone(), self.key.clone()) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err(XdsError::Half),
        };
        Ok(ClientTls {
            ca: self.ca.clone(),
            pair,
            any_host: false,
            http2: true,
        })
    }
}

/// The node of requests, with free-form metadata.
pub(super) fn node(options: &Options) -> Node {
    let value = |text: &String| Value {
        kind: Some(Kind::StringValue(text.clone())),
    };
    let metadata = options.node_metadata.iter();
    let fields: BTreeMap<_, _> = metadata
        .map(|(key, text)| (key.clone(), value(text)))
        .collect();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Node {
        id: options.node_id.clone(),
        cluster: String::new(),
        metadata: (!fields.is_empty()).then_some(Struct { fields }),
        user_agent_name: "tollgate".to_owned(),
        user_agent_version_type: Some(UserAgentVersionType::UserAgentVersion(version)),
    }
}

/// The headers in `items`, each `name:value`.
///
/// # Errors
///
/// If an item is no header. The error has its number, counted from 1.
pub(super) fn headers(items: &[String]) -> Result<MetadataMap, XdsError> {
    let mut map = MetadataMap::new();
    for (number, item) in (1..).zip(items) {
        // The text is not repeated, because it may be secret.
        let bad = || XdsError::Header(number);
        let (name, value) = item.split_once(':').ok_or_else(bad)?;
        if value.contains(':') {
            return Err(bad());
        }
        let key = AsciiMetadataKey::from_bytes(name.to_lowercase().as_bytes());
        let mut value = AsciiMetadataValue::try_from(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        map.append(key.map_err(|_| bad())?, value);
    }
    Ok(map)
}
