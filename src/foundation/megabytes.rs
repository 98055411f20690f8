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

#[cfg(test)]
#[test]
fn bytes_are_rounded_up_to_megabytes() {
    assert_eq!(Megabytes(1_000_001).to_string(), "2 MB");
}
