//! Patterns with texts between their stars, found in two passes over the text: however many patterns there are, and
//! whatever an end user sends, the time grows with the length of the text and with the number of patterns whose rarest
//! such text occurs in it. Where none does there is no second pass.

use std::{collections::HashMap, ops::Range};

use aho_corasick::AhoCorasick;
use foldhash::fast::RandomState;
use smallvec::{SmallVec, smallvec};

/// Patterns by the texts between their stars, their pieces.
#[derive(Debug)]
pub(super) struct MiddleSearch {
    /// Finds all pieces at once.
    pieces: AhoCorasick,
    /// For each piece, the patterns that begin with it, ascending.
    begins: Vec<Vec<usize>>,
    /// For each piece, the patterns of which no other piece stands in fewer patterns.
    rarest: Vec<Vec<usize>>,
    /// The pieces of each pattern, in order.
    sequences: HashMap<usize, Box<[usize]>, RandomState>,
}

/// A pattern whose next piece has not been found.
#[derive(Clone)]
struct Waiting {
    pattern: usize,
    /// How many of its pieces were found.
    found: usize,
    /// Where the next one can begin and has to end.
    room: Range<usize>,
}

impl MiddleSearch {
    /// A search for `patterns`: their numbers, ascending, and their pieces, of which none is empty and each pattern has
    /// at least one. `None` if there are no patterns.
    pub(super) fn new<'p, P>(patterns: impl Iterator<Item = (usize, P)>) -> Option<Self>
    where
        P: Iterator<Item = &'p [u8]>,
    {
        let mut texts: Vec<&[u8]> = Vec::new();
        let mut known: HashMap<&[u8], usize, RandomState> = HashMap::default();
        let mut begins: Vec<Vec<usize>> = Vec::new();
        let mut sequences: HashMap<usize, Box<[usize]>, RandomState> = HashMap::default();
        for (pattern, pieces) in patterns {
            let sequence = pieces.map(|piece| {
                *known.entry(piece).or_insert_with(|| {
                    texts.push(piece);
                    begins.push(Vec::new());
                    texts.len() - 1
                })
            });
            let sequence: Box<[usize]> = sequence.collect();
            begins[sequence[0]].push(pattern);
            sequences.insert(pattern, sequence);
        }
        if texts.is_empty() {
            return None;
        }
        let mut patterns_with = vec![0_usize; texts.len()];
        let all_pieces = sequences.values().flatten();
        all_pieces.for_each(|piece| patterns_with[*piece] += 1);
        let mut rarest = vec![Vec::new(); texts.len()];
        for (pattern, sequence) in &sequences {
            let piece = sequence.iter().min_by_key(|piece| patterns_with[**piece]);
            piece.inspect(|piece| rarest[**piece].push(*pattern));
        }
        let pieces = AhoCorasick::new(&texts).expect("rule files are far below its bounds");
        Some(Self {
            pieces,
            begins,
            rarest,
            sequences,
        })
    }

    /// The first pattern below `before` whose pieces stand in `text` one after the other, or `before`. `room` returns
    /// the part of the text in which those of a pattern can stand, or `None` if the pattern does not match for
    /// another reason; it is asked at most once for each pattern.
    pub(super) fn first(
        &self,
        text: &[u8],
        before: usize,
        room: impl Fn(usize) -> Option<Range<usize>>,
    ) -> usize {
        let candidates = self.candidates(text, before);
        if candidates.is_empty() {
            return before;
        }
        let mut first = before;
        take_steps(text.len());
        let mut seen = Bits::new(self.begins.len());
        let mut waiting = WaitingPatterns::new(self.begins.len());
        // They come in the order of their ends.
        for piece in self.pieces.find_overlapping_iter(text) {
            take_steps(1);
            let number = piece.pattern().as_usize();
            let mut here = waiting.take(number);
            if seen.insert(number) {
                let begins = self.begins[number].iter().copied();
                let begins = begins.take_while(|pattern| *pattern < first);
                here.extend(begins.filter_map(|pattern| {
                    take_steps(1);
                    if !candidates.has(pattern) {
                        return None;
                    }
                    let room = room(pattern)?;
                    Some(Waiting {
                        pattern,
                        found: 0,
                        room,
                    })
                }));
            }
            for mut pattern in here {
                take_steps(1);
                if pattern.pattern >= first || pattern.room.end < piece.end() {
                    continue;
                }
                let sequence = &self.sequences[&pattern.pattern];
                if pattern.room.start <= piece.start() {
                    // The first place leaves the most room for the others.
                    pattern.found += 1;
                    pattern.room.start = piece.end();
                }
                match sequence.get(pattern.found) {
                    Some(next) => waiting.add(*next, pattern),
                    None => first = pattern.pattern,
                }
            }
        }
        first
    }

