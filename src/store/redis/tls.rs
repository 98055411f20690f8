//! TLS settings of connections to Redis: files → configuration.

use std::sync::Arc;

use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::address::{BadUrl, RedisTlsFiles, bad, read};
use crate::{foundation::causes::chain, net::pem};

impl RedisTlsFiles {
    /// Reads the files; they may have changed since the last connection.
    ///
    /// # Errors
    ///
    /// If one of them cannot be used. The error names it.
    pub(super) fn config(&self) -> Result<ClientConfig, BadUrl> {
        let unusable = |error: pem::PemError| bad(chain(&error));
        let roots = match &self.ca {
            Some(file) => pem::authorities(file, &read(file)?).map_err(unusable)?,
            None => RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
            },
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .expect("ring has suites for every version");
        let builder = if self.any_host {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| bad(error.to_string()))?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyHost(verifier)))
        } else {
            builder.with_root_certificates(roots)
        };
        let Some((certificate, key)) = &self.client else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = pem::certificates(certificate, &read(certificate)?).map_err(unusable)?;
        let own = pem::key(key, &read(key)?).map_err(unusable)?;
        builder
            .with_client_auth_cert(chain, own)
            .map_err(|error| bad(format!("{}: {error}", certificate.display())))
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
