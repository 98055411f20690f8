//! Processes under measurement: starting them, and reading their figures from the operating system.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

/// Longest time until a process's first answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The id of a process, started by this program or not.
#[derive(Clone, Copy, Debug)]
pub struct Pid(pub u32);

impl Pid {
    /// Processor time so far, in seconds, of all threads together.
    pub fn cpu_secs(self) -> anyhow::Result<f64> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.0)).context("it has ended")? {
            // A thread may end during the loop.
            let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else {
                continue;
            };
            let on_cpu = text.split(' ').next().context("an empty schedstat")?;
            nanos += on_cpu.parse::<u64>()?;
        }
        Ok(nanos as f64 / 1e9)
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.context("no VmRSS")?.trim().trim_end_matches(" kB");
        Ok(kib.parse::<u64>()? * 1024)
    }
}

/// A server. Killed on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pub address: SocketAddr,
    /// The debug port of tollgate.
    pub debug: Option<SocketAddr>,
    files: TempDir,
}

impl Process {
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Replaces its rules.
    pub fn replace_rules(&self, rules: &str) -> anyhow::Result<()> {
        let folder = self.files.path();
        fs::write(folder.join(".new"), rules)?;
        fs::rename(folder.join(".new"), folder.join("rules.yaml"))?;
        Ok(())
    }

    /// Starts tollgate from the file `program`, with the rules of one file and `more` arguments.
    pub fn tollgate(program: &Path, rules: &str, more: &[String]) -> anyhow::Result<Self> {
        let files = TempDir::new()?;
        fs::write(files.path().join("rules.yaml"), rules)?;
        let mut command = Command::new(program);
        command
            .env_clear()
            .args(["serve", "--log-format", "json", "--grpc-host", "127.0.0.1"])
            .args(["--grpc-port", "0", "--host", "127.0.0.1", "--port", "0"])
            .args(["--debug-port", "0"])
            .arg("--config-dir")
            .arg(files.path())
            .args(more);
        Self::start(command, files, |line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let address = |name: &str| line[name].as_str()?.parse().ok();
            Some((address("grpc")?, address("debug")))
        })
    }

    /// Starts one of the servers in this program.
    pub fn rival(name: &str, workers: usize, redis: Option<SocketAddr>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--rival", name, "--workers", &workers.to_string()]);
        if let Some(redis) = redis {
            command.args(["--redis", &redis.to_string()]);
        }
        let address = |line: &str| Some((line.trim().parse().ok()?, None));
        Self::start(command, TempDir::new()?, address)
    }

    /// Starts the command and waits for the line on standard error with its address, and with that of its debug port if
    /// it has one.
    pub fn start(
        mut command: Command,
        files: TempDir,
        addresses: impl Fn(&str) -> Option<(SocketAddr, Option<SocketAddr>)>,
    ) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take().context("standard error is a pipe")?;
        let mut process = Self {
            child,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            debug: None,
            files,
        };
        (process.address, process.debug) = first_line(stderr, addresses)?;
        Ok(process)
    }
}

/// The first line that `meaning` accepts; later lines are read and dropped.
fn first_line<T>(stderr: ChildStderr, meaning: impl Fn(&str) -> Option<T>) -> anyhow::Result<T> {
    let mut lines = BufReader::new(stderr).lines();
    let mut said = String::new();
    while let Some(line) = lines.next() {
        let line = line?;
        if let Some(meaning) = meaning(&line) {
            thread::spawn(move || lines.for_each(drop));
            return Ok(meaning);
        }
        said += &line;
        said.push('\n');
    }
    bail!("a server ended before it was ready:\n{said}")
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Redis server that stores nothing on disk. Killed on drop.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    pub address: SocketAddr,
    questions: TcpStream,
    _files: TempDir,
}

impl Redis {
    pub fn start() -> anyhow::Result<Self> {
        for _ in 0..10 {
            // Another process may take the port before Redis does.
            let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
            let files = TempDir::new()?;
            let mut child = Command::new("redis-server")
                .args(["--port", &address.port().to_string()])
                .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
                .arg("--dir")
                .arg(files.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .context("redis-server is not installed: run `make tools`")?;
            if let Some(questions) = connect(&mut child, address)? {
                questions.set_nodelay(true)?;
                return Ok(Self {
                    child,
                    address,
                    questions,
                    _files: files,
                });
            }
        }
        bail!("redis-server does not start")
    }

    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// The counts of Redis itself so far, including this query.
    pub fn counted(&mut self) -> anyhow::Result<Counted> {
        let info = self.info("everything")?;
        let scripts = calls(&info, &["evalsha", "eval"]);
        // A rule whose hits need a script has no other commands on its counters.
        let within_scripts = match scripts {
            0 => 0,
            _ => calls(
                &info,
                &[
                    "get", "set", "incrby", "expire", "pexpire", "ttl", "pttl", "time",
                ],
            ),
        };
        let commands = number(&info, "total_commands_processed:")?;
        Ok(Counted {
            commands: commands.saturating_sub(within_scripts),
            reads: number(&info, "total_reads_processed:")?,
            used_bytes: number(&info, "used_memory:")?,
            keys: number(&info, "db0:keys=").unwrap_or(0),
        })
    }

    /// How many commands on counters, and scripts, it has carried out: those of probes are left out.
    pub fn counting_commands(&mut self) -> anyhow::Result<u64> {
        let info = self.info("commandstats")?;
        let names = ["evalsha", "eval", "incrby", "incr", "get", "expire"];
        Ok(calls(&info, &names))
    }

    fn info(&mut self, section: &str) -> anyhow::Result<String> {
        self.questions
            .write_all(format!("INFO {section}\r\n").as_bytes())?;
        let mut reply = Vec::new();
        loop {
            let mut bytes = [0; 16 << 10];
            let count = self.questions.read(&mut bytes)?;
            reply.extend_from_slice(&bytes[..count]);
            let text = String::from_utf8_lossy(&reply);
            if let Some((head, body)) = text.split_once("\r\n") {
                let length: usize = head.trim_start_matches('$').parse()?;
                if body.len() >= length + 2 {
                    return Ok(body.to_owned());
                }
            }
        }
    }

    /// The duration of one PING.
    pub fn ping(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.questions.write_all(b"PING\r\n")?;
        let mut reply = [0; 7];
        self.questions.read_exact(&mut reply)?;
        Ok(began.elapsed())
    }
}

/// How often Redis has carried out these commands, within scripts too, by its own statistics.
fn calls(info: &str, names: &[&str]) -> u64 {
    let of = |name: &&str| number(info, &format!("cmdstat_{name}:calls=")).unwrap_or(0);
    names.iter().map(of).sum()
}

/// Waits until `child` accepts a connection, or ends.
fn connect(child: &mut Child, address: SocketAddr) -> anyhow::Result<Option<TcpStream>> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if child.try_wait()?.is_some() {
            return Ok(None);
        }
        if let Ok(stream) = TcpStream::connect(address) {
            return Ok(Some(stream));
        }
        thread::sleep(Duration::from_millis(5));
    }
    bail!("redis-server does not answer")
}

/// Counts of a Redis server since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Those that a client sent.
    pub commands: u64,
    /// Reads from sockets with commands: a pipeline that is not too long is one.
    pub reads: u64,
    pub used_bytes: u64,
    pub keys: u64,
}

fn number(info: &str, name: &str) -> anyhow::Result<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name));
    let text = line.with_context(|| format!("no {name} in INFO"))?;
    let digits = text.split(',').next().unwrap_or(text);
    Ok(digits.parse()?)
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
