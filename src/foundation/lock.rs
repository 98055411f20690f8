//! Locks that a panic elsewhere does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic elsewhere cannot leave the values behind these locks half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
