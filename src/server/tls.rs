//! TLS on the gRPC port: reads the files that the settings name, and reads them again when they change.
//! `net/tls/listener.rs` turns them into a configuration of rustls.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{net::TcpStream, sync::watch, time::Instant};

use crate::{
    control::changes::Changes,
    foundation::{causes::chain, lock::blocking, log_throttle::LogThrottle},
    net::tls::{
        ServerName, TlsError,
        failure::HandshakeFailure,
        listener::{ListenerFiles, ListenerPem, ListenerTls, TlsSession},
    },
    observe::metrics::Metrics,
    settings::listen,
};

/// Why TLS cannot be set up. Every message names the file or the setting at fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenerTlsError {
    #[error("GRPC_SERVER_USE_TLS (--grpc-tls) needs {0}")]
    NotNamed(&'static str),
    #[error("{0} verifies no client without {1}")]
    VerifiesNobody(&'static str, &'static str),
    #[error(
        "{0} names a file, but the port would have no TLS without GRPC_SERVER_USE_TLS (--grpc-tls)"
    )]
    NotSwitchedOn(&'static str),
    #[error("GRPC_CLIENT_TLS_SAN (--grpc-client-san) is not a DNS name: `{0}`")]
    NoName(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The TLS configuration for new connections. All clones see a new one.
#[derive(Clone)]
pub(super) struct CurrentTls {
    config: watch::Receiver<ListenerTls>,
    log: Arc<HandshakeLog>,
}

impl CurrentTls {
    /// Performs the handshake until `deadline`. Returns `None` if the client closes the connection without a byte.
    ///
    /// # Errors
    ///
    /// If the client is refused, or breaks off the handshake. This is also counted.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        deadline: Instant,
    ) -> io::Result<Option<TlsSession>> {
        let tls = self.config.borrow().clone();
        self.log.accept(tls, stream, deadline).await
    }
}

const CERTIFICATE: &str = "GRPC_SERVER_TLS_CERT (--grpc-tls-cert)";
const KEY: &str = "GRPC_SERVER_TLS_KEY (--grpc-tls-key)";

/// The files that the settings name, and the name required of clients.
fn files(settings: &listen::TlsSettings) -> Result<ListenerFiles, ListenerTlsError> {
    let named = |path: Option<&Path>, name| {
        path.map(Path::to_owned)
            .ok_or(ListenerTlsError::NotNamed(name))
    };
    let san = |name: &str| {
        ServerName::try_from(name.to_owned()).map_err(|_| ListenerTlsError::NoName(name.to_owned()))
    };
    Ok(ListenerFiles {
        certificate: named(settings.certificate(), CERTIFICATE)?,
        key: named(settings.key(), KEY)?,
        client_ca: settings.client_ca().map(Path::to_owned),
        client_name: settings.client_san().map(san).transpose()?,
    })
}

/// The folders to watch for the files, each once, without sub-folders.
fn folders(files: &ListenerFiles) -> Vec<(PathBuf, bool)> {
    let all = [&files.certificate, &files.key].into_iter();
    let mut folders: Vec<_> = all
        .chain(&files.client_ca)
        .map(|file| match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => (folder.to_owned(), false),
            _ => (".".into(), false),
        })
        .collect();
    folders.sort();
    folders.dedup();
    folders
}

/// Reloads changed files.
pub(super) struct Rotation {
    files: ListenerFiles,
    /// The result of the last reading, good or bad.
    seen: Result<ListenerPem, String>,
    config: watch::Sender<ListenerTls>,
}

