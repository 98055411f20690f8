//! Patterns with texts between their stars, found in one pass over the text: however many patterns there are, and
//! whatever an end user sends, the time grows with the length of the text and with the number of patterns whose first
//! such text occurs in it.

use std::{collections::HashMap, ops::Range};

use aho_corasick::AhoCorasick;
use foldhash::fast::RandomState;
use smallvec::{SmallVec, smallvec};

use super::effort::take_steps;

/// Patterns by the texts between their stars, their pieces.
#[derive(Debug)]
pub(super) struct MiddleSearch {
    /// Finds all pieces at once.
    pieces: AhoCorasick,
    /// For each piece, the patterns that begin with it, ascending.
    begins: Vec<Vec<usize>>,
    /// The pieces of each pattern, in order.
    sequences: HashMap<usize, Box<[usize]>, RandomState>,
}

/// A pattern whose next piece has not been found.
struct Waiting {
    pattern: usize,
    /// How many of its pieces were found.
    found: usize,
    /// Where the next one may begin and has to end.
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
        let pieces = AhoCorasick::new(&texts).expect("rule files are far below its bounds");
        Some(Self {
            pieces,
            begins,
            sequences,
        })
    }

    /// The first pattern below `before` whose pieces stand in `text` one after the other, or `before`. `room` returns
    /// the part of the text in which those of a pattern may stand, or `None` if the pattern does not match for
    /// another reason; it is asked at most once for each pattern.
    pub(super) fn first(
        &self,
        text: &[u8],
        before: usize,
        room: impl Fn(usize) -> Option<Range<usize>>,
    ) -> usize {
        let mut first = before;
        take_steps(text.len());
        let mut seen: SmallVec<[u64; 16]> = smallvec![0; self.begins.len().div_ceil(64)];
        let mut waiting: HashMap<usize, Vec<Waiting>, RandomState> = HashMap::default();
        // They come in the order of their ends.
        for piece in self.pieces.find_overlapping_iter(text) {
            take_steps(1);
            let number = piece.pattern().as_usize();
            let (word, bit) = (&mut seen[number / 64], 1 << (number % 64));
            let mut here = match waiting.is_empty() {
                true => Vec::new(),
                false => waiting.remove(&number).unwrap_or_default(),
            };
            if *word & bit == 0 {
                *word |= bit;
                let begins = self.begins[number].iter().copied();
                let begins = begins.take_while(|pattern| *pattern < first);
                here.extend(begins.filter_map(|pattern| {
                    take_steps(1);
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
                    Some(next) => waiting.entry(*next).or_default().push(pattern),
                    None => first = pattern.pattern,
                }
            }
        }
        first
    }
}
