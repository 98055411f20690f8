//! The wildcards of one level: finds the first that an entry matches, without trying them all.
//!
//! The texts before the first `*` of a pattern and after its last one have to occur literally. Patterns
//! without other texts are therefore indexed by the lengths of these two, their shape, and by a hash of their bytes.
//! An entry is looked up once per shape: rule files have few shapes, however many patterns. Patterns with
//! further texts between their stars are found by these.

use std::{
    collections::{HashMap, HashSet},
    hash::BuildHasher as _,
    ops::Range,
    sync::OnceLock,
};

use foldhash::fast::RandomState;
use memchr::memmem;

use super::middles::{MiddleSearch, take_steps};

use crate::core::request::Entry;

/// Up to this many wildcards are tried one after the other, which is cheaper than a lookup.
const FEW: usize = 4;

/// Wildcards in order of declaration, each with its target.
#[derive(Debug)]
pub(super) struct Wildcards<T> {
    all: Vec<(Wildcard, T)>,
    shapes: HashSet<Shape, RandomState>,
    /// Wildcards without middles by the hash of their shape and literal ends; their indices ascend. Hash collisions can
    /// add wildcards that do not match.
    filed: HashMap<u64, Vec<usize>, RandomState>,
    hasher: RandomState,
    /// Those with middles in the key and in the value, or in the joined text; made when it is first needed, which is
    /// the check of the rules.
    with_middles: OnceLock<[Option<Box<MiddleSearch>>; 2]>,
}

// A derived implementation would require `T: Default`.
impl<T> Default for Wildcards<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            shapes: HashSet::default(),
            filed: HashMap::default(),
            hasher: RandomState::default(),
            with_middles: OnceLock::new(),
        }
    }
}

/// The numbers of literal bytes at the beginnings and the ends of a key and a value. Joined, these are
/// one text, and the second item is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape([Affixes<usize>; 2]);

/// A property of a text's beginning and of its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Affixes<T> {
    prefix: T,
    suffix: T,
}

impl Affixes<usize> {
    /// The literal ends of `text`, or `None` if it is too short for both.
    fn of(self, text: &[u8]) -> Option<Affixes<&[u8]>> {
        let rest = text.len().checked_sub(self.suffix)?;
        let prefix = text[..rest].get(..self.prefix)?;
        Some(Affixes {
            prefix,
            suffix: &text[rest..],
        })
    }
}

