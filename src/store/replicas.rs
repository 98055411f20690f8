//! Finds out how many replicas count in a store, by counting in it.
//!
//! Each replica adds one hit to a counter of ten seconds, once in each window, and looks at the window
//! before. The counter belongs to no domain, so no request can use it.

use std::{
    convert::Infallible,
    num::NonZeroU32,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{
    contract::{Deadline, Store, StoreError},
    loss::{LossStats, ReplicaCount},
};
use crate::core::{
    counter::{Batch, CounterStates, Identity, Increment, IncrementSpec},
    limit::Limit,
    request::Hits,
    window::{Period, SteadyTime, Timestamp, Unit, Window},
};

/// The length of a window in seconds: a replica that left is counted for up to two of them.
const WINDOW_SECS: NonZeroU32 = NonZeroU32::new(10).expect("10 is not 0");

/// How often the counter is looked at, so that a new replica is seen as soon.
const LOOK: Duration = Duration::from_secs(1);

/// Counts the replicas, once for the process.
#[derive(Debug)]
pub(crate) struct Replicas<S> {
    store: S,
    number: Arc<ReplicaCount>,
    stats: Arc<LossStats>,
    limit: Limit,
    identity: Identity,
    /// The window in which this replica has tried to count itself.
    own: Option<Window>,
    /// The count of the present window at the last look.
    held: u64,
    /// Since when every look succeeded and found no less than before.
    well_since: Option<SteadyTime>,
}

impl<S: Store> Replicas<S> {
    /// Keeps the replicas that it counts in `store` in `number` and shows them in `stats`.
    pub(crate) fn new(store: S, number: Arc<ReplicaCount>, stats: Arc<LossStats>) -> Self {
        let mut identity = Identity::default();
        identity.set(b"", &[], &[]);
        let period = Period::new(Unit::Second, WINDOW_SECS).expect("ten seconds are within bounds");
        Self {
            store,
            number,
            stats,
            limit: Limit::fixed(u32::MAX.into(), period),
            identity,
            own: None,
            held: 0,
            well_since: None,
        }
    }

    /// Runs as long as the process. `now` reads the clock for windows. It counts nothing while
    /// `is_needed` returns `false`.
    pub(crate) async fn run(
        mut self,
        now: impl Fn() -> Timestamp,
        mut is_needed: impl FnMut() -> bool,
    ) -> Infallible {
        loop {
            if is_needed() {
                // A lost store is reported elsewhere; the last number holds meanwhile.
                let _ = self.look(now(), &Deadline::of_store()).await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&mut self, now: Timestamp, deadline: &Deadline) -> Result<(), StoreError> {
        let window = self.limit.window(now);
        let length = Duration::from_secs(self.limit.period.secs());
        let before = now.minus(length);
        let is_new = self.own != Some(window);
        // Set before sending: a hit without an answer may have counted, and is not sent again.
        self.own = Some(window);
        let mut batch = Batch::default();
        self.push(
            &mut batch,
            now,
            if is_new { Hits::ONE } else { Hits::add(0) },
        );
        self.push(&mut batch, before, Hits::add(0));
        let mut counts = CounterStates::new();
        let added = self
            .store
            .add_into(&mut counts, &batch, now, deadline)
            .await;
        added.inspect_err(|_| self.well_since = None)?;
        let [present, previous] = counts[..] else {
            return Err(StoreError::Refused);
        };
        if !is_new && present.after < self.held {
            // The store came back empty.
            self.well_since = None;
        }
        self.held = present.after;
        let steady = deadline.steady();
        let well_since = *self.well_since.get_or_insert(steady);
        let seen = present.after.max(previous.after).max(1);
        let seen = u32::try_from(seen).unwrap_or(u32::MAX);
        // In a window during which the store was away, some replicas are missing.
        let start = self.limit.window(before).start;
        let age = Duration::from_millis(now.millis().saturating_sub(start.millis()));
        let is_whole = steady.since(well_since) >= age;
        self.number.count(seen, is_whole, steady);
        self.stats
            .replicas
            .store(self.number.known().into(), Relaxed);
        Ok(())
    }

    fn push(&self, batch: &mut Batch, at: Timestamp, hits: Hits) {
        let mut one = Batch::default();
        one.push(&self.identity, &self.limit, at, hits);
        for increment in one.iter() {
            // The counter is still read in the next window.
            let length = Duration::from_secs(self.limit.period.secs());
            let spec = IncrementSpec {
                expires_at: increment.expires_at.plus(length),
                ..increment.spec
            };
            batch.append_one(Increment { spec, ..increment });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::runtime::Builder;

    use super::*;
    use crate::store::memory::MemoryStore;

    const START: u64 = 1_795_230_000;

    /// Replicas of one store, and the numbers they see when all look this many seconds after a window
    /// began. A replica that is not in the list does not run.
    struct Course {
        store: Arc<MemoryStore>,
        all: Vec<Replicas<Arc<MemoryStore>>>,
        /// The clock that cannot be set, when the window began.
        began: Instant,
    }

    impl Course {
        fn new() -> Self {
            Self {
                store: Arc::new(MemoryStore::new(100)),
                all: Vec::new(),
                began: Instant::now(),
            }
        }

        fn join(&mut self) {
            let replica = Replicas::new(self.store.clone(), Arc::default(), Arc::default());
            self.all.push(replica);
        }

        #[track_caller]
        fn check(&mut self, secs: u64, expected: &[u32]) {
            let runtime = Builder::new_current_thread().build().unwrap();
            let now = Timestamp::from_secs(START + secs);
            self.store.sweep(now);
            let deadline = Deadline::of_call(self.began + Duration::from_secs(secs), None);
            for replica in &mut self.all {
                runtime.block_on(replica.look(now, &deadline)).unwrap();
            }
            let seen = self.all.iter().map(|one| one.number.known());
            assert_eq!(seen.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn who_comes_is_seen_at_once_and_who_leaves_is_forgotten_in_two_windows() {
        let mut course = Course::new();
        course.join();
        course.check(3, &[1]);
        course.join();
        course.check(4, &[1, 2]);
        course.check(5, &[2, 2]);
        course.check(10, &[2, 2]);
        course.check(20, &[2, 2]);
        course.check(29, &[2, 2]);
        course.all.pop();
        course.check(30, &[2]);
        course.check(39, &[2]);
        course.check(40, &[1]);
    }

    #[test]
    fn a_store_that_comes_back_empty_makes_nobody_forget() {
        let mut course = Course::new();
        for _ in 0..3 {
            course.join();
        }
        course.check(1, &[1, 2, 3]);
        course.check(2, &[3, 3, 3]);
        course.check(15, &[3, 3, 3]);
        course.check(25, &[3, 3, 3]);
        course.store = Arc::new(MemoryStore::new(100));
        for replica in &mut course.all {
            replica.store = course.store.clone();
        }
        course.check(26, &[3, 3, 3]);
        course.all.truncate(2);
        course.check(30, &[3, 3]);
        course.check(39, &[3, 3]);
        course.check(40, &[2, 2]);
    }

    #[test]
    fn no_request_can_have_its_counter() {
        let replicas = Replicas::new(MemoryStore::new(1), Arc::default(), Arc::default());
        let mut batch = Batch::default();
        replicas.push(&mut batch, Timestamp::from_secs(START), Hits::ONE);
        let key = batch.iter().next().map(|increment| increment.key.to_vec());
        assert_eq!(key.unwrap(), b"{0:}10@179523000");
    }
}
