//! Counters: their keys, the increments of a batch, and the states that stores answer with.

mod batch;
mod increment;
mod key;
#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

pub(crate) use super::kind::CounterKind;
pub use batch::Batch;
pub(crate) use batch::Increment;
pub(crate) use increment::{BucketPlace, Enforcement, Reservation, ResetTimes};
pub use increment::{Charge, CounterState, CounterStates, IncrementSpec, Operation};
pub(crate) use key::number;
pub use key::{Identity, Joined, KeyFormat};
