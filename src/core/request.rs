//! A request of Envoy, already checked.

use std::{mem, str::FromStr};

use smallvec::SmallVec;

use crate::core::limit::Limit;

/// A list kept inline up to four items.
pub(crate) type InlineList<T> = SmallVec<[T; 4]>;

/// One call of `ShouldRateLimit`: a domain and, once it is complete, at least one descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request<'a> {
    pub domain: &'a [u8],
    parts: InlineList<DescriptorPart>,
    /// The entries of all descriptors, one after the other.
    entries: SmallVec<[Entry<'a>; 8]>,
}

/// A descriptor without its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DescriptorPart {
    /// The index at which its entries end and those of the next descriptor begin.
    end: usize,
    hits: Hits,
    has_addend: bool,
    /// Boxed, because few requests bring one.
    limit: Option<Box<Limit>>,
}

/// An ordered list of entries, matched as a whole. Envoy can send an empty one, which no rule
/// matches.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'r> {
    pub entries: &'r [Entry<'r>],
    pub hits: Hits,
    /// Whether the request brings the number of hits; without one they are one hit.
    pub has_addend: bool,
    /// The limit that the request itself brings; it replaces every configured one.
    pub limit: Option<&'r Limit>,
}

impl<'a> Request<'a> {
    /// A request that has no descriptors yet.
    pub fn new(domain: &'a [u8]) -> Self {
        Self {
            domain,
            ..Self::default()
        }
    }

    /// Adds an entry of the descriptor that is pushed next.
    pub fn push_entry(&mut self, entry: Entry<'a>) {
        self.entries.push(entry);
    }

    /// Adds a descriptor of the entries that were pushed since the last one. Without an addend it is one hit.
    pub fn push_descriptor(&mut self, addend: impl Into<Option<Hits>>, limit: Option<Limit>) {
        let addend = addend.into();
        self.parts.push(DescriptorPart {
            end: self.entries.len(),
            hits: addend.unwrap_or(Hits::ONE),
            has_addend: addend.is_some(),
            limit: limit.map(Box::new),
        });
    }

    /// Sets the addend of all descriptors.
    pub fn set_hits(&mut self, hits: Hits) {
        for part in &mut self.parts {
            part.hits = hits;
            part.has_addend = true;
        }
    }

    pub fn len(&self) -> usize {
        self.parts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The descriptors, in order.
    pub fn descriptors(&self) -> impl Iterator<Item = Descriptor<'_>> {
        let mut start = 0;
        self.parts.iter().map(move |part| Descriptor {
            entries: &self.entries[mem::replace(&mut start, part.end)..part.end],
            hits: part.hits,
            has_addend: part.has_addend,
            limit: part.limit.as_deref(),
        })
    }
}

/// A key and a value: any bytes, because Envoy copies header bytes unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// The hits addend, once resolved: 0 looks without counting, a negative number gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hits(i64);

impl Hits {
    /// The most hits of one request, 2^62. A larger addend is taken as this many: that is still above
    /// every limit, and two of them fit a counter of Redis without wrapping.
    pub const MAX: u64 = 1 << 62;

    pub const ONE: Self = Self(1);

    pub const fn add(count: u64) -> Self {
        let bounded = if count > Self::MAX { Self::MAX } else { count };
        Self(bounded.cast_signed())
    }

    pub const fn give_back(count: u64) -> Self {
        Self(-Self::add(count).0)
    }

    /// How many hits are added; 0 for a look and for a give-back.
    pub const fn added(self) -> u64 {
        if self.0 > 0 { self.0.unsigned_abs() } else { 0 }
    }

    /// How many hits are given back.
    pub const fn given_back(self) -> u64 {
        if self.0 < 0 { self.0.unsigned_abs() } else { 0 }
    }

    /// How many hits are added or given back.
    pub const fn count(self) -> u64 {
        self.0.unsigned_abs()
    }

    /// The hits as one number, negative if they are given back.
    pub const fn signed(self) -> i64 {
        self.0
    }

