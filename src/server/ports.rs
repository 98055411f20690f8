//! Binds the ports of the server and accepts connections.

use std::{
    fmt, fs, io,
    os::unix::{fs::FileTypeExt as _, net as unix},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::stat::{Mode, umask};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, lookup_host};

use super::error::ServerError;
use crate::{
    foundation::log_throttle::LogThrottle,
    settings::{listen::TlsSettings, serve::Settings},
};

/// The bound listeners, except for gRPC's, which opens only when there are rules.
pub(super) struct Ports {
    pub(super) http: TcpListener,
    pub(super) debug: TcpListener,
    /// The Prometheus port, if it is enabled.
    pub(super) prometheus: Option<TcpListener>,
}

impl Ports {
    pub(super) async fn bind(settings: &Settings) -> Result<Self, ServerError> {
        let Settings { listen, stats, .. } = settings;
        let debug_host = or(&listen.debug_host, LOOPBACK);
        Ok(Self {
            http: bind(HTTP, or(&listen.host, EVERY), listen.port).await?,
            debug: bind(DEBUG, debug_host, listen.debug_port).await?,
            prometheus: if stats.prometheus && !stats.disable_stats {
                let address = stats.prometheus_address;
                let host = address.ip().to_string();
                Some(bind(PROMETHEUS, &host, address.port()).await?)
            } else {
                None
            },
        })
    }

    pub(super) fn addresses(&self) -> io::Result<Addresses> {
        Ok(Addresses {
            http: self.http.local_addr()?.to_string(),
            debug: self.debug.local_addr()?.to_string(),
            prometheus: match &self.prometheus {
                Some(prometheus) => prometheus.local_addr()?.to_string(),
                None => "none".to_owned(),
            },
        })
    }
}

/// The addresses of the HTTP ports, for the log.
pub(super) struct Addresses {
    pub(super) http: String,
    pub(super) debug: String,
    pub(super) prometheus: String,
}

/// The purpose of a port, the settings of its host, and the settings of its number.
struct PortSettings(&'static str, &'static str, &'static str);

const GRPC: PortSettings = PortSettings("gRPC", "--grpc-host, GRPC_HOST", "--grpc-port, GRPC_PORT");
const HTTP: PortSettings = PortSettings("HTTP", "--host, HOST", "--port, PORT");
const DEBUG: PortSettings = PortSettings(
    "debug",
    "--debug-host, DEBUG_HOST",
    "--debug-port, DEBUG_PORT",
);
const PROMETHEUS: PortSettings = PortSettings(
    "Prometheus",
    "--prometheus-address, PROMETHEUS_ADDR",
    "--prometheus-address, PROMETHEUS_ADDR",
);

/// Most connections that wait to be accepted: as many as the kernel allows (`net.core.somaxconn`, 4096 by default). A
/// client that finds no room retries only after a second.
const BACKLOG: u32 = 65_535;

/// The meaning of an empty host, as in the reference.
const EVERY: &str = "0.0.0.0";

/// The meaning of an empty host for the debug port, which must not be open to everyone by accident.
const LOOPBACK: &str = "127.0.0.1";

fn or<'a>(host: &'a str, default: &'a str) -> &'a str {
    if host.is_empty() { default } else { host }
}

/// Binds a port. `host` is a name or an address; `::` means every address of both families.
async fn bind(
    PortSettings(purpose, of_host, of_port): PortSettings,
    host: &str,
    port: u16,
) -> Result<TcpListener, ServerError> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    listen(host, port)
        .await
        .map_err(|source| ServerError::Bind {
            purpose,
            address: if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{host}:{port}")
            },
            setting: match source.kind() {
                io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => of_port,
                _ => of_host,
            },
            source,
        })
}

/// Listens on the first usable address of `host`.
#[expect(
    clippy::disallowed_methods,
    reason = "it is looked up once, at the start"
)]
async fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in lookup_host((host, port)).await? {
        let listen = || {
            let socket = if address.is_ipv4() {
                TcpSocket::new_v4()?
            } else {
                TcpSocket::new_v6()?
            };
            // Recently closed connections must not keep a restarted process from using the port.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        match listen() {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The listener for gRPC connections.
pub(super) enum GrpcListener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The file of a Unix socket, which is removed on drop.
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may already have been removed.
        let _ = fs::remove_file(&self.0);
    }
}

