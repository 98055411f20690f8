//! Connections to other servers: over TCP or a Unix socket, with TLS if asked for.

use std::{
    fmt,
    future::{Ready, ready},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig,
        crypto::ring,
        pki_types::{InvalidDnsNameError, ServerName},
    },
};
use tonic::{
    codegen::Service,
    transport::{Channel, Endpoint, Uri},
};

use crate::net::pem::{self, PemError};

/// Why there is no connection. Messages name the file at fault.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("expected http://HOST:PORT, https://HOST:PORT or unix:///PATH")]
    NoAddress,
    #[error("cannot connect")]
    Stream(#[source] io::Error),
    #[error("no answer within --timeout")]
    TimedOut,
    #[error("--ca is required for TLS")]
    NoAuthority,
    #[error("certificates need --tls or an https:// URL")]
    NoTls,
    #[error("`{0}` cannot be the name in a certificate; see --authority")]
    NoName(String, #[source] InvalidDnsNameError),
    #[error("`{0}` cannot be an authority")]
    BadAuthority(String),
    #[error(transparent)]
    Pem(#[from] PemError),
    #[error("{}: cannot be used", .0.display())]
    Unusable(PathBuf, #[source] rustls::Error),
    #[error("the server does not speak HTTP/2 at this address")]
    Http2(#[source] tonic::transport::Error),
}

/// Where a server is, and how to verify it.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// `http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`
    pub server: &'a str,
    /// Use TLS even if the URL does not ask for it.
    pub tls: bool,
    /// CA certificate to verify the server.
    pub ca: Option<&'a Path>,
    /// Own certificate and its key.
    pub pair: Option<(&'a Path, &'a Path)>,
    /// The name of the server, if it is not the host of the URL.
    pub authority: Option<&'a str>,
    /// Whether to speak HTTP/2, offered by ALPN.
    pub http2: bool,
}

/// An endpoint. Each call opens a new connection.
#[derive(Clone, Debug)]
pub struct Dial {
    address: DialAddress,
    tls: Option<(DialTls, ServerName<'static>)>,
    authority: String,
}

#[derive(Clone)]
struct DialTls(TlsConnector);

impl fmt::Debug for DialTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

#[derive(Clone, Debug)]
enum DialAddress {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Dial {
    /// Reads the address and the files that TLS needs.
    ///
    /// # Errors
    ///
    /// If the address or a file cannot be used.
    pub fn new(options: &Options<'_>) -> Result<Self, DialError> {
        let (address, is_https) = address(options.server)?;
        let has_tls = options.tls || is_https;
        if !has_tls && (options.ca.is_some() || options.pair.is_some()) {
            return Err(DialError::NoTls);
        }
        let (host, own) = match &address {
            DialAddress::Tcp { host, port } => (host.as_str(), format!("{host}:{port}")),
            DialAddress::Unix(_) => ("localhost", "localhost".to_owned()),
        };
        let name = options.authority.map_or_else(|| host_of(host), host_of);
        let tls = if has_tls {
            let connector = TlsConnector::from(Arc::new(config(options)?));
            let server = ServerName::try_from(name.clone())
                .map_err(|error| DialError::NoName(name, error))?;
            Some((DialTls(connector), server))
        } else {
            None
        };
        let authority = options.authority.map_or(own, str::to_owned);
        Ok(Self {
            address,
            tls,
            authority,
        })
    }

    /// The server's name, with its port if there is one.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Opens a new connection, without a time limit.
    ///
    /// # Errors
    ///
    /// If the server does not accept the connection, or the handshake fails.
    pub async fn stream(&self) -> Result<BoxedStream, DialError> {
        let stream: BoxedStream = match &self.address {
            DialAddress::Tcp { host, port } => {
                let host = host.trim_matches(['[', ']']);
                let stream = TcpStream::connect((host, *port)).await;
                Box::new(stream.map_err(DialError::Stream)?)
            }
            DialAddress::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                Box::new(stream.map_err(DialError::Stream)?)
            }
        };
        let Some((DialTls(connector), name)) = &self.tls else {
            return Ok(stream);
        };
        let shaken = connector.connect(name.clone(), stream).await;
        Ok(Box::new(shaken.map_err(DialError::Stream)?))
    }

    /// Opens a new gRPC connection. `timeout` bounds the connecting, and each call.
    ///
    /// # Errors
    ///
    /// As for [`stream`](Self::stream), and if the server does not speak HTTP/2.
    pub async fn channel(&self, timeout: Duration) -> Result<Channel, DialError> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.authority))
            .map_err(|_| DialError::BadAuthority(self.authority.clone()))?
            .timeout(timeout);
        let connected = async {
            let connector = OnceConnector::new(self.stream().await?);
            let channel = endpoint.connect_with_connector(connector).await;
            channel.map_err(DialError::Http2)
        };
        let connected = tokio::time::timeout(timeout, connected).await;
        connected.map_err(|_| DialError::TimedOut)?
    }
}

/// The address in a URL, and whether its scheme asks for TLS.
fn address(server: &str) -> Result<(DialAddress, bool), DialError> {
    if let Some(path) = server.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return Ok((DialAddress::Unix(path.into()), false));
    }
    let uri: Uri = server.parse().map_err(|_| DialError::NoAddress)?;
    let is_https = uri.scheme_str() == Some("https");
    let host = uri.host().ok_or(DialError::NoAddress)?.to_owned();
    let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    match uri.scheme_str() {
        None | Some("http" | "https") => Ok((DialAddress::Tcp { host, port }, is_https)),
        Some(_) => Err(DialError::NoAddress),
    }
}

