//! Bytes as people read them.

use std::fmt;

/// Shows bytes as megabytes, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Megabytes(pub usize);

impl fmt::Display for Megabytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MB", self.0.div_ceil(1_000_000))
    }
}
