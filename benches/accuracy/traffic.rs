//! Synthetic traffic: times and sources of requests. A seed gives equal traffic on every machine.

use crate::{PERIOD_MILLIS, START_MILLIS};

/// Shapes of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// All sources are equal: each sends on average as many requests as its limit allows.
    Poisson,
    /// A few sources send most: the source of rank n sends 1/n as often as the first.
    Zipf,
    /// Sources are quiet, but send twice their limit around an edge of windows, half of it before the edge.
    Edges,
}

impl Shape {
    pub(crate) const ALL: [Self; 3] = [Self::Poisson, Self::Zipf, Self::Edges];

    /// The limit of a source, in requests per minute.
    pub(crate) fn limit(self) -> u32 {
        match self {
            Self::Poisson | Self::Edges => 10,
            Self::Zipf => 300,
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Poisson => "poisson: equal sources, each as busy as its limit of 10 a minute",
            Self::Zipf => "zipf: an hour of a few busy and many quiet sources, limit 300 a minute",
            Self::Edges => "edges: bursts of twice the limit of 10 a minute around the full minute",
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: u64,
    pub(crate) source: usize,
}

/// Requests in the order of their times.
pub(crate) struct Traffic {
    shape: Shape,
    requests: u64,
    sources: usize,
    random: Random,
    left: u64,
    /// Milliseconds since the start.
    clock: f64,
    /// For Zipf, the cumulative share of requests of the sources up to each.
    shares: Vec<f64>,
}

/// In a minute with bursts, this share of the requests lies outside of them.
const BACKGROUND: f64 = 0.1;
/// A burst begins this long before an edge and ends this long after it.
const BURST_MILLIS: f64 = 2_000.0;
const EDGES: f64 = 20.0;

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "statistics: the numbers are far from what a float cannot tell apart"
)]
impl Traffic {
    pub(crate) fn new(shape: Shape, requests: u64, sources: usize, seed: u64) -> Self {
        let mut shares = Vec::new();
        if shape == Shape::Zipf {
            let mut sum = 0.0;
            for rank in 1..=sources {
                sum += 1.0 / rank as f64;
                shares.push(sum);
            }
            shares.iter_mut().for_each(|share| *share /= sum);
        }
        Self {
            shape,
            requests,
            sources,
            random: Random(seed),
            left: requests,
            clock: 0.0,
            shares,
        }
    }

    /// Average number of milliseconds between two requests at this moment.
    fn pause(&self) -> f64 {
        let minute = PERIOD_MILLIS as f64;
        match self.shape {
            Shape::Poisson => minute / (self.sources as f64 * f64::from(self.shape.limit())),
            Shape::Zipf => 60.0 * minute / self.requests as f64,
            Shape::Edges => {
                let each = self.requests as f64 / EDGES;
                if self.edge().1.abs() < BURST_MILLIS {
                    2.0 * BURST_MILLIS / (each * (1.0 - BACKGROUND))
                } else {
                    (minute - 2.0 * BURST_MILLIS) / (each * BACKGROUND)
                }
            }
        }
    }

    /// The nearest edge, and the time since it, negative before it.
    fn edge(&self) -> (f64, f64) {
        let minute = PERIOD_MILLIS as f64;
        let edge = (self.clock / minute).round();
        (edge, self.clock - edge * minute)
    }

    fn source(&mut self) -> usize {
        match self.shape {
            Shape::Poisson => self.random.below(self.sources),
            Shape::Zipf => {
                let share = self.random.unit();
                let source = self.shares.partition_point(|upto| *upto < share);
                source.min(self.sources - 1)
            }
            Shape::Edges => {
                let (edge, since) = self.edge();
                if since.abs() >= BURST_MILLIS {
                    return self.random.below(self.sources);
                }
                let burst = self.requests as f64 / EDGES * (1.0 - BACKGROUND);
                let active = (burst / f64::from(2 * self.shape.limit())).max(1.0) as usize;
                // Half of them burst again at the next edge.
                let first = edge as usize * (active / 2);
                (first + self.random.below(active)) % self.sources
            }
        }
    }
}

impl Iterator for Traffic {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.left = self.left.checked_sub(1)?;
        // Time between independent events.
        let pause = -self.random.unit().ln() * self.pause();
        self.clock += pause;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive number of milliseconds"
        )]
        let at = START_MILLIS + self.clock as u64;
        let source = self.source();
        Some(Arrival { at, source })
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014): good enough for traffic.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above 0, at most 1.
    #[expect(
        clippy::cast_precision_loss,
        reason = "53 bits are what a float tells apart"
    )]
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 up to, but not including, `bound`.
    fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next()) * bound as u128;
        usize::try_from(wide >> 64).expect("it is below `bound`")
    }
}
