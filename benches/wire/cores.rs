//! Assigns threads to cores. A caller on its worker's core needs half the processor time of a caller on another core,
//! and saves the worker a sixth of its own. The kernel would decide that by chance, differently in each turn, so
//! every turn gets a fixed assignment.

use std::{cell::Cell, fs};

use anyhow::Context as _;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid as Thread,
};

use crate::processes::Pid;

/// The cores of a server's workers, in the order in which the workers get connections.
#[derive(Debug)]
pub struct Cores {
    of_workers: Vec<usize>,
    /// Whether the load is one call at a time.
    is_lone: bool,
    /// Number of connections so far.
    connections: Cell<usize>,
}

impl Cores {
    /// Binds each worker of `server` to a core of its own, after `connections` earlier connections. `None` if there
    /// are not as many workers as cores.
    pub fn bind(server: Pid, connections: usize, is_lone: bool) -> anyhow::Result<Option<Self>> {
        let free = sched_getaffinity(Thread::from_raw(0))?;
        let free = (0..CpuSet::count()).filter(|core| free.is_set(*core).unwrap_or(false));
        let free: Vec<usize> = free.collect();
        let mut workers = Vec::new();
        for (name, thread) in threads(server)? {
            // The names of tollgate's threads; other servers distribute their work differently.
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

    /// The core for the caller of the next connection: that of the worker that serves it, since workers take turns,
    /// or another one if there is only one call at a time.
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

    /// With one call at a time, no thread may share a core with one that it waits for. Binds `redis` to another core
    /// than that of the worker that serves the next connection.
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

/// The threads of a process, with their names.
fn threads(process: Pid) -> anyhow::Result<Vec<(String, Thread)>> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.0))?.map(|thread| {
        let thread = thread?;
        let name = fs::read_to_string(thread.path().join("comm"))?;
        let id = thread.file_name().to_string_lossy().parse()?;
        Ok((name.trim().to_owned(), Thread::from_raw(id)))
    });
    threads.collect()
}

/// Binds the calling thread.
pub fn bind_here(core: usize) -> anyhow::Result<()> {
    bind(Thread::from_raw(0), core)
}

fn bind(thread: Thread, core: usize) -> anyhow::Result<()> {
    let mut only = CpuSet::new();
    only.set(core)?;
    sched_setaffinity(thread, &only).context("a thread cannot be bound to a core")
}