impl<T: Copy> Wildcards<T> {
    /// Appends `wildcard`.
    pub(super) fn push(&mut self, wildcard: Wildcard, leads_to: T) {
        self.with_middles = OnceLock::new();
        if wildcard.place_of_middles().is_none() {
            let ends = wildcard.ends();
            let shape = Shape(ends.map(|ends| Affixes {
                prefix: ends.prefix.len(),
                suffix: ends.suffix.len(),
            }));
            let hash = self.hash(shape, ends);
            self.shapes.insert(shape);
            self.filed.entry(hash).or_default().push(self.all.len());
        }
        self.all.push((wildcard, leads_to));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The targets of all wildcards, in order of declaration.
    pub(super) fn targets(&self) -> impl Iterator<Item = T> {
        self.all.iter().map(|(_, to)| *to)
    }

    /// The target of the first wildcard that matches.
    pub(super) fn first(&self, entry: &Entry<'_>, joined: &[u8]) -> Option<T> {
        if self.all.len() <= FEW {
            let mut all = self.all.iter();
            return all.find_map(|(wildcard, to)| wildcard.matches(entry, joined).then_some(*to));
        }
        let is_apart = matches!(self.all[0].0, Wildcard::Apart(..));
        let texts = if is_apart {
            [entry.key, entry.value]
        } else {
            [joined, b""]
        };
        let mut first = self.all.len();
        for shape in &self.shapes {
            let [Some(key), Some(value)] = [0, 1].map(|at| shape.0[at].of(texts[at])) else {
                continue;
            };
            let filed = self.filed.get(&self.hash(*shape, [key, value]));
            for &index in filed.into_iter().flatten() {
                if index >= first {
                    break;
                }
                if self.all[index].0.matches(entry, joined) {
                    first = index;
                }
            }
        }
        for (place, (search, text)) in self.with_middles().iter().zip(texts).enumerate() {
            if let Some(search) = search {
                first = search.first(text, first, |index| {
                    self.all[index].0.room(place, entry, joined)
                });
            }
        }
        self.all.get(first).map(|(_, to)| *to)
    }

    fn with_middles(&self) -> &[Option<Box<MiddleSearch>>; 2] {
        self.with_middles.get_or_init(|| {
            [0, 1].map(|place| {
                let all = self.all.iter().enumerate();
                let found = all.filter_map(|(index, (wildcard, _))| {
                    let is_here = wildcard.place_of_middles() == Some(place);
                    is_here.then(|| (index, wildcard.pattern(place).pieces()))
                });
                MiddleSearch::new(found).map(Box::new)
            })
        })
    }

    fn hash(&self, shape: Shape, ends: [Affixes<&[u8]>; 2]) -> u64 {
        let bytes = |ends: &Affixes<&[u8]>| ends.prefix.len() + ends.suffix.len();
        take_steps(1 + ends.iter().map(bytes).sum::<usize>());
        self.hasher.hash_one((shape, ends))
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

    /// The literal ends of texts that match: of the key and of the value, or of both joined.
    fn ends(&self) -> [Affixes<&[u8]>; 2] {
        match self {
            Self::Joined(pattern) => [pattern.ends(), Affixes::default()],
            Self::Apart(key, value) => {
                let value = value.as_ref().map_or_else(Affixes::default, Pattern::ends);
                [key.ends(), value]
            }
        }
    }

    /// Which of its texts has middles: 0 for the key or the joined text, 1 for the value; if both have, the value.
    fn place_of_middles(&self) -> Option<usize> {
        let has_middles = |pattern: &Pattern| pattern.pieces().next().is_some();
        match self {
            Self::Apart(_, Some(value)) if has_middles(value) => Some(1),
            Self::Apart(pattern, _) | Self::Joined(pattern) => has_middles(pattern).then_some(0),
        }
    }

    fn pattern(&self, place: usize) -> &Pattern {
        match self {
            Self::Apart(_, Some(value)) if place == 1 => value,
            Self::Apart(pattern, _) | Self::Joined(pattern) => pattern,
        }
    }

    /// The part of the text at `place` in which the middles can stand, if all else matches.
    fn room(&self, place: usize, entry: &Entry<'_>, joined: &[u8]) -> Option<Range<usize>> {
        let (text, fits) = match self {
            Self::Joined(_) => (joined, true),
            Self::Apart(key, _) if place == 1 => (entry.value, key.matches(entry.key)),
            Self::Apart(_, value) => {
                let fits = |value: &Pattern| value.matches(entry.value);
                (entry.key, value.as_ref().is_none_or(fits))
            }
        };
        let room = self.pattern(place).room(text)?;
        fits.then_some(room)
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
}

/// A text in which every `*` stands for any bytes, none included.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    prefix: Box<[u8]>,
    middle: Box<[Box<[u8]>]>,
    /// `None` if there is no `*`: the prefix is then the whole text.
    suffix: Option<Box<[u8]>>,
}

impl Pattern {
    /// The pattern that `text` spells, or `None` if it has no `*`.
    pub(super) fn new(text: &[u8]) -> Option<Self> {
        let mut pieces: Vec<Box<[u8]>> = text.split(|&byte| byte == b'*').map(Into::into).collect();
        if pieces.len() < 2 {
            return None;
        }
        let suffix = pieces.pop()?;
        let prefix = pieces.remove(0);
        Some(Self {
            prefix,
            middle: pieces.into(),
            suffix: Some(suffix),
        })
    }

    /// A pattern that matches only `text` itself.
    fn exactly(text: &[u8]) -> Self {
        Self {
            prefix: text.into(),
            middle: Box::default(),
            suffix: None,
        }
    }

    fn ends(&self) -> Affixes<&[u8]> {
        Affixes {
            prefix: &self.prefix,
            suffix: self.suffix.as_deref().unwrap_or_default(),
        }
    }

    /// The texts between two `*`.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let pieces = self.middle.iter().map(|piece| &**piece);
        pieces.filter(|piece| !piece.is_empty())
    }

    /// The part of `text` between the literal ends, if they fit.
    fn room(&self, text: &[u8]) -> Option<Range<usize>> {
        let ends = self.ends();
        take_steps(1 + text.len().min(ends.prefix.len() + ends.suffix.len()));
        let rest = text.strip_prefix(&*self.prefix)?;
        let between = match &self.suffix {
            Some(suffix) => rest.strip_suffix(&**suffix)?,
            None if rest.is_empty() => rest,
            None => return None,
        };
        let begin = self.prefix.len();
        Some(begin..begin + between.len())
    }

    /// Whether all of `text` matches. The pieces between two `*` are matched at their first occurrence,
    /// which leaves the most text for the pieces after them; no two pieces may share a byte.
    pub(super) fn matches(&self, text: &[u8]) -> bool {
        let Some(room) = self.room(text) else {
            return false;
        };
        let mut rest = &text[room];
        for piece in self.pieces() {
            let found = memmem::find(rest, piece);
            take_steps(found.map_or(rest.len(), |at| at + piece.len()));
            let Some(at) = found else {
                return false;
            };
            rest = &rest[at + piece.len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::matcher::middles::steps_taken;

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

    /// A wildcard of the joined text, or one of the value after its `k_`.
    fn wildcard(pattern: &str, is_joined: bool) -> Wildcard {
        let value = pattern.strip_prefix("k_").unwrap_or(pattern);
        if is_joined {
            Wildcard::Joined(Pattern::new(pattern.as_bytes()).unwrap())
        } else {
            Wildcard::apart(b"k", Some(value.as_bytes())).unwrap()
        }
    }

    /// The steps of a search for the wildcards that `shape` makes of each number, in a value for which most of a piece is
    /// found again and again.
    fn steps(shape: impl Fn(usize) -> Wildcard, rules: usize, bytes: usize) -> usize {
        let mut wildcards = Wildcards::default();
        for number in 0..rules {
            wildcards.push(shape(number), number);
        }
        let value = b"badbo".repeat(bytes / 5);
        let entry = Entry {
            key: b"k",
            value: &value,
        };
        let joined = [b"k_", &value[..]].concat();
        // The index is made once, before the first search.
        let _ = wildcards.first(&entry, &joined);
        steps_taken();
        assert_eq!(wildcards.first(&entry, &joined), None);
        steps_taken()
    }

    /// An end user chooses the value and its length, which a few dozen kB bound.
    #[test]
    fn steps_grow_with_the_value_and_not_with_the_value_times_the_rules() {
        type Shape = fn(usize) -> String;
        let shapes: [(Shape, usize); 5] = [
            (|number| format!("k_*badbot{number}*"), 1),
            (|number| format!("k_*bad*botx{number}*"), 2),
            (|number| format!("*b*a*d*z{number}*"), 3),
            (|number| format!("k_badbo{number}*"), 1),
            (
                |number| format!("*{}z{number}*", "badbo*".repeat(number)),
                1,
            ),
        ];
        let both = shapes
            .iter()
            .flat_map(|shape| [(shape, true), (shape, false)]);
        for (at, ((shape, pieces), is_joined)) in both.enumerate() {
            let shape = |number| wildcard(&shape(number), is_joined);
            for bytes in [1_000, 10_000, 60_000] {
                let few = steps(shape, 30, bytes);
                assert!(few <= 2 * pieces * bytes + 2_000, "{at}: {few} for {bytes}");
                let more = steps(shape, 300, bytes);
                // Each piece of each rule at most once more.
                let bound = few + 300 * 300;
                assert!(more <= bound, "{at}: {few} and {more} for {bytes}");
                let longer = steps(shape, 300, 2 * bytes);
                assert!(10 * longer <= 22 * more, "{at}: {more} and {longer}");
            }
        }
    }

    #[test]
    fn a_look_and_each_byte_that_is_compared_are_a_step() {
        for (pattern, text, expected) in [
            ("ab*c", "abxc", 1 + 3),
            ("ab*c", "x", 1 + 1),
            ("a*bc*", "axxxbc", 1 + 1 + 5),
            ("a*bc*", "axxxb", 1 + 1 + 4),
        ] {
            let pattern = Pattern::new(pattern.as_bytes()).unwrap();
            steps_taken();
            pattern.matches(text.as_bytes());
            assert_eq!(steps_taken(), expected, "{text}");
        }
        // All have one shape, and none of them is filed under these ends.
        let mut wildcards = Wildcards::default();
        for number in 0..=FEW {
            wildcards.push(wildcard(&format!("k_{number}*z"), true), number);
        }
        let (key, value) = (b"k", b"xyz");
        let entry = Entry { key, value };
        steps_taken();
        assert_eq!(wildcards.first(&entry, b"k_xyz"), None);
        assert_eq!(steps_taken(), 1 + 4);
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
