//! The value of a series: a number, or durations in the buckets of its family.

use super::family::FamilyType;
use crate::foundation::sample::SampleValue;

/// The value of a series.
#[derive(Debug)]
pub(super) enum SeriesValue {
    Plain(f64),
    Timer(Box<TimerSeries>),
}

/// Durations in the unit of the family.
#[derive(Debug)]
pub(super) struct TimerSeries {
    /// For each upper bound of the histogram, the number of durations up to it.
    pub(super) at_most: Vec<u64>,
    pub(super) count: u64,
    pub(super) sum: f64,
}

impl SeriesValue {
    pub(super) fn new(value: &SampleValue, shape: &FamilyType, scale: f64) -> Self {
        match value {
            SampleValue::Counter(value) | SampleValue::Gauge(value) => {
                Self::Plain(*value as f64 * scale)
            }
            SampleValue::Timer(values) => {
                let bounds = match shape {
                    FamilyType::Histogram(bounds) => bounds.as_ref(),
                    FamilyType::Counter | FamilyType::Gauge | FamilyType::Summary => &[],
                };
                let at_most = bounds
                    .iter()
                    .map(|bound| values.at_most(micros(*bound, scale)));
                Self::Timer(Box::new(TimerSeries {
                    at_most: at_most.collect(),
                    count: values.count(),
                    sum: values.sum_micros() as f64 * scale / 1_000.0,
                }))
            }
        }
    }

    /// Adds the value of another sample of this series.
    pub(super) fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Plain(value), Self::Plain(more)) => *value += more,
            (Self::Timer(times), Self::Timer(more)) => {
                times
                    .at_most
                    .iter_mut()
                    .zip(&more.at_most)
                    .for_each(|(below, more)| *below += more);
                times.count += more.count;
                times.sum += more.sum;
            }
            (Self::Plain(_) | Self::Timer(_), _) => {
                unreachable!("numbers of one family are of one shape")
            }
        }
    }
}

/// A bound in microseconds, for a family whose values are milliseconds times `scale`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, as a bound should, and nothing is measured in fractions"
)]
pub(super) fn micros(bound: f64, scale: f64) -> u64 {
    // Slightly more than the bound, so that rounding in the division does not move a duration by a whole bucket.
    (bound / scale * 1_000.0 * (1.0 + 1e-9)) as u64
}
