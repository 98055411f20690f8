//! The runtime of the main thread and of each worker.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// A current-thread runtime. Its tasks never move to another thread, so no wake-up crosses cores.
pub(super) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
