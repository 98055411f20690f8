//! Threads: locks that a panic elsewhere does not poison, and work on a thread of the blocking pool.

use std::{
    panic::resume_unwind,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A panic elsewhere cannot leave the values behind these locks half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on a thread of the blocking pool. A panic there goes on in the task that waits, so that the end of the
/// work is the end of the task.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime ends before the work began, and the task with it.
            Err(_cancelled) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_on_the_other_thread_is_one_of_the_task() {
        assert_eq!(blocking(|| 7).await, 7);
        let ended = tokio::task::LocalSet::new()
            .run_until(async { tokio::task::spawn_local(blocking(|| panic!("broken"))).await })
            .await;
        let panic: Box<dyn std::any::Any> = ended.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref(), Some(&"broken"));
    }
}
