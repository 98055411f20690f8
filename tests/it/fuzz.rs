//! Replays the inputs in `fuzz/corpus`, which fuzzing has found worth keeping, and slightly changed forms of them.
//! `make fuzz` searches for more.

mod targets;

use std::{fs, path::PathBuf};

use targets::{ALL, is_known};

/// The inputs for a law: each is a line of its file, with `\n`, `\\` and `\xff` for bytes that are no text.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = root.join(format!("fuzz/corpus/{target}.txt"));
    let text = fs::read_to_string(&path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(input).collect()
}

fn input(line: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), line);
    while let Some((plain, escaped)) = rest.split_once('\\') {
        bytes.extend(plain.bytes());
        let (byte, length) = match escaped.as_bytes()[0] {
            b'n' => (b'\n', 1),
            b'\\' => (b'\\', 1),
            _ => (u8::from_str_radix(&escaped[1..3], 16).unwrap(), 3),
        };
        bytes.push(byte);
        rest = &escaped[length..];
    }
    bytes.extend(rest.bytes());
    bytes
}

/// Number of changed forms of each input.
const MUTANTS: usize = 120;

/// Pseudo-random bytes, equal in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        // Xorshift, after Marsaglia.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
    }

    /// `bytes` with a few changes, some of them copied from `other`.
    fn mutant(&mut self, bytes: &[u8], other: &[u8]) -> Vec<u8> {
        let mut mutant = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(mutant.len() + 1);
            let end = (at + self.below(8)).min(mutant.len());
            let byte = u8::try_from(self.below(256)).unwrap();
            match self.below(5) {
                0 => mutant.insert(at, byte),
                1 => drop(mutant.drain(at..end)),
                2 => {
                    let again = mutant[at..end].to_vec();
                    mutant.splice(at..at, again);
                }
                3 => {
                    let from = self.below(other.len() + 1);
                    let to = (from + self.below(32)).min(other.len());
                    mutant.splice(at..end, other[from..to].iter().copied());
                }
                _ => {
                    if let Some(found) = mutant.get_mut(at) {
                        *found = byte;
                    }
                }
            }
        }
        mutant
    }
}

#[test]
fn every_law_holds_for_its_corpus_and_for_changed_forms_of_it() {
    for (target, law) in ALL {
        let corpus = corpus(target);
        // The corpora are part of every clone.
        let count = corpus.len();
        assert!((1..=200).contains(&count), "{target}: {count}");
        // A failure reports the bytes that broke the law.
        let check = |bytes: &[u8]| {
            let holds = std::panic::catch_unwind(|| law(bytes)).is_ok();
            assert!(holds, "{target}: {}", bytes.escape_ascii());
        };
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
        for bytes in &corpus {
            assert!(bytes.len() <= 1024, "{target}: {}", bytes.escape_ascii());
            check(bytes);
            for _ in 0..MUTANTS {
                let other = &corpus[chance.below(corpus.len())];
                check(&chance.mutant(bytes, other));
            }
        }
    }
}

/// Otherwise the law of tokens would be one of unknown ones.
#[test]
fn some_inputs_are_tokens_of_their_counters() {
    let corpus = corpus("tokens");
    for (order, count) in targets::ORDERS.into_iter().zip([17, 17, 0]) {
        let known = corpus.iter().filter(|bytes| is_known(order, bytes));
        assert_eq!(known.count(), count, "{order}");
    }
}
