//! Parameters of increments: how many hits, under which limit, and how they are charged.

use crate::core::{
    limit::{Algorithm, Limit, OnStoreLoss},
    request::Hits,
    window::Timestamp,
};

/// Parameters of an increment, without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncrementSpec {
    /// How many bytes of the key name the descriptor. The others name the period and the window.
    pub descriptor_bytes: u32,
    pub hits: Hits,
    /// The most hits that the limit admits; see [`Limit::capacity`].
    pub limit: u32,
    pub method: CounterKind,
    pub charge: Charge,
    pub enforcement: Enforcement,
    /// The answer while the store does not reply.
    pub on_loss: OnStoreLoss,
    /// The index of its descriptor in the request.
    pub descriptor: u32,
    /// Whether the unit of its limit is the second.
    pub is_per_second: bool,
    /// The length of the limit's period in milliseconds; for a calendar limit, that of the present
    /// window.
    pub period_millis: u64,
    /// The end of the window, if it is known in advance. From then on the counter may be dropped.
    pub expires_at: Timestamp,
    /// How long ago the hits came: 0, unless they were counted elsewhere while the store was lost. A counter that is a
    /// plain number has its window in its key, so the age has no effect on it.
    pub age_millis: u64,
}

impl IncrementSpec {
    /// Whether a counter that holds `held`, or owes hits if that is negative, refuses these hits. It never
    /// refuses hits that are given back.
    pub fn refuses(&self, held: i64) -> bool {
        self.hits.given_back() == 0
            && held.saturating_add_unsigned(self.hits.added()) > i64::from(self.limit)
    }

    /// Whether the counter is a plain number, and adding the hits to it is all there is to do.
    pub fn is_plain(&self) -> bool {
        // All fields are named: a new one does not compile before it is considered here.
        let Self {
            hits,
            method,
            charge,
            descriptor_bytes: _,
            limit: _,
            enforcement: _,
            on_loss: _,
            descriptor: _,
            is_per_second: _,
            period_millis: _,
            expires_at: _,
            age_millis: _,
        } = *self;
        method == CounterKind::Window && charge == Charge::Always && hits.given_back() == 0
    }

    /// Whether the increment can be applied without looking at the other counters of its request.
    pub fn stands_alone(&self) -> bool {
        matches!(self.charge, Charge::Always | Charge::Within)
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
        rate: u32,
    },
}

impl CounterKind {
    pub(super) fn of(limit: &Limit) -> Self {
        match limit.algorithm {
            Algorithm::FixedWindow | Algorithm::Calendar(_) => Self::Window,
            Algorithm::FirstHit => Self::FirstHit,
            Algorithm::SlidingWindow => Self::SlidingWindow,
            Algorithm::SlidingLog => Self::SlidingLog,
            Algorithm::TokenBucket { .. } => Self::TokenBucket {
                rate: limit.requests_per_unit.max(1),
            },
        }
    }
}

#[cfg(test)]
impl CounterKind {
    /// One of each, for tests that must know all of them: a kind that is missing here does not compile.
    pub(crate) fn one_of_each() -> Vec<Self> {
        let next = |kind| match kind {
            Self::Window => Some(Self::FirstHit),
            Self::FirstHit => Some(Self::SlidingWindow),
            Self::SlidingWindow => Some(Self::SlidingLog),
            Self::SlidingLog => Some(Self::TokenBucket { rate: 1 }),
            Self::TokenBucket { .. } => None,
        };
        std::iter::successors(Some(Self::Window), |&kind| next(kind)).collect()
    }
}

/// The hits that are charged to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// All hits.
    Always,
    /// Hits that its own limit lets pass.
    Within,
    /// Hits of requests that pass as a whole.
    Admitted,
    /// Hits that its own limit refuses, and hits of requests in which no limit refuses
    /// (`STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`).
    Stopping,
    /// Hits that are given back are granted: hits above the limit leave first, and a window may owe hits, so that
    /// as many more pass before it ends.
    Grant,
    /// No hits: the increment only looks at the count they would lead to. It keeps no others from being charged by
    /// [`Self::Stopping`].
    Never,
}

/// The effect of an exceeded limit on the request as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The request is refused.
    Refuses,
    /// The request is refused if all its quota descriptors are over (`quota_mode`).
    Quota,
    /// No effect (shadow mode).
    Silent,
}

/// How a descriptor's hits are charged to one of its counters.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorHits {
    pub hits: Hits,
    pub charge: Charge,
    pub enforcement: Enforcement,
    pub on_loss: OnStoreLoss,
    pub descriptor: u32,
    /// How long ago the hits came; 0 unless they were counted elsewhere while the store was lost.
    pub age_millis: u64,
}

impl From<Hits> for DescriptorHits {
    /// The defaults for the only descriptor of a request, whose rule sets no options.
    fn from(hits: Hits) -> Self {
        Self {
            hits,
            charge: Charge::Always,
            enforcement: Enforcement::Refuses,
            on_loss: OnStoreLoss::Error,
            descriptor: 0,
            age_millis: 0,
        }
    }
}
