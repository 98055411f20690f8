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
    /// Binds each worker of `server`, which has had so many `connections`, to a core of its own, or nothing
    /// if there are not as many workers as cores.
    pub fn bind(server: Pid, connections: usize) -> anyhow::Result<Option<Self>> {
        let free = sched_getaffinity(Thread::from_raw(0))?;
        let free = (0..CpuSet::count()).filter(|core| free.is_set(*core).unwrap_or(false));
        let free: Vec<usize> = free.collect();
        let mut workers = Vec::new();
        for (name, thread) in threads(server)? {
            // As tollgate calls them; other servers deal their work out in other ways.
            if let Some(number) = name.strip_prefix("worker-") {
                workers.push((number.parse::<usize>()?, thread));
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
            connections: Cell::new(connections),
        }))
    }

    /// The core of the worker that serves the next connection: they are dealt out in turn.
    pub fn next(&self) -> usize {
        let connection = self.connections.replace(self.connections.get() + 1);
        self.of_workers[connection % self.of_workers.len()]
    }

    /// The core of the worker that serves the last connection.
    pub fn last(&self) -> usize {
        self.of_workers[(self.connections.get() - 1) % self.of_workers.len()]
    }

    /// Binds `redis` to another core than that of the next connection, if there is one. A lone caller waits
    /// for each of them in turn, and it takes a quarter longer to wake one up elsewhere.
    pub fn set_apart(&self, redis: Pid) -> anyhow::Result<()> {
        let core = self.of_workers[(self.connections.get() + 1) % self.of_workers.len()];
        for (_, thread) in threads(redis)? {
            bind(thread, core)?;
        }
        Ok(())
    }
}

/// The threads of a process, by name.
fn threads(process: Pid) -> anyhow::Result<Vec<(String, Thread)>> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.0))?.map(|thread| {
        let thread = thread?;
        let name = fs::read_to_string(thread.path().join("comm"))?;
        let id = thread.file_name().to_string_lossy().parse()?;
        Ok((name.trim().to_owned(), Thread::from_raw(id)))
    });
    threads.collect()
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
