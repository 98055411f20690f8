//! Opens connections: over TCP or to a Unix socket, with TLS if asked for.
//!
//! The resolver of the C library takes a thread for each name and cannot be stopped: a caller that waits no longer
//! leaves its thread behind. So look-ups have a bound over the whole process.

use std::{
    fmt,
    future::{Ready, ready},
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::Semaphore,
};
use tokio_rustls::{TlsConnector, rustls::ClientConfig};
use tonic::{codegen::Service, transport::Uri};

use crate::{
    foundation::lock::blocking,
    net::{endpoint::Endpoint, tls::ServerName},
};

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

/// Threads that may look up names at a time. Further names wait for one of these, within the time that their connection
/// may take.
const MAX_LOOKUPS: usize = 8;

static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS);

/// The addresses of `host`, a name or an IP address, each with `port`.
///
/// # Errors
///
/// If the resolver does not know the name.
pub(crate) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let host = host.to_owned();
    bounded(&LOOKUPS, move || {
        Ok((host, port).to_socket_addrs()?.collect())
    })
    .await
}

/// Runs `work` on a thread that keeps one of `permits` to the end of the work, also if the caller waits no longer.
async fn bounded<T: Send + 'static>(
    permits: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let permit = permits.acquire().await.expect("it is never closed");
    blocking(move || {
        let done = work();
        drop(permit);
        done
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, mpsc},
        time::Duration,
    };

    use tokio::time::timeout;

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

    #[tokio::test]
    async fn an_address_is_its_own_and_a_name_is_looked_up() {
        for (host, expected) in [
            ("192.0.2.1", "192.0.2.1:7"),
            ("2001:db8::1", "[2001:db8::1]:7"),
        ] {
            assert_eq!(resolve(host, 7).await.unwrap(), [expected.parse().unwrap()]);
        }
        let found = resolve("localhost", 7).await.unwrap();
        assert!(found.iter().all(|found| found.ip().is_loopback()));
        assert!(!found.is_empty());
        resolve("no host", 7).await.unwrap_err();
    }

    #[tokio::test]
    async fn work_that_hangs_keeps_its_permit_though_its_caller_is_gone() {
        static TWO: Semaphore = Semaphore::const_new(2);
        let (answer, answers) = mpsc::channel();
        let answers = Arc::new(std::sync::Mutex::new(answers));
        let hang = || {
            let answers = answers.clone();
            let hanging = bounded(&TWO, move || answers.lock().unwrap().recv().unwrap());
            timeout(Duration::from_millis(1), hanging)
        };
        for _ in 0..3 {
            hang().await.unwrap_err();
        }
        assert_eq!(TWO.available_permits(), 0);
        for number in 1..=2 {
            answer.send(number).unwrap();
        }
        assert_eq!(bounded(&TWO, || 7).await, 7);
    }
}
