//! TLS to other servers.

use std::{path::PathBuf, sync::Arc};

use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::{HTTP_2, TlsError, provider};
use crate::net::pem;

/// Which servers to trust, and which certificate to show to them.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// Trusted instead of the public authorities.
    pub ca: Option<PathBuf>,
    /// Certificate chain and key to show to the server.
    pub pair: Option<(PathBuf, PathBuf)>,
    /// Accept a certificate that is good but for another host.
    pub any_host: bool,
    /// Whether to speak HTTP/2, offered by ALPN.
    pub http2: bool,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If one of them cannot be used.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let roots = match &self.ca {
            Some(file) => pem::authorities(file, &pem::read(file)?)?,
            None => RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
            },
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .expect("ring has suites for every version");
        let builder = if self.any_host {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
                .build()
                .map_err(TlsError::NoServerVerifier)?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyHost(verifier)))
        } else {
            builder.with_root_certificates(roots)
        };
        let mut config = match &self.pair {
            Some((certificate, key)) => {
                let chain = pem::certificates(certificate, &pem::read(certificate)?)?;
                let secret = pem::key(key, &pem::read(key)?)?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|source| TlsError::NoPair {
                        certificate: certificate.clone(),
                        key: key.clone(),
                        source,
                    })?
            }
            None => builder.with_no_client_auth(),
        };
        if self.http2 {
            config.alpn_protocols = vec![HTTP_2.to_vec()];
        }
        Ok(Arc::new(config))
    }
}

/// Accepts a certificate that is good in every respect but its name.
#[derive(Debug)]
struct AnyHost(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            self.0
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is checked last.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
