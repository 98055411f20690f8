//! The wildcards of one level: finds the first that an entry matches, trying them in turn.
//!
//! The texts before the first `*` of a pattern and after its last one, its ends, are compared where they stand. The
//! texts between its stars, its pieces, can stand anywhere: those of all patterns are found in one pass over the text,
//! so that the time of a long text does not grow with the number of patterns.

use std::{collections::HashMap, mem, ops::Range, sync::OnceLock};

use aho_corasick::{Anchored, automaton::Automaton as _, nfa::contiguous::NFA};
use memchr::memmem;

use crate::core::request::Entry;

/// A shorter pattern or piece counts as one of this many bytes: to try it takes time however short it is.
const LEAST_BYTES: usize = 16;

/// Wildcards in order of declaration, each with its target.
#[derive(Debug)]
pub(super) struct Wildcards<T> {
    all: Vec<(Wildcard, T)>,
    /// The bytes of all patterns.
    bytes: usize,
    /// Made when it is first needed, which is the check of the rules; `None` if no pattern has pieces.
    pieces: OnceLock<Option<Box<Pieces>>>,
}

// A derived implementation would require `T: Default`.
impl<T> Default for Wildcards<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            bytes: 0,
            pieces: OnceLock::new(),
        }
    }
}

impl<T: Copy> Wildcards<T> {
    /// Appends `wildcard`.
    pub(super) fn push(&mut self, wildcard: Wildcard, leads_to: T) {
        self.pieces = OnceLock::new();
        self.bytes += wildcard.bytes().max(LEAST_BYTES);
        self.all.push((wildcard, leads_to));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The bytes of all patterns, each and each piece counted as [`LEAST_BYTES`] at least.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The targets of all wildcards, in order of declaration.
    pub(super) fn targets(&self) -> impl Iterator<Item = T> {
        self.all.iter().map(|(_, to)| *to)
    }

    /// The target of the first wildcard that matches.
    pub(super) fn first(&self, entry: &Entry<'_>, joined: &[u8]) -> Option<T> {
        let plain = self
            .all
            .iter()
            .position(|(wildcard, _)| !wildcard.has_pieces() && wildcard.matches(entry, joined));
        let first = plain.unwrap_or(self.all.len());
        let Some(pieces) = self.pieces() else {
            return self.all.get(first).map(|(_, to)| *to);
        };
        let text = match self.all[0].0 {
            Wildcard::Joined(_) => joined,
            Wildcard::Apart(..) => entry.value,
        };
        let room = |index: usize| self.all[index].0.room(entry, text);
        let first = pieces.first(text, first, room);
        self.all.get(first).map(|(_, to)| *to)
    }

    fn pieces(&self) -> Option<&Pieces> {
        let make = || Pieces::of(self.all.iter().map(|(wildcard, _)| wildcard)).map(Box::new);
        self.pieces.get_or_init(make).as_deref()
    }
}

/// The texts that a node with a `*` matches.
#[derive(Clone, Debug)]
pub(super) enum Wildcard {
    /// The joined text.
    Joined(Pattern),
    /// The key, and the value if there is a pattern for it.
    Apart(Pattern, Option<Pattern>),
}

impl Wildcard {
    pub(super) fn apart(key: &[u8], value: Option<&[u8]>) -> Option<Self> {
        let has_star = |text: &[u8]| text.contains(&b'*');
        if !has_star(key) && !value.is_some_and(has_star) {
            return None;
        }
        let pattern = |text: &[u8]| Pattern::new(text).unwrap_or_else(|| Pattern::exactly(text));
        Some(Self::Apart(pattern(key), value.map(pattern)))
    }

    pub(super) fn matches(&self, entry: &Entry<'_>, joined: &[u8]) -> bool {
        match self {
            Self::Joined(pattern) => pattern.matches(joined),
            Self::Apart(key, value) => {
                let fits = |value: &Pattern| value.matches(entry.value);
                key.matches(entry.key) && value.as_ref().is_none_or(fits)
            }
        }
    }

    /// The pattern of the text that an end user can make long. Keys are short: the proxy chooses them.
    fn searched(&self) -> Option<&Pattern> {
        match self {
            Self::Joined(pattern) => Some(pattern),
            Self::Apart(_, value) => value.as_ref(),
        }
    }

    fn has_pieces(&self) -> bool {
        self.searched()
            .is_some_and(|pattern| !pattern.pieces.is_empty())
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Joined(pattern) => pattern.bytes,
            Self::Apart(key, value) => key.bytes + value.as_ref().map_or(0, |value| value.bytes),
        }
    }

