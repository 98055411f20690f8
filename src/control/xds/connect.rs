//! Connects to a control plane over TCP or a Unix socket, with TLS if asked for. A connection remembers how it began
//! and how it ended: the library above it hides both.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};
use tonic::transport::{self, Channel};

use crate::{
    control::xds::options::{ControlPlaneTls, XdsError},
    foundation::{causes::chain, lock::lock},
    net::{
        connect::{BoxedStream, OnceConnector, PlainStream, connect},
        endpoint::{BareIpv6, Endpoint},
        tls::{
            ServerName,
            failure::{TlsFailure, TlsSettingNames},
        },
    },
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

/// The reason of a connection that ended without an error.
const CLOSED: &str = "it closed the connection";

const TLS: TlsSettingNames = TlsSettingNames {
    certificate: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT (--xds-tls-cert) and CONFIG_GRPC_XDS_CLIENT_TLS_KEY (--xds-tls-key)",
    authorities: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT (--xds-tls-ca)",
    name: "CONFIG_GRPC_XDS_SERVER_TLS_SAN (--xds-tls-san), another name in the certificate",
};

/// An open connection over which the control plane has sent something.
pub(super) struct ControlPlaneConnection {
    pub channel: Channel,
    pub end: ConnectionEnd,
}

/// Opens connections to one control plane.
#[derive(Debug)]
pub(super) struct ControlPlaneConnector {
    endpoint: Endpoint,
    tls: Option<ControlPlaneTls>,
    keepalive: Option<Duration>,
}

impl ControlPlaneConnector {
    pub(super) fn new(
        server: &str,
        tls: Option<ControlPlaneTls>,
        keepalive: Option<Duration>,
    ) -> Result<Self, XdsError> {
        let bad = || XdsError::Server(server.to_owned());
        Ok(Self {
            endpoint: target(server).ok_or_else(bad)?,
            tls,
            keepalive,
        })
    }

    /// The address as gRPC writes targets.
    pub(super) fn target(&self) -> String {
        match &self.endpoint {
            Endpoint::Tcp { .. } => self.endpoint.to_string(),
            Endpoint::Unix(path) => format!("unix:{}", path.display()),
        }
    }

    /// Reads the certificates, to report problems at the start.
    pub(super) fn check(&self) -> Result<(), XdsError> {
        if let Some(tls) = &self.tls {
            self.name(tls)?;
            tls.files()?.config()?;
        }
        let bad = |_| XdsError::Server(self.target());
        self.http2().map_err(bad)?;
        Ok(())
    }

    /// Connects, and waits until the control plane speaks HTTP/2: with TLS 1.3 it can refuse the client after the
    /// handshake, and a process that is stopped still accepts connections.
    ///
    /// # Errors
    ///
    /// The reason in words.
    pub(super) async fn connect(&self) -> Result<ControlPlaneConnection, String> {
        let too_slow = |_| format!("no connection within {} s", CONNECT.as_secs());
        let connected = tokio::time::timeout(CONNECT, self.try_connect()).await;
        connected.map_err(too_slow)?
    }

    /// Why a connection that was open has ended: without an `end`, because a ping was not answered, which is the only
    /// reason of this process. `None` if that cannot be.
    pub(super) fn explain(&self, end: Option<io::Error>) -> Option<String> {
        match end {
            Some(end) => Some(self.words(&end, "the connection broke")),
            None => self.ping_timeout().map(|timeout| {
                format!(
                    "it did not answer a ping within {timeout:?} (TOLLGATE_XDS_KEEPALIVE, --xds-keepalive, sets how \
                     often it is asked)"
                )
            }),
        }
    }

    /// An error of a connection in words, after `what` failed.
    fn words(&self, error: &io::Error, what: &str) -> String {
        let has_certificate = self
            .tls
            .as_ref()
            .is_some_and(|tls| tls.certificate.is_some());
        match TlsFailure::of(error) {
            Some(TlsFailure::CertificateRefused(_)) if !has_certificate => {
                TlsFailure::CertificateRequired.words(&TLS)
            }
            Some(failure) => failure.words(&TLS),
            None if error.kind() == io::ErrorKind::UnexpectedEof => CLOSED.to_owned(),
            None => format!("{what}: {}", chain(error)),
        }
    }

    /// Longest wait for the answer to a keepalive ping; `None` without pings.
    fn ping_timeout(&self) -> Option<Duration> {
        let interval = self.keepalive?;
        Some(interval.min(KEEPALIVE_ANSWER))
    }

    async fn try_connect(&self) -> Result<ControlPlaneConnection, String> {
        let connected = connect(&self.endpoint).await;
        let stream = connected.and_then(|stream| stream.keep_alive(TCP_KEEPALIVE).map(|()| stream));
        let stream = stream.map_err(|error| format!("cannot connect: {}", chain(&error)))?;
        let stream = match &self.tls {
            Some(tls) => self.shake_hands(tls, stream).await?,
            None => stream.boxed(),
        };
        let (stream, first_bytes, end) = WatchedStream::new(stream);
        let http = |error: transport::Error| format!("HTTP/2 failed: {}", chain(&error));
        let mut endpoint = self.http2().map_err(http)?.http2_adaptive_window(true);
        if let (Some(interval), Some(timeout)) = (self.keepalive, self.ping_timeout()) {
            endpoint = endpoint
                .http2_keep_alive_interval(interval)
                .keep_alive_timeout(timeout);
        }
        let connector = OnceConnector::new(Box::new(stream));
        let channel = endpoint.connect_with_connector(connector).await;
        let channel = channel.map_err(http)?;
        if first_bytes.await.is_err() {
            let end = end.take().and_then(|end| self.explain(Some(end)));
            let end = end.unwrap_or_else(|| CLOSED.to_owned());
            return Err(match self.tls {
                None if end == CLOSED => format!(
                    "{end} at once; if it expects TLS, set CONFIG_GRPC_XDS_SERVER_USE_TLS (--xds-tls)"
                ),
                _ => end,
            });
        }
        Ok(ControlPlaneConnection { channel, end })
    }

    async fn shake_hands(
        &self,
        tls: &ControlPlaneTls,
        stream: PlainStream,
    ) -> Result<BoxedStream, String> {
        let words = |error: XdsError| chain(&error);
        let name = self.name(tls).map_err(words)?;
        let files = tls.files().map_err(words)?;
        // A file can be on a volume that does not respond.
        let read = tokio::task::spawn_blocking(move || files.config()).await;
        let config = read.map_err(|_| "reading the certificates panicked")?;
        let config = config.map_err(|error| chain(&error))?;
        let secured = stream.with_tls(config, name).await;
        secured.map_err(|error| self.words(&error, "TLS failed"))
    }

    fn name(&self, tls: &ControlPlaneTls) -> Result<ServerName<'static>, XdsError> {
        let name = tls.name.as_deref().unwrap_or(self.endpoint.host());
        ServerName::try_from(name.to_owned()).map_err(|_| XdsError::NoName(name.to_owned()))
    }

    /// The settings of HTTP/2 on an open connection.
    fn http2(&self) -> Result<transport::Endpoint, transport::Error> {
        let name = self.tls.as_ref().and_then(|tls| tls.name.clone());
        let authority = name.unwrap_or_else(|| self.endpoint.authority());
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let origin = transport::Endpoint::from_shared(format!("{scheme}://{authority}"))?;
        // The stream already includes TLS, so the library connects as without it.
        transport::Endpoint::from_shared(format!("http://{authority}"))?
            .origin(origin.uri().clone())
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
    }
}

