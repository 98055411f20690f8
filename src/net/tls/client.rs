//! TLS to other servers.

use std::{path::PathBuf, sync::Arc};

use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

use super::{HTTP_2, TlsError, failure::is_of_authority, provider};
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
        let own = match &self.ca {
            Some(file) => pem::certificates(file, &pem::read(file)?)?,
            None => Vec::new(),
        };
        let roots = match &self.ca {
            Some(file) => pem::authorities(file, own.clone())?,
            None => RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
            },
        };
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(TlsError::NoServerVerifier)?;
        let verifier = ServerVerifier {
            webpki,
            own,
            any_host: self.any_host,
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .expect("ring has suites for every version")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
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

/// Verifies servers as webpki does, with two exceptions: for the name if that does not count, and for a certificate
/// that is its own authority.
#[derive(Debug)]
struct ServerVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    /// The certificates of the file of authorities.
    own: Vec<CertificateDer<'static>>,
    any_host: bool,
}

impl ServerVerifier {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let verified = self.webpki.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            // `openssl req -x509` makes such certificates. The dates were checked before, and the name was not. Only
            // the owner of its key can show it, and a client that trusts the authority trusts that key.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(error)))
                if is_of_authority(&error) && self.own.contains(end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)
            }
            verified => verified.map(|_| ()),
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verify(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is checked last.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_host => Ok(ServerCertVerified::assertion()),
            verified => verified.map(|()| ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
