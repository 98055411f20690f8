//! Leases: hits that are charged before they are used. A reservation is the lease of a request, whose cost is known at
//! the end of its stream only.

pub(crate) mod mark;
pub(crate) mod order;
pub(crate) mod settlement;
pub(crate) mod slice;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod token;
