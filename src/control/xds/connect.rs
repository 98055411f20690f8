//! Connects to a control plane over TCP or a Unix socket, with TLS if asked for. The library above hides how a
//! connection began and how it ended, so its bytes pass through this file.

use std::{
    future::pending,
    io,
    pin::{Pin, pin},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, copy, duplex, split},
    sync::oneshot,
    time::timeout,
};
use tonic::transport::{self, Channel};

use crate::{
    control::xds::options::{ControlPlaneTls, Options, XdsError},
    foundation::{causes::chain, lock::blocking},
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

/// After a write failed: the time to read a better reason, such as an alert of TLS that came before the end.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Bytes in each direction between a connection and the library.
const CARRIED_BYTES: usize = 64 << 10;

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
    /// Carries the bytes, and returns why the connection ended.
    pub carrier: Pin<Box<dyn Future<Output = String> + Send>>,
}

/// Opens connections to one control plane.
#[derive(Debug)]
pub(super) struct ControlPlaneConnector {
    endpoint: Endpoint,
    tls: Option<ControlPlaneTls>,
    keepalive: Option<Duration>,
}

impl ControlPlaneConnector {
    /// A connector whose certificates could be read just now.
    pub(super) fn new(options: &Options) -> Result<Self, XdsError> {
        let bad = || XdsError::Server(options.server.clone());
        let connector = Self {
            endpoint: target(&options.server).ok_or_else(bad)?,
            tls: options.tls.clone(),
            keepalive: options.keepalive,
        };
        if let Some(tls) = &connector.tls {
            connector.name(tls)?;
            tls.files()?.config()?;
        }
        connector.http2().map_err(|_| bad())?;
        Ok(connector)
    }

    /// The address as gRPC writes targets.
    pub(super) fn target(&self) -> String {
        match &self.endpoint {
            Endpoint::Tcp { .. } => self.endpoint.to_string(),
            Endpoint::Unix(path) => format!("unix:{}", path.display()),
        }
    }

    /// Connects, and waits until the control plane speaks HTTP/2: with TLS 1.3 it can refuse the client after the
    /// handshake, and a process that is stopped still accepts connections.
    ///
    /// # Errors
    ///
    /// The reason in words.
    pub(super) async fn connect(&self) -> Result<ControlPlaneConnection, String> {
        let too_slow = |_| format!("no connection within {} s", CONNECT.as_secs());
        timeout(CONNECT, self.try_connect())
            .await
            .map_err(too_slow)?
    }

    /// Why this process ends a connection, which it does for this reason only. `None` if it asks no pings.
    pub(super) fn unanswered_ping(&self) -> Option<String> {
        let limit = self.keepalive?.min(KEEPALIVE_ANSWER);
        Some(format!(
            "it did not answer a ping within {limit:?} (TOLLGATE_XDS_KEEPALIVE, --xds-keepalive, sets how often it is \
             asked)"
        ))
    }

    async fn try_connect(&self) -> Result<ControlPlaneConnection, String> {
        let connected = connect(&self.endpoint).await;
        let stream = connected.and_then(|stream| stream.keep_alive(TCP_KEEPALIVE).map(|()| stream));
        let stream = stream.map_err(|error| format!("cannot connect: {}", chain(&error)))?;
        let stream = match &self.tls {
            Some(tls) => self.shake_hands(tls, stream).await?,
            None => stream.boxed(),
        };
        let has_certificate = matches!(&self.tls, Some(tls) if tls.certificate.is_some());
        let (library, far) = duplex(CARRIED_BYTES);
        let (notify, first_bytes) = oneshot::channel();
        let mut carrier = Box::pin(async move {
            let end = carry(stream, far, notify).await;
            words(&end, "the connection broke", has_certificate)
        });
        let http = |error: transport::Error| format!("HTTP/2 failed: {}", chain(&error));
        let mut endpoint = self.http2().map_err(http)?.http2_adaptive_window(true);
        if let Some(interval) = self.keepalive {
            endpoint = endpoint
                .http2_keep_alive_interval(interval)
                .keep_alive_timeout(interval.min(KEEPALIVE_ANSWER));
        }
        let speak = async {
            let connector = OnceConnector::new(Box::new(library));
            let channel = endpoint.connect_with_connector(connector).await;
            // Without first bytes the carrier ends, with the reason.
            let _ = first_bytes.await;
            channel.map_err(http)
        };
        tokio::select! {
            biased;
            end = &mut carrier => Err(match self.tls {
                None if end == CLOSED => format!(
                    "{end} at once; if it expects TLS, set CONFIG_GRPC_XDS_SERVER_USE_TLS (--xds-tls)"
                ),
                _ => end,
            }),
            channel = speak => Ok(ControlPlaneConnection { channel: channel?, carrier }),
        }
    }

    async fn shake_hands(
        &self,
        tls: &ControlPlaneTls,
        stream: PlainStream,
    ) -> Result<BoxedStream, String> {
        let in_words = |error: XdsError| chain(&error);
        let name = self.name(tls).map_err(in_words)?;
        let files = tls.files().map_err(in_words)?;
        // A file can be on a volume that does not respond.
        let config = blocking(move || files.config()).await;
        let config = config.map_err(|error| chain(&error))?;
        let secured = stream.with_tls(config, name).await;
        secured.map_err(|error| words(&error, "TLS failed", tls.certificate.is_some()))
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

/// An error of a connection in words, after `what` failed.
fn words(error: &io::Error, what: &str, has_certificate: bool) -> String {
    match TlsFailure::of(error) {
        Some(TlsFailure::CertificateRefused(_)) if !has_certificate => {
            TlsFailure::CertificateRequired.words(&TLS)
        }
        Some(failure) => failure.words(&TLS),
        None if error.kind() == io::ErrorKind::UnexpectedEof => CLOSED.to_owned(),
        None => format!("{what}: {}", chain(error)),
    }
}

/// Carries bytes between a connection and the library, notifies of the first ones, and returns why the connection
/// ended; a peer that closed it is an unexpected end of file. The library sees that end when this future is done.
async fn carry(
    stream: BoxedStream,
    library: DuplexStream,
    first: oneshot::Sender<()>,
) -> io::Error {
    let (mut from_peer, mut to_peer) = split(stream);
    let (mut from_library, mut to_library) = split(library);
    let mut first = Some(first);
    let mut read = pin!(async move {
        let mut bytes = vec![0; CARRIED_BYTES];
        loop {
            match from_peer.read(&mut bytes).await {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(count) => {
                    // The receiver and the library may be gone.
                    let _ = first.take().map(|first| first.send(()));
                    let _ = to_library.write_all(&bytes[..count]).await;
                }
                Err(error) => return error,
            }
        }
    });
    let write = async {
        match copy(&mut from_library, &mut to_peer).await {
            Ok(_) => pending().await,
            Err(error) => error,
        }
    };
    tokio::select! {
        end = &mut read => end,
        error = write => timeout(LAST_WORDS, &mut read).await.unwrap_or(error),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let connector = target(text).map(|endpoint| ControlPlaneConnector {
            endpoint,
            tls: None,
            keepalive: None,
        });
        let target = connector.map(|connector| connector.target());
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
