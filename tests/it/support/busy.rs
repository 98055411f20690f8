//! Machines without time for a process: the process is paused at intervals, or other processes use the cores. Also
//! measures how late Redis was meanwhile, since it may be affected too.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
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

/// A thread that goes on until it is ended.
#[derive(Debug)]
struct Going<T> {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Going<T> {
    fn start(run: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        Self {
            is_over,
            thread: Some(thread::spawn(move || run(&seen))),
        }
    }

    fn end(&mut self) -> thread::Result<T> {
        self.is_over.store(true, Relaxed);
        self.thread.take().expect("it is ended once").join()
    }
}

/// Pauses and continues a process in turns, as a CPU quota does. The drop lets it continue.
#[derive(Debug)]
pub struct Pauses(Going<()>);

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
        let process = Pid::from_raw(i32::try_from(process).unwrap());
        Self(Going::start(move |is_over| {
            for turn in turns.iter().cycle() {
                if is_over.load(Relaxed) {
                    return;
                }
                kill(process, Signal::SIGSTOP).expect("it runs");
                thread::sleep(turn.stopped);
                kill(process, Signal::SIGCONT).expect("it was stopped");
                thread::sleep(turn.runs);
            }
        }))
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        let _ = self.0.end();
    }
}

/// Starts processes that only use processor time, at the usual priority. Killed on drop.
pub fn loops(count: usize) -> Vec<Process> {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    (0..count)
        .map(|_| Process::start_quietly(&mut command))
        .collect()
}

/// Sends Redis a request every few milliseconds. A machine without time for Redis makes it late for all clients,
/// which is no fault of theirs.
#[derive(Debug)]
pub struct Witness(Going<Duration>);

impl Witness {
    pub fn of(redis: &Redis) -> Self {
        let mut stream = TcpStream::connect(redis.address()).expect("it listens");
        stream.set_nodelay(true).expect("it is a socket");
        Self(Going::start(move |is_over| {
            let mut longest = Duration::ZERO;
            while !is_over.load(Relaxed) {
                let asked = Instant::now();
                stream.write_all(b"PING\r\n").expect("it reads");
                stream.read_exact(&mut [0; 7]).expect("it answers");
                longest = longest.max(asked.elapsed());
                thread::sleep(Duration::from_millis(5));
            }
            longest
        }))
    }

    /// Returns the longest time of an answer.
    pub fn end(mut self) -> Duration {
        self.0.end().expect("it answered all the time")
    }
}
