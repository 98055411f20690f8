//! Times → percentiles, in buckets at most 1.6 % wide.

/// Buckets per power of two.
const PARTS: u64 = 64;

/// Numbers of calls by duration, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies(Vec<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(vec![0; bucket(u64::MAX) + 1])
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "there are less than 4,000 buckets"
)]
fn bucket(nanos: u64) -> usize {
    let shift = (nanos | PARTS).ilog2() - PARTS.ilog2();
    (u64::from(shift) * PARTS + (nanos >> shift)) as usize
}

/// The longest duration in a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    ((bucket - shift * PARTS + 1) << shift) - 1
}

impl Latencies {
    pub fn record(&mut self, nanos: u64) {
        self.0[bucket(nanos)] += 1;
    }

    pub fn absorb(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// The duration that `share` of all calls did not exceed, in microseconds.
    pub fn quantile_micros(&self, share: f64) -> f64 {
        let all: u64 = self.0.iter().sum();
        let mut left = all as f64 * share;
        for (bucket, &count) in self.0.iter().enumerate() {
            left -= count as f64;
            if left <= 0.0 && count > 0 {
                return upper(bucket) as f64 / 1000.0;
            }
        }
        f64::NAN
    }
}
