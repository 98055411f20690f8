//! Counters: their keys, the increments of a batch, and the states that stores answer with.

mod batch;
mod increment;
mod key;
#[cfg(test)]
pub(crate) mod sample;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use super::kind::CounterKind;
pub use batch::Batch;
pub(crate) use batch::Increment;
pub(crate) use increment::Enforcement;
pub(crate) use increment::{BucketPlace, Reservation};
pub use increment::{Charge, IncrementSpec, Operation};
pub use key::{Identity, Joined, KeyFormat};
pub(crate) use state::ResetTimes;
pub use state::{CounterState, CounterStates};
