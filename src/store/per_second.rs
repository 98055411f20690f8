//! Counts limits per second in a store of their own. Most of the load is theirs, and the loss of their counts matters
//! least.

use super::{
    contract::{Deadline, Store, StoreError, StoreState},
    split::{PartStores, Split},
};
use crate::core::{
    counter::{Batch, CounterStates},
    window::Timestamp,
};

/// Two stores as one. Both are asked at the same time, unless one is not well; an error of either is an
/// error. `split.rs` describes which hits are counted then.
#[derive(Debug)]
pub(crate) struct PerSecond<S> {
    pub store: S,
    /// For limits whose unit is the second; if `None`, `store` counts them too.
    pub per_second: Option<S>,
}

impl<S: Store> Store for PerSecond<S> {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        match &self.per_second {
            // Boxed, to keep the future of all other requests small.
            Some(per_second) if !batch.is_empty() => {
                *counts = Box::pin(self.add_to_both(per_second, batch, now, deadline)).await?;
                Ok(())
            }
            _ => self.store.add_into(counts, batch, now, deadline).await,
        }
    }

    fn state(&self) -> StoreState {
        let all = self.store.state();
        match &self.per_second {
            None => all,
            Some(per_second) => StoreState {
                is_well: all.is_well && per_second.state().is_well,
                is_one_step: false,
            },
        }
    }
}

impl<S: Store> PerSecond<S> {
    async fn add_to_both(
        &self,
        per_second: &S,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<CounterStates, StoreError> {
        let stores = batch.all_specs().map(|spec| spec.is_per_second.into());
        let split = Split::new(stores.collect());
        let both = BothStores {
            long: &self.store,
            short: per_second,
            now,
        };
        match split.only() {
            Some(0) => add(both.long, batch, now, deadline).await,
            Some(_) => add(both.short, batch, now, deadline).await,
            None => split.add(batch, &both, deadline).await,
        }
    }
}

/// The two stores of one request.
struct BothStores<'a, S> {
    long: &'a S,
    short: &'a S,
    now: Timestamp,
}

impl<S: Store> PartStores for BothStores<'_, S> {
    async fn add(
        &self,
        parts: &[Batch],
        deadline: &Deadline,
    ) -> Vec<Result<CounterStates, StoreError>> {
        let [long, short] = parts else {
            return vec![Err(StoreError::Refused)];
        };
        let long = add(self.long, long, self.now, deadline);
        let short = add(self.short, short, self.now, deadline);
        // A store that is not well is asked first: if its rules fail the call, the other store counts
        // nothing.
        let (long, short) = if !self.long.state().is_well {
            match long.await {
                Err(error) => (Err(error), Err(error)),
                long => (long, short.await),
            }
        } else if !self.short.state().is_well {
            match short.await {
                Err(error) => (Err(error), Err(error)),
                short => (long.await, short),
            }
        } else {
            tokio::join!(long, short)
        };
        vec![long, short]
    }
}

async fn add<S: Store>(
    store: &S,
    batch: &Batch,
    now: Timestamp,
    deadline: &Deadline,
) -> Result<CounterStates, StoreError> {
    let mut counts = CounterStates::new();
    if !batch.is_empty() {
        store.add_into(&mut counts, batch, now, deadline).await?;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        core::{limit::Limit, request::Hits, window::Unit},
        store::memory::MemoryStore,
    };

    fn batch(units: &[Unit], now: Timestamp) -> Batch {
        let mut batch = Batch::default();
        for unit in units {
            let limit = Limit::fixed(1, *unit);
            batch.push_value(b"v", &limit, now, Hits::ONE);
        }
        batch
    }

    #[tokio::test]
    async fn seconds_go_to_their_own_store_and_counts_come_back_in_order() {
        let now = Timestamp::from_secs(0);
        let stores = [(); 2].map(|()| Arc::new(MemoryStore::new(10)));
        let store = PerSecond {
            store: stores[0].clone(),
            per_second: Some(stores[1].clone()),
        };
        let mixed = batch(&[Unit::Day, Unit::Second, Unit::Minute, Unit::Second], now);
        let counts = store.add(&mixed, now).await.unwrap();
        let counts: Vec<_> = counts.iter().map(|count| count.after).collect();
        assert_eq!(counts, [1, 1, 1, 2]);
        assert_eq!(stores[0].live_counters(), 2);
        assert_eq!(stores[1].live_counters(), 1);
        store.add(&batch(&[Unit::Second], now), now).await.unwrap();
        store.add(&batch(&[Unit::Hour], now), now).await.unwrap();
        assert_eq!(stores[0].live_counters(), 3);
        assert_eq!(stores[1].live_counters(), 1);
    }
}
