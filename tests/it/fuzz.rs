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
const MUTANTS: usize = 300;

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

#[track_caller]
fn check(target: &str) {
    let (_, law) = ALL.iter().find(|(name, _)| *name == target).unwrap();
    let corpus = corpus(target);
    assert!(!corpus.is_empty());
    // A failure reports the bytes that broke the law.
    let holds = |bytes: &[u8]| std::panic::catch_unwind(|| law(bytes)).is_ok();
    for bytes in &corpus {
        assert!(holds(bytes), "{target}: {}", bytes.escape_ascii());
    }
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    for bytes in &corpus {
        for _ in 0..MUTANTS {
            let other = &corpus[chance.below(corpus.len())];
            let mutant = chance.mutant(bytes, other);
            assert!(holds(&mutant), "{target}: {}", mutant.escape_ascii());
        }
    }
}

#[test]
fn messages_are_read_as_prost_reads_them() {
    check("message");
}

#[test]
fn header_blocks_stay_what_they_are_but_for_bad_names() {
    check("headers");
}

#[test]
fn any_text_is_rules_or_has_problems() {
    check("rules");
}

#[test]
fn json_is_the_same_rules_on_one_line_and_on_many() {
    check("json");
}

#[test]
fn names_of_files_forge_nothing() {
    check("names");
}

#[test]
fn wildcards_are_found_as_by_a_scan() {
    check("wildcards");
}

#[test]
fn slots_have_the_owner_of_the_last_range() {
    check("slots");
}

#[test]
fn any_push_is_rules_or_has_problems() {
    check("xds");
}

#[test]
fn any_mapping_makes_pages_that_can_be_read() {
    check("mapping");
}

#[test]
fn any_bytes_are_a_token_or_unknown_and_take_no_more_off_than_a_limit() {
    check("tokens");
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

/// The corpora are part of every clone.
#[test]
fn corpora_stay_small() {
    for (target, _) in ALL {
        let corpus = corpus(target);
        assert!(corpus.len() <= 200, "{target}: {}", corpus.len());
        for bytes in corpus {
            assert!(bytes.len() <= 1024, "{target}: {}", bytes.escape_ascii());
        }
    }
}
