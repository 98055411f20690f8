//! The [`Store`] trait: how the limiter speaks to counters.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::core::{
    counter::{Batch, CounterStates},
    window::{SteadyTime, Timestamp},
};

/// Counts hits: all that the limiter needs of a backend.
pub trait Store: Send + Sync + 'static {
    /// Applies the batch in one round trip at most and puts the count after each increment into
    /// `counts`, in order; `counts` must be empty. A look returns the count as it is; giving back stops
    /// at zero. A caller waits no longer than its `deadline` and the store's own allow.
    ///
    /// # Errors
    ///
    /// On any error some increments may have been applied and some not, so callers do not retry. The
    /// content of `counts` is then of no use.
    fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Convenience: [`Self::add_into`] with a new list, which is large to move, and the store's own
    /// deadline.
    ///
    /// # Errors
    ///
    /// As [`Self::add_into`].
    fn add(
        &self,
        batch: &Batch,
        now: Timestamp,
    ) -> impl Future<Output = Result<CounterStates, StoreError>> + Send {
        async move {
            let mut counts = CounterStates::new();
            let deadline = Deadline::of_store();
            self.add_into(&mut counts, batch, now, &deadline).await?;
            Ok(counts)
        }
    }

    /// How the store can answer now; it asks no server.
    fn state(&self) -> StoreState;

    /// The hits of the counter of `key` that this process has charged in advance and not used. The descriptor's part of
    /// the key is `descriptor_bytes` long.
    fn leased(&self, _key: &[u8], _descriptor_bytes: u32) -> u64 {
        0
    }
}

/// How a store can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreState {
    /// Whether an answer can be expected for every key.
    pub is_well: bool,
    /// Whether every request is judged in one step, whatever its keys. Then no charge is given back
    /// because another part of the request was refused.
    pub is_one_step: bool,
}

/// How long the caller of one request waits for its decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When the request arrived.
    pub began: Instant,
    /// How long after that a decision is of use; `None` if the caller set no timeout.
    pub timeout: Option<Duration>,
    /// Whether the hits are leased. Then a store charges nothing after the caller has left, follows an answer that is
    /// on its way however late it comes, and gives back what was charged: the caller does not know of it.
    pub is_for_lease: bool,
    /// Whether the store itself has to answer: no remembered answer takes its place.
    pub asks_store: bool,
}

impl Deadline {
    /// The deadline of a call that arrived at `began`.
    pub fn of_call(began: Instant, timeout: Option<Duration>) -> Self {
        Self {
            began,
            timeout,
            is_for_lease: false,
            asks_store: false,
        }
    }

    /// The store's own deadline, from now on.
    pub fn of_store() -> Self {
        Self::of_call(Instant::now(), None)
    }

    /// [`Self::of_store`] for hits that are counted whatever their limits, and for looks that want the counts of this
    /// moment.
    pub(crate) fn of_store_itself() -> Self {
        Self {
            asks_store: true,
            ..Self::of_store()
        }
    }

    /// When the request arrived, for facts that a store keeps between requests.
    pub(crate) fn steady(&self) -> SteadyTime {
        self.began.into()
    }

    /// When the wait ends in a store that waits for `longest` at most.
    pub fn ends(&self, longest: Duration) -> Instant {
        self.began + self.timeout.map_or(longest, |timeout| timeout.min(longest))
    }
}

/// Why a request gets no answer. The texts are sent to the caller: they name no key and no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the counter store did not answer in time")]
    Timeout,
    /// Nothing was counted: it waited for other requests until then, or Redis refused what came after that.
    #[error("the counter store did not answer in time")]
    TimedOutUnsent,
    #[error("the counter store is not reachable")]
    Unreachable,
    /// No answer can be expected, so nothing was sent.
    #[error("the counter store is not reachable")]
    Unsent,
    #[error("the counter store refused a command")]
    Refused,
    /// Nothing was counted: some counters of one step are on this server already, and others are not
    /// yet.
    #[error("the counters are moving to another server")]
    Moving,
    #[error("too many requests are waiting for the counter store")]
    Overloaded,
}

impl StoreError {
    /// Whether it is certain that nothing was counted.
    pub(crate) fn is_unsent(self) -> bool {
        match self {
            Self::Unsent | Self::TimedOutUnsent | Self::Moving | Self::Overloaded => true,
            Self::Timeout | Self::Unreachable | Self::Refused => false,
        }
    }

    /// The error of one of several parts, of which others may have been counted.
    pub(crate) fn of_part(self) -> Self {
        match self {
            Self::Unsent => Self::Unreachable,
            Self::TimedOutUnsent => Self::Timeout,
            other => other,
        }
    }
}

impl<S: Store> Store for Arc<S> {
    fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).add_into(counts, batch, now, deadline)
    }

    fn state(&self) -> StoreState {
        (**self).state()
    }
}
