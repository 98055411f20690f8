//! Connects to a control plane over TCP or a Unix socket, with TLS if asked for.

use super::error::{BadServer, ClientTlsError};

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{
    TlsConnector,
    rustls::{self, ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};
use tonic::transport::{Channel, Endpoint};

use super::error::XdsError;
use crate::net::{
    dial::{BoxedStream, OnceConnector},
    pem,
};

/// Bound on connecting, TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// Longest wait for the answer to a keepalive ping.
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(20);

/// The kernel probes a silent peer after this time, and three more times, a third of it apart. So a vanished host is
/// detected within a minute, without traffic to the control plane itself.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// The default port of a target, as in gRPC.
const DEFAULT_PORT: u16 = 443;

/// Files for TLS to a control plane.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Trusted instead of the public authorities.
    pub ca: Option<PathBuf>,
    /// Name that the control plane's certificate must be valid for, if not its host.
    pub name: Option<String>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("no connection within {} s", CONNECT.as_secs())]
    TooSlow,
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("TLS failed")]
    Handshake(#[source] io::Error),
    #[error(transparent)]
    Tls(#[from] ClientTlsError),
    #[error("reading the certificates panicked")]
    Panicked,
    #[error("HTTP/2 failed")]
    Http(#[source] tonic::transport::Error),
}

/// Opens connections to one control plane.
#[derive(Debug)]
pub(super) struct ControlPlaneConnector {
    target: ControlPlaneAddress,
    tls: Option<TlsFiles>,
    keepalive: Option<Duration>,
}

/// The address of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ControlPlaneAddress {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl ControlPlaneConnector {
    pub(super) fn new(
        server: &str,
        tls: Option<TlsFiles>,
        keepalive: Option<Duration>,
    ) -> Result<Self, BadServer> {
        let bad = || BadServer(server.to_owned());
        Ok(Self {
            target: ControlPlaneAddress::parse(server).ok_or_else(bad)?,
            tls,
            keepalive,
        })
    }

    pub(super) fn target(&self) -> String {
        self.target.to_string()
    }

    /// Reads the certificates, to report problems at the start.
    pub(super) fn check(&self) -> Result<(), XdsError> {
        if let Some(files) = &self.tls {
            self.name(files)?;
            files.config()?;
        }
        let bad = |_| BadServer(self.target());
        self.endpoint().map_err(bad)?;
        Ok(())
    }

    pub(super) async fn connect(&self) -> Result<Channel, ConnectError> {
        let connected = tokio::time::timeout(CONNECT, self.try_connect());
        connected.await.unwrap_or(Err(ConnectError::TooSlow))
    }

    async fn try_connect(&self) -> Result<Channel, ConnectError> {
        let stream: BoxedStream = match &self.target {
            ControlPlaneAddress::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                let stream = stream
                    .and_then(|stream| keep_alive(&stream).map(|()| stream))
                    .map_err(ConnectError::Connect)?;
                Box::new(stream)
            }
            ControlPlaneAddress::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                Box::new(stream.map_err(ConnectError::Connect)?)
            }
        };
        let stream = match &self.tls {
            Some(files) => self.shake_hands(files, stream).await?,
            None => stream,
        };
        let mut endpoint = self
            .endpoint()
            .map_err(ConnectError::Http)?
            .http2_adaptive_window(true);
        if let Some(interval) = self.keepalive {
            endpoint = endpoint
                .http2_keep_alive_interval(interval)
                .keep_alive_timeout(interval.min(KEEPALIVE_ANSWER));
        }
        endpoint
            .connect_with_connector(OnceConnector::new(stream))
            .await
            .map_err(ConnectError::Http)
    }

    async fn shake_hands(
        &self,
        files: &TlsFiles,
        stream: BoxedStream,
    ) -> Result<BoxedStream, ConnectError> {
        let name = self.name(files)?;
        let files = files.clone();
        // A file may be on a volume that does not respond.
        let read = tokio::task::spawn_blocking(move || files.config());
        let config = read.await.map_err(|_| ConnectError::Panicked)??;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await;
        Ok(Box::new(stream.map_err(ConnectError::Handshake)?))
    }

    fn name(&self, files: &TlsFiles) -> Result<ServerName<'static>, ClientTlsError> {
        let name = match (&files.name, &self.target) {
            (Some(name), _) => name.clone(),
            (None, ControlPlaneAddress::Tcp { host, .. }) => host.clone(),
            (None, ControlPlaneAddress::Unix(_)) => "localhost".to_owned(),
        };
        ServerName::try_from(name.clone()).map_err(|_| ClientTlsError::NoName(name))
    }

    fn endpoint(&self) -> Result<Endpoint, tonic::transport::Error> {
        let name = self.tls.as_ref().and_then(|files| files.name.clone());
        let authority = match (name, &self.target) {
            (Some(name), _) => name,
            (None, ControlPlaneAddress::Tcp { .. }) => self.target(),
            (None, ControlPlaneAddress::Unix(_)) => "localhost".to_owned(),
        };
        // The stream already includes TLS, so the library sees plain HTTP/2.
        Endpoint::from_shared(format!("http://{authority}"))?
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
    }
}

