//! A key as the memory store uses it: the descriptor, and the rest.

use crate::core::counter::Increment;

/// A key in two parts. The split depends on the key alone, so equal keys have equal parts and different
/// keys do not.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitKey<'a> {
    pub(super) key: &'a [u8],
    /// The part that all counters of one descriptor share.
    pub(super) family: &'a [u8],
    pub(super) own: KeyRest,
}

/// The rest of a key, with its length in the first byte.
pub(super) type KeyRest = [u8; OWN_BYTES];

const OWN_BYTES: usize = 16;

/// By number of bytes, the mask of a number's highest ones.
const HIGHEST: [u128; OWN_BYTES] = {
    let mut masks = [0; OWN_BYTES];
    let mut bytes = 1;
    while bytes < OWN_BYTES {
        masks[bytes] = u128::MAX << (8 * (OWN_BYTES - bytes));
        bytes += 1;
    }
    masks
};

impl<'a> SplitKey<'a> {
    /// The key of `increment`.
    pub(super) fn of(increment: &Increment<'a>) -> Self {
        Self::new(increment.key, increment.descriptor_bytes)
    }

    /// A key whose first `descriptor_bytes` name the descriptor.
    pub(super) fn new(key: &'a [u8], descriptor_bytes: u32) -> Self {
        let last = key.last_chunk().copied().unwrap_or_else(|| {
            let mut last = KeyRest::default();
            last[OWN_BYTES - key.len()..].copy_from_slice(key);
            last
        });
        let mut length = key.len().saturating_sub(descriptor_bytes as usize);
        if length >= OWN_BYTES {
            // The key is a family of one.
            length = 0;
        }
        // As one number, whose highest byte is the last one. Its lowest is free: at most 15 are kept.
        let rest = u128::from_le_bytes(last) & HIGHEST[length];
        let (family, _) = key.split_at(key.len() - length);
        Self {
            key,
            family,
            own: (rest | length as u128).to_le_bytes(),
        }
    }

    /// Whether both belong to one descriptor.
    pub(super) fn is_sibling(self, other: Self) -> bool {
        // The first comparison is that of a name with itself.
        std::ptr::eq(self.family, other.family) || self.family == other.family
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::{
        counter::{Batch, Identity, KeyFormat},
        limit::Limit,
        request::{Entry, Hits},
        window::{Timestamp, Unit},
    };

    /// Few letters, so that braces and separators occur everywhere.
    fn any_text() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"{}1@_\0".to_vec()), 0..6)
    }

    proptest! {
        #[test]
        fn names_differ_where_keys_do(
            descriptors in [(); 2].map(|()| (any_text(), any_text(), any_text())),
            units in [(); 2].map(|()| prop::sample::select(Unit::ALL.to_vec())),
            secs in [0_u64..100_000, 0_u64..100_000],
            format in prop::sample::select(vec![KeyFormat::Native, KeyFormat::Reference]),
        ) {
            let batches = [0, 1].map(|at| {
                let (domain, key, value) = &descriptors[at];
                let mut identity = Identity::new(format);
                identity.set(domain, &[Entry { key, value }], &[]);
                let mut batch = Batch::default();
                let limit = Limit::fixed(1, units[at]);
                batch.push(&identity, &limit, Timestamp::from_secs(secs[at]), Hits::ONE);
                batch
            });
            let [one, other] = [0, 1].map(|at| SplitKey::of(&batches[at].increment(0)));
            let parts = |name: SplitKey<'_>| (name.family.to_vec(), name.own);
            prop_assert_eq!(one.key == other.key, parts(one) == parts(other));
            prop_assert!(one.family.len() < one.key.len());
        }
    }

    #[test]
    fn a_long_rest_makes_a_family_of_one() {
        let key = b"{1:d}31536000@12345678";
        let name = SplitKey::new(key, 5);
        assert_eq!((name.family, name.own), (&key[..], KeyRest::default()));
        let short = SplitKey::new(&key[..20], 5);
        assert_eq!(short.family, b"{1:d}");
        assert_eq!(&short.own, b"\x0f31536000@123456");
    }
}
