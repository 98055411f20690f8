//! A Redis server process.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use super::{
    free_port,
    tollgate::Log,
    tool, wait_until,
    wall_clock::{WallClock, remove_rests_of},
};

/// A running redis-server that stores nothing on disk. Killed on drop.
#[derive(Debug)]
pub struct Redis {
    program: &'static str,
    child: Child,
    port: u16,
    folder: TempDir,
    options: Vec<String>,
    /// Its time of day, if it is not the true one.
    clock: Option<Arc<WallClock>>,
    pub password: Option<String>,
}

/// The supported servers, by the names of their tools; the first is the usual one.
#[rustfmt::skip]
pub const PROGRAMS: [&str; 4] = ["redis-server", "redis-server-6.2", "redis-server-8", "valkey-server-9"];

impl Redis {
    #[track_caller]
    pub fn start() -> Self {
        Self::with(&[])
    }

    #[track_caller]
    pub fn of(program: &'static str) -> Self {
        Self::with_made(program, |_| Vec::new())
    }

    /// Starts it with further options, such as `["--requirepass", "secret"]`.
    #[track_caller]
    pub fn with(options: &[&str]) -> Self {
        let owned = |_: &Path| options.iter().map(|&option| option.to_owned()).collect();
        Self::with_made(PROGRAMS[0], owned)
    }

    /// Starts it with options that may name files in its folder.
    #[track_caller]
    pub fn with_made(program: &'static str, options: impl Fn(&Path) -> Vec<String>) -> Self {
        Self::with_all(program, None, options)
    }

    /// Starts one with a time of day that can be set while it runs. libfaketime does not get along with the jemalloc of
    /// the usual one, which is a shared library.
    #[track_caller]
    pub fn with_wall_clock(clock: &Arc<WallClock>) -> Self {
        Self::with_all("redis-server-8", Some(clock.clone()), |_| Vec::new())
    }

    #[track_caller]
    fn with_all(
        program: &'static str,
        clock: Option<Arc<WallClock>>,
        options: impl Fn(&Path) -> Vec<String>,
    ) -> Self {
        let (folder, port) = (TempDir::new().unwrap(), free_port());
        let options = options(folder.path());
        let mut redis = Self {
            program,
            child: spawn(program, port, &folder, clock.as_deref(), &options),
            port,
            folder,
            options,
            clock,
            password: None,
        };
        redis.await_answer();
        redis
    }

    #[track_caller]
    fn await_answer(&mut self) {
        wait_until("redis-server answers", || {
            let status = self.child.try_wait().unwrap();
            assert_eq!(status, None, "redis-server does not start");
            answers(self.port)
        });
    }

    /// Starts a server that also supports TLS, with the files `cert`, `key` and `ca` of `folder`; `clients` says
    /// whether it requires client certificates.
    #[track_caller]
    pub fn with_tls(folder: &Path, clients: bool) -> Self {
        let clients = if clients { "yes" } else { "no" };
        Self::with_tls_options(folder, &["--tls-auth-clients", clients])
    }

    /// Starts a server that also supports TLS, with further options, and requires no client certificate.
    #[track_caller]
    pub fn with_tls_and(folder: &Path, options: &[&str]) -> Self {
        Self::with_tls_options(folder, &[&["--tls-auth-clients", "no"], options].concat())
    }

    #[track_caller]
    fn with_tls_options(folder: &Path, options: &[&str]) -> Self {
        let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        Self::with_made(PROGRAMS[0], |_| {
            let tls = [
                ["--tls-port", &free_port().to_string()],
                ["--tls-cert-file", &file("cert")],
                ["--tls-key-file", &file("key")],
                ["--tls-ca-cert-file", &file("ca")],
            ];
            let all = [tls.concat(), options.to_vec()].concat();
            all.into_iter().map(str::to_owned).collect()
        })
    }

    pub fn tls_port(&self) -> &str {
        let mut options = self.options.iter();
        options.find(|option| *option == "--tls-port");
        options.next().expect("it speaks TLS")
    }