    /// The part of `text` in which the pieces have to stand, if all else matches.
    fn room(&self, entry: &Entry<'_>, text: &[u8]) -> Option<Range<usize>> {
        match self {
            Self::Apart(key, _) if !key.matches(entry.key) => None,
            Self::Apart(..) | Self::Joined(_) => self.searched()?.room(text),
        }
    }
}

/// A text in which every `*` stands for any bytes, none included.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    prefix: Box<[u8]>,
    /// The texts between two `*`, of which none is empty.
    pieces: Box<[Box<[u8]>]>,
    /// `None` if there is no `*`: the prefix is then the whole text.
    suffix: Option<Box<[u8]>>,
    /// Of the pattern itself, each piece counted as [`LEAST_BYTES`] at least.
    bytes: usize,
}

impl Pattern {
    /// The pattern that `text` spells, or `None` if it has no `*`.
    pub(super) fn new(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|&byte| byte == b'*');
        let (prefix, suffix) = (parts.next()?, parts.next_back()?);
        let pieces = parts.filter(|piece| !piece.is_empty());
        let added = |piece: &[u8]| LEAST_BYTES.saturating_sub(piece.len());
        Some(Self {
            prefix: prefix.into(),
            bytes: text.len() + pieces.clone().map(added).sum::<usize>(),
            pieces: pieces.map(Into::into).collect(),
            suffix: Some(suffix.into()),
        })
    }

    /// A pattern that matches only `text` itself.
    fn exactly(text: &[u8]) -> Self {
        Self {
            prefix: text.into(),
            pieces: Box::default(),
            suffix: None,
            bytes: text.len(),
        }
    }

    /// The part of `text` between the ends, if they fit.
    fn room(&self, text: &[u8]) -> Option<Range<usize>> {
        let suffix = self.suffix.as_deref();
        let begin = self.prefix.len();
        let end = text.len().checked_sub(suffix.map_or(0, <[u8]>::len))?;
        // An empty text has no memory, and comparing it takes 40 ns on a processor with masked loads.
        let is_at = |at: usize, part: &[u8]| part.is_empty() || text[at..].starts_with(part);
        let is_whole = suffix.is_some() || begin == end;
        let fits = begin <= end && is_whole && is_at(0, &self.prefix);
        (fits && is_at(end, suffix.unwrap_or_default())).then_some(begin..end)
    }

    /// Whether all of `text` matches. Pieces are matched at their first occurrence, which leaves the most text for
    /// those after them; no two pieces may share a byte.
    pub(super) fn matches(&self, text: &[u8]) -> bool {
        let Some(room) = self.room(text) else {
            return false;
        };
        let mut rest = &text[room];
        self.pieces.iter().all(|piece| {
            let found = memmem::find(rest, piece);
            found
                .inspect(|at| rest = &rest[at + piece.len()..])
                .is_some()
        })
    }
}

/// The pieces of all patterns of a level.
#[derive(Debug)]
struct Pieces {
    /// Finds all of them.
    search: NFA,
    /// For each piece, the patterns that begin with it, ascending.
    begins: Vec<Vec<usize>>,
    /// For each pattern, the numbers of its pieces, in order; empty if it has none.
    of_patterns: Vec<Box<[usize]>>,
}

/// A pattern of which some pieces were found.
struct Waiting {
    pattern: usize,
    found: usize,
    /// Where the next piece can begin and has to end.
    room: Range<usize>,
}

