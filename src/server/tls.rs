//! TLS on the gRPC port: certificate, key and the authority of clients, reloaded when they change.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{net::TcpStream, sync::watch};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
        client::{
            danger::HandshakeSignatureValid, verify_server_name as verify_name_in_certificate,
        },
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, ServerName, UnixTime},
        server::{
            ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier,
            danger::{ClientCertVerified, ClientCertVerifier},
        },
    },
    server::TlsStream,
};

use crate::foundation::causes::chain;
use crate::{
    control::changes::Changes,
    net::pem::{self, PemError},
    settings::tls,
};

/// The only protocol inside TLS, as ALPN names it.
const HTTP_2: &[u8] = b"h2";

/// Why TLS cannot be set up. Every message names the file or the setting at fault.
#[derive(Debug, thiserror::Error)]
pub enum ListenerTlsError {
    #[error("GRPC_SERVER_USE_TLS (--grpc-tls) needs {0}")]
    NotNamed(&'static str),
    #[error("{0} verifies no client without {1}")]
    VerifiesNobody(&'static str, &'static str),
    #[error("GRPC_CLIENT_TLS_SAN (--grpc-client-san) is not a DNS name: `{0}`")]
    NoName(String),
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
    NoVerifier(PathBuf, #[source] VerifierBuilderError),
}

/// The TLS configuration of new connections. Clones follow one rotation.
#[derive(Clone)]
pub(super) struct CurrentTls(watch::Receiver<Arc<ServerConfig>>);

impl CurrentTls {
    /// Performs the handshake.
    ///
    /// # Errors
    ///
    /// If the client is refused or breaks off.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.0.borrow().clone();
        TlsAcceptor::from(config).accept(stream).await
    }
}

/// The files, and the name required of clients.
struct TlsPaths {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_san: Option<ServerName<'static>>,
}

impl TlsPaths {
    fn new(settings: &tls::TlsSettings) -> Result<Self, ListenerTlsError> {
        const CERTIFICATE: &str = "GRPC_SERVER_TLS_CERT (--grpc-tls-cert)";
        const KEY: &str = "GRPC_SERVER_TLS_KEY (--grpc-tls-key)";
        let named = |path: Option<&Path>, name| {
            path.map(Path::to_owned)
                .ok_or(ListenerTlsError::NotNamed(name))
        };
        let san = |name: &str| {
            ServerName::try_from(name.to_owned())
                .map_err(|_| ListenerTlsError::NoName(name.to_owned()))
        };
        Ok(Self {
            certificate: named(settings.certificate(), CERTIFICATE)?,
            key: named(settings.key(), KEY)?,
            client_ca: settings.client_ca().map(Path::to_owned),
            client_san: settings.client_san().map(san).transpose()?,
        })
    }

    fn folders(&self) -> Vec<(PathBuf, bool)> {
        let files = [&self.certificate, &self.key].into_iter();
        let mut folders: Vec<_> = files
            .chain(&self.client_ca)
            .map(|file| match file.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => (folder.to_owned(), false),
                _ => (".".into(), false),
            })
            .collect();
        folders.sort();
        folders.dedup();
        folders
    }

    fn read(&self) -> Result<Contents, ListenerTlsError> {
        Ok(Contents {
            certificate: pem::read(&self.certificate)?,
            key: pem::read(&self.key)?,
            client_ca: self.client_ca.as_deref().map(pem::read).transpose()?,
        })
    }

    fn config(&self, contents: &Contents) -> Result<ServerConfig, ListenerTlsError> {
        let provider = Arc::new(ring::default_provider());
        let certificates = pem::certificates(&self.certificate, &contents.certificate)?;
        let key = pem::key(&self.key, &contents.key)?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .expect("ring has suites for every version");
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(file), Some(text)) => {
                builder.with_client_cert_verifier(self.verifier(file, text, provider)?)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(certificates, key)
            .map_err(|source| ListenerTlsError::NoPair {
                certificate: self.certificate.clone(),
                key: self.key.clone(),
                source,
            })?;
        config.alpn_protocols = vec![HTTP_2.to_vec()];
        Ok(config)
    }

