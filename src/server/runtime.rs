//! The runtime of the main thread and of each worker.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// A current-thread runtime: a task never moves to another core, so no wake-up crosses cores.
pub(super) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