/// An authority without its port.
fn host_of(authority: &str) -> String {
    let uri: Option<Uri> = authority.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or(authority);
    host.trim_matches(['[', ']']).to_owned()
}

fn config(options: &Options<'_>) -> Result<ClientConfig, DialError> {
    let file = options.ca.ok_or(DialError::NoAuthority)?;
    let roots = pem::authorities(file, &pem::read(file)?)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .expect("ring has suites for every version")
        .with_root_certificates(roots);
    let mut config = match options.pair {
        Some((cert, key)) => {
            let chain = pem::certificates(cert, &pem::read(cert)?)?;
            builder
                .with_client_auth_cert(chain, pem::key(key, &pem::read(key)?)?)
                .map_err(|error| DialError::Unusable(cert.to_owned(), error))?
        }
        None => builder.with_no_client_auth(),
    };
    if options.http2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    Ok(config)
}

/// A stream of bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> ByteStream for S {}

/// A connection of any kind.
pub type BoxedStream = Box<dyn ByteStream>;

/// A connection that is already open. Its channel ends with it.
pub struct OnceConnector(Option<BoxedStream>);

impl OnceConnector {
    pub fn new(stream: BoxedStream) -> Self {
        Self(Some(stream))
    }
}

impl fmt::Debug for OnceConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Once")
    }
}

impl Service<Uri> for OnceConnector {
    type Response = TokioIo<BoxedStream>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let stream = self.0.take().map(TokioIo::new);
        ready(stream.ok_or_else(|| io::Error::other("the connection is gone")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let shown = |server: &str| {
            address(server)
                .map(|(address, is_https)| format!("{address:?} {is_https}"))
                .map_err(|error| error.to_string())
        };
        let tcp = |host: &str, port: u16, is_https| {
            let host = host.to_owned();
            Ok(format!("{:?} {is_https}", DialAddress::Tcp { host, port }))
        };
        assert_eq!(shown("http://h:1"), tcp("h", 1, false));
        assert_eq!(shown("https://[::1]:2"), tcp("[::1]", 2, true));
        assert_eq!(shown("https://h"), tcp("h", 443, true));
        let path = DialAddress::Unix("/run/x".into());
        assert_eq!(shown("unix:///run/x"), Ok(format!("{path:?} false")));
        for bad in ["", "not a URL", "ftp://h:1", "/path"] {
            assert!(shown(bad).is_err(), "{bad}");
        }
    }
}