/// The endpoint of `host:port`, `host`, `[::1]:port` or `unix:path`, and of these after the schemes of gRPC's
/// resolvers.
fn target(text: &str) -> Option<Endpoint> {
    if text.starts_with("unix:") {
        return Endpoint::unix(text);
    }
    let rest = match text.split_once("://") {
        Some(("http" | "https", rest)) => rest,
        // The text between the slashes names the resolver.
        Some(("dns" | "passthrough" | "ipv4" | "ipv6", rest)) => rest.split_once('/')?.1,
        Some(_) => return None,
        None => text.strip_prefix("dns:").unwrap_or(text),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    Endpoint::parse(rest, DEFAULT_PORT, BareIpv6::WithoutPort).ok()
}

/// A connection that remembers how it began and how it ended.
pub(super) struct WatchedStream {
    stream: BoxedStream,
    /// Notified by the first bytes of the peer; dropped if there are none.
    first: Option<oneshot::Sender<()>>,
    end: ConnectionEnd,
}

/// The cause of the end of a connection; a peer that closed it is an unexpected end of file.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionEnd(Arc<Mutex<Option<io::Error>>>);

impl ConnectionEnd {
    /// The cause, if the connection has ended.
    pub(super) fn take(&self) -> Option<io::Error> {
        lock(&self.0).take()
    }
}

impl WatchedStream {
    /// The stream, a receiver that its first bytes notify, and its end.
    pub(super) fn new(stream: BoxedStream) -> (Self, oneshot::Receiver<()>, ConnectionEnd) {
        let (notify, first) = oneshot::channel();
        let end = ConnectionEnd::default();
        let watched = Self {
            stream,
            first: Some(notify),
            end: end.clone(),
        };
        (watched, first, end)
    }

    /// Remembers the first error, and returns a copy of its kind.
    fn fail(&mut self, error: io::Error) -> io::Error {
        let kind = error.kind();
        lock(&self.end.0).get_or_insert(error);
        self.first = None;
        kind.into()
    }

    /// As [`fail`](Self::fail), but the peer may have sent a better reason, such as an alert of TLS, before it closed.
    fn fail_to_write(&mut self, error: io::Error, context: &mut Context<'_>) -> io::Error {
        let mut bytes = [0; 1024];
        let mut unread = ReadBuf::new(&mut bytes);
        let read = Pin::new(&mut self.stream).poll_read(context, &mut unread);
        match read {
            Poll::Ready(Err(reason)) => self.fail(reason),
            Poll::Ready(Ok(())) | Poll::Pending => self.fail(error),
        }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (room, before) = (buffer.remaining(), buffer.filled().len());
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        Poll::Ready(match read {
            Err(error) => Err(self.fail(error)),
            Ok(()) if room > 0 && buffer.filled().len() == before => {
                self.fail(io::ErrorKind::UnexpectedEof.into());
                Ok(())
            }
            Ok(()) => {
                if let Some(first) = self.first.take() {
                    // The receiver may have given up.
                    let _ = first.send(());
                }
                Ok(())
            }
        })
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.fail_to_write(error, context)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        Poll::Ready(flushed.map_err(|error| self.fail_to_write(error, context)))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let connector = ControlPlaneConnector::new(text, None, None);
        let target = connector.map(|connector| connector.target()).ok();
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
