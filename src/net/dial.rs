//! Connections to servers that operators name by URL: `tollgate ask`, and the collector of spans. Also one HTTP/1.1
//! request on a new connection, for commands that ask a running server.

use std::{
    fmt,
    future::poll_fn,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{Request, StatusCode, body::Body};
use hyper_util::rt::TokioIo;
use tokio_rustls::rustls::{self, ClientConfig, pki_types::InvalidDnsNameError};
use tonic::{
    codegen::{Service, StdError},
    transport::{self, Channel, Uri},
};

use crate::net::{
    connect::{BoxedStream, OnceConnector, connect},
    endpoint::{BareIpv6, Endpoint, split},
    tls::{ServerName, TlsError, client::ClientTls, failure::TlsFailure},
};

mod diagnosis;

pub(crate) use diagnosis::Symptom;

/// Why there is no connection. Messages name the file at fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("expected http://HOST:PORT, https://HOST:PORT or unix:///PATH")]
    NoAddress,
    #[error(
        "an @ stands after the host; percent-encode /, ?, # and @ in a password as %2F, %3F, %23 and %40"
    )]
    LateAt,
    #[error("cannot connect")]
    Stream(#[source] io::Error),
    #[error("a wildcard in a certificate must have at least two labels after the star")]
    ShortWildcard(#[source] io::Error),
    #[error("the certificate of the server cannot be accepted: {0}")]
    Unacceptable(&'static str, #[source] io::Error),
    #[error("no answer within --timeout")]
    TimedOut,
    /// The setting that names the certificate authority.
    #[error("{0} is required for TLS")]
    NoAuthority(&'static str),
    #[error("certificates need --tls or an https:// URL")]
    NoTls,
    #[error("`{0}` cannot be the name in a certificate; see --authority")]
    NoName(String, #[source] InvalidDnsNameError),
    #[error("`{0}` cannot be an authority")]
    BadAuthority(String),
    #[error("{}: cannot be used", .0.display())]
    Unusable(PathBuf, #[source] rustls::Error),
    #[error(transparent)]
    Tls(Box<TlsError>),
    #[error("the server does not speak HTTP/2 at this address")]
    Http2(#[source] transport::Error),
}

/// Where a server is, and how to verify it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options<'a> {
    /// `http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`
    pub server: &'a str,
    /// Use TLS even if the URL does not ask for it.
    pub tls: bool,
    /// CA certificate to verify the server.
    pub ca: Option<&'a Path>,
    /// The setting that names it.
    pub ca_setting: &'static str,
    /// Own certificate and its key.
    pub pair: Option<(&'a Path, &'a Path)>,
    /// The name of the server, if it is not the host of the URL.
    pub authority: Option<&'a str>,
    /// Whether to speak HTTP/2, offered by ALPN.
    pub http2: bool,
}

impl From<TlsError> for DialError {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::NoPair {
                certificate,
                source,
                ..
            } => Self::Unusable(certificate, source),
            error => Self::Tls(error.into()),
        }
    }
}

/// A server and the way to reach it. Each call opens a new connection.
#[derive(Clone)]
pub(crate) struct Dial {
    endpoint: Endpoint,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// Whether the server can ask for a client certificate and get one.
    has_certificate: bool,
    authority: String,
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial")
            .field("endpoint", &self.endpoint)
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

impl Dial {
    /// Reads the address and the files that TLS needs.
    ///
    /// # Errors
    ///
    /// If the address or a file cannot be used.
    pub(crate) fn new(options: &Options<'_>) -> Result<Self, DialError> {
        let (_, rest) = options.server.split_once("://").unwrap_or_default();
        let after_host = rest.split_once(['/', '?', '#']);
        if after_host.is_some_and(|(_, path)| path.contains('@')) && !is_socket(options.server) {
            return Err(DialError::LateAt);
        }
        let (endpoint, is_https) = endpoint(options.server).ok_or(DialError::NoAddress)?;
        let has_tls = options.tls || is_https;
        if !has_tls && (options.ca.is_some() || options.pair.is_some()) {
            return Err(DialError::NoTls);
        }
        let tls = if has_tls {
            let ca = options
                .ca
                .ok_or(DialError::NoAuthority(options.ca_setting))?;
            let own = |(certificate, key): (&Path, &Path)| (certificate.into(), key.into());
            let tls = ClientTls {
                ca: Some(ca.into()),
                pair: options.pair.map(own),
                any_host: false,
                http2: options.http2,
            };
            let config = tls.config()?;
            let name = options.authority.map_or(endpoint.host(), |authority| {
                split(authority, BareIpv6::WithoutPort).0
            });
            let server = ServerName::try_from(name.to_owned())
                .map_err(|error| DialError::NoName(name.to_owned(), error))?;
            Some((config, server))
        } else {
            None
        };
        let authority = options.authority.map(str::to_owned);
        Ok(Self {
            authority: authority.unwrap_or_else(|| endpoint.authority()),
            endpoint,
            tls,
            has_certificate: options.pair.is_some(),
        })
    }

    /// The server at `endpoint`, without TLS.
    pub(crate) fn plain(endpoint: Endpoint) -> Self {
        Self {
            authority: endpoint.authority(),
            endpoint,
            tls: None,
            has_certificate: false,
        }
    }

    /// The server's name, with its port if there is one.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Opens a new connection, without a time limit.
    ///
    /// # Errors
    ///
    /// If the server does not accept the connection, or the handshake fails.
    pub(crate) async fn stream(&self) -> Result<BoxedStream, DialError> {
        let stream = connect(&self.endpoint).await.map_err(DialError::Stream)?;
        match &self.tls {
            None => Ok(stream.boxed()),
            Some((config, name)) => {
                let secured = stream.with_tls(config.clone(), name.clone()).await;
                secured.map_err(|error| match TlsFailure::of(&error) {
                    Some(TlsFailure::OtherName {
                        has_short_wildcard: true,
                    }) => DialError::ShortWildcard(error),
                    Some(TlsFailure::Invalid(reason)) => DialError::Unacceptable(reason, error),
                    _ => DialError::Stream(error),
                })
            }
        }
    }

    /// Opens a new gRPC connection. `timeout` bounds the connecting, and each call.
    ///
    /// # Errors
    ///
    /// As for [`stream`](Self::stream), and if the server does not speak HTTP/2.
    pub(crate) async fn channel(&self, timeout: Duration) -> Result<Channel, DialError> {
        let endpoint = self.http2()?.timeout(timeout);
        let connected = async {
            let connector = OnceConnector::new(self.stream().await?);
            let channel = endpoint.connect_with_connector(connector).await;
            channel.map_err(DialError::Http2)
        };
        let connected = tokio::time::timeout(timeout, connected).await;
        connected.map_err(|_| DialError::TimedOut)?
    }

    /// A gRPC channel that connects when it is called, and again after its connection has ended. It has no time limit.
    ///
    /// # Errors
    ///
    /// If the server's name cannot be an authority.
    pub(crate) fn lasting_channel(&self) -> Result<Channel, DialError> {
        Ok(self.http2()?.connect_with_connector_lazy(self.clone()))
    }

    fn http2(&self) -> Result<transport::Endpoint, DialError> {
        transport::Endpoint::from_shared(format!("http://{}", self.authority))
            .map_err(|_| DialError::BadAuthority(self.authority.clone()))
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<BoxedStream>;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async move { dial.stream().await.map(TokioIo::new) })
    }
}

fn is_socket(url: &str) -> bool {
    url.starts_with("unix:")
}

/// The endpoint in a URL, and whether its scheme asks for TLS.
fn endpoint(url: &str) -> Option<(Endpoint, bool)> {
    if is_socket(url) {
        return Some((Endpoint::unix(url)?, false));
    }
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let is_https = scheme.eq_ignore_ascii_case("https");
    if !is_https && !scheme.eq_ignore_ascii_case("http") {
        return None;
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // A user and a password can stand in front.
    let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let default_port = if is_https { 443 } else { 80 };
    let endpoint = Endpoint::parse(host, default_port, BareIpv6::WithoutPort);
    Some((endpoint.ok()?, is_https))
}

/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the server does not answer by HTTP/1")]
    Http(#[from] hyper::Error),
    #[error("the answer is longer than {MAX_ANSWER_BYTES} bytes")]
    TooLong,
}

/// Sends `request`, and returns the status and the body of the answer.
///
/// # Errors
///
/// If the server cannot be reached, or does not answer by HTTP/1.
pub(crate) async fn exchange(
    dial: &Dial,
    request: Request<impl Body<Data: Send, Error: Into<StdError>> + Send + 'static>,
) -> Result<(StatusCode, Vec<u8>), ExchangeError> {
    let stream = TokioIo::new(dial.stream().await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let answered = async {
        let reply = sender.send_request(request).await?;
        let status = reply.status();
        let mut body = reply.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            if let Ok(data) = frame?.into_data() {
                bytes.extend_from_slice(&data);
            }
            if bytes.len() > MAX_ANSWER_BYTES {
                return Err(ExchangeError::TooLong);
            }
        }
        Ok((status, bytes))
    };
    let mut answered = std::pin::pin!(answered);
    tokio::select! {
        answer = &mut answered => answer,
        ended = connection => {
            ended?;
            answered.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_authority_is_asked_for_by_the_name_of_its_setting() {
        for ca_setting in ["--ca", "OTEL_EXPORTER_OTLP_CERTIFICATE"] {
            let dial = Dial::new(&Options {
                server: "https://h",
                tls: false,
                ca: None,
                ca_setting,
                pair: None,
                authority: None,
                http2: true,
            });
            let expected = format!("{ca_setting} is required for TLS");
            assert_eq!(dial.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn addresses_are_read() {
        let shown =
            |url: &str| endpoint(url).map(|(endpoint, is_https)| format!("{endpoint} {is_https}"));
        let tcp = |text: &str| Some(text.to_owned());
        assert_eq!(shown("http://h:1"), tcp("h:1 false"));
        assert_eq!(shown("h:1"), tcp("h:1 false"));
        assert_eq!(shown("https://[::1]:2"), tcp("[::1]:2 true"));
        assert_eq!(shown("https://h"), tcp("h:443 true"));
        assert_eq!(shown("HTTPS://u:p@h/path?x#y"), tcp("h:443 true"));
        assert_eq!(shown("http://h?x"), tcp("h:80 false"));
        assert_eq!(shown("unix:///run/x"), tcp("/run/x false"));
        for bad in ["", "not a URL", "ftp://h:1", "/path", "unix:", "http://h:0"] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
