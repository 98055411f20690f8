//! A lease as text: hits that were charged before they are used, which a request carries in Envoy's dynamic metadata.
//!
//! ```text
//! 2.1jqk9q2ns0.a0f3k2m9t1c4.0.p0-1v7c2a-0f3k2m_2n9c0_1jqk9q2ng
//! ^ ^          ^            ^ ^  ^      ^      ^ the place in a bucket: how much had drained in which era
//! | |          |            | |  |      mark of the counter of its next limit
//! | |          |            | |  mark of the counter of its first limit
//! | |          |            | hits that a descriptor reserved; there are at most eight such words
//! | |          |            epoch of the store: 0, or a random number in memory
//! | |          id
//! | milliseconds since 1970
//! version
//! ```
//!
//! `_` without a number follows the mark of a limit that was not charged. Numbers have the digits 0 to 9 and a to v
//! (base 32), without zeros in front. The text needs no signature: whoever reaches the gRPC port can give back hits
//! anyway. Tokens of version 1 are still read: one mark for all limits of a descriptor, and then its hits.

use std::fmt;

use smallvec::SmallVec;

use super::mark;
use crate::core::{counter::BucketPlace, limit::Limit, window::Timestamp};

/// Hits that were charged to counters at `at`, for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseToken {
    pub at: Timestamp,
    pub id: LeaseId,
    /// The store that was charged: 0 for Redis, and a random number for the memory of a process, also where that counts
    /// during a loss of Redis.
    pub epoch: u32,
    /// One for each descriptor that reserved hits, at most [`Self::MAX_PARTS`]. Slots have none: the id frees them.
    parts: SmallVec<[LeasePart; 1]>,
    is_version_1: bool,
}

/// The lease of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasePart {
    /// At least 1, and at most what a limit can admit.
    pub hits: u64,
    /// Those of all limits of its rule.
    pub counters: SmallVec<[LeasedCounter; 2]>,
}

/// The counter of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedCounter {
    /// Its name; see [`mark`].
    pub mark: u32,
    pub charge: LeaseCharge,
}

/// How a counter was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseCharge {
    /// Not at all: another rule of the request replaced the limit.
    Replaced,
    /// A window was. Version 1 says this of buckets as well, to which nothing is given back then.
    Window,
    /// A bucket was. Without an era, as earlier processes wrote it, nothing is given back.
    Bucket(BucketPlace),
}

/// The random name of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseId(pub u64);

impl LeaseToken {
    /// The epoch of a memory that is gone.
    pub(crate) const ENDED_EPOCH: u32 = u32::MAX;

    /// The most descriptors of a message that lease.
    pub(crate) const MAX_PARTS: usize = 8;

    /// A lease of `parts`; `None` if there are too many.
    pub(crate) fn new(
        at: Timestamp,
        id: LeaseId,
        epoch: u32,
        parts: impl IntoIterator<Item = LeasePart>,
    ) -> Option<Self> {
        let parts: SmallVec<[_; 1]> = parts.into_iter().collect();
        (parts.len() <= Self::MAX_PARTS).then_some(Self {
            at,
            id,
            epoch,
            parts,
            is_version_1: false,
        })
    }

    /// Reads a text that [`fmt::Display`] or version 1 wrote; `None` for any other.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut words = text.split(|byte| *byte == b'.');
        let is_version_1 = match words.next()? {
            b"1" => true,
            b"2" => false,
            _ => return None,
        };
        let at = Timestamp::from_millis(number(words.next()?)?);
        let id = LeaseId(number(words.next()?)?);
        let epoch = u32::try_from(number(words.next()?)?).ok()?;
        let mut parts = SmallVec::<[_; 1]>::new();
        for word in words {
            if parts.len() == Self::MAX_PARTS {
                return None;
            }
            parts.push(match is_version_1 {
                true => LeasePart::parse_version_1(word)?,
                false => LeasePart::parse(word)?,
            });
        }
        Some(Self {
            at,
            id,
            epoch,
            parts,
            is_version_1,
        })
    }

    /// The leases of the descriptors, in their order.
    pub(crate) fn parts(&self) -> &[LeasePart] {
        &self.parts
    }

    /// The leases of the descriptor of `identity`, in a rule of these limits. There are two if it stood twice in the
    /// request.
    pub(super) fn parts_of(&self, identity: &[u8], limits: &[Limit]) -> SmallVec<[LeasePart; 1]> {
        let mark_1 = self
            .is_version_1
            .then(|| mark::of_version_1(identity, limits));
        let counters = limits.iter().map(|limit| LeasedCounter {
            mark: mark::of_counter(identity, limit),
            charge: LeaseCharge::Window,
        });
        let counters: SmallVec<[_; 2]> = counters.collect();
        let mut own = SmallVec::new();
        for part in &self.parts {
            match mark_1 {
                None if counters.iter().any(|one| part.charge(one.mark).is_some()) => {
                    own.push(part.clone());
                }
                Some(mark) if part.charge(mark).is_some() => own.push(LeasePart {
                    hits: part.hits,
                    counters: counters.clone(),
                }),
                _ => {}
            }
        }
        own
    }
}

