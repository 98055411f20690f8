//! Opens connections: over TCP or to a Unix socket, with TLS if asked for.

use std::{
    fmt,
    future::{Ready, ready},
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsConnector, rustls::ClientConfig};
use tonic::{codegen::Service, transport::Uri};

use super::{endpoint::Endpoint, resolve::resolve, tls::ServerName};

/// A stream of bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> ByteStream for S {}

/// A connection of any kind.
pub(crate) type BoxedStream = Box<dyn ByteStream>;

/// An open connection, before TLS.
#[derive(Debug)]
pub(crate) enum PlainStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Connects to `endpoint`, without a time limit. Small writes are sent at once.
///
/// # Errors
///
/// If the server does not accept the connection.
pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<PlainStream> {
    match endpoint {
        Endpoint::Tcp { host, port } => {
            let stream = TcpStream::connect(&*resolve(host, *port).await?).await?;
            stream.set_nodelay(true)?;
            Ok(PlainStream::Tcp(stream))
        }
        Endpoint::Unix(path) => UnixStream::connect(path).await.map(PlainStream::Unix),
    }
}

impl PlainStream {
    /// Lets the kernel probe a peer that is silent for `time`, and three more times, a third of it apart.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to.
    pub(crate) fn keep_alive(&self, time: Duration) -> io::Result<()> {
        let Self::Tcp(stream) = self else {
            return Ok(());
        };
        let keepalive = TcpKeepalive::new()
            .with_time(time)
            .with_interval(time / 3)
            .with_retries(3);
        SockRef::from(stream).set_tcp_keepalive(&keepalive)
    }

    /// The connection as it is.
    pub(crate) fn boxed(self) -> BoxedStream {
        match self {
            Self::Tcp(stream) => Box::new(stream),
            Self::Unix(stream) => Box::new(stream),
        }
    }

    /// The connection after a TLS handshake with the server called `name`.
    ///
    /// # Errors
    ///
    /// If one side refuses the other, or the connection breaks.
    pub(crate) async fn with_tls(
        self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<BoxedStream> {
        let connector = TlsConnector::from(config);
        Ok(match self {
            Self::Tcp(stream) => Box::new(connector.connect(name, stream).await?),
            Self::Unix(stream) => Box::new(connector.connect(name, stream).await?),
        })
    }
}

/// A connection that is already open, for one gRPC channel. The channel ends with it.
pub(crate) struct OnceConnector(Option<BoxedStream>);

impl OnceConnector {
    /// The connector that hands out `stream`.
    pub(crate) fn new(stream: BoxedStream) -> Self {
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

    #[tokio::test]
    async fn small_writes_are_sent_at_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::Tcp {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        let PlainStream::Tcp(stream) = connect(&endpoint).await.unwrap() else {
            panic!("the endpoint is a port");
        };
        assert!(SockRef::from(&stream).tcp_nodelay().unwrap());
    }
}
