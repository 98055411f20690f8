//! Algorithms, the kinds of their counters, and the facts that other files ask about one.

use std::sync::Arc;

use crate::core::calendar::Calendar;

/// How hits are counted against a limit. docs/rules/algorithms.md describes the answers of each algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// In windows aligned to the Unix epoch.
    #[default]
    FixedWindow,
    /// In the days, weeks, months or years of a time zone (`calendar: true`).
    Calendar(Arc<Calendar>),
    /// In windows that begin with the first hit (`window: first_hit`).
    FirstHit,
    /// In two windows, the older weighted by its overlap with the last period.
    SlidingWindow,
    /// By a log of every hit of the last period, to the millisecond.
    SlidingLog,
    /// In a bucket that holds `burst` tokens and is refilled evenly (GCRA, ITU-T I.371).
    TokenBucket { burst: u64 },
    /// In slots, each of which a request holds until it ends, or for a period at the longest.
    Concurrency,
}

impl Algorithm {
    /// The most hits that a log may have to remember, and the most slots: about 200 kB in Redis and 240 kB in memory.
    pub const MAX_LOGGED: u32 = 10_000;

    /// One of each but calendars, which differ from fixed windows in their edges only. The bucket holds `burst` tokens.
    pub fn one_of_each(burst: u64) -> impl Iterator<Item = Self> {
        // An algorithm that is missing here does not compile.
        let next = move |algorithm: &Self| match algorithm {
            Self::FixedWindow | Self::Calendar(_) => Some(Self::FirstHit),
            Self::FirstHit => Some(Self::SlidingWindow),
            Self::SlidingWindow => Some(Self::SlidingLog),
            Self::SlidingLog => Some(Self::TokenBucket { burst }),
            Self::TokenBucket { .. } => Some(Self::Concurrency),
            Self::Concurrency => None,
        };
        std::iter::successors(Some(Self::FixedWindow), next)
    }

    /// Whether it counts only the hits that it lets pass.
    pub fn looks_first(&self) -> bool {
        self.kind(1).facts().looks_first
    }

    /// The name as YAML spells it.
    pub fn name(&self) -> &'static str {
        self.kind(1).facts().word
    }

    /// The largest number of requests that it limits.
    pub(crate) fn max_requests(&self) -> u64 {
        self.kind(1).facts().max_requests
    }

    /// The most hits that can pass at once.
    pub(crate) fn capacity(&self, requests_per_unit: u64) -> u64 {
        match self {
            // No token ever flows into a bucket of 0 per unit.
            Self::TokenBucket { burst } if requests_per_unit > 0 => *burst,
            _ => requests_per_unit,
        }
    }

    /// The kind of its counters; `rate` is the number of tokens that flow into a bucket per period.
    pub(crate) fn kind(&self, rate: u64) -> CounterKind {
        let (rate, lease) = (Halves::new(rate), Halves::new(0));
        match self {
            Self::FixedWindow | Self::Calendar(_) => CounterKind::Window,
            Self::FirstHit => CounterKind::FirstHit,
            Self::SlidingWindow => CounterKind::SlidingWindow,
            Self::SlidingLog => CounterKind::SlidingLog,
            Self::TokenBucket { .. } => CounterKind::TokenBucket { rate },
            Self::Concurrency => CounterKind::Slots { lease },
        }
    }
}

/// The algorithm by which a counter takes hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// A plain number; the window is part of the key.
    Window,
    FirstHit,
    SlidingWindow,
    SlidingLog,
    /// `rate` tokens flow in per period; never 0.
    TokenBucket {
        rate: Halves,
    },
    /// Each hit takes a slot, which is named by the `lease` of its request, 0 if it has none. Giving back frees all
    /// slots of that lease, however many hits it names, and a reset frees all slots.
    Slots {
        lease: Halves,
    },
}

/// A number in two halves, so that each increment is 8 bytes shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves([u32; 2]);

impl Halves {
    #[expect(clippy::cast_possible_truncation, reason = "each half keeps its bits")]
    pub const fn new(number: u64) -> Self {
        Self([(number >> 32) as u32, number as u32])
    }

    pub const fn get(self) -> u64 {
        let Self([high, low]) = self;
        (high as u64) << 32 | low as u64
    }
}

/// The facts of a kind. A new kind is a row of them, a state in `core/algorithm.rs`, and a function in `step.lua`.
#[derive(Debug)]
pub(crate) struct KindFacts {
    /// Its name in reports.
    pub(crate) report_name: &'static str,
    /// The value of `algorithm` in a rule.
    pub(crate) word: &'static str,
    /// Its letter in `step.lua` and, but for windows, at the end of a key.
    pub(crate) letter: u8,
    /// Whether it counts only the hits that it lets pass.
    pub(crate) looks_first: bool,
    /// Whether a settlement finds what was charged: the window is in the key, or the counter has none.
    pub(crate) is_settled: bool,
    /// The largest number of requests in a limit, unless another setting bounds it.
    pub(crate) max_requests: u64,
}

const WINDOW: KindFacts = KindFacts {
    report_name: "fixed_window",
    word: "fixed_window",
    letter: b'w',
    looks_first: false,
    is_settled: true,
    max_requests: u64::MAX,
};