impl LeasePart {
    /// How the counter of this mark was charged; `None` if its limit did not exist.
    pub(super) fn charge(&self, mark: u32) -> Option<LeaseCharge> {
        let found = self.counters.iter().find(|counter| counter.mark == mark);
        found.map(|counter| counter.charge)
    }

    /// Whether a mark names a counter of both.
    pub(crate) fn shares_a_mark(&self, other: &Self) -> bool {
        let mut counters = self.counters.iter();
        counters.any(|counter| other.charge(counter.mark).is_some())
    }

    fn parse(word: &[u8]) -> Option<Self> {
        let mut words = word.split(|byte| *byte == b'-');
        let hits = hits(words.next()?)?;
        let counters: Option<SmallVec<_>> = words.map(LeasedCounter::parse).collect();
        let counters = counters.filter(|counters| !counters.is_empty())?;
        Some(Self { hits, counters })
    }

    fn parse_version_1(word: &[u8]) -> Option<Self> {
        let dash = word.iter().position(|byte| *byte == b'-')?;
        let counter = LeasedCounter {
            mark: u32::try_from(number(&word[..dash])?).ok()?,
            charge: LeaseCharge::Window,
        };
        Some(Self {
            hits: hits(&word[dash + 1..])?,
            counters: SmallVec::from_slice(&[counter]),
        })
    }
}

impl LeasedCounter {
    fn parse(word: &[u8]) -> Option<Self> {
        let (mark, charge) = match word.iter().position(|byte| *byte == b'_') {
            None => (word, LeaseCharge::Window),
            Some(end) if end + 1 == word.len() => (&word[..end], LeaseCharge::Replaced),
            Some(end) => {
                let place = &word[end + 1..];
                let (drained, era) = match place.iter().position(|byte| *byte == b'_') {
                    None => (place, 0),
                    Some(at) => (
                        &place[..at],
                        number(&place[at + 1..]).filter(|era| *era > 0)?,
                    ),
                };
                let drained = number(drained)?;
                (
                    &word[..end],
                    LeaseCharge::Bucket(BucketPlace { era, drained }),
                )
            }
        };
        let mark = number(mark).filter(|mark| *mark >> mark::BITS == 0)?;
        let mark = u32::try_from(mark).ok()?;
        Some(Self { mark, charge })
    }
}

