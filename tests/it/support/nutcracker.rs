//! A twemproxy process, which Debian calls nutcracker.

use std::{fs, net::TcpStream, process::Command};

use tempfile::TempDir;

use super::{Process, free_port, redis::Redis, tool, wait_until};

/// A proxy that distributes keys over servers. Killed on drop.
#[derive(Debug)]
pub struct Nutcracker {
    process: Option<Process>,
    folder: TempDir,
    port: u16,
}

impl Nutcracker {
    #[track_caller]
    pub fn before(servers: &[&Redis]) -> Self {
        let servers = servers
            .iter()
            .map(|redis| format!("  - {}:1\n", redis.address()));
        let servers: String = servers.collect();
        let mut proxy = Self {
            process: None,
            folder: TempDir::new().unwrap(),
            port: free_port(),
        };
        let port = proxy.port;
        let text = format!("pool:\n listen: 127.0.0.1:{port}\n redis: true\n servers:\n{servers}");
        fs::write(proxy.folder.path().join("nutcracker.yml"), text).unwrap();
        proxy.restart();
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    #[track_caller]
    pub fn restart(&mut self) {
        let mut command = Command::new(tool("nutcracker"));
        command
            .arg("--conf-file")
            .arg(self.folder.path().join("nutcracker.yml"));
        command.args(["--stats-port", &free_port().to_string()]);
        self.process = Some(Process::start_quietly(&mut command));
        let connect = || TcpStream::connect(("127.0.0.1", self.port));
        wait_until("nutcracker listens", || connect().is_ok());
    }
}