    pub fn with_password(password: &str) -> Self {
        let mut redis = Self::with(&["--requirepass", password]);
        redis.password = Some(password.to_owned());
        redis
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Runs redis-cli and returns its output.
    #[track_caller]
    pub fn cli(&self, args: &[&str]) -> String {
        let output = self.cli_output(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Like [`cli`](Self::cli), for a server that may be gone or may refuse; `None` without output.
    pub fn cli_if_there(&self, args: &[&str]) -> Option<String> {
        let output = self.cli_output(args);
        let said = String::from_utf8(output.stdout).unwrap();
        output.status.success().then_some(said)
    }

    fn cli_output(&self, args: &[&str]) -> Output {
        let mut command = Command::new(tool("redis-cli"));
        command.args(["-p", &self.port.to_string()]);
        if let Some(password) = &self.password {
            command.env("REDISCLI_AUTH", password);
        }
        command.args(args).output().unwrap()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        remove_rests_of(self.child.id());
    }

    pub fn restart(&mut self) {
        let clock = self.clock.as_deref();
        self.child = spawn(self.program, self.port, &self.folder, clock, &self.options);
        self.await_answer();
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it like a machine without time for it: connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).expect("the process is there");
    }

    /// All keys; they must be printable.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.cli(&["KEYS", "*"]);
        let keys = keys.lines().filter(|key| !key.is_empty());
        keys.map(str::to_owned).collect()
    }

    #[track_caller]
    pub fn keys_without_end(&self) -> i64 {
        // `db0:keys=3,expires=2,avg_ttl=0`
        let info = self.cli(&["INFO", "keyspace"]);
        let number = |name: &str| -> i64 {
            let numbers = info.split(['\r', '\n', ':', ',']);
            let numbers = numbers.filter_map(|part| part.strip_prefix(name));
            numbers.map(|number| number.parse::<i64>().unwrap()).sum()
        };
        number("keys=") - number("expires=")
    }

    pub fn number(&self, command: &[&str]) -> i64 {
        let text = self.cli(command);
        let number = text.trim().parse();
        number.unwrap_or_else(|_| panic!("{command:?} said {text:?}"))
    }

    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.cli(&["INFO", "commandstats"]);
        let calls = stats.split_once(&format!("cmdstat_{command}:calls="));
        let calls = calls.and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
        calls.unwrap_or(0)
    }

    pub fn monitor(&self) -> Monitor<'_> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
        Monitor {
            redis: self,
            lines: Log::follow(stream),
        }
    }
}

#[derive(Debug)]
pub struct Monitor<'a> {
    redis: &'a Redis,
    lines: Log,
}

impl Monitor<'_> {
    /// The commands of other clients so far, each as its words in quotes, without probes.
    pub fn commands(&self) -> Vec<String> {
        // Once this command has been recorded, so have all earlier ones.
        const LAST: &str = "the last word";
        self.redis.cli(&["ECHO", LAST]);
        let mut heard = String::new();
        wait_until("the monitor hears the last command", || {
            heard = self.lines.text();
            heard.contains(LAST)
        });
        let lines = heard.lines().filter(|line| !line.contains(LAST));
        let commands =
            lines.map(|line| line.split_once("] ").expect("[database client] command").1);
        let probes = ["\"PING\"", "\"TIME\"", "\"ROLE\""];
        let others = commands.filter(|command| !probes.contains(command));
        others.map(str::to_owned).collect()
    }
}

/// The first option may be a configuration file, which then contains everything except the port.
fn spawn(
    program: &str,
    port: u16,
    folder: &TempDir,
    clock: Option<&WallClock>,
    options: &[String],
) -> Child {
    let program = tool(program);
    let mut command = match clock {
        Some(clock) => {
            let mut command = clock.starter();
            command.arg(program);
            command
        }
        None => Command::new(program),
    };
    let port = port.to_string();
    match options.split_first() {
        Some((file, others)) if file.ends_with(".conf") => {
            command.arg(file).args(["--port", &port]).args(others);
        }
        _ => {
            command.args(["--port", &port, "--bind", "127.0.0.1"]);
            command
                .args(["--save", "", "--appendonly", "no"])
                .args(options);
        }
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.current_dir(folder.path()).spawn();
    child.expect("the server is installed")
}

fn answers(port: u16) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        // `+PONG`, or `-NOAUTH` from a server with a password.
        stream.read_exact(&mut [0; 1])
    };
    ask().is_ok()
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_rests_of(self.child.id());
    }
}
