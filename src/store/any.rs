//! The store that the settings chose, as one type.

use super::contract::{AddAtOnce, Deadline, Store, StoreError};

use std::sync::Arc;

use crate::core::{
    counter::{Batch, CounterStates},
    window::Timestamp,
};

use super::{
    loss::OnLoss, memory::MemoryStore, over_limit_cache::OverLimitCache, per_second::PerSecond,
    redis::store::RedisStore,
};

/// The store that the settings chose.
#[derive(Clone, Debug)]
pub enum AnyStore {
    Memory(Arc<MemoryStore>),
    Redis(Arc<OverLimitCache<PerSecond<OnLoss<RedisStore>>>>),
}

impl Store for AnyStore {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.add_into(counts, batch, now, deadline).await,
            Self::Redis(store) => store.add_into(counts, batch, now, deadline).await,
        }
    }

    fn at_once(&self) -> Option<&dyn AddAtOnce> {
        match self {
            Self::Memory(store) => Some(store.as_ref()),
            Self::Redis(_) => None,
        }
    }
}