impl ControlPlaneAddress {
    /// `host:port`, `host`, `[::1]:port`, `unix:path`, and these after the schemes of gRPC's resolvers.
    fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return (!path.is_empty()).then(|| Self::Unix(path.into()));
        }
        let rest = match text.split_once("://") {
            Some(("http" | "https", rest)) => rest,
            // The text between the slashes names the resolver.
            Some(("dns" | "passthrough" | "ipv4" | "ipv6", rest)) => rest.split_once('/')?.1,
            Some(_) => return None,
            None => text.strip_prefix("dns:").unwrap_or(text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, port.parse().ok()?)
            }
            _ => (rest, DEFAULT_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
        let is_sound = !host.is_empty() && host.bytes().all(is_host);
        is_sound.then(|| Self::Tcp {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for ControlPlaneAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl TlsFiles {
    fn config(&self) -> Result<ClientConfig, ClientTlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .expect("ring has suites for every version")
            .with_root_certificates(self.roots()?);
        let mut config = match (&self.certificate, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let chain = pem::certificates(certificate, &pem::read(certificate)?)?;
                let secret = pem::key(key, &pem::read(key)?)?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|source| ClientTlsError::NoPair {
                        certificate: certificate.clone(),
                        key: key.clone(),
                        source,
                    })?
            }
            _ => return Err(ClientTlsError::Half),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    fn roots(&self) -> Result<RootCertStore, ClientTlsError> {
        let Some(file) = &self.ca else {
            let public = webpki_roots::TLS_SERVER_ROOTS.iter().cloned();
            return Ok(public.collect());
        };
        Ok(pem::authorities(file, &pem::read(file)?)?)
    }
}

/// Disables Nagle's algorithm, and lets the kernel probe a silent peer.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(TCP_KEEPALIVE)
        .with_interval(TCP_KEEPALIVE / 3)
        .with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let target = ControlPlaneAddress::parse(text).map(|target| target.to_string());
        assert_eq!(target.as_deref(), expected, "{text}");
    }

    #[test]
    fn targets_are_those_of_grpc() {
        check("envoy-gateway:18001", Some("envoy-gateway:18001"));
        check("10.0.0.1:1", Some("10.0.0.1:1"));
        check("[::1]:18000", Some("[::1]:18000"));
        check("::1", Some("[::1]:443"));
        check("host", Some("host:443"));
        check("dns:///host:1", Some("host:1"));
        check("dns:host:1", Some("host:1"));
        check("passthrough:///host:1", Some("host:1"));
        check("https://host:1/", Some("host:1"));
        check("unix:/run/x.sock", Some("unix:/run/x.sock"));
        check("unix:///run/x.sock", Some("unix:/run/x.sock"));
        check("unix:x.sock", Some("unix:x.sock"));
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for text in [
            "",
            "host:",
            "host:99999",
            ":1",
            "ftp://host:1",
            "a b:1",
            "unix:",
            "h/x:1",
        ] {
            check(text, None);
        }
    }
}
