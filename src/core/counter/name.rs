//! Names of counters: keys, taken apart again. [`super::key`] describes their text.
//!
//! Keys come from a store that others can write to, so any bytes are allowed here, and those that are no key of ours
//! have no name.

use smallvec::SmallVec;

use crate::core::{
    kind::CounterKind,
    window::{Timestamp, Unit},
};

/// A key in the native format, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CounterName<'k> {
    pub(crate) descriptor: NamedDescriptor<'k>,
    pub(crate) counting: NamedCounting,
    /// How many bytes of the key name the descriptor.
    pub(crate) descriptor_bytes: u32,
}

/// The descriptor in a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NamedDescriptor<'k> {
    Values {
        domain: &'k [u8],
        entries: SmallVec<[NamedEntry<'k>; 4]>,
    },
    /// The text was too long, and only its digest is known.
    Digest(&'k [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedEntry<'k> {
    pub(crate) key: &'k [u8],
    /// The value, or the pattern whose values share a counter.
    pub(crate) value: &'k [u8],
    pub(crate) is_shared: bool,
}

/// The part of a key after its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedCounting {
    Fixed {
        period_secs: u64,
        ends: Timestamp,
    },
    Calendar {
        unit: Unit,
        starts: Timestamp,
    },
    /// Of an algorithm with a state of its own. The rate of a bucket is not part of the key, and is 1 here.
    State {
        kind: CounterKind,
        period_secs: u64,
    },
}

/// The beginning of all keys of `domain`, but for those that are digests.
pub(crate) fn domain_prefix(domain: &[u8]) -> Vec<u8> {
    [format!("{{{}:", domain.len()).as_bytes(), domain].concat()
}

/// The beginning of keys whose descriptor is a digest.
pub(crate) const DIGEST_PREFIX: &[u8] = b"{#";

impl<'k> CounterName<'k> {
    /// The name in `key`, if that is a key in the native format.
    pub(crate) fn parse(key: &'k [u8]) -> Option<Self> {
        let mut rest = key.strip_prefix(b"{")?;
        let descriptor = match rest.strip_prefix(b"#") {
            Some(digest) => {
                let end = digest.iter().position(|&byte| byte == b'}')?;
                rest = &digest[end..];
                NamedDescriptor::Digest(&digest[..end])
            }
            None => values(&mut rest)?,
        };
        let counting = rest.strip_prefix(b"}")?;
        Some(Self {
            descriptor,
            counting: NamedCounting::parse(counting)?,
            descriptor_bytes: u32::try_from(key.len() - counting.len()).ok()?,
        })
    }
}

/// Takes the domain and the entries off `rest`.
fn values<'k>(rest: &mut &'k [u8]) -> Option<NamedDescriptor<'k>> {
    let (domain, _) = text(rest)?;
    let mut entries = SmallVec::new();
    while rest.first()? != &b'}' {
        let (key, _) = text(rest)?;
        let (value, is_shared) = text(rest)?;
        entries.push(NamedEntry {
            key,
            value,
            is_shared,
        });
    }
    Some(NamedDescriptor::Values { domain, entries })
}

/// Takes one text with its length off `rest`; returns it, and whether it is a pattern.
fn text<'k>(rest: &mut &'k [u8]) -> Option<(&'k [u8], bool)> {
    let length = usize::try_from(number(rest)?).ok()?;
    let (separator, texts) = rest.split_first()?;
    let is_shared = match separator {
        b':' => false,
        b'*' => true,
        _ => return None,
    };
    let (text, after) = texts.split_at_checked(length)?;
    *rest = after;
    Some((text, is_shared))
}

/// Takes a decimal number off `rest`.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, after) = rest.split_at(digits);
    *rest = after;
    std::str::from_utf8(number).ok()?.parse().ok()
}

impl NamedCounting {
    fn parse(text: &[u8]) -> Option<Self> {
        let (letter, period) = text.split_first()?;
        let mut kinds = CounterKind::all();
        let kind =
            kinds.find(|kind| *kind != CounterKind::Window && kind.facts().letter == *letter);
        let state = kind.zip(whole(period));
        let state = state.map(|(kind, period_secs)| Self::State { kind, period_secs });
        // The name of the unit of a calendar can begin with one of these letters.
        state.or_else(|| Self::window(text))
    }

    fn window(text: &[u8]) -> Option<Self> {
        let at = text.iter().position(|&byte| byte == b'@')?;
        let (period, number) = (&text[..at], whole(&text[at + 1..])?);
        if let Some(period_secs) = whole(period) {
            let ends = number.saturating_add(1).saturating_mul(period_secs);
            return (period_secs > 0).then_some(Self::Fixed {
                period_secs,
                ends: Timestamp::from_secs(ends),
            });
        }
        Some(Self::Calendar {
            unit: std::str::from_utf8(period).ok()?.parse().ok()?,
            starts: Timestamp::from_secs(number),
        })
    }

