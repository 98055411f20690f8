//! Limits per second in a store of their own: they make most of the load, and losing them costs
//! least.

use super::{Deadline, Store, StoreError, split::Split};
use crate::{
    counter::{Batch, CountList},
    window::Timestamp,
};

/// Two stores as one. Both are asked at the same time; an error of either is an error, and what
/// the other has counted stays counted.
#[derive(Debug)]
pub struct PerSecond<S> {
    pub store: S,
    /// For limits whose unit is the second; without it `store` has them too.
    pub per_second: Option<S>,
}

impl<S: Store> Store for PerSecond<S> {
    async fn add_into(
        &self,
        counts: &mut CountList,
        batch: &Batch,
        now: Timestamp,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        match &self.per_second {
            // Boxed, for the way of all others is to stay small.
            Some(per_second) if !batch.is_empty() => {
                *counts = Box::pin(self.add_to_both(per_second, batch, now, deadline)).await?;
                Ok(())
            }
            _ => self.store.add_into(counts, batch, now, deadline).await,
        }
    }

    fn is_well(&self) -> bool {
        self.store.is_well() && self.per_second.as_ref().is_none_or(Store::is_well)
    }

    fn is_one_place(&self) -> bool {
        self.per_second.is_none() && self.store.is_one_place()
    }
}

impl<S: Store> PerSecond<S> {
    async fn add_to_both(
        &self,
        per_second: &S,
        batch: &Batch,
        now: Timestamp,
        deadline: Deadline,
    ) -> Result<CountList, StoreError> {
        let split = Split::new(batch, |increment| usize::from(increment.is_per_second));
        match split.only() {
            Some(0) => return add(&self.store, batch, now, deadline).await,
            Some(_) => return add(per_second, batch, now, deadline).await,
            None => {}
        }
        let both = async |parts: &[Batch], deadline| {
            let (long, short) = (&parts[0], &parts[1]);
            tokio::join!(
                add(&self.store, long, now, deadline),
                add(per_second, short, now, deadline)
            )
        };
        let (long, short) = both(split.parts(), deadline).await;
        let counts = split.merge(vec![long?, short?]);
        let mut counts = counts.ok_or(StoreError::Refused)?;
        if let Some(back) = split.overcharged(batch, &mut counts) {
            // The decision stands, whether they take it back or not.
            let _ = both(&back, Deadline::of_store()).await;
        }
        Ok(counts)
    }
}

async fn add<S: Store>(
    store: &S,
    batch: &Batch,
    now: Timestamp,
    deadline: Deadline,
) -> Result<CountList, StoreError> {
    let mut counts = CountList::new();
    store.add_into(&mut counts, batch, now, deadline).await?;
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        counter::Identity,
        limit::Limit,
        request::{Entry, Hits},
        store::memory::MemoryStore,
        window::Unit,
    };

    fn batch(units: &[Unit], now: Timestamp) -> Batch {
        let mut batch = Batch::default();
        let mut identity = Identity::default();
        let entry = Entry {
            key: b"k",
            value: b"v",
        };
        identity.set(b"d", &[entry], &[]);
        for unit in units {
            let limit = Limit::fixed(1, *unit);
            batch.push(&identity, &limit, now, Hits::ONE);
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
