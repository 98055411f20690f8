//! Bounds and counts of waiting requests and batchers.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use crate::store::contract::StoreError;

/// How many requests of one worker may wait at a time, for all nodes together.
#[derive(Debug)]
pub(super) struct WaitPermits {
    taken: AtomicUsize,
    max: usize,
}

impl WaitPermits {
    pub(super) fn new(max: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            max,
        }
    }

    pub(super) fn take(&self) -> Result<(), StoreError> {
        if self.taken.fetch_add(1, Relaxed) >= self.max {
            self.give_back(1);
            return Err(StoreError::Overloaded);
        }
        Ok(())
    }

    pub(super) fn give_back(&self, permits: usize) {
        self.taken.fetch_sub(permits, Relaxed);
    }
}

/// Adds one to a count until it is dropped.
pub(super) struct CountGuard<'a>(&'a AtomicU32);

impl<'a> CountGuard<'a> {
    pub(super) fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
