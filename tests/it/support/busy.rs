//! Machines that have no time for a process: it is stopped in turns, or others take the cores.

use std::{
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::Process;

/// Stops a process and lets it go on, in turns, as a CPU quota does. It goes on when this is dropped.
#[derive(Debug)]
pub struct Pauses {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How long a process is stopped, and how long it then runs.
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
    /// The turns come one after the other, and again from the first.
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

/// So many processes that do nothing but take processor time, at the usual priority. Killed on drop.
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
