//! Work on leased hits for which no caller waits any more: answers that are followed, hits that are given back, and
//! costs that wait for the store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

use super::contract::{Deadline, Store, StoreError};
use crate::{
    core::{
        counter::{Batch, CounterStates, IncrementSpec},
        window::Timestamp,
    },
    foundation::{random, sample::SampleWriter},
};

/// About the time between attempts to reach a store that is away.
const RETRY: Duration = Duration::from_secs(1);

/// The most pieces of work of one worker. Each call that leases hits takes room for two before it sends them.
const MAX_WORK: usize = 8_192;

/// How often the end of all work is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// Takes work on behalf of the callers of one worker.
#[derive(Clone, Debug)]
pub struct Returns {
    /// A permit for each of [`MAX_WORK`].
    room: Arc<Semaphore>,
    stats: Arc<ReturnStats>,
}

/// Room for a piece of work, until that is done.
pub(crate) type OpenWork = OwnedSemaphorePermit;

/// Counts of all workers.
#[derive(Debug, Default)]
pub struct ReturnStats {
    /// Pieces of work for which there was no room.
    dropped: AtomicU64,
    /// Reservations that Redis may have charged, and whose answer never came.
    unanswered: AtomicU64,
}

impl ReturnStats {
    pub(crate) fn samples(&self, list: &mut SampleWriter<'_>) {
        list.total("tollgate.returns_dropped_total", &self.dropped);
        list.total("tollgate.unanswered_reservations_total", &self.unanswered);
    }
}

impl Returns {
    pub fn new(stats: Arc<ReturnStats>) -> Self {
        let room = Arc::new(Semaphore::new(MAX_WORK));
        Self { room, stats }
    }

    /// Waits until all work is done.
    pub(crate) async fn all_done(&self) {
        while self.room.available_permits() < MAX_WORK {
            sleep(LOOK).await;
        }
    }

    /// Room for a piece of work, if there is some.
    pub(crate) fn room(&self) -> Option<OpenWork> {
        self.room.clone().try_acquire_owned().ok()
    }

    /// Takes a piece of work. Returns whether there was room; what is dropped stays charged until its window ends.
    pub(crate) fn take(&self, work: impl Future<Output = ()> + Send + 'static) -> bool {
        let Some(room) = self.room() else {
            self.stats.dropped.fetch_add(1, Relaxed);
            return false;
        };
        self.take_in(room, work);
        true
    }

    /// Follows leased hits whose caller has left already.
    pub(crate) fn follow<S: Store>(
        &self,
        room: OpenWork,
        sending: impl Future<Output = SentLease<S>> + Send + 'static,
    ) {
        let stats = self.stats.clone();
        self.take_in(room, async move {
            let sent = sending.await;
            let is_unknown = sent.result.is_err_and(|error| !error.is_unsent());
            if is_unknown && sent.batch.all_specs().any(IncrementSpec::reserves) {
                stats.unanswered.fetch_add(1, Relaxed);
            }
            sent.take_back().await;
        });
    }

    /// Takes a piece of work that has room.
    pub(crate) fn take_in(&self, room: OpenWork, work: impl Future<Output = ()> + Send + 'static) {
        // Calls that are dropped at the end of the process have no runtime.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                work.await;
                drop(room);
            });
        }
    }
}

/// Leased hits that were sent to a store, and its answer.
pub(crate) struct SentLease<S> {
    store: S,
    now: Timestamp,
    pub(crate) batch: Box<Batch>,
    pub(crate) counts: CounterStates,
    pub(crate) result: Result<(), StoreError>,
}

impl<S: Store> SentLease<S> {
    /// Sends hits if there is room to follow them.
    pub(crate) async fn send(
        store: S,
        batch: Box<Batch>,
        now: Timestamp,
        deadline: Deadline,
        has_room: bool,
    ) -> Self {
        let mut counts = CounterStates::new();
        let result = match has_room {
            true => store.add_into(&mut counts, &batch, now, &deadline).await,
            false => Err(StoreError::Overloaded),
        };
        Self {
            store,
            now,
            batch,
            counts,
            result,
        }
    }

    /// Gives back the hits that were charged, and frees slots that may have been taken: no request uses them.
    pub(crate) async fn take_back(self) {
        if self.result.is_err_and(StoreError::is_unsent) {
            return;
        }
        if self.result.is_ok() {
            let returned = self.batch.returned(&self.counts);
            send_until_ended(&self.store, &returned, self.now, StoreError::is_unsent).await;
        }
        free_slots(&self.store, &self.batch.freed(), self.now).await;
    }
}

/// Frees slots. A slot is freed once, however often it is asked for, so each error leads to another attempt.
pub(crate) async fn free_slots<S: Store>(store: &S, freed: &Batch, now: Timestamp) {
    send_until_ended(store, freed, now, |_| true).await;
}

/// Sends hits that are taken off, and again after errors of this kind, until they have left anyway. Returns whether the
/// store took them.
pub(crate) async fn send_until_ended<S: Store>(
    store: &S,
    batch: &Batch,
    now: Timestamp,
    may_be_sent_again: fn(StoreError) -> bool,
) -> bool {
    if batch.is_empty() {
        return true;
    }
    let lasts = batch.all_specs().map(|spec| spec.period_millis).max();
    let (began, lasts) = (Instant::now(), Duration::from_millis(lasts.unwrap_or(0)));
    loop {
        match store.add(batch, now).await {
            Ok(_) => return true,
            Err(error) if may_be_sent_again(error) && began.elapsed() < lasts => pause().await,
            Err(_) => return false,
        }
    }
}

/// Waits before a store is asked again that was away.
pub(crate) async fn pause() {
    sleep(random::between(RETRY / 2, RETRY)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_and_too_much_of_it_is_dropped() {
        let returns = Returns::new(Arc::default());
        let done = Arc::<AtomicU64>::default();
        let take = || {
            let done = done.clone();
            returns.take(async move { _ = done.fetch_add(1, Relaxed) })
        };
        let taken = (0..MAX_WORK + 10).filter(|_| take()).count();
        let dropped = returns.stats.dropped.load(Relaxed);
        assert_eq!((taken, dropped), (MAX_WORK, 10));
        returns.all_done().await;
        assert_eq!(done.load(Relaxed), MAX_WORK as u64);
        assert!(take());
    }
}
