//! A key → its slot in a Redis Cluster, as the cluster specification computes it.

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of `key`: CRC16 of its hash tag, or of the whole key if it has none.
pub(super) fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// The bytes between the first `{` and the first `}` behind it, or the whole key if there are none. It
/// scans as Redis does: the first `}` may be one of a value or of the prefix, and not the end of the
/// descriptor's part.
fn hash_tag(key: &[u8]) -> &[u8] {
    let position = |bytes: &[u8], wanted: u8| bytes.iter().position(|byte| *byte == wanted);
    let Some(start) = position(key, b'{') else {
        return key;
    };
    let inside = &key[start + 1..];
    match position(inside, b'}') {
        None | Some(0) => key,
        Some(end) => &inside[..end],
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, starting from 0, nothing reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let at = (crc >> 8) ^ u16::from(*byte);
        (crc << 8) ^ TABLE[usize::from(at)]
    })
}

static TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn only_the_hash_tag_counts_if_there_is_one() {
        assert_eq!(hash_tag(b"{user1000}.following"), b"user1000");
        assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hash_tag(b"foo{bar}{zap}"), b"bar");
        assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
    }

    #[test]
    fn slots_are_those_that_a_cluster_tells() {
        // `CLUSTER KEYSLOT` of a Redis 7.
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"somekey"), 11_058);
        assert_eq!(slot(b"foo{hash_tag}"), 2_515);
    }
}