const FIRST_HIT: KindFacts = KindFacts {
    report_name: "first_hit",
    letter: b'f',
    is_settled: false,
    ..WINDOW
};

const SLIDING_WINDOW: KindFacts = KindFacts {
    report_name: "sliding_window",
    word: "sliding_window",
    letter: b's',
    looks_first: true,
    is_settled: false,
    max_requests: u32::MAX as u64,
};

const SLIDING_LOG: KindFacts = KindFacts {
    report_name: "sliding_log",
    word: "sliding_log",
    letter: b'l',
    max_requests: Algorithm::MAX_LOGGED as u64,
    ..SLIDING_WINDOW
};

const TOKEN_BUCKET: KindFacts = KindFacts {
    report_name: "token_bucket",
    word: "token_bucket",
    letter: b't',
    is_settled: true,
    max_requests: u64::MAX,
    ..SLIDING_WINDOW
};

const SLOTS: KindFacts = KindFacts {
    report_name: "concurrency",
    word: "concurrency",
    letter: b'c',
    max_requests: Algorithm::MAX_LOGGED as u64,
    ..SLIDING_WINDOW
};

/// The values of `algorithm` in a rule.
pub(crate) const WORDS: &[&str] = &[
    WINDOW.word,
    SLIDING_WINDOW.word,
    SLIDING_LOG.word,
    TOKEN_BUCKET.word,
    SLOTS.word,
];

impl CounterKind {
    /// One of each; the bucket has a rate of 1, and the slots no lease.
    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Algorithm::one_of_each(1).map(|algorithm| algorithm.kind(1))
    }

    pub(crate) const fn facts(self) -> &'static KindFacts {
        match self {
            Self::Window => &WINDOW,
            Self::FirstHit => &FIRST_HIT,
            Self::SlidingWindow => &SLIDING_WINDOW,
            Self::SlidingLog => &SLIDING_LOG,
            Self::TokenBucket { .. } => &TOKEN_BUCKET,
            Self::Slots { .. } => &SLOTS,
        }
    }

    /// The number that its counter needs besides limit and period, 0 if none: what flows into a bucket in a period, or
    /// the lease that names slots.
    pub(crate) const fn argument(self) -> u64 {
        match self {
            Self::TokenBucket { rate } => rate.get(),
            Self::Slots { lease } => lease.get(),
            Self::Window | Self::FirstHit | Self::SlidingWindow | Self::SlidingLog => 0,
        }
    }

    /// The kind of one of `parts` counters that share a limit.
    pub(crate) const fn divided(self, parts: u32) -> Self {
        match self {
            Self::TokenBucket { rate } => Self::TokenBucket {
                rate: Halves::new(rate.get().div_ceil(parts as u64)),
            },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_kind_has_a_name_a_letter_and_a_word_of_a_rule() {
        let facts: Vec<_> = CounterKind::all().map(CounterKind::facts).collect();
        let names: HashSet<_> = facts.iter().map(|facts| facts.report_name).collect();
        let letters: HashSet<_> = facts.iter().map(|facts| facts.letter).collect();
        assert_eq!((names.len(), letters.len()), (facts.len(), facts.len()));
        assert!(facts.iter().all(|facts| WORDS.contains(&facts.word)));
    }

    #[test]
    fn the_facts_of_a_kind_are_its_own() {
        for (kind, is_settled, max_requests, argument) in [
            (CounterKind::Window, true, u64::MAX, 0),
            (CounterKind::FirstHit, false, u64::MAX, 0),
            (CounterKind::SlidingWindow, false, u32::MAX.into(), 0),
            (CounterKind::SlidingLog, false, 10_000, 0),
            (
                CounterKind::TokenBucket {
                    rate: Halves::new(7),
                },
                true,
                u64::MAX,
                7,
            ),
            (
                CounterKind::Slots {
                    lease: Halves::new(9),
                },
                false,
                10_000,
                9,
            ),
        ] {
            let facts = kind.facts();
            assert_eq!(
                (facts.is_settled, facts.max_requests, kind.argument()),
                (is_settled, max_requests, argument),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn both_halves_of_a_number_are_kept() {
        for number in [1, u64::from(u32::MAX), 1 << 32, (1 << 53) - 1, u64::MAX] {
            assert_eq!(Halves::new(number).get(), number);
        }
    }

    #[test]
    fn there_is_one_of_each_algorithm_with_its_name_and_bound_in_rules() {
        let (window, log) = (u32::MAX.into(), 10_000);
        let bucket = Algorithm::TokenBucket { burst: 3 };
        let expected = [
            (Algorithm::FixedWindow, "fixed_window", false, u64::MAX),
            (Algorithm::FirstHit, "fixed_window", false, u64::MAX),
            (Algorithm::SlidingWindow, "sliding_window", true, window),
            (Algorithm::SlidingLog, "sliding_log", true, log),
            (bucket, "token_bucket", true, u64::MAX),
            (Algorithm::Concurrency, "concurrency", true, log),
        ];
        let facts = Algorithm::one_of_each(3).map(|one| {
            let (name, looks_first, most) = (one.name(), one.looks_first(), one.max_requests());
            (one, name, looks_first, most)
        });
        assert_eq!(facts.collect::<Vec<_>>(), expected);
    }
}
