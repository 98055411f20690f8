//! A lease as text: hits that were charged before they are used, which a request carries in Envoy's dynamic metadata.
//!
//! ```text
//! 1.1jqk9q2ns0.a0f3k2m9t1c4.0.1v7c2ab-p0
//! ^ ^          ^            ^ ^       ^ hits
//! | |          |            | mark of a descriptor that reserved hits, at most eight of them
//! | |          |            epoch of the store: 0, or a random number in memory
//! | |          id
//! | milliseconds since 1970
//! version
//! ```
//!
//! Numbers have the digits 0 to 9 and a to v (base 32), without zeros in front. The text needs no signature: whoever
//! reaches the gRPC port can give back hits anyway.

use std::fmt;

use smallvec::SmallVec;

use crate::core::window::Timestamp;

/// Hits that were charged to counters at `at`, for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseToken {
    pub at: Timestamp,
    pub id: LeaseId,
    /// The store that was charged: 0 for Redis, and a random number for the memory of a process.
    pub epoch: u32,
    /// One for each descriptor that reserved hits, at most [`Self::MAX_PARTS`]. Slots have none: the id frees them.
    parts: SmallVec<[LeasePart; 2]>,
}

/// The lease of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasePart {
    /// Names the counters; see [`mark`](super::mark::mark).
    pub mark: u32,
    /// At least 1.
    pub hits: u64,
}

/// The random name of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseId(pub u64);

impl LeaseToken {
    /// The most descriptors of a message that lease.
    pub(crate) const MAX_PARTS: usize = 8;

    /// The longest text: 33 bytes before the parts, and 20 for each at 2^53.
    pub(crate) const MAX_BYTES: usize = 200;

    /// A lease of `parts`; `None` if there are too many.
    pub(crate) fn new(
        at: Timestamp,
        id: LeaseId,
        epoch: u32,
        parts: impl IntoIterator<Item = LeasePart>,
    ) -> Option<Self> {
        let parts: SmallVec<[_; 2]> = parts.into_iter().collect();
        (parts.len() <= Self::MAX_PARTS).then_some(Self {
            at,
            id,
            epoch,
            parts,
        })
    }

    /// Reads a text that [`fmt::Display`] wrote; `None` for any other.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > Self::MAX_BYTES {
            return None;
        }
        let mut words = text.split(|byte| *byte == b'.');
        if words.next()? != b"1" {
            return None;
        }
        let at = Timestamp::from_millis(number(words.next()?)?);
        let id = LeaseId(number(words.next()?)?);
        let epoch = u32::try_from(number(words.next()?)?).ok()?;
        let mut parts = SmallVec::<[_; 2]>::new();
        for word in words {
            let dash = word.iter().position(|byte| *byte == b'-')?;
            let mark = u32::try_from(number(&word[..dash])?).ok()?;
            let hits = number(&word[dash + 1..]).filter(|hits| *hits > 0)?;
            parts.push(LeasePart { mark, hits });
        }
        Self::new(at, id, epoch, parts)
    }

    /// The hits that the descriptor of this mark leased; 0 if it leased none. A descriptor that stands twice has two
    /// parts, which are one lease.
    pub(crate) fn hits(&self, mark: u32) -> u64 {
        let own = self.parts.iter().filter(|part| part.mark == mark);
        own.fold(0, |sum, part| part.hits.saturating_add(sum))
    }

    /// The leases of the descriptors, in their order.
    pub(crate) fn parts(&self) -> &[LeasePart] {
        &self.parts
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, id) = (Digits(self.at.millis()), Digits(self.id.0));
        write!(f, "1.{at}.{id}.{}", Digits(self.epoch.into()))?;
        for LeasePart { mark, hits } in &self.parts {
            write!(f, ".{}-{}", Digits((*mark).into()), Digits(*hits))?;
        }
        Ok(())
    }
}

/// A number in base 32.
struct Digits(u64);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = (u64::BITS - self.0.leading_zeros()).div_ceil(5).max(1);
        for place in (0..digits).rev() {
            let digit = (self.0 >> (5 * place) & 31) as u32;
            let digit = char::from_digit(digit, 32).unwrap_or_default();
            fmt::Write::write_char(f, digit)?;
        }
        Ok(())
    }
}

