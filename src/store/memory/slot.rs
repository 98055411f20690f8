//! One counter in memory: a number, or the state of an algorithm.

use super::key::KeyRest;
use crate::core::{
    algorithm::AlgorithmState, counter::CounterState, request::Hits, window::Timestamp,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct CounterSlot {
    pub(super) own: KeyRest,
    pub(super) count: u64,
    pub(super) expires_at: Timestamp,
}

#[derive(Debug)]
pub(super) struct StateSlot {
    pub(super) state: AlgorithmState,
    pub(super) expires_at: Timestamp,
}

impl CounterSlot {
    pub(super) fn add(&mut self, hits: Hits, is_charged: bool) -> CounterState {
        if is_charged {
            // The clock may have stepped back into a window that was swept or soon will be. The window
            // is part of the key, so the count is still right.
            self.count = self.count.saturating_add(hits.added());
            self.count = self.count.saturating_sub(hits.given_back());
        }
        CounterState {
            is_charged,
            ..CounterState::from(self.count)
        }
    }
}
