//! Marks: what a token and its settlement have to agree on, in 32 bits.

use crate::core::{counter::Identity, kind::Algorithm, limit::Limit};

/// The mark of a descriptor's counters: a hash of everything that names their keys (FNV-1a), so that a token settles no
/// other tenant, and none whose limits have another period, algorithm, calendar or key format since a reload.
pub(crate) fn mark(identity: &Identity, limits: &[Limit]) -> u32 {
    let mut hash = Fnv(0x811c_9dc5);
    hash.add(identity.bytes());
    for limit in limits {
        hash.add(&[limit.algorithm.kind(1).facts().letter]);
        hash.add(&limit.period.secs().to_le_bytes());
        hash.add(limit.period.unit().name().as_bytes());
        if let Algorithm::Calendar(calendar) = &limit.algorithm {
            hash.add(calendar.zone_name().as_bytes());
            let starts = calendar.starts();
            let weekday = starts.weekday.to_monday_zero_offset();
            for number in [starts.month, starts.day, starts.hour, weekday] {
                hash.add(&number.to_le_bytes());
            }
        }
        // Where one limit ends.
        hash.add(&[0]);
    }
    hash.0
}

struct Fnv(u32);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}
