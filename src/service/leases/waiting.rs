//! Costs that certainly were not sent to a store: those of one counter wait as one sum, which is sent once the store is
//! back.

use std::{
    collections::{HashMap, hash_map::Entry},
    mem,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    core::{
        counter::{Batch, CounterKind, CounterStates, Increment, IncrementSpec, Reservation},
        request::Hits,
        window::Timestamp,
    },
    foundation::lock::lock,
    store::{
        contract::{Deadline, Store, StoreError},
        returns::pause,
    },
};

/// Costs of at most so many counters wait: about 5 MB.
const MAX_COUNTERS: usize = 16_384;

/// Costs wait no longer than this: a day.
const MAX_MILLIS: u64 = 86_400_000;

/// So many counters are charged at a time.
const TOGETHER: usize = 128;

/// The costs that wait. All workers share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingCosts(Arc<Mutex<CostTable>>);

#[derive(Debug, Default)]
struct CostTable {
    by_key: HashMap<Box<[u8]>, WaitingCost>,
    /// Whether a task sends them.
    is_in_work: bool,
}

#[derive(Clone, Copy, Debug)]
struct WaitingCost {
    spec: IncrementSpec,
    /// How many costs this is the sum of.
    costs: u64,
    /// When the first one came.
    at: Timestamp,
    since: Instant,
}

impl WaitingCost {
    fn is_over(&self) -> bool {
        let spec = &self.spec;
        let lasts = match spec.method {
            // So long until all tokens that it holds have flowed in.
            CounterKind::TokenBucket { rate } => {
                let parts = u128::from(spec.limit) * u128::from(spec.period_millis);
                u64::try_from(parts / u128::from(rate.get().max(1))).unwrap_or(u64::MAX)
            }
            _ => {
                let ends = spec.expires_at.millis();
                ends.saturating_sub(self.at.millis())
            }
        };
        self.since.elapsed() >= Duration::from_millis(lasts.min(MAX_MILLIS))
    }

    fn now(&self) -> Timestamp {
        self.at.plus(self.since.elapsed())
    }
}

impl CostTable {
    /// Adds a cost. Returns whether there was room.
    fn add(&mut self, key: &[u8], cost: WaitingCost) -> bool {
        let is_full = self.by_key.len() >= MAX_COUNTERS;
        match self.by_key.entry(key.into()) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.spec.hits = known
                    .spec
                    .hits
                    .saturating_add(cost.spec.hits)
                    .min(Hits::MAX);
                known.costs += cost.costs;
            }
            Entry::Vacant(_) if is_full => return false,
            Entry::Vacant(new) => {
                new.insert(cost);
            }
        }
        true
    }
}

impl WaitingCosts {
    /// Adds the costs of `batch`. Returns how many there was no room for, and whether [`Self::send`] has to be called.
    pub(crate) fn add(&self, batch: &Batch, at: Timestamp) -> (u64, bool) {
        let mut waiting = lock(&self.0);
        let mut lost = 0;
        for Increment { key, spec } in batch.iter() {
            let cost = WaitingCost {
                // A sum settles nothing.
                spec: IncrementSpec {
                    reservation: Reservation::None,
                    ..spec
                },
                costs: 1,
                at,
                since: Instant::now(),
            };
            lost += u64::from(!waiting.add(key, cost));
        }
        (lost, !mem::replace(&mut waiting.is_in_work, true))
    }

    /// [`Self::send`] is not called, because there is no room for more work.
    pub(crate) fn put_off(&self) {
        lock(&self.0).is_in_work = false;
    }

    /// Sends all until none is left. A cost that the store may have counted, or whose time is over, is lost; `lost`
    /// counts them.
    pub(crate) async fn send<S: Store + Clone>(&self, store: S, lost: impl Fn(u64)) {
        loop {
            pause().await;
            let mut all = {
                let mut waiting = lock(&self.0);
                if waiting.by_key.is_empty() {
                    waiting.is_in_work = false;
                    return;
                }
                mem::take(&mut waiting.by_key).into_iter()
            };
            let mut sent = JoinSet::new();
            loop {
                while sent.len() < TOGETHER
                    && let Some((key, cost)) = all.next()
                {
                    sent.spawn(send_one(store.clone(), key, cost));
                }
                let Some(answer) = sent.join_next().await else {
                    break;
                };
                match answer {
                    Ok((_, _, Ok(()))) | Err(_) => {}
                    Ok((key, cost, Err(error))) => {
                        let is_kept =
                            error.is_unsent() && !cost.is_over() && lock(&self.0).add(&key, cost);
                        if !is_kept {
                            lost(cost.costs);
                        }
                    }
                }
            }
        }
    }
}

async fn send_one<S: Store>(
    store: S,
    key: Box<[u8]>,
    cost: WaitingCost,
) -> (Box<[u8]>, WaitingCost, Result<(), StoreError>) {
    let mut batch = Batch::default();
    batch.append_one(Increment {
        key: &key,
        spec: cost.spec,
    });
    let mut counts = CounterStates::new();
    let deadline = Deadline::of_store_itself();
    let sent = store
        .add_into(&mut counts, &batch, cost.now(), &deadline)
        .await;
    (key, cost, sent)
}
