//! A server whose standard error cannot be written, from some moment on: it has to go on as if nothing had happened.

use std::{
    fmt,
    fs::{self, File},
    io::{self, PipeReader},
    net::SocketAddr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use tokio::time::timeout;

use super::{
    PATIENCE, Process,
    ask::{Client, ask, connect, is_ok},
    finish, free_port, http,
    tollgate::program,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFault {
    Closed,
    /// The disk is full.
    Full,
    /// A pipe whose reader ends at this moment, or never reads.
    ReaderEnds(Moment),
    ReaderStalls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Start,
    /// The server is ready.
    Later,
    Reload,
    Stop,
}

/// The form of the log and of logged decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForm {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug)]
pub struct UnwritableLog {
    pub fault: LogFault,
    pub form: LogForm,
}

impl LogFault {
    pub const ALL: [Self; 7] = [
        Self::Closed,
        Self::Full,
        Self::ReaderEnds(Moment::Start),
        Self::ReaderEnds(Moment::Later),
        Self::ReaderEnds(Moment::Reload),
        Self::ReaderEnds(Moment::Stop),
        Self::ReaderStalls,
    ];
}

impl LogForm {
    pub const ALL: [Self; 2] = [Self::Text, Self::Json];
}

impl fmt::Display for LogFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Calls that are logged while the reader stalls: more than a pipe holds.
const STALLED_CALLS: usize = 1500;

/// Longest time for a call: no decision waits for the log.
const CALL: Duration = Duration::from_secs(10);

fn rules(limit: usize) -> String {
    format!("domain: d\ndescriptors: [{{key: k, rate_limits: [{limit}/10000years]}}]\n")
}

struct LoggingServer {
    process: Process,
    fault: LogFault,
    reader: Option<PipeReader>,
    rules: TempDir,
    grpc: SocketAddr,
    http: SocketAddr,
    debug: SocketAddr,
}

impl UnwritableLog {
    /// Serves, resets a counter, takes a reload, refuses another and takes a third, stops.
    ///
    /// # Errors
    ///
    /// The first step that did not go on.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut server = LoggingServer::start(self)?;
        server.until("it is ready", |server| {
            http::try_get(server.http, "/healthcheck", &[]).is_ok_and(|page| page.status == 200)
        })?;
        server.reach(Moment::Later);
        let mut client = connect(server.grpc).await;
        admits(&mut client, "a", 2).await?;
        if self.fault == LogFault::ReaderStalls {
            // Long, so that few lines fill a pipe.
            let value = "x".repeat(200);
            for _ in 0..STALLED_CALLS {
                decided(&mut client, &value).await?;
            }
        }
        server.reset("a")?;
        admits(&mut client, "a", 2).await?;
        server.reach(Moment::Reload);
        server.change_rules(&rules(3), "load_success", 2)?;
        admits(&mut client, "b", 3).await?;
        server.change_rules("domain: [", "load_error", 1)?;
        admits(&mut client, "c", 3).await?;
        server.change_rules(&rules(4), "load_success", 3)?;
        admits(&mut client, "d", 4).await?;
        server.check_counted()?;
        server.reach(Moment::Stop);
        let pid = Pid::from_raw(server.process.id().cast_signed());
        kill(pid, Signal::SIGTERM)?;
        let mut status = None;
        server.until("it stops", |server| {
            status = server.process.status();
            status.is_some()
        })?;
        let code = status.and_then(|status| status.code());
        ensure!(code == Some(0), "after SIGTERM its exit code is {code:?}");
        Ok(())
    }
}

async fn decided(client: &mut Client, value: &str) -> anyhow::Result<bool> {
    let answer = timeout(CALL, ask(client, "d", &[("k", value)])).await;
    let answer = answer.context("a decision waits for the log")?;
    if let Err(status) = &answer {
        anyhow::bail!("a call failed: {status}");
    }
    Ok(is_ok(&answer))
}

/// Checks that so many requests for this value are admitted, and no more.
async fn admits(client: &mut Client, value: &str, limit: usize) -> anyhow::Result<()> {
    let mut admitted = 0;
    for _ in 0..limit + 2 {
        admitted += usize::from(decided(client, value).await?);
    }
    ensure!(
        admitted == limit,
        "{admitted} of {value} passed, not {limit}"
    );
    Ok(())
}

impl LoggingServer {
    fn start(run: UnwritableLog) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        fs::write(folder.path().join("rules.yaml"), rules(2))?;
        let address = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (grpc, http, debug) = (address(), address(), address());
        let server = program();
        let form = match run.form {
            LogForm::Text => "text",
            LogForm::Json => "json",
        };
        let args = format!(
            "serve --workers 2 --drain-delay 0 --log-decisions all --log-format {form} --grpc-host 127.0.0.1 --grpc-port {} \
             --host 127.0.0.1 --port {} --debug-port {} --config-dir",
            grpc.port(),
            http.port(),
            debug.port()
        );
        // A shell can start a program without a descriptor.
        let is_closed = run.fault == LogFault::Closed;
        let script = format!("exec \"$@\" {}", if is_closed { "2>&-" } else { "" });
        let mut command = Command::new("/bin/sh");
        command
            .env_clear()
            .args(["-c", &script, "sh"])
            .arg(server.get_program());
        command
            .args(args.split(' '))
            .arg(folder.path())
            .stdout(Stdio::null());
        let mut reader = None;
        match run.fault {
            LogFault::Closed => {}
            LogFault::Full => {
                command.stderr(File::options().write(true).open("/dev/full")?);
            }
            LogFault::ReaderEnds(_) | LogFault::ReaderStalls => {
                let (read, write) = io::pipe()?;
                command.stderr(write);
                reader = Some(read);
            }
        }
        if run.fault == LogFault::ReaderEnds(Moment::Start) {
            reader = None;
        }
        Ok(Self {
            process: Process::start(&mut command),
            fault: run.fault,
            reader,
            rules: folder,
            grpc,
            http,
            debug,
        })
    }

    /// Ends the reader, if this is its moment.
    fn reach(&mut self, moment: Moment) {
        if self.fault == LogFault::ReaderEnds(moment) {
            self.reader = None;
        }
    }

    /// Waits until `is_so`, while the server runs.
    fn until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            // It may have ended since, as it should.
            if let Some(status) = self.process.status()
                && !is_so(self)
            {
                anyhow::bail!("not so: {what}; the server ended with {status}");
            }
            ensure!(Instant::now() < deadline, "not so in time: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn metric(&self, name: &str) -> Option<u64> {
        let page = http::try_get(self.debug, "/metrics", &[]).ok()?.body;
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value?.parse().ok()
    }

    /// Frees a counter, which is logged with its caller.
    fn reset(&self, value: &str) -> anyhow::Result<()> {
        let server = format!("http://{}", self.debug);
        let descriptor = format!("k={value}");
        let reset = ["counters", "reset", "--domain", "d", "-d", &descriptor];
        let output = finish(program().args(reset).args(["--server", &server]));
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "no counter can be reset: {text}");
        Ok(())
    }

    /// Writes other rules, and waits until the status counts so many loads of this kind.
    fn change_rules(&mut self, text: &str, kind: &str, loads: u64) -> anyhow::Result<()> {
        // Whole at once, as an orchestrator does it.
        let new = self.rules.path().join("new");
        fs::write(&new, text)?;
        fs::rename(&new, self.rules.path().join("rules.yaml"))?;
        let metric = format!("ratelimit_service_config_{kind}");
        self.until(&format!("{metric} is {loads}"), |server| {
            server.metric(&metric) == Some(loads)
        })
    }

    /// Checks that lost lines are counted, and where a closed descriptor leads.
    fn check_counted(&mut self) -> anyhow::Result<()> {
        match self.fault {
            LogFault::Closed => {
                let place = format!("/proc/{}/fd/2", self.process.id());
                let target = fs::read_link(place)?;
                ensure!(target.as_os_str() == "/dev/null", "lines go to {target:?}");
                Ok(())
            }
            // It loses lines when the process ends.
            LogFault::ReaderEnds(Moment::Stop) | LogFault::ReaderStalls => Ok(()),
            LogFault::Full | LogFault::ReaderEnds(_) => {
                let dropped = |server: &mut Self| server.metric("tollgate_log_lines_dropped_total");
                self.until("lost lines are counted", |server| dropped(server) > Some(0))
            }
        }
    }
}
