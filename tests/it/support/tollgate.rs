//! A tollgate process.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use tempfile::TempDir;

use super::{
    PATIENCE, finish, wait_until,
    wall_clock::{START, WallClock, remove_rests_of},
};

#[derive(Debug)]
pub struct Tollgate {
    child: Child,
    log: Log,
    rules: TempDir,
    /// Port 0 if it listens on a Unix socket.
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub debug: SocketAddr,
}

/// The lines on the process's standard error so far.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn text(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }

    /// All lines, once `text` is among them: a written line may not have been read yet when another effect is
    /// visible.
    #[track_caller]
    pub fn with(&self, text: &str) -> String {
        wait_until(text, || self.text().contains(text));
        self.text()
    }

    /// The times of the lines that contain `text`, in milliseconds since 1970.
    pub fn moments(&self, text: &str) -> Vec<u64> {
        let lines = self.0.lock().unwrap();
        let found = lines.iter().filter(|line| line.contains(text));
        let moment = |line: &String| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let moment: jiff::Timestamp = line["@timestamp"].as_str()?.parse().ok()?;
            u64::try_from(moment.as_millisecond()).ok()
        };
        found.filter_map(moment).collect()
    }

    pub(super) fn print_if_panicking(&self) {
        if std::thread::panicking() {
            eprintln!("the log of the server:\n{}", self.text());
        }
    }

    pub fn follow(from: impl std::io::Read + Send + 'static) -> Self {
        let log = Self::default();
        let lines = log.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                lines.0.lock().unwrap().push(line);
            }
        });
        log
    }

    fn ready_line(&self) -> Option<serde_json::Value> {
        let lines = self.0.lock().unwrap();
        let mut lines = lines.iter();
        serde_json::from_str(lines.find(|line| line.contains("tollgate is ready"))?).ok()
    }
}

#[derive(Debug)]
pub struct FailedStart {
    /// `None` if it did not end either.
    pub status: Option<ExitStatus>,
    log: Log,
}

#[derive(Debug)]
pub struct Builder {
    rules: TempDir,
    command: Command,
}

/// A server with one rule file; by default in memory, on free ports and without a drain delay.
pub fn with_rules(text: &str) -> Builder {
    builder().file("rules.yaml", text)
}

pub fn builder() -> Builder {
    let mut builder = bare();
    let Builder { rules, command } = &mut builder;
    command
        // As a variable, so that a test can override it by a flag.
        .env("TOLLGATE_DRAIN_DELAY", "0")
        .env("TOLLGATE_WORKERS", "2")
        // Rules that count locally know this number at once.
        .env("TOLLGATE_REPLICAS", "1")
        .args(["serve", "--log-format", "json"])
        .args(["--grpc-host", "127.0.0.1", "--grpc-port", "0"])
        .args(["--host", "127.0.0.1", "--port", "0", "--debug-port", "0"])
        .arg("--config-dir")
        .arg(rules.path());
    builder
}

/// A server without any settings, not even the folder of its rules. It must log JSON, or its ready line is not
/// recognised.
pub fn bare() -> Builder {
    let mut command = program();
    quiet(&mut command);
    Builder {
        rules: TempDir::new().unwrap(),
        command,
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
}

/// In an empty environment.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env_clear();
    command
}

impl Builder {
    pub fn rules(&self) -> &Path {
        self.rules.path()
    }

    pub fn file(self, name: &str, text: &str) -> Self {
        fs::write(self.rules.path().join(name), text).unwrap();
        self
    }

    pub fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Gives it another time of day: `offset` seconds from the true one, such as `-60s`. Durations stay true.
    pub fn with_clock(self, offset: &str) -> Self {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", START, "sh"])
            .arg(super::tool("faketime"));
        command.args(["--exclude-monotonic", "-f", offset]);
        self.started_by(command)
    }

    pub fn with_wall_clock(self, clock: &WallClock) -> Self {
        self.started_by(clock.starter())
    }

    pub fn on_a_terminal(self) -> Self {
        const SCRIPT: &str = "\
import os, pty, subprocess, sys
ours, theirs = pty.openpty()
child = subprocess.Popen(sys.argv[1:], stderr=theirs)
os.close(theirs)
try:
    while text := os.read(ours, 4096): os.write(2, text)
except OSError: pass
";
        let mut command = Command::new(super::tool("python3"));
        command.args(["-c", SCRIPT]);
        self.started_by(command)
    }

