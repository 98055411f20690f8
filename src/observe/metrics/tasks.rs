//! The count of tasks of the server that ended while it served.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::foundation::sample::SampleWriter;

/// Tasks that ended although they should have gone on.
#[derive(Debug, Default)]
pub struct EndedTasks(AtomicU64);

impl EndedTasks {
    /// Counts one end.
    pub fn count(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        list.counter("tollgate.tasks_ended_total", self.0.load(Relaxed));
    }
}
