//! The unit of systemd, and the notifications that it waits for.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram, UnixStream},
    },
    process::{Command, Output},
    thread,
};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{deploy, path, text_of};
use crate::support::{PATIENCE, tollgate, tool};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [5/y]}]";

#[test]
fn the_unit_is_valid_and_can_do_little() {
    let analyze = |args: &[&str]| -> Output {
        let mut command = Command::new(tool("systemd-analyze"));
        command.args(args).output().unwrap()
    };
    let unit = fs::read_to_string(deploy().join("systemd/tollgate.service")).unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tollgate.service");
    // It checks that the program is there.
    let program = env!("CARGO_BIN_EXE_tollgate");
    let installed = unit.replace("/usr/bin/tollgate", program);
    assert!(installed.contains(program), "{unit}");
    // It only warns of values that it does not know.
    let unknown = installed.replace("Restart=on-failure", "Restart=at-times");
    for (text, is_good) in [(&installed, true), (&unknown, false)] {
        fs::write(&file, text).unwrap();
        let output = analyze(&["verify", path(&file)]);
        let is_silent = output.stderr.is_empty();
        assert_eq!(output.status.success() && is_silent, is_good, "{output:?}");
    }
    // The exposure is from 0 to 10, and the threshold ten times that.
    let exposed = installed.replace("\nProtect", "\n# Protect");
    for (text, is_good) in [(&installed, true), (&exposed, false)] {
        fs::write(&file, text).unwrap();
        let output = analyze(&["security", "--offline=true", "--threshold=20", path(&file)]);
        assert_eq!(output.status.success(), is_good, "{}", text_of(&output));
    }
    assert!(unit.contains("\nType=notify\n"), "{unit}");
}

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    /// Its value of `NOTIFY_SOCKET`.
    name: String,
}

impl Manager {
    fn at_a_path(folder: &TempDir) -> Self {
        let file = folder.path().join("notify");
        let name = path(&file).to_owned();
        let socket = UnixDatagram::bind(&file).unwrap();
        Self { socket, name }
    }

    /// One without a file, by a name that is unique as long as `folder` is there.
    fn abstract_in(folder: &TempDir) -> Self {
        let name = path(folder.path());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let name = format!("@{name}");
        Self { socket, name }
    }

    /// The next notification.
    #[track_caller]
    fn next(&self) -> String {
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        self.received().expect("a notification in time")
    }

    fn received(&self) -> Option<String> {
        let mut text = [0; 1000];
        let length = self.socket.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).into_owned())
    }
}

#[track_caller]
fn check_notifications(manager: impl FnOnce(&TempDir) -> Manager) {
    let folder = TempDir::new().unwrap();
    let manager = manager(&folder);
    let grpc = folder.path().join("grpc");
    let builder = tollgate::with_rules(RULES)
        .env("NOTIFY_SOCKET", &manager.name)
        .env("GRPC_UDS", path(&grpc));
    let (mut server, manager) = thread::scope(|threads| {
        let waiting = threads.spawn(|| {
            assert_eq!(manager.next(), "READY=1");
            // Not a moment later: systemd would start at once all that needs the unit.
            UnixStream::connect(&grpc).expect("the socket listens");
            manager
        });
        let server = builder.start();
        (server, waiting.join().unwrap())
    });
    server.signal(Signal::SIGTERM);
    assert_eq!(manager.next(), "STOPPING=1");
    assert_eq!(server.wait().code(), Some(0));
    manager.socket.set_nonblocking(true).unwrap();
    assert_eq!(manager.received(), None);
}

#[test]
fn systemd_is_notified_when_the_ports_listen_and_when_the_end_begins() {
    check_notifications(Manager::at_a_path);
    check_notifications(Manager::abstract_in);
}

#[test]
fn without_rules_no_readiness_is_notified() {
    let folder = TempDir::new().unwrap();
    let manager = Manager::at_a_path(&folder);
    let (status, output) = tollgate::with_rules("nonsense")
        .env("NOTIFY_SOCKET", &manager.name)
        .fail();
    assert_eq!(status.code(), Some(1), "{output}");
    manager.socket.set_nonblocking(true).unwrap();
    assert_eq!(manager.received(), None);
}

#[test]
fn a_service_manager_that_is_away_is_a_warning() {
    let folder = TempDir::new().unwrap();
    for (name, reason) in [
        (path(&folder.path().join("none")), "No such file"),
        ("vsock:2:1234", "neither a path"),
    ] {
        let builder = tollgate::with_rules(RULES).env("NOTIFY_SOCKET", name);
        let server = builder.start();
        let log = server.log().with("cannot notify the service manager");
        assert!(log.contains(reason), "{log}");
    }
}
