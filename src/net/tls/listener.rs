//! TLS on a port of our own: from the contents of certificate files to the configuration of rustls, and the handshake.

use std::{fmt, io, path::PathBuf, sync::Arc};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
        client::{
            danger::HandshakeSignatureValid, verify_server_name as verify_name_in_certificate,
        },
        pki_types::{CertificateDer, ServerName, UnixTime},
        server::{
            ParsedCertificate, WebPkiClientVerifier,
            danger::{ClientCertVerified, ClientCertVerifier},
        },
    },
    server::TlsStream,
};

use super::{HTTP_2, TlsError, provider};
use crate::net::pem;

/// A connection of a client, after the handshake.
pub(crate) type TlsSession = TlsStream<TcpStream>;

/// The TLS configuration of new connections to a port that speaks HTTP/2.
#[derive(Clone)]
pub(crate) struct ListenerTls(TlsAcceptor);

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").finish_non_exhaustive()
    }
}

impl ListenerTls {
    /// Performs the handshake.
    ///
    /// # Errors
    ///
    /// If the client is refused or breaks off.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsSession> {
        self.0.accept(stream).await
    }
}

/// The files of a listener, and the name required of its clients.
#[derive(Debug)]
pub(crate) struct ListenerFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authority of clients; if it is `None`, clients need no certificate.
    pub client_ca: Option<PathBuf>,
    pub client_name: Option<ServerName<'static>>,
}

/// The texts of the files at one moment.
#[derive(PartialEq, Eq)]
pub(crate) struct ListenerPem {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl fmt::Debug for ListenerPem {
    /// Leaves out the texts, because one is the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerPem").finish_non_exhaustive()
    }
}

impl ListenerFiles {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If one of them cannot be read.
    pub(crate) fn read(&self) -> Result<ListenerPem, TlsError> {
        Ok(ListenerPem {
            certificate: pem::read(&self.certificate)?,
            key: pem::read(&self.key)?,
            client_ca: self.client_ca.as_deref().map(pem::read).transpose()?,
        })
    }

    /// The configuration that the texts of the files make.
    ///
    /// # Errors
    ///
    /// If one of them cannot be used.
    pub(crate) fn config(&self, texts: &ListenerPem) -> Result<ListenerTls, TlsError> {
        let certificates = pem::certificates(&self.certificate, &texts.certificate)?;
        let key = pem::key(&self.key, &texts.key)?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .expect("ring has suites for every version");
        let builder = match self.client_verifier(texts)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(certificates, key)
            .map_err(|source| TlsError::NoPair {
                certificate: self.certificate.clone(),
                key: self.key.clone(),
                source,
            })?;
        config.alpn_protocols = vec![HTTP_2.to_vec()];
        Ok(ListenerTls(TlsAcceptor::from(Arc::new(config))))
    }

    fn client_verifier(
        &self,
        texts: &ListenerPem,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        let (Some(file), Some(text)) = (&self.client_ca, &texts.client_ca) else {
            return Ok(None);
        };
        let roots = pem::authorities(file, pem::certificates(file, text)?)?;
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| TlsError::NoClientVerifier(file.clone(), error))?;
        Ok(Some(match self.client_name.clone() {
            Some(name) => Arc::new(NameVerifier { chain, name }),
            None => chain,
        }))
    }
}

/// Accepts clients that the certificate chain admits and whose certificate is valid for a name.
#[derive(Debug)]
struct NameVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for NameVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self
            .chain
            .verify_client_cert(end_entity, intermediates, now)?;
        verify_name_in_certificate(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
