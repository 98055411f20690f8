//! Supervision: notifies the service manager (systemd, `Type=notify`) when the ports are open, and when
//! the process is about to end, and takes the signals that stop it.
//!
//! The protocol is that of sd_notify(3): a datagram with `NAME=value` lines to the socket that the environment names.

use std::{
    ffi::OsStr,
    io,
    os::unix::net::{SocketAddr, UnixDatagram},
};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The service manager, if one waits for notifications.
pub(super) struct ServiceManager(Option<SocketAddr>);

impl ServiceManager {
    /// The service manager that listens on `socket`: a path, or an abstract name after `@`.
    pub(super) fn new(socket: Option<&OsStr>) -> Self {
        let address = socket.and_then(|socket| {
            let found = address(socket);
            found.inspect_err(|error| warn(socket, error)).ok()
        });
        Self(address)
    }

    /// Notifies that every port is open.
    pub(super) fn notify_ready(&self) {
        self.notify("READY=1");
    }

    /// Notifies that the process is draining and will then end.
    pub(super) fn notify_stopping(&self) {
        self.notify("STOPPING=1");
    }

    /// A failure only leads to a log line: without the notification, the manager ends the process at its own deadline,
    /// and the log shows the cause.
    fn notify(&self, state: &str) {
        let Some(address) = &self.0 else { return };
        let sent = UnixDatagram::unbound().and_then(|socket| {
            // A manager that does not read must not stop the one thread that accepts connections.
            socket.set_nonblocking(true)?;
            socket.send_to_addr(state.as_bytes(), address)
        });
        if let Err(error) = sent {
            warn(OsStr::new(state), &error);
        }
    }
}

fn warn(subject: &OsStr, error: &io::Error) {
    tracing::warn!(%error, "cannot notify the service manager: {}", subject.display());
}

/// The address in `NOTIFY_SOCKET`.
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_encoded_bytes() {
        [b'@', name @ ..] => abstract_address(name),
        [b'/', ..] => SocketAddr::from_pathname(socket),
        _ => {
            let reason = "NOTIFY_SOCKET is neither a path that begins with / nor a name after @";
            Err(io::Error::new(io::ErrorKind::Unsupported, reason))
        }
    }
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;

    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Signals that stop the process, SIGHUP included, as in the reference.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_path_or_an_abstract_name() {
        let path = address(OsStr::new("/run/notify")).unwrap();
        assert_eq!(path.as_pathname().unwrap(), "/run/notify");
        #[cfg(target_os = "linux")]
        {
            use std::os::linux::net::SocketAddrExt as _;

            let name = address(OsStr::new("@org/notify")).unwrap();
            assert_eq!(name.as_abstract_name().unwrap(), b"org/notify");
        }
        for other in ["", "run/notify", "vsock:2:1234"] {
            assert!(address(OsStr::new(other)).is_err(), "{other}");
        }
    }
}
