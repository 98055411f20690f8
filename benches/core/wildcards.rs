//! The search of a wildcard in values of any length: the worst that an end user can send.

use std::hint::black_box;

use anyhow::{Context as _, anyhow};
use tollgate::{Entry, Joined, Matcher};

/// Shapes of wildcards; `N` stands for the number of the rule.
pub const SHAPES: [&str; 6] = [
    "badbotN*",
    "*badbotN",
    "*badbotN*",
    "*bad*botN*",
    "bad*botN*N",
    "*b*a*d*N*",
];

pub const COUNTS: [usize; 5] = [1, 10, 100, 300, 2_000];

/// Bytes of a value.
pub const LENGTHS: [usize; 4] = [10, 1_000, 8_000, 64_000];

/// Rules of one shape, and a value that is almost matched everywhere.
pub struct Search {
    matcher: Matcher,
    value: String,
}

impl Search {
    pub fn new(shape: &str, count: usize, length: usize) -> anyhow::Result<Self> {
        let mut matcher = Matcher::default();
        let root = matcher.insert_domain(b"d");
        for number in 0..count {
            let value = shape.replace('N', &format!("{number:05}"));
            let node = matcher.insert(root, b"k", value.as_bytes());
            node.context("no rule is there twice")?;
        }
        Ok(Self {
            matcher,
            value: "badbot0".repeat(length / 7 + 1)[..length].to_owned(),
        })
    }

    /// From its name, its number of rules and the length of the value.
    pub fn of(texts: &[String]) -> anyhow::Result<Self> {
        let [shape, count, length] = texts else {
            return Err(anyhow!("expected a shape, a count and a length"));
        };
        Self::new(shape, count.parse()?, length.parse()?)
    }
}

#[inline(never)]
pub fn room_find(search: &Search) {
    let entry = Entry {
        key: b"k",
        value: search.value.as_bytes(),
    };
    let domain = search.matcher.domain(b"d");
    let found = domain.map(|domain| domain.find(black_box(&[entry]), &mut Joined::new()));
    let _ = black_box(found);
}
