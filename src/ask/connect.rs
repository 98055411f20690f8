//! A way to the server: over TCP or a Unix socket, with TLS if asked for.

use std::{
    fs,
    future::{Ready, ready},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{
            CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName,
            pem::{self, PemObject as _},
        },
    },
};
use tonic::{
    codegen::Service,
    transport::{Channel, Endpoint, Uri},
};

use crate::settings::Ask;

/// Why there is no way. Every message names the file or the flag that is wrong.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("expected http://HOST:PORT, https://HOST:PORT or unix:///PATH")]
    NoAddress,
    #[error("no connection")]
    Stream(#[source] io::Error),
    #[error("no answer within --timeout")]
    TimedOut,
    #[error("TLS needs --ca: which authority is to be believed")]
    NoAuthority,
    #[error("--ca, --cert and --key are of no use without --tls or an https:// URL")]
    NoTls,
    #[error("`{0}` is no name that a certificate could have; see --authority")]
    NoName(String, #[source] InvalidDnsNameError),
    #[error("`{0}` cannot be an authority")]
    BadAuthority(String),
    #[error("{}: cannot be read", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    #[error("{}: no {what} in PEM in it", file.display())]
    NotPem {
        file: PathBuf,
        what: &'static str,
        #[source]
        source: pem::Error,
    },
    #[error("{}: cannot be used", .0.display())]
    Unusable(PathBuf, #[source] rustls::Error),
    #[error("the server does not speak HTTP/2 there")]
    Http2(#[source] tonic::transport::Error),
}

/// Where the server is.
#[derive(Debug)]
enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Connects within `--timeout`.
///
/// # Errors
///
/// If the address or a file cannot be used, or nobody answers there.
pub(super) async fn connect(ask: &Ask) -> Result<Channel, ConnectError> {
    let connected = tokio::time::timeout(ask.timeout, open(ask));
    connected.await.map_err(|_| ConnectError::TimedOut)?
}

async fn open(ask: &Ask) -> Result<Channel, ConnectError> {
    let (address, is_https) = address(&ask.server)?;
    let has_tls = ask.tls || is_https;
    if !has_tls && (ask.ca.is_some() || ask.cert.is_some()) {
        return Err(ConnectError::NoTls);
    }
    let tls = has_tls.then(|| tls(ask)).transpose()?;
    let (name, default_authority) = match &address {
        Address::Tcp { host, port } => (host.clone(), format!("{host}:{port}")),
        Address::Unix(_) => ("localhost".to_owned(), "localhost".to_owned()),
    };
    let authority = ask.authority.clone().unwrap_or(default_authority);
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))
        .map_err(|_| ConnectError::BadAuthority(authority.clone()))?
        .timeout(ask.timeout);
    let stream: Stream = match address {
        Address::Tcp { host, port } => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, port)).await;
            Box::new(stream.map_err(ConnectError::Stream)?)
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await;
            Box::new(stream.map_err(ConnectError::Stream)?)
        }
    };
    let stream = match tls {
        Some(config) => {
            let name = match &ask.authority {
                Some(authority) => host_of(authority),
                None => name.trim_matches(['[', ']']).to_owned(),
            };
            let server = ServerName::try_from(name.clone())
                .map_err(|error| ConnectError::NoName(name, error))?;
            let shaken = TlsConnector::from(Arc::new(config)).connect(server, stream);
            Box::new(shaken.await.map_err(ConnectError::Stream)?)
        }
        None => stream,
    };
    let connector = Once(Some(stream));
    let channel = endpoint.connect_with_connector(connector).await;
    channel.map_err(ConnectError::Http2)
}

/// Where an URL leads, and whether it asks for TLS.
fn address(server: &str) -> Result<(Address, bool), ConnectError> {
    if let Some(path) = server.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return Ok((Address::Unix(path.into()), false));
    }
    let uri: Uri = server.parse().map_err(|_| ConnectError::NoAddress)?;
    let is_https = uri.scheme_str() == Some("https");
    let host = uri.host().ok_or(ConnectError::NoAddress)?.to_owned();
    let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    match uri.scheme_str() {
        None | Some("http" | "https") => Ok((Address::Tcp { host, port }, is_https)),
        Some(_) => Err(ConnectError::NoAddress),
    }
}

/// An authority without its port.
fn host_of(authority: &str) -> String {
    let uri: Option<Uri> = authority.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or(authority);
    host.trim_matches(['[', ']']).to_owned()
}

fn tls(ask: &Ask) -> Result<ClientConfig, ConnectError> {
    let file = ask.ca.as_deref().ok_or(ConnectError::NoAuthority)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let added = roots.add(certificate);
        added.map_err(|error| ConnectError::Unusable(file.to_owned(), error))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .expect("ring has suites for every version")
        .with_root_certificates(roots);
    let mut config = match (&ask.cert, &ask.key) {
        (Some(cert), Some(key)) => {
            let pem = read(key)?;
            let parsed = PrivateKeyDer::from_pem_slice(&pem);
            let parsed = parsed.map_err(|source| ConnectError::NotPem {
                file: key.clone(),
                what: "key",
                source,
            })?;
            builder
                .with_client_auth_cert(certificates(cert)?, parsed)
                .map_err(|error| ConnectError::Unusable(cert.clone(), error))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let not_pem = |source| ConnectError::NotPem {
        file: file.to_owned(),
        what: "certificate",
        source,
    };
    let text = read(file)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(not_pem)?;
    if certificates.is_empty() {
        return Err(not_pem(pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

fn read(file: &Path) -> Result<Vec<u8>, ConnectError> {
    fs::read(file).map_err(|error| ConnectError::Unreadable(file.to_owned(), error))
}

trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Bytes for S {}

type Stream = Box<dyn Bytes>;

/// A connection that is there already.
struct Once(Option<Stream>);

impl Service<Uri> for Once {
    type Response = TokioIo<Stream>;
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
            Ok(format!("{:?} {is_https}", Address::Tcp { host, port }))
        };
        assert_eq!(shown("http://h:1"), tcp("h", 1, false));
        assert_eq!(shown("https://[::1]:2"), tcp("[::1]", 2, true));
        assert_eq!(shown("https://h"), tcp("h", 443, true));
        let path = Address::Unix("/run/x".into());
        assert_eq!(shown("unix:///run/x"), Ok(format!("{path:?} false")));
        for bad in ["", "not a URL", "ftp://h:1", "/path"] {
            assert!(shown(bad).is_err(), "{bad}");
        }
    }
}