impl Rotation {
    /// Reads the files for the first time. Returns `None` if TLS is off.
    ///
    /// # Errors
    ///
    /// If a file is invalid, or if the settings look as if clients were verified but they would not be.
    pub(super) fn new(settings: &listen::TlsSettings) -> Result<Option<Self>, ListenerTlsError> {
        const USE_TLS: &str = "GRPC_SERVER_USE_TLS (--grpc-tls)";
        const CLIENT_CA: &str = "GRPC_CLIENT_TLS_CACERT (--grpc-client-ca)";
        const CLIENT_SAN: &str = "GRPC_CLIENT_TLS_SAN (--grpc-client-san)";
        if settings.client_san().is_some() && settings.client_ca().is_none() {
            return Err(ListenerTlsError::VerifiesNobody(CLIENT_SAN, CLIENT_CA));
        }
        if !settings.grpc_tls {
            return match (settings.client_ca(), settings.certificate(), settings.key()) {
                (Some(_), ..) => Err(ListenerTlsError::VerifiesNobody(CLIENT_CA, USE_TLS)),
                (None, Some(_), _) => Err(ListenerTlsError::NotSwitchedOn(CERTIFICATE)),
                (None, None, Some(_)) => Err(ListenerTlsError::NotSwitchedOn(KEY)),
                (None, None, None) => Ok(None),
            };
        }
        let files = files(settings)?;
        let texts = files.read()?;
        let config = files.config(&texts)?;
        Ok(Some(Self {
            files,
            seen: Ok(texts),
            config: watch::Sender::new(config),
        }))
    }

    /// The configuration for new connections. Failed handshakes are counted in `metrics`.
    pub(super) fn tls(&self, metrics: Arc<Metrics>) -> CurrentTls {
        CurrentTls {
            config: self.config.subscribe(),
            log: HandshakeLog::new(metrics),
        }
    }

    /// Starts to watch the files. [`CertificateWatch::run`] misses no change from now on.
    pub(super) fn watch(self) -> CertificateWatch {
        let changes = Changes::in_folders(folders(&self.files), "certificate and key");
        CertificateWatch {
            rotation: self,
            changes,
        }
    }

    /// Reads the files and applies changes. Open connections keep their configuration.
    fn look(&mut self) {
        let read = self.files.read();
        let seen = read.map_err(|error| chain(&error));
        if seen == self.seen {
            return;
        }
        let config = match &seen {
            Ok(texts) => self.files.config(texts).map_err(|error| chain(&error)),
            Err(error) => Err(error.clone()),
        };
        self.seen = seen;
        match config {
            Ok(config) => {
                self.config.send_replace(config);
                let file = self.files.certificate.display();
                tracing::info!("{file}: read again; new connections use it");
            }
            Err(error) => {
                tracing::error!("{error}; new connections use the last valid certificate");
            }
        }
    }
}

/// Watched certificate files.
pub(super) struct CertificateWatch {
    rotation: Rotation,
    changes: Changes,
}

impl CertificateWatch {
    /// Applies every change, until dropped.
    pub(super) async fn run(mut self) {
        loop {
            self.changes.next().await;
            let Self {
                mut rotation,
                changes,
            } = self;
            // A file can be on a volume that does not respond.
            let look = move || {
                rotation.look();
                rotation
            };
            let rotation = blocking(look).await;
            self = Self { rotation, changes };
        }
    }
}

/// Counts and logs failed handshakes, for all workers.
#[derive(Debug)]
pub(super) struct HandshakeLog {
    metrics: Arc<Metrics>,
    /// A throttle for each kind of failure, so that a port scanner does not hide an expired certificate.
    throttles: [LogThrottle; HandshakeFailure::ALL.len()],
}

impl HandshakeLog {
    pub(super) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            throttles: Default::default(),
        })
    }

    /// Performs the handshake until `deadline`. Returns `None` if the client closes the connection without a byte, as
    /// health checks over TCP do.
    ///
    /// # Errors
    ///
    /// If the client is refused, or breaks off the handshake.
    pub(super) async fn accept(
        &self,
        tls: ListenerTls,
        stream: TcpStream,
        deadline: Instant,
    ) -> io::Result<Option<TlsSession>> {
        let peer = stream.peer_addr();
        if stream.peek(&mut [0]).await? == 0 {
            return Ok(None);
        }
        let accepted = tokio::time::timeout_at(deadline, tls.accept(stream)).await;
        let accepted = accepted.unwrap_or_else(|late| Err(late.into()));
        accepted.map(Some).inspect_err(|error| {
            self.record(peer.ok(), error);
        })
    }

    fn record(&self, peer: Option<SocketAddr>, error: &io::Error) {
        let failure = HandshakeFailure::of(error);
        self.metrics.server.handshakes.count(failure as usize);
        if self.throttles[failure as usize].may_log() {
            let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
            tracing::warn!(
                peer,
                reason = failure.name(),
                %error,
                "a TLS handshake failed: {}; Envoy lets requests pass meanwhile unless failure_mode_deny is set",
                failure.explanation()
            );
        }
    }
}
