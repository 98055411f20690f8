//! Values of requests in the log: as they are, or hashed. A value may be a person's address or name.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The bytes of a hash that the log shows: two of a million values share them with a chance of one in 37 million.
const HASH_BYTES: usize = 8;

/// Whether values are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LoggedValues {
    #[default]
    Shown,
    Hashed,
}

/// A value as the log has it.
pub(super) enum LoggedValue<'a> {
    Shown(&'a [u8]),
    Hashed(String),
}

impl LoggedValues {
    pub(super) fn of(self, value: &[u8]) -> LoggedValue<'_> {
        match self {
            Self::Shown => LoggedValue::Shown(value),
            Self::Hashed => LoggedValue::Hashed(hash(value)),
        }
    }
}

/// The first digits of the SHA-256 of `value`, so that one value has one hash in the logs of all replicas.
fn hash(value: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in &Sha256::digest(value)[..HASH_BYTES] {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf 192.0.2.1 | sha256sum` begins like this.
    #[test]
    fn a_hash_is_the_begin_of_what_sha256sum_prints() {
        assert_eq!(hash(b""), "sha256:e3b0c44298fc1c14");
        assert_eq!(hash(b"abc"), "sha256:ba7816bf8f01cfea");
    }
}