impl fmt::Display for LeaseToken {
    /// Writes it as version 2.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, id) = (Digits(self.at.millis()), Digits(self.id.0));
        write!(f, "2.{at}.{id}.{}", Digits(self.epoch.into()))?;
        for LeasePart { hits, counters } in &self.parts {
            write!(f, ".{}", Digits(*hits))?;
            for LeasedCounter { mark, charge } in counters {
                write!(f, "-{}", Digits((*mark).into()))?;
                match charge {
                    LeaseCharge::Window => {}
                    LeaseCharge::Replaced => f.write_str("_")?,
                    LeaseCharge::Bucket(BucketPlace { era, drained }) => {
                        write!(f, "_{}", Digits(*drained))?;
                        if *era > 0 {
                            write!(f, "_{}", Digits(*era))?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// The text of a token of version 1.
#[cfg(test)]
pub(crate) fn version_1(at: Timestamp, id: LeaseId, epoch: u32, parts: &[(u32, u64)]) -> String {
    let (at, id) = (Digits(at.millis()), Digits(id.0));
    let parts: Vec<_> = parts
        .iter()
        .map(|(mark, hits)| format!(".{}-{}", Digits((*mark).into()), Digits(*hits)))
        .collect();
    format!("1.{at}.{id}.{}{}", Digits(epoch.into()), parts.concat())
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

/// The hits that these digits write. A limit admits no more, so no more were charged.
fn hits(digits: &[u8]) -> Option<u64> {
    number(digits).filter(|hits| (1..=Limit::MAX_REQUESTS).contains(hits))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_token() -> impl Strategy<Value = LeaseToken> {
        let hits = prop_oneof![1_u64..10_000, 1..1_u64 << 53];
        let charge = prop_oneof![
            Just(LeaseCharge::Window),
            Just(LeaseCharge::Replaced),
            (any::<u64>(), any::<u64>()).prop_map(|(era, drained)| {
                LeaseCharge::Bucket(BucketPlace {
                    era: era % 9,
                    drained,
                })
            }),
        ];
        let counter = (0..1_u32 << mark::BITS, charge);
        let counter = counter.prop_map(|(mark, charge)| LeasedCounter { mark, charge });
        let part = (hits, prop::collection::vec(counter, 1..4));
        let part = part.prop_map(|(hits, counters)| LeasePart {
            hits,
            counters: counters.into(),
        });
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
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)));
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
                let read = LeaseToken::parse(text).filter(|read| !read.is_version_1);
                if let Some(read) = read {
                    let written = read.to_string();
                    prop_assert_eq!(written.as_bytes(), &text[..]);
                }
            }
        }
    }

    #[test]
    fn texts_that_no_token_has_are_none() {
        for good in [
            "2.1jqk9q2ns0.a0f3k2m9t1c4.0.p0-1v7c2a-f3k2m_2n9c0_9-1_",
            "2.1.1.0.1-1_2n9c0",
            "2.1.1.0",
            "1.1jqk9q2ns0.a0f3k2m9t1c4.0.1v7c2ab-p0",
        ] {
            assert!(LeaseToken::parse(good.as_bytes()).is_some(), "{good}");
        }
        let nine = format!("2.1.1.0{}", ".1-1".repeat(9));
        let bad = "2 2.1.1 2.1.1.0. 3.1.1.0.1-1 2.1.1.0.1 2.1.1.0.0-1 2.1.1.0.1- 2.1.1.0.-1 2.01.1.0.1-1 2.A.1.0.1-1 \
                   2.w.1.0.1-1 2.1.1.4000000.1-1 2.1.1.0.1-1000000 2..1.0.1-1 2.g000000000000.1.0.1-1 2.1.1.0.1-1_0_0 \
                   2.1.1.0.1-1_0_1_1 2.1.1.0.1-1_0_ \
                   2.1.1.0.1-_ 2.1.1.0.1-1__ 2.1.1.0.80000000000-1 1.1.1.0.1-0 1.1.1.0.1 1.1.1.0.4000000-1 1.1.1.0.1-1-1";
        let more = ["", "2.1.1.0.1-1 ", " 2.1.1.0.1-1", &nine];
        for text in bad.split(' ').chain(more) {
            assert_eq!(LeaseToken::parse(text.as_bytes()), None, "{text}");
        }
    }

    /// Eight descriptors of two windows each, which reserve millions of hits.
    #[test]
    fn a_usual_token_has_at_most_two_hundred_bytes() {
        let counter = LeasedCounter {
            mark: (1 << mark::BITS) - 1,
            charge: LeaseCharge::Window,
        };
        let part = LeasePart {
            hits: 30_000_000,
            counters: SmallVec::from_elem(counter, 2),
        };
        let (at, id) = (Timestamp::from_secs(2_000_000_000), LeaseId(u64::MAX));
        let token = LeaseToken::new(at, id, 0, vec![part.clone(); 8]).unwrap();
        assert!(token.to_string().len() <= 200, "{token}");
        assert_eq!(LeaseToken::new(at, id, 0, vec![part; 9]), None);
    }
}
