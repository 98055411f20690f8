//! tollgate under the name of envoyproxy/ratelimit: no arguments, only an environment.

use std::{
    net::SocketAddr,
    os::unix::fs::symlink,
    process::{Child, Command, ExitStatus, Stdio},
};

use tempfile::TempDir;

use super::{certificates::Secret, free_port, http, tollgate::Log, wait_until};

/// A running `ratelimit` with a volume of rules. Killed on drop.
#[derive(Debug)]
pub struct Ratelimit {
    child: Child,
    log: Log,
    volume: Secret,
    _folder: TempDir,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub debug: SocketAddr,
}

#[derive(Debug)]
pub struct Builder {
    folder: TempDir,
    env: Vec<(String, String)>,
    volume: Secret,
}

/// A `ratelimit` with these variables, in which `$ROOT` stands for the folder that a container would see as `/`. Its
/// rules are mounted at `$ROOT/data/ratelimit/config`.
pub fn with_env(env: &[(&str, &str)]) -> Builder {
    let folder = TempDir::new().unwrap();
    let root = folder.path().to_str().unwrap();
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), value.replace("$ROOT", root));
    Builder {
        env: env.iter().map(own).collect(),
        volume: Secret::at_folder(folder.path().join("data/ratelimit/config")),
        folder,
    }
}

impl Builder {
    /// Sets the rules, as the only file of their ConfigMap.
    pub fn rules(mut self, text: &str) -> Self {
        self.volume.update(&[("config.yaml", text)]);
        self
    }

    /// Counts in `redis`, with an address in the form that platforms use. A busy machine makes Redis slow, so the
    /// deadline is far above the default.
    pub fn redis(self, redis: &super::redis::Redis) -> Self {
        let redis = self.env("REDIS_URL", &redis.address());
        redis.env("TOLLGATE_REDIS_TIMEOUT", "10s")
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, ports: [u16; 3]) -> Command {
        let program = self.folder.path().join("ratelimit");
        if !program.exists() {
            symlink(env!("CARGO_BIN_EXE_tollgate"), &program).unwrap();
        }
        let mut command = Command::new(program);
        command.env_clear();
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        for (name, port) in ["GRPC_PORT", "PORT", "DEBUG_PORT"].iter().zip(ports) {
            command.env(name, port.to_string());
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.current_dir(self.folder.path());
        command
    }

    #[track_caller]
    pub fn start(self) -> Ratelimit {
        let ports = [free_port(), free_port(), free_port()];
        let [grpc, http, debug] = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut child = self.command(ports).spawn().expect("tollgate was built");
        let log = Log::follow(child.stderr.take().unwrap());
        wait_until("ratelimit is up", || {
            let status = child.try_wait().unwrap();
            assert_eq!(status, None, "{}", log.text());
            is_healthy(http) || log.text().contains("tollgate is ready")
        });
        Ratelimit {
            child,
            log,
            volume: self.volume,
            _folder: self.folder,
            grpc,
            http,
            debug,
        }
    }

    #[track_caller]
    pub fn fail(self) -> (ExitStatus, String) {
        let mut command = self.command([free_port(), free_port(), free_port()]);
        let output = super::finish(&mut command);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{text}");
        (output.status, text)
    }
}

fn is_healthy(address: SocketAddr) -> bool {
    http::try_get(address, "/healthcheck", &[])
        .is_ok_and(|reply| reply.status == 200 && reply.body == "OK")
}

impl Ratelimit {
    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn update(&mut self, text: &str) {
        self.volume.update(&[("config.yaml", text)]);
    }

    pub fn rlconfig(&self) -> String {
        http::get(self.debug, "/rlconfig").body
    }
}

impl Drop for Ratelimit {
    fn drop(&mut self) {
        self.log.print_if_panicking();
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
