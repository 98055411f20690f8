//! A foreign rate limit service, started by a command and configured by environment variables.

use std::{
    collections::HashMap,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd,
};
use tempfile::TempDir;

use crate::processes::Pid;

/// A running service, including all processes that its command started. Killed on drop.
#[derive(Debug)]
pub struct Foreign {
    child: Child,
    pub address: SocketAddr,
    folder: TempDir,
}

impl Foreign {
    /// Starts it in a shell.
    pub fn start(command: &str, rules: &str, redis: SocketAddr) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let rules_folder = folder.path().join("ratelimit/config");
        fs::create_dir_all(&rules_folder)?;
        fs::write(rules_folder.join("rules.yaml"), rules)?;
        let log = File::create(folder.path().join("log"))?;
        // All at once, so that they differ. Another process may take a port before the service does; then the service
        // ends.
        let probes = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let mut ports = Vec::new();
        for probe in probes {
            ports.push(probe?.local_addr()?.port());
        }
        let port = |number: usize| ports[number].to_string();
        let child = Command::new("sh")
            .args(["-c", command])
            .env("GRPC_HOST", "127.0.0.1")
            .env("GRPC_PORT", port(0))
            .env("HOST", "127.0.0.1")
            .env("PORT", port(1))
            .env("DEBUG_HOST", "127.0.0.1")
            .env("DEBUG_PORT", port(2))
            .env("BACKEND_TYPE", "redis")
            .env("REDIS_SOCKET_TYPE", "tcp")
            .env("REDIS_URL", redis.to_string())
            .env("RUNTIME_ROOT", folder.path())
            .env("RUNTIME_SUBDIRECTORY", "ratelimit")
            .env("RUNTIME_APPDIRECTORY", "config")
            .env("RUNTIME_WATCH_ROOT", "false")
            .env("USE_STATSD", "false")
            .env("LOG_LEVEL", "warn")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("there is no shell")?;
        Ok(Self {
            child,
            address: (Ipv4Addr::LOCALHOST, ports[0]).into(),
            folder,
        })
    }

    /// Checks that the service runs.
    ///
    /// # Errors
    ///
    /// If it has ended, with its whole output.
    pub fn must_run(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the foreign service ended, {status}:\n{}", self.said());
        }
        Ok(())
    }

    pub fn said(&self) -> String {
        let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Processor time of all its processes, in seconds.
    pub fn cpu_secs(&self) -> anyhow::Result<f64> {
        // A process may end during the loop.
        let secs = self.processes()?.into_iter().map(Pid::cpu_secs);
        Ok(secs.flatten().sum())
    }

    /// The started process, its children and their children: the command may be a shell before the service.
    fn processes(&self) -> anyhow::Result<Vec<Pid>> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let stat = fs::read_to_string(entry.path().join("stat"));
            // `pid (name) state parent …`; the name may contain any character.
            let parent = stat.ok().and_then(|stat| {
                let (_, behind) = stat.rsplit_once(") ")?;
                behind.split(' ').nth(1)?.parse().ok()
            });
            if let Some(parent) = parent {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut found = vec![self.child.id()];
        let mut seen = 0;
        while let Some(pid) = found.get(seen) {
            found.extend(children.remove(pid).unwrap_or_default());
            seen += 1;
        }
        Ok(found.into_iter().map(Pid).collect())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for Pid(pid) in self.processes().unwrap_or_default() {
            // It may already have ended.
            let _ = kill(unistd::Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}
