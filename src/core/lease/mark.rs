//! Marks: how a token names counters, in few bits.

use crate::core::{kind::Algorithm, limit::Limit};

/// The bits of a counter's mark: six digits of a token.
pub(super) const BITS: u32 = 30;

/// The mark of a descriptor's counter for `limit`: a hash of all that names its key but its window (FNV-1a). So a token
/// finds it after a reload, whatever became of its capacity and of the other limits, and settles no other tenant, and
/// no limit of another period, algorithm, calendar or key format.
pub(crate) fn of_counter(identity: &[u8], limit: &Limit) -> u32 {
    let mut hash = Fnv::of(identity);
    hash.add_limit(limit);
    (hash.0 >> BITS) ^ (hash.0 & ((1 << BITS) - 1))
}

/// The mark of all counters of a descriptor.
pub(crate) fn of_descriptor(identity: &[u8]) -> u32 {
    Fnv::of(identity).0
}

/// The mark of a descriptor in a token of version 1: of all its limits, in their order.
pub(super) fn of_version_1(identity: &[u8], limits: &[Limit]) -> u32 {
    let mut hash = Fnv::of(identity);
    for limit in limits {
        hash.add_limit(limit);
        // Where one limit ends.
        hash.add(&[0]);
    }
    hash.0
}

struct Fnv(u32);

impl Fnv {
    fn of(bytes: &[u8]) -> Self {
        let mut hash = Self(0x811c_9dc5);
        hash.add(bytes);
        hash
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    fn add_limit(&mut self, limit: &Limit) {
        self.add(&[limit.algorithm.kind(1).facts().letter]);
        self.add(&limit.period.secs().to_le_bytes());
        self.add(limit.period.unit().name().as_bytes());
        if let Algorithm::Calendar(calendar) = &limit.algorithm {
            self.add(calendar.zone_name().as_bytes());
            let starts = calendar.starts();
            let weekday = starts.weekday.to_monday_zero_offset();
            for number in [starts.month, starts.day, starts.hour, weekday] {
                self.add(&number.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::window::Unit;

    /// Tokens that are on their way have these numbers: the first is FNV's own example.
    #[test]
    fn marks_are_those_of_tokens_that_earlier_releases_made() {
        let limit = Limit::fixed(1, Unit::Hour);
        assert_eq!(of_descriptor(b"foobar"), 0xbf9c_f968);
        assert_eq!(of_version_1(b"foobar", &[]), 0xbf9c_f968);
        assert_eq!(
            of_version_1(b"a", std::slice::from_ref(&limit)),
            1_967_741_099
        );
        let marks = [b"a", b"b"].map(|identity| of_counter(identity, &limit));
        assert_eq!(marks, [774_511_498, 149_582_377]);
    }
}
