//! Machines without time for a process: the process is paused at intervals, or other processes use the cores. Also
//! measures how late Redis was meanwhile, since it may be affected too.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Process, redis::Redis};

/// Pauses and continues a process in turns, as a CPU quota does. The drop lets it continue.
#[derive(Debug)]
pub struct Pauses {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How long a process is paused, and how long it then runs.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub stopped: Duration,
    pub runs: Duration,
}

impl Turn {
    pub const fn millis(stopped: u64, runs: u64) -> Self {
        Self {
            stopped: Duration::from_millis(stopped),
            runs: Duration::from_millis(runs),
        }
    }
}

impl Pauses {
    /// The turns follow each other, and then start again.
    pub fn of(process: u32, turns: Vec<Turn>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let process = Pid::from_raw(i32::try_from(process).unwrap());
        let seen = is_over.clone();
        let thread = thread::spawn(move || {
            for turn in turns.iter().cycle() {
                if seen.load(Relaxed) {
                    return;
                }
                kill(process, Signal::SIGSTOP).expect("it runs");
                thread::sleep(turn.stopped);
                kill(process, Signal::SIGCONT).expect("it was stopped");
                thread::sleep(turn.runs);
            }
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts processes that only use processor time, at the usual priority. Killed on drop.
pub fn loops(count: usize) -> Vec<Process> {
    let busy = || {
        let mut command = Command::new("sh");
        command
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Process::start(&mut command)
    };
    (0..count).map(|_| busy()).collect()
}

/// Sends Redis a request every few milliseconds. A machine without time for Redis makes it late for all clients,
/// which is no fault of theirs.
#[derive(Debug)]
pub struct Witness {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Witness {
    pub fn of(redis: &Redis) -> Self {
        let mut stream = TcpStream::connect(redis.address()).expect("it listens");
        stream.set_nodelay(true).expect("it is a socket");
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !seen.load(Relaxed) {
                let asked = Instant::now();
                stream.write_all(b"PING\r\n").expect("it reads");
                stream.read_exact(&mut [0; 7]).expect("it answers");
                longest = longest.max(asked.elapsed());
                thread::sleep(Duration::from_millis(5));
            }
            longest
        });
        Self { is_over, thread }
    }

    /// Returns the longest time of an answer.
    pub fn end(self) -> Duration {
        self.is_over.store(true, Relaxed);
        self.thread.join().expect("it answered all the time")
    }
}
