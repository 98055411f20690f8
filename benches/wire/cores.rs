//! Who runs on which core. A caller that shares a core with the worker it talks to takes half the
//! processor time of one that does not, and spares the worker a sixth of its own. Left to the kernel
//! that is luck, which each turn has or has not, so every turn is given the same.

use std::{cell::Cell, fs};

use anyhow::Context as _;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid as Thread,
};

use crate::processes::Pid;

/// The cores that a server's workers were bound to, in the order in which they are given connections.
#[derive(Debug)]
pub struct Cores {
    of_workers: Vec<usize>,
    /// Connections so far.
    connections: Cell<usize>,
}

impl Cores {
    /// Binds each worker of `server`, which has had one connection, to a core of its own, or nothing if
    /// there are not as many workers as cores.
    pub fn bind(server: Pid) -> anyhow::Result<Option<Self>> {
        let free = sched_getaffinity(Thread::from_raw(0))?;
        let free = (0..CpuSet::count()).filter(|core| free.is_set(*core).unwrap_or(false));
        let free: Vec<usize> = free.collect();
        let mut workers = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", server.0))? {
            let thread = thread?;
            let name = fs::read_to_string(thread.path().join("comm"))?;
            // As tollgate calls them; other servers deal their work out in other ways.
            if let Some(number) = name.trim().strip_prefix("worker-") {
                let id = thread.file_name().to_string_lossy().parse()?;
                workers.push((number.parse::<usize>()?, Thread::from_raw(id)));
            }
        }
        workers.sort();
        if workers.len() != free.len() {
            return Ok(None);
        }
        for ((_, worker), core) in workers.iter().zip(&free) {
            bind(*worker, *core)?;
        }
        Ok(Some(Self {
            of_workers: free,
            connections: Cell::new(1),
        }))
    }

    /// The core of the worker that serves the next connection: they are dealt out in turn.
    pub fn next(&self) -> usize {
        let connection = self.connections.replace(self.connections.get() + 1);
        self.of_workers[connection % self.of_workers.len()]
    }
}

/// Binds this thread.
pub fn bind_here(core: usize) -> anyhow::Result<()> {
    bind(Thread::from_raw(0), core)
}

fn bind(thread: Thread, core: usize) -> anyhow::Result<()> {
    let mut only = CpuSet::new();
    only.set(core)?;
    sched_setaffinity(thread, &only).context("a thread cannot be bound to a core")
}
