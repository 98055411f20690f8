//! TLS from certificates and keys in files. Other folders do not name rustls.

use std::{path::PathBuf, sync::Arc};

use tokio_rustls::rustls::{
    self,
    client::VerifierBuilderError,
    crypto::{CryptoProvider, ring},
};

use super::pem::PemError;

pub(crate) mod client;
pub(crate) mod failure;
pub(crate) mod listener;

pub(crate) use tokio_rustls::rustls::pki_types::ServerName;

/// HTTP/2, as ALPN names it.
const HTTP_2: &[u8] = b"h2";

/// Why files cannot be used for TLS. Every message names a file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Pem(#[from] PemError),
    #[error("{} and {}: certificate and key cannot be used together", certificate.display(), key.display())]
    NoPair {
        certificate: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("{}: cannot be used to verify clients", .0.display())]
    NoClientVerifier(PathBuf, #[source] VerifierBuilderError),
    /// The authorities came from a file, or are the public ones.
    #[error("the certificate authorities cannot be used to verify servers")]
    NoServerVerifier(#[source] VerifierBuilderError),
}

/// The only cryptography in the program.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
