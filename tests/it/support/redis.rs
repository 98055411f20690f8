//! A Redis server of its own.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::{free_port, tool, wait_until};

/// A running redis-server that keeps nothing on disk. Killed on drop.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Redis {
    #[track_caller]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts it with further options, such as `["--requirepass", "secret"]`.
    #[track_caller]
    pub fn with(options: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        // Somebody else may take the port between the look and the start.
        for _ in 0..10 {
            let port = free_port();
            let mut child = spawn(port, &folder, options);
            let mut has_ended = false;
            wait_until("redis-server answers", || {
                has_ended = child.try_wait().unwrap().is_some();
                has_ended || answers(port)
            });
            if !has_ended {
                return Self {
                    child,
                    port,
                    folder,
                };
            }
        }
        panic!("redis-server does not start");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Runs redis-cli and returns what it printed.
    pub fn cli(&self, args: &[&str]) -> String {
        let output = Command::new(tool("redis-cli"))
            .args(["-p", &self.port.to_string()])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, empty, on the same port.
    pub fn restart(&mut self) {
        self.child = spawn(self.port, &self.folder, &[]);
        let port = self.port;
        wait_until("redis-server answers again", || answers(port));
    }
}

fn spawn(port: u16, folder: &TempDir, options: &[&str]) -> Child {
    Command::new(tool("redis-server"))
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(options)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}

/// Whether a Redis on `port` says anything at all.
fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let mut reply = [0; 1];
    // `+PONG`, or `-NOAUTH` from one that wants a password.
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut reply).is_ok()
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