    fn verifier(
        &self,
        file: &Path,
        text: &[u8],
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, ListenerTlsError> {
        let roots = pem::authorities(file, text)?;
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| ListenerTlsError::NoVerifier(file.to_owned(), error))?;
        Ok(match self.client_san.clone() {
            Some(name) => Arc::new(NameVerifier { chain, name }),
            None => chain,
        })
    }
}

#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Reloads changed files.
pub(super) struct Rotation {
    files: TlsPaths,
    /// Result of the last reading, good or bad.
    seen: Result<Contents, String>,
    config: watch::Sender<Arc<ServerConfig>>,
}

impl Rotation {
    /// Reads the files for the first time; `None` if TLS is off.
    ///
    /// # Errors
    ///
    /// If a file is invalid, or if the settings seem to verify clients but would not.
    pub(super) fn new(settings: &tls::TlsSettings) -> Result<Option<Self>, ListenerTlsError> {
        const USE_TLS: &str = "GRPC_SERVER_USE_TLS (--grpc-tls)";
        const CLIENT_CA: &str = "GRPC_CLIENT_TLS_CACERT (--grpc-client-ca)";
        const CLIENT_SAN: &str = "GRPC_CLIENT_TLS_SAN (--grpc-client-san)";
        if settings.client_san().is_some() && settings.client_ca().is_none() {
            return Err(ListenerTlsError::VerifiesNobody(CLIENT_SAN, CLIENT_CA));
        }
        if !settings.grpc_tls {
            return match settings.client_ca() {
                Some(_) => Err(ListenerTlsError::VerifiesNobody(CLIENT_CA, USE_TLS)),
                None => Ok(None),
            };
        }
        let files = TlsPaths::new(settings)?;
        let contents = files.read()?;
        let config = files.config(&contents)?;
        Ok(Some(Self {
            files,
            seen: Ok(contents),
            config: watch::Sender::new(Arc::new(config)),
        }))
    }

    pub(super) fn tls(&self) -> CurrentTls {
        CurrentTls(self.config.subscribe())
    }

    /// Starts to watch the files: [`CertificateWatch::run`] misses no change from now on.
    pub(super) fn watch(self) -> CertificateWatch {
        let changes = Changes::in_folders(self.files.folders(), "certificate and key");
        CertificateWatch {
            rotation: self,
            changes,
        }
    }

    /// Reads the files and takes changes into use. Open connections keep their configuration.
    fn look(&mut self) {
        let read = self.files.read();
        let seen = read.map_err(|error| chain(&error));
        if seen == self.seen {
            return;
        }
        let config = match &seen {
            Ok(contents) => self.files.config(contents).map_err(|error| chain(&error)),
            Err(error) => Err(error.clone()),
        };
        self.seen = seen;
        match config {
            Ok(config) => {
                self.config.send_replace(Arc::new(config));
                let file = self.files.certificate.display();
                tracing::info!("{file}: read again; new connections use it");
            }
            Err(error) => {
                tracing::error!("{error}; new connections use the last valid certificate");
            }
        }
    }
}

/// Watched files.
pub(super) struct CertificateWatch {
    rotation: Rotation,
    changes: Changes,
}

impl CertificateWatch {
    /// Takes every change into use, until dropped.
    pub(super) async fn run(mut self) {
        loop {
            self.changes.next().await;
            let Self {
                mut rotation,
                changes,
            } = self;
            // A file may be on a volume that does not respond.
            let looked = tokio::task::spawn_blocking(move || {
                rotation.look();
                rotation
            });
            let Ok(rotation) = looked.await else {
                tracing::error!("reading the certificate panicked; it is no longer watched");
                return std::future::pending().await;
            };
            self = Self { rotation, changes };
        }
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