/// The number that these digits write, if no other text writes it.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 1 && digits[0] == b'0' {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'v' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number.checked_mul(32)? | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_token() -> impl Strategy<Value = LeaseToken> {
        let hits = prop_oneof![1_u64..10_000, 1..=1_u64 << 53];
        let part = (any::<u32>(), hits).prop_map(|(mark, hits)| LeasePart { mark, hits });
        let parts = prop::collection::vec(part, 0..=LeaseToken::MAX_PARTS);
        let at = 0_u64..253_402_300_800_000;
        (at, any::<u64>(), any::<u32>(), parts).prop_map(|(at, id, epoch, parts)| {
            LeaseToken::new(Timestamp::from_millis(at), LeaseId(id), epoch, parts).unwrap()
        })
    }

    proptest! {
        #[test]
        fn a_token_is_read_as_it_was_written(token in any_token()) {
            let text = token.to_string();
            prop_assert!(text.len() <= LeaseToken::MAX_BYTES, "{text}");
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)));
            prop_assert_eq!(LeaseToken::parse(text.as_bytes()), Some(token));
        }

        #[test]
        fn any_bytes_are_a_token_that_is_written_so_or_none(
            token in any_token(),
            at in any::<prop::sample::Index>(),
            byte: u8,
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut text = token.to_string().into_bytes();
            let place = at.index(text.len());
            text[place] = byte;
            for text in [&text, &noise] {
                if let Some(read) = LeaseToken::parse(text) {
                    let written = read.to_string();
                    prop_assert_eq!(written.as_bytes(), &text[..]);
                }
            }
        }
    }

    #[test]
    fn texts_that_no_token_has_are_none() {
        let good = "1.1jqk9q2ns0.a0f3k2m9t1c4.0.1v7c2ab-p0";
        assert!(LeaseToken::parse(good.as_bytes()).is_some());
        let nine = format!("1.1.1.0{}", ".1-1".repeat(9));
        let long = format!("1.1.1.0.1-{}1", "0".repeat(300));
        let bad = "1 1.1.1 1.1.1.0. 2.1.1.0.1-1 1.1.1.0.1 1.1.1.0.1-0 1.1.1.0.1- 1.1.1.0.-1 1.01.1.0.1-1 1.A.1.0.1-1 \
                   1.w.1.0.1-1 1.1.1.4000000.1-1 1.1.1.0.4000000-1 1..1.0.1-1 1.g000000000000.1.0.1-1 1.1.1.0.1-1-1";
        let more = ["", "1.1.1.0.1-1 ", " 1.1.1.0.1-1", &nine, &long];
        for text in bad.split(' ').chain(more) {
            assert_eq!(LeaseToken::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_text_is_read_up_to_its_bound() {
        for (last, bytes) in [([1 << 55, 1], LeaseToken::MAX_BYTES), ([u64::MAX, 1], 201)] {
            let hits = [u64::MAX; 6].into_iter().chain(last);
            let mark = u32::MAX;
            let parts = hits.map(|hits| LeasePart { mark, hits });
            let (at, id) = (Timestamp::from_millis(u64::MAX), LeaseId(u64::MAX));
            let token = LeaseToken::new(at, id, u32::MAX, parts).unwrap();
            let text = token.to_string();
            assert_eq!(text.len(), bytes);
            let expected = (bytes <= LeaseToken::MAX_BYTES).then_some(token);
            assert_eq!(LeaseToken::parse(text.as_bytes()), expected);
        }
    }

    #[test]
    fn parts_of_one_mark_are_one_lease() {
        let part = |mark, hits| LeasePart { mark, hits };
        let parts = [part(1, 5), part(2, 7), part(1, 5)];
        let token = LeaseToken::new(Timestamp::from_millis(1), LeaseId(1), 0, parts).unwrap();
        assert_eq!([1, 2, 3].map(|mark| token.hits(mark)), [10, 7, 0]);
        let nine = LeaseToken::new(Timestamp::from_millis(1), LeaseId(1), 0, [part(1, 5); 9]);
        assert_eq!(nine, None);
    }
}
