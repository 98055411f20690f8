//! Waits between attempts to reach a server that is away.
//!
//! No library does it: the settings are those of envoyproxy/ratelimit, where a factor of at most 1 (the default is
//! 1/2) means waits of equal length.

use std::time::Duration;

use super::random::between;

/// Waits that grow with each failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Backoff {
    /// The first wait, and the shortest.
    pub initial: Duration,
    pub max: Duration,
    /// Each wait is this many times the one before; with 1 or less all equal the first.
    pub factor: f64,
    /// Choose each wait at random between `initial` and one and a half times its value.
    pub jitter: bool,
}

/// The waits of failures in a row.
#[derive(Debug)]
pub(crate) struct BackoffWaits {
    backoff: Backoff,
    next: Duration,
}

impl BackoffWaits {
    /// The waits after a success.
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            next: backoff.initial.min(backoff.max),
        }
    }

    /// The wait after one more failure.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let Backoff {
            initial,
            max,
            factor,
            jitter,
        } = self.backoff;
        let wait = self.next;
        if factor > 1.0 {
            let longer = Duration::try_from_secs_f64(wait.as_secs_f64() * factor);
            self.next = longer.unwrap_or(max).min(max);
        }
        if !jitter {
            return wait;
        }
        // Even the first wait is random: clients of one lost control plane must not return together.
        let least = initial.min(max);
        between(least, wait.saturating_add(wait / 2).min(max).max(least))
    }
}

/// The wait after `times` refusals in a row, varied by up to a half, as in gRPC's own retries.
pub(crate) fn linear(interval: Duration, times: u32) -> Duration {
    let wait = interval.saturating_mul(times);
    between(wait / 2, wait.saturating_add(wait / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn waits(backoff: Backoff, count: usize) -> Vec<Duration> {
        let mut waits = BackoffWaits::new(backoff);
        (0..count).map(|_| waits.next_wait()).collect()
    }

    #[track_caller]
    fn check(factor: f64, max: u32, expected: [u32; 4]) {
        let backoff = Backoff {
            initial: 100 * MS,
            max: max * MS,
            factor,
            jitter: false,
        };
        assert_eq!(waits(backoff, 4), expected.map(|wait| wait * MS));
    }

    #[test]
    fn waits_grow_to_the_longest() {
        check(2.0, 500, [100, 200, 400, 500]);
        check(f64::INFINITY, 500, [100, 500, 500, 500]);
    }

    #[test]
    fn the_reference_s_factor_of_a_half_means_that_they_do_not_grow() {
        for factor in [0.5, 1.0, 0.0, -1.0, f64::NAN] {
            check(factor, 500, [100; 4]);
        }
    }

    #[test]
    fn the_longest_wins_over_the_first() {
        check(2.0, 50, [50; 4]);
    }

    #[test]
    fn jitter_spreads_waits_within_their_bounds() {
        let backoff = Backoff {
            initial: 100 * MS,
            max: 5000 * MS,
            factor: 2.0,
            jitter: true,
        };
        for _ in 0..50 {
            let waits = waits(backoff, 8);
            assert!(waits[0] <= 150 * MS, "{waits:?}");
            assert!(
                waits
                    .iter()
                    .all(|wait| (100 * MS..=5000 * MS).contains(wait))
            );
        }
        let first: std::collections::HashSet<_> = (0..20).map(|_| waits(backoff, 1)[0]).collect();
        assert!(first.len() > 5, "{first:?}");
        for _ in 0..50 {
            let spread = linear(1000 * MS, 3);
            assert!((1500 * MS..=4500 * MS).contains(&spread), "{spread:?}");
        }
    }
}