    /// Its algorithm, as a machine reads it.
    pub(crate) fn algorithm(self) -> &'static str {
        match self {
            Self::Fixed { .. } => "fixed_window",
            Self::Calendar { .. } => "calendar",
            Self::State { kind, .. } => kind.facts().report_name,
        }
    }

    /// The length of its period in seconds; that of a calendar's unit is the usual one.
    pub(crate) fn period_secs(self) -> u64 {
        match self {
            Self::Fixed { period_secs, .. } | Self::State { period_secs, .. } => period_secs,
            Self::Calendar { unit, .. } => unit.secs(),
        }
    }
}

/// The number that is all of `text`.
fn whole(mut text: &[u8]) -> Option<u64> {
    let number = number(&mut text)?;
    text.is_empty().then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::{
        counter::{Batch, Identity},
        kind::Algorithm,
        limit::Limit,
        request::{Entry, Hits},
    };

    fn any_text() -> impl Strategy<Value = Vec<u8>> {
        let hostile = prop::collection::vec(prop::sample::select(b"{}1:*@#\0\xff".to_vec()), 0..5);
        prop_oneof![hostile, prop::collection::vec(any::<u8>(), 0..9)]
    }

    proptest! {
        #[test]
        fn the_name_of_a_key_has_all_that_the_key_was_made_of(
            domain in any_text(),
            entries in prop::collection::vec((any_text(), any_text(), any::<bool>()), 0..4),
            algorithm in prop::sample::select(Algorithm::one_of_each(3).collect::<Vec<_>>()),
            unit in prop::sample::select(Unit::ALL.to_vec()),
            secs in 0_u64..4_000_000_000,
        ) {
            let plain: Vec<_> = entries.iter().map(|(key, value, _)| Entry { key, value }).collect();
            let is_shared = |(at, (_, value, is_shared)): (usize, &'_ (Vec<u8>, Vec<u8>, bool))| {
                is_shared.then(|| (at, value.clone()))
            };
            let shared: Vec<_> = entries.iter().enumerate().filter_map(is_shared).collect();
            let shared: Vec<_> = shared.iter().map(|(at, value)| (*at, value.as_slice())).collect();
            let mut identity = Identity::default();
            identity.set(&domain, &plain, &shared);
            let (now, limit) = (
                Timestamp::from_secs(secs),
                Limit { algorithm, ..Limit::fixed(5, unit) },
            );
            let mut batch = Batch::default();
            batch.push(&identity, &limit, now, Hits::ONE);
            let key = batch.key(0);
            let name = CounterName::parse(key).expect("a key of ours has a name");
            prop_assert_eq!(name.descriptor_bytes, batch.spec(0).descriptor_bytes);
            prop_assert_eq!(name.counting.period_secs(), unit.secs());
            let algorithm = match &limit.algorithm {
                Algorithm::FirstHit => "first_hit",
                other => other.name(),
            };
            prop_assert_eq!(name.counting.algorithm(), algorithm);
            match name.counting {
                NamedCounting::Fixed { ends, .. } => prop_assert_eq!(ends, batch.spec(0).expires_at),
                NamedCounting::State { kind, .. } => prop_assert_eq!(
                    std::mem::discriminant(&kind),
                    std::mem::discriminant(&batch.spec(0).method)
                ),
                NamedCounting::Calendar { .. } => prop_assert!(false),
            }
            match name.descriptor {
                NamedDescriptor::Values { domain: named, entries: found } => {
                    prop_assert_eq!(named, &domain[..]);
                    prop_assert!(key.starts_with(&domain_prefix(&domain)));
                    let found: Vec<_> = found
                        .iter()
                        .map(|one| (one.key.to_vec(), one.value.to_vec(), one.is_shared))
                        .collect();
                    prop_assert_eq!(found, entries);
                }
                NamedDescriptor::Digest(_) => prop_assert!(key.starts_with(DIGEST_PREFIX)),
            }
        }

        #[test]
        fn any_bytes_are_a_key_or_none(key in any_text()) {
            let _ = CounterName::parse(&key);
        }
    }

    #[test]
    fn a_window_of_the_calendar_has_its_unit_and_its_start() {
        for (key, unit) in [
            ("month@1795219200", Unit::Month),
            ("second@1795219200", Unit::Second),
        ] {
            let key = format!("{{1:d1:k1:v}}{key}");
            let starts = Timestamp::from_secs(1_795_219_200);
            let name = CounterName::parse(key.as_bytes()).expect("a key");
            assert_eq!(name.counting, NamedCounting::Calendar { unit, starts });
        }
    }

    #[test]
    fn texts_that_are_no_keys_have_no_name() {
        for key in [
            "",
            "shop_remote_address_127.0.0.1_1795200000",
            "{1:d",
            "{1:d}",
            "{1:d1:k}60@1",
            "{9:d}60@1",
            "{1:d}0@1",
            "{1:d}x60",
            "{1:d}60@",
            "{1:d}f",
            "{18446744073709551616:d}60@1",
        ] {
            assert_eq!(CounterName::parse(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn a_digest_ends_at_its_brace() {
        let name = CounterName::parse(b"{#00ff}60@5").unwrap();
        assert!(matches!(name.descriptor, NamedDescriptor::Digest(digest) if digest == b"00ff"));
    }

    #[test]
    fn the_prefix_of_a_domain_begins_with_its_length() {
        assert_eq!(domain_prefix(b"mail"), b"{4:mail");
    }
}