impl Pieces {
    fn of<'w>(wildcards: impl Iterator<Item = &'w Wildcard>) -> Option<Self> {
        let mut texts: Vec<&[u8]> = Vec::new();
        let mut known: HashMap<&[u8], usize> = HashMap::new();
        let mut number = |piece: &'w [u8]| {
            *known.entry(piece).or_insert_with(|| {
                texts.push(piece);
                texts.len() - 1
            })
        };
        let of_patterns = wildcards.map(|wildcard| {
            let pieces = wildcard
                .searched()
                .map_or(&[][..], |pattern| &pattern.pieces);
            pieces.iter().map(|piece| number(piece)).collect()
        });
        let of_patterns: Vec<Box<[usize]>> = of_patterns.collect();
        if texts.is_empty() {
            return None;
        }
        let mut begins = vec![Vec::new(); texts.len()];
        for (pattern, pieces) in of_patterns.iter().enumerate() {
            pieces
                .first()
                .inspect(|piece| begins[**piece].push(pattern));
        }
        Some(Self {
            search: NFA::new(&texts).expect("rule files are far below its bounds"),
            begins,
            of_patterns,
        })
    }

    /// The first pattern below `before` whose pieces stand in `text` one after the other, or `before`. `room` returns
    /// the part of the text in which those of a pattern can stand, or `None` if the pattern does not match for
    /// another reason; it is asked at most once for each pattern.
    fn first(
        &self,
        text: &[u8],
        before: usize,
        room: impl Fn(usize) -> Option<Range<usize>>,
    ) -> usize {
        let mut first = before;
        // For each piece, the patterns that wait for it.
        let mut waiting: Vec<Vec<Waiting>> = Vec::new();
        let mut is_begun = vec![false; self.begins.len()];
        // How many pieces of patterns were found, and for each piece this number where it was the longest that ended at
        // a place, and no pattern waited for it or for those within it.
        let mut found = 1_usize;
        let mut quiet = vec![0; self.begins.len()];
        let start = self.search.start_state(Anchored::No);
        let mut state = start.expect("a search may begin anywhere");
        for (end, byte) in (1..).zip(text) {
            state = self.search.next_state(Anchored::No, state, *byte);
            if !self.search.is_match(state) {
                continue;
            }
            let longest = self.search.match_pattern(state, 0).as_usize();
            if quiet[longest] == found {
                continue;
            }
            waiting.resize_with(self.begins.len(), Vec::new);
            let (found_before, mut is_quiet) = (found, true);
            for index in 0..self.search.match_len(state) {
                let piece = self.search.match_pattern(state, index);
                let start = end - self.search.pattern_len(piece);
                let number = piece.as_usize();
                let mut here = mem::take(&mut waiting[number]);
                if !mem::replace(&mut is_begun[number], true) {
                    let begins = self.begins[number].iter().copied();
                    let begun = begins.take_while(|pattern| *pattern < first);
                    here.extend(begun.filter_map(|pattern| {
                        let room = room(pattern)?;
                        Some(Waiting {
                            pattern,
                            found: 0,
                            room,
                        })
                    }));
                }
                if here.is_empty() {
                    continue;
                }
                here.retain_mut(|own| {
                    if own.pattern >= first || own.room.end < end {
                        return false;
                    }
                    if own.room.start > start {
                        return true;
                    }
                    // The first place leaves the most room for the others.
                    found += 1;
                    match self.of_patterns[own.pattern].get(own.found + 1) {
                        Some(next) => waiting[*next].push(Waiting {
                            pattern: own.pattern,
                            found: own.found + 1,
                            room: end..own.room.end,
                        }),
                        None => first = own.pattern,
                    }
                    false
                });
                here.append(&mut waiting[number]);
                is_quiet &= here.is_empty();
                waiting[number] = here;
            }
            if is_quiet {
                quiet[longest] = found_before;
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first wildcard that matches, found by trying all.
    fn scan(all: &[Wildcard], entry: &Entry<'_>, joined: &[u8]) -> Option<usize> {
        let mut all = all.iter();
        all.position(|wildcard| wildcard.matches(entry, joined))
    }

    #[track_caller]
    fn check(all: Vec<Wildcard>, (key, value): &(String, String)) {
        let mut wildcards = Wildcards::default();
        for (index, wildcard) in all.iter().enumerate() {
            wildcards.push(wildcard.clone(), index);
        }
        let joined = format!("{key}_{value}");
        let entry = Entry {
            key: key.as_bytes(),
            value: value.as_bytes(),
        };
        let first = wildcards.first(&entry, joined.as_bytes());
        assert_eq!(first, scan(&all, &entry, joined.as_bytes()));
    }

    proptest! {
        #[test]
        fn joined_wildcards_are_found_as_by_a_scan(
            patterns in prop::collection::vec("[ab_]{0,2}\\*[ab*]{0,6}", 0..30),
            entry in ("[ab]{0,2}", "[ab]{0,8}"),
        ) {
            let all = patterns.iter().filter_map(|text| Pattern::new(text.as_bytes()));
            check(all.map(Wildcard::Joined).collect(), &entry);
        }

        #[test]
        fn wildcards_apart_are_found_as_by_a_scan(
            patterns in prop::collection::vec(("[ab*]{0,4}", prop::option::of("[ab*]{0,6}")), 0..30),
            entry in ("[ab]{0,4}", "[ab]{0,8}"),
        ) {
            let all = patterns.iter().filter_map(|(key, value)| {
                Wildcard::apart(key.as_bytes(), value.as_ref().map(String::as_bytes))
            });
            check(all.collect(), &entry);
        }
    }

    #[test]
    fn ends_that_would_share_a_byte_do_not_match() {
        let wildcard = |text: &str| Wildcard::Joined(Pattern::new(text.as_bytes()).unwrap());
        let all = ["k_aa*aa", "x*", "y*", "z*", "k_aa*a"]
            .map(wildcard)
            .to_vec();
        check(all.clone(), &("k".to_owned(), "aaa".to_owned()));
        check(all, &("k".to_owned(), "aa".to_owned()));
    }
}
