//! Connects to a control plane over TCP or a Unix socket, with TLS if asked for.

use std::{io, path::PathBuf, time::Duration};

use tonic::transport::{self, Channel};

use super::error::{BadServer, ClientTlsError, XdsError};
use crate::net::{
    connect::{BoxedStream, OnceConnector, PlainStream, connect},
    endpoint::{BareIpv6, Endpoint},
    tls::{ServerName, client::ClientTls},
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

/// TLS to a control plane.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControlPlaneTls {
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
    Http(#[source] transport::Error),
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
    ) -> Result<Self, BadServer> {
        let bad = || BadServer(server.to_owned());
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
            tls.files()?.config().map_err(ClientTlsError::from)?;
        }
        let bad = |_| BadServer(self.target());
        self.http2().map_err(bad)?;
        Ok(())
    }

    pub(super) async fn connect(&self) -> Result<Channel, ConnectError> {
        let connected = tokio::time::timeout(CONNECT, self.try_connect());
        connected.await.unwrap_or(Err(ConnectError::TooSlow))
    }

    async fn try_connect(&self) -> Result<Channel, ConnectError> {
        let stream = connect(&self.endpoint)
            .await
            .and_then(|stream| stream.keep_alive(TCP_KEEPALIVE).map(|()| stream))
            .map_err(ConnectError::Connect)?;
        let stream = match &self.tls {
            Some(tls) => self.shake_hands(tls, stream).await?,
            None => stream.boxed(),
        };
        let mut endpoint = self
            .http2()
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
        tls: &ControlPlaneTls,
        stream: PlainStream,
    ) -> Result<BoxedStream, ConnectError> {
        let name = self.name(tls)?;
        let files = tls.files()?;
        // A file may be on a volume that does not respond.
        let read = tokio::task::spawn_blocking(move || files.config());
        let config = read.await.map_err(|_| ConnectError::Panicked)?;
        let config = config.map_err(ClientTlsError::from)?;
        let secured = stream.with_tls(config, name).await;
        secured.map_err(ConnectError::Handshake)
    }

    fn name(&self, tls: &ControlPlaneTls) -> Result<ServerName<'static>, ClientTlsError> {
        let name = tls.name.as_deref().unwrap_or(self.endpoint.host());
        ServerName::try_from(name.to_owned()).map_err(|_| ClientTlsError::NoName(name.to_owned()))
    }

    /// The settings of HTTP/2 on an open connection.
    fn http2(&self) -> Result<transport::Endpoint, transport::Error> {
        let name = self.tls.as_ref().and_then(|tls| tls.name.clone());
        let authority = name.unwrap_or_else(|| self.endpoint.authority());
        // The stream already includes TLS, so the library sees plain HTTP/2.
        transport::Endpoint::from_shared(format!("http://{authority}"))?
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
    }
}

impl ControlPlaneTls {
    fn files(&self) -> Result<ClientTls, ClientTlsError> {
        let pair = match (self.certificate.clone(), self.key.clone()) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err(ClientTlsError::Half),
        };
        Ok(ClientTls {
            ca: self.ca.clone(),
            pair,
            any_host: false,
            http2: true,
        })
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