    pub fn with_files(self, soft: u32, hard: u32) -> Self {
        let mut command = Command::new("/bin/sh");
        let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$@\"");
        command.args(["-c", &script, "sh"]);
        self.started_by(command)
    }

    fn started_by(mut self, mut command: Command) -> Self {
        let envs = self.command.get_envs();
        let envs = envs.filter_map(|(name, value)| Some((name, value?)));
        command.env_clear().envs(envs).env("PATH", "/usr/bin:/bin");
        command
            .arg(self.command.get_program())
            .args(self.command.get_args());
        // It has a child process, which must end with it.
        quiet(&mut command).process_group(0);
        self.command = command;
        self
    }

    /// Counts in the Redis at `url`, with default settings.
    pub fn redis_by_default(self, url: &str) -> Self {
        self.args(["--redis-url", url])
    }

    /// Counts in `redis`. A busy machine makes Redis slow, so the deadline is far above the default.
    pub fn redis(self, redis: &super::redis::Redis) -> Self {
        self.redis_at(&redis.url(), "10s")
    }

    pub fn redis_at(self, url: &str, timeout: &str) -> Self {
        self.args(["--redis-url", url, "--redis-timeout", timeout])
    }

    #[track_caller]
    pub fn start(self) -> Tollgate {
        self.start_within(PATIENCE)
            .unwrap_or_else(|FailedStart { status, log }| {
                panic!("tollgate is not ready, {status:?}:\n{}", log.text())
            })
    }

    /// # Errors
    ///
    /// If it ends instead, or is not ready in time.
    pub fn start_within(mut self, patience: Duration) -> Result<Tollgate, FailedStart> {
        let mut child = self.command.spawn().expect("tollgate was built");
        let log = Log::follow(child.stderr.take().unwrap());
        let deadline = Instant::now() + patience;
        let ready = loop {
            if let Some(ready) = log.ready_line() {
                break ready;
            }
            let status = child.try_wait().unwrap();
            if status.is_some() || Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(FailedStart { status, log });
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let address = |name: &str| match ready[name].as_str().unwrap() {
            path if path.starts_with('/') => SocketAddr::from(([0, 0, 0, 0], 0)),
            address => address.parse().unwrap(),
        };
        Ok(Tollgate {
            grpc: address("grpc"),
            http: address("http"),
            debug: address("debug"),
            child,
            log,
            rules: self.rules,
        })
    }

    /// Starts it, expects it to fail, and returns its exit status and its output: messages of the log as their text,
    /// and behind them all lines as they were.
    #[track_caller]
    pub fn fail(mut self) -> (ExitStatus, String) {
        let output = finish(&mut self.command);
        let lines = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{lines}");
        let messages = lines.lines().filter_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            Some(line["@message"].as_str()?.to_owned())
        });
        let messages: Vec<_> = messages.collect();
        (output.status, format!("{}\n{lines}", messages.join("\n")))
    }
}

impl Tollgate {
    pub fn rules(&self) -> &Path {
        self.rules.path()
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    #[track_caller]
    pub fn page(&self, path: &str) -> String {
        let is_health = path.starts_with("/healthcheck");
        let port = if is_health { self.http } else { self.debug };
        super::http::get(port, path).body
    }

    #[track_caller]
    pub fn metric(&self, name: &str) -> u64 {
        let page = self.page("/metrics");
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("no {name} in\n{page}"));
        value.parse().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the process is there");
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("tollgate ended", || {
            status = self.try_wait();
            status.is_some()
        });
        status.unwrap()
    }

    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn resident_bytes(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The largest resident memory so far, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.memory("VmHWM:")
    }

    pub fn forget_peak(&self) {
        // proc(5): 5 resets the peak of the resident set.
        fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").unwrap();
    }

    fn memory(&self, which: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(which)).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1024
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Tollgate {
    fn drop(&mut self) {
        self.log.print_if_panicking();
        // It may already have ended, and only some processes lead a group.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_rests_of(self.child.id());
    }
}