    /// Whether this is a peek: no hits, which change nothing.
    pub const fn is_peek(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
impl<'a> Request<'a> {
    /// A request of one hit to domain `d`, with a descriptor for each key; all values are `v`.
    pub(crate) fn for_keys(keys: impl IntoIterator<Item = &'a str>) -> Self {
        let mut request = Self::new(b"d");
        for key in keys {
            request.push_entry(Entry {
                key: key.as_bytes(),
                value: b"v",
            });
            request.push_descriptor(Hits::ONE, None);
        }
        request
    }
}

/// The keys and values of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entries(pub(crate) Vec<(String, String)>);

impl FromStr for Entries {
    type Err = String;

    /// Parses entries in order, separated by commas; `\,` is a comma, `\=` an equals sign and `\\` a backslash.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut entries = vec![(String::new(), None::<String>)];
        let mut rest = text.chars();
        while let Some(next) = rest.next() {
            let (key, value) = entries.last_mut().expect("there is always an entry");
            match (next, value) {
                (',', _) => entries.push((String::new(), None)),
                ('=', value @ None) => *value = Some(String::new()),
                (next, value) => {
                    let literal = match next {
                        '\\' => rest.next().ok_or("nothing follows the last backslash")?,
                        other => other,
                    };
                    value.as_mut().unwrap_or(key).push(literal);
                }
            }
        }
        let pair = |(key, value): (String, Option<String>)| match value {
            Some(value) if !key.is_empty() => Ok((key, value)),
            _ => Err(format!("`{key}` is not KEY=VALUE")),
        };
        Ok(Self(
            entries.into_iter().map(pair).collect::<Result<_, _>>()?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_addend_stays_positive() {
        assert_eq!(Hits::add(u64::MAX).added(), Hits::MAX);
        assert_eq!(Hits::add(1 << 63).added(), Hits::MAX);
        assert_eq!(Hits::give_back(u64::MAX).given_back(), Hits::MAX);
        assert_eq!(Hits::give_back(u64::MAX).added(), 0);
    }

    #[test]
    fn descriptors_have_their_entries_and_may_all_be_given_the_same_hits() {
        let entry = |key| Entry { key, value: b"v" };
        let mut request = Request::new(b"d");
        assert!(request.is_empty());
        for keys in [&[b"a", b"b"][..], &[], &[b"c"]] {
            for &key in keys {
                request.push_entry(entry(key));
            }
            request.push_descriptor(Hits::ONE, None);
        }
        assert!(!request.is_empty());
        assert_eq!(request.len(), 3);
        request.set_hits(Hits::add(7));
        let reported: Vec<_> = request
            .descriptors()
            .map(|descriptor| (descriptor.entries.to_vec(), descriptor.hits.added()))
            .collect();
        let expected = [
            (vec![entry(b"a"), entry(b"b")], 7),
            (vec![], 7),
            (vec![entry(b"c")], 7),
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn hits_are_one_number_with_a_sign() {
        assert_eq!(Hits::add(3).signed(), 3);
        assert_eq!(Hits::give_back(3).signed(), -3);
    }

    #[test]
    fn nothing_given_back_is_a_look() {
        assert!(Hits::give_back(0).is_peek());
        assert!(Hits::add(0).is_peek());
        assert!(!Hits::ONE.is_peek());
    }

    #[test]
    fn descriptors_are_pairs_with_an_escape() {
        let pairs = |text: &str| {
            let Entries(pairs) = text.parse().unwrap();
            pairs
                .iter()
                .map(|(key, value)| format!("{key}→{value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(pairs("a=b,c=d=e"), ["a→b", "c→d=e"]);
        assert_eq!(pairs(r"a\=b=c\,d,e="), ["a=b→c,d", "e→"]);
        for bad in ["", "a", "a=b,", "=b", "a=b\\"] {
            assert!(bad.parse::<Entries>().is_err(), "{bad}");
        }
    }
}
