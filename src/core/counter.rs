//! Counters: their keys, the increments of a batch, and the states that stores answer with.

mod batch;
mod increment;
mod key;
#[cfg(test)]
pub(crate) mod sample;
mod state;
#[cfg(test)]
mod tests;

pub use batch::{Batch, Increment};
pub use increment::{Charge, CounterKind, DescriptorHits, Enforcement, IncrementSpec};
pub use key::{Identity, Joined, KeyFormat, MAX_IDENTITY_BYTES};
pub use state::{CounterState, CounterStates, ResetTimes};
