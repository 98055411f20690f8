//! Other programs that compete for the processor.

use std::{
    hint,
    io::{self, Read as _},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// Processes that are never idle. Killed on drop.
#[derive(Debug)]
pub struct Busy(Vec<Child>);

impl Busy {
    pub fn start(count: usize) -> anyhow::Result<Self> {
        let mut busy = Self(Vec::new());
        for _ in 0..count {
            let mut command = Command::new(std::env::current_exe()?);
            // Its standard input ends when this process does, in any way.
            let child = command.arg("--spin").stdin(Stdio::piped()).spawn()?;
            busy.0.push(child);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may already have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Keeps a core busy until standard input ends.
pub fn spin() {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        // An error counts as the end.
        let _ = io::stdin().read(&mut [0]);
        IS_OVER.store(true, Relaxed);
    });
    while !IS_OVER.load(Relaxed) {
        hint::spin_loop();
    }
}
