//! TLS to a control plane: the files, and the name to verify.

use std::path::PathBuf;

use super::error::ClientTlsError;
use crate::net::tls::client::ClientTls;

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
    pub(super) fn files(&self) -> Result<ClientTls, ClientTlsError> {
        let pair = match (self.certificate.clone(), self.key.clone()) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err(ClientTlsError::Half),
        };
        Ok(ClientTls {
            ca: self.ca.clone(),
            pair,
            any_host: false,
            http2: true,
        })
    }
}
