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
    /// Whether there is one call at a time.
    is_lone: bool,
    /// Connections so far.
    connections: Cell<usize>,
}

impl Cores {
    /// Binds each worker of `server`, which has had so many `connections`, to a core of its own, or nothing
    /// if there are not as many workers as cores.
    pub fn bind(server: Pid, connections: usize, is_lone: bool) -> anyhow::Result<Option<Self>> {
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
            is_lone,
            connections: Cell::new(connections),
        }))
    }

    /// Where the caller of the next connection is to be: beside the worker that serves it, for they are
    /// dealt out in turn, or elsewhere if it is alone.
    pub fn next(&self) -> usize {
        let connection = self.connections.replace(self.connections.get() + 1);
        if self.is_lone {
            self.others(connection).next().unwrap_or(self.of_workers[0])
        } else {
            self.worker(connection)
        }
    }

    /// The core of the worker that serves the last connection.
    pub fn last(&self) -> usize {
        self.worker(self.connections.get() - 1)
    }

    /// Where there is one call at a time, nobody is to share a core with whom he waits for. Binds `redis` to
    /// another one than that of the worker that serves the next connection.
    pub fn set_apart(&self, redis: Pid) -> anyhow::Result<()> {
        if !self.is_lone {
            return Ok(());
        }
        if let Some(core) = self.others(self.connections.get()).last() {
            for (_, thread) in threads(redis)? {
                bind(thread, core)?;
            }
        }
        Ok(())
    }

    fn worker(&self, connection: usize) -> usize {
        self.of_workers[connection % self.of_workers.len()]
    }

    fn others(&self, connection: usize) -> impl Iterator<Item = usize> {
        let own = self.worker(connection);
        self.of_workers
            .iter()
            .copied()
            .filter(move |core| *core != own)
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