impl GrpcListener {
    pub(super) async fn bind(settings: &Settings) -> Result<Self, ServerError> {
        let listen = &settings.listen;
        match listen.grpc_socket() {
            Some(path) => Self::bind_unix(path),
            None => {
                let host = or(&listen.grpc_host, EVERY);
                let socket = bind(GRPC, host, listen.grpc_port).await?;
                Ok(Self::Tcp(socket))
            }
        }
    }

    /// Binds a Unix socket. Replaces one without a listener, as a crash leaves behind.
    fn bind_unix(path: &Path) -> Result<Self, ServerError> {
        let bound = || {
            let is_socket =
                fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
            if is_socket && unix::UnixStream::connect(path).is_err() {
                fs::remove_file(path)?;
            }
            // The mode applies from the first moment, or a client without permission could connect before it is set.
            let usual = umask(Mode::from_bits_truncate(!SOCKET_MODE & 0o777));
            let listener = UnixListener::bind(path);
            umask(usual);
            let listener = listener?;
            let file = SocketFile(path.to_owned());
            Ok(Self::Unix(listener, file))
        };
        bound().map_err(|source| ServerError::Bind {
            purpose: "gRPC",
            address: path.display().to_string(),
            setting: "--grpc-uds, GRPC_UDS",
            source,
        })
    }

    /// The kind of TLS of its connections.
    pub(super) fn tls(&self, settings: &TlsSettings) -> &'static str {
        match self {
            Self::Tcp(_) if settings.grpc_tls && settings.client_ca().is_some() => "mutual",
            Self::Tcp(_) if settings.grpc_tls => "server",
            Self::Tcp(_) | Self::Unix(..) => "off",
        }
    }

    /// Waits for the next connection, however long that takes.
    pub(super) async fn accept_next(&self) -> PortStream<TcpStream, UnixStream> {
        match self {
            Self::Tcp(listener) => PortStream::Tcp(accept_next(listener).await),
            Self::Unix(listener, _) => loop {
                match listener.accept().await {
                    Ok((stream, _)) => return PortStream::Unix(stream),
                    Err(error) => wait_for_room(error).await,
                }
            },
        }
    }
}

impl fmt::Display for GrpcListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => write!(f, "{address}"),
                Err(_) => f.write_str("unknown"),
            },
            Self::Unix(_, SocketFile(path)) => write!(f, "{}", path.display()),
        }
    }
}

/// A connection over TCP or a Unix socket.
pub(super) enum PortStream<T, U> {
    Tcp(T),
    Unix(U),
}

/// A connection that is not registered with any runtime.
pub(super) type Detached = PortStream<std::net::TcpStream, unix::UnixStream>;

impl PortStream<TcpStream, UnixStream> {
    /// Removes the connection from this thread's runtime.
    pub(super) fn detach(self) -> io::Result<Detached> {
        Ok(match self {
            Self::Tcp(stream) => PortStream::Tcp(stream.into_std()?),
            Self::Unix(stream) => PortStream::Unix(stream.into_std()?),
        })
    }
}

impl Detached {
    /// Registers the connection with this thread's runtime.
    pub(super) fn adopt(self) -> io::Result<PortStream<TcpStream, UnixStream>> {
        Ok(match self {
            Self::Tcp(stream) => {
                let stream = TcpStream::from_std(stream)?;
                stream.set_nodelay(true)?;
                PortStream::Tcp(stream)
            }
            Self::Unix(stream) => PortStream::Unix(UnixStream::from_std(stream)?),
        })
    }
}

/// The permissions of a Unix socket: an Envoy can run as any user. Its folder decides who gets there.
const SOCKET_MODE: u32 = 0o666;

/// Waits for the next connection, however long that takes.
pub(super) async fn accept_next(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => wait_for_room(error).await,
        }
    }
}

/// All ports share this throttle, because a lack of file descriptors affects all of them.
static SCARCITY: LogThrottle = LogThrottle::new();

/// Waits before the next attempt. Most likely the process is out of file descriptors, and some will be closed soon.
async fn wait_for_room(error: io::Error) {
    if SCARCITY.may_log() {
        tracing::warn!(%error, "cannot accept connections; retrying");
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}
