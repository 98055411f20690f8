//! The store that the settings chose, as one type.

use super::contract::{Deadline, Store, StoreError, StoreState};

use std::sync::Arc;

use crate::core::{
    counter::{Batch, CounterStates},
    window::Timestamp,
};

use super::{
    known::KnownFirst,
    loss::OnLoss,
    memory::MemoryStore,
    per_second::PerSecond,
    redis::store::RedisStore,
    slices::{SliceTables, Slices},
};

/// One Redis or two, behind what is known without asking them.
type KnownRedis = KnownFirst<PerSecond<OnLoss<RedisStore>>>;

/// The store that the settings chose.
#[derive(Clone, Debug)]
pub(crate) enum AnyStore {
    Memory(Arc<MemoryStore>),
    Redis(Arc<Slices<Arc<KnownRedis>>>),
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

    fn state(&self) -> StoreState {
        match self {
            Self::Memory(store) => store.state(),
            Self::Redis(store) => store.state(),
        }
    }

    fn leased(&self, key: &[u8], descriptor_bytes: u32) -> u64 {
        self.slices()
            .map_or(0, |slices| slices.free(key, descriptor_bytes))
    }
}

impl AnyStore {
    /// The slices of all workers; `None` if the store needs none.
    pub(crate) fn slices(&self) -> Option<&SliceTables> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(&store.all),
        }
    }
}