    /// The patterns below `before` whose rarest piece stands in `text`.
    fn candidates(&self, text: &[u8], before: usize) -> Bits {
        take_steps(text.len());
        let mut seen = Bits::new(self.rarest.len());
        let mut candidates = Bits::default();
        for piece in self.pieces.find_overlapping_iter(text) {
            take_steps(1);
            let number = piece.pattern().as_usize();
            if !seen.insert(number) {
                continue;
            }
            for &pattern in self.rarest[number]
                .iter()
                .filter(|pattern| **pattern < before)
            {
                take_steps(1);
                if candidates.is_empty() {
                    candidates = Bits::new(before);
                }
                candidates.insert(pattern);
            }
        }
        candidates
    }
}

/// A set of small numbers.
#[derive(Default)]
struct Bits(SmallVec<[u64; 16]>);

impl Bits {
    /// No numbers; there is room for those below `end`.
    fn new(end: usize) -> Self {
        Self(smallvec![0; end.div_ceil(64)])
    }

    /// Whether there is no room, and so no number.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `number`; returns whether it was missing.
    fn insert(&mut self, number: usize) -> bool {
        let (word, bit) = (&mut self.0[number / 64], 1 << (number % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn has(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 == 1
    }
}

/// Patterns that wait for a piece, by the piece: lists in one vector, for a list of its own would cost an allocation
/// for each pattern.
struct WaitingPatterns {
    all: Vec<(Waiting, Option<usize>)>,
    /// Places in it that are free again.
    free: Vec<usize>,
    /// For each piece, the last one that waits for it; empty until one waits.
    last: Vec<Option<usize>>,
    pieces: usize,
}

impl WaitingPatterns {
    fn new(pieces: usize) -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            last: Vec::new(),
            pieces,
        }
    }

    fn add(&mut self, piece: usize, pattern: Waiting) {
        self.last.resize(self.pieces, None);
        let at = self.free.pop().unwrap_or(self.all.len());
        let waiting = (pattern, self.last[piece].replace(at));
        match self.all.get_mut(at) {
            Some(place) => *place = waiting,
            None => self.all.push(waiting),
        }
    }

    /// Those that wait for `piece`, which wait for it no longer.
    fn take(&mut self, piece: usize) -> Vec<Waiting> {
        let mut taken = Vec::new();
        let mut next = self.last.get_mut(piece).and_then(Option::take);
        while let Some(at) = next {
            let (pattern, before) = &self.all[at];
            taken.push(pattern.clone());
            self.free.push(at);
            next = *before;
        }
        taken
    }
}

/// Counts the steps of matching a value with wildcards, in unit tests and while fuzzing: its time grows with them. A
/// program does not count.
#[inline]
pub(super) fn take_steps(steps: usize) {
    #[cfg(any(test, fuzzing))]
    effort::STEPS.set(effort::STEPS.get() + steps);
    let _ = steps;
}

#[cfg(any(test, fuzzing))]
mod effort {
    use std::cell::Cell;

    thread_local!(pub(super) static STEPS: Cell<usize> = const { Cell::new(0) });
}

/// The steps that this thread has taken since it was last asked.
#[cfg(any(test, fuzzing))]
pub fn steps_taken() -> usize {
    effort::STEPS.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(patterns: &[&[&str]]) -> MiddleSearch {
        let patterns = patterns.iter().enumerate();
        let bytes =
            patterns.map(|(number, pieces)| (number, pieces.iter().map(|piece| piece.as_bytes())));
        MiddleSearch::new(bytes).unwrap()
    }

    #[test]
    fn only_patterns_below_the_bound_are_found() {
        let search = search(&[&["a"] as &[_]; 65]);
        let last = |pattern| (pattern == 64).then_some(0..1);
        for (before, first) in [(0, 0), (1, 1), (64, 64), (65, 64)] {
            assert_eq!(search.first(b"a", before, last), first);
        }
    }

    #[test]
    fn patterns_whose_rarest_piece_does_not_occur_are_not_begun() {
        let search = search(&[&["a", "x"], &["a", "b"]]);
        let asked = std::cell::RefCell::new(Vec::new());
        let first = search.first(b"ab", 2, |pattern| {
            asked.borrow_mut().push(pattern);
            Some(0..2)
        });
        assert_eq!((first, asked.into_inner()), (1, vec![1]));
    }

    #[test]
    fn steps_add_up_until_they_are_asked_for() {
        steps_taken();
        take_steps(3);
        take_steps(4);
        assert_eq!([steps_taken(), steps_taken()], [7, 0]);
    }
}
