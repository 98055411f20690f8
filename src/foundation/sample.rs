//! Samples: statistics in a form that every sink understands.

use std::fmt;

use super::histogram::TimerValues;

/// One statistic in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its statsd name, such as `ratelimit.service.rate_limit.domain.key.over_limit`, without EXTRA_TAGS, which each
    /// sink adds in its own form.
    pub name: String,
    pub value: SampleValue,
}

/// The value of a statistic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampleValue {
    /// The total since the start, never a difference.
    Counter(u64),
    Gauge(u64),
    Timer(Box<TimerValues>),
}

/// The type of a [`SampleValue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleKind {
    Counter,
    Gauge,
    Timer,
}

impl SampleValue {
    /// The type of this value.
    pub fn kind(&self) -> SampleKind {
        match self {
            Self::Counter(_) => SampleKind::Counter,
            Self::Gauge(_) => SampleKind::Gauge,
            Self::Timer(_) => SampleKind::Timer,
        }
    }
}

/// Passes samples on, one by one.
pub struct SampleWriter<'a>(&'a mut dyn FnMut(Sample));

impl fmt::Debug for SampleWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SampleWriter").finish_non_exhaustive()
    }
}

impl<'a> SampleWriter<'a> {
    /// Passes each sample to `take`.
    pub fn new(take: &'a mut dyn FnMut(Sample)) -> Self {
        Self(take)
    }

    /// Passes on a total since the start.
    pub fn counter(&mut self, name: impl Into<String>, total: u64) {
        self.push(name.into(), SampleValue::Counter(total));
    }

    /// Passes on a present value.
    pub fn gauge(&mut self, name: impl Into<String>, value: u64) {
        self.push(name.into(), SampleValue::Gauge(value));
    }

    /// Passes on durations.
    pub fn timer(&mut self, name: impl Into<String>, values: TimerValues) {
        self.push(name.into(), SampleValue::Timer(Box::new(values)));
    }

    fn push(&mut self, name: String, value: SampleValue) {
        (self.0)(Sample { name, value });
    }
}

/// Samples for tests.
#[cfg(test)]
pub(crate) mod make {
    use super::{Sample, SampleValue, TimerValues};

    fn sample(name: &str, value: SampleValue) -> Sample {
        Sample {
            name: name.to_owned(),
            value,
        }
    }

    pub(crate) fn counter(name: &str, total: u64) -> Sample {
        sample(name, SampleValue::Counter(total))
    }

    pub(crate) fn gauge(name: &str, now: u64) -> Sample {
        sample(name, SampleValue::Gauge(now))
    }

    pub(crate) fn timer(name: &str, micros: &[u64]) -> Sample {
        let mut values = TimerValues::default();
        micros.iter().for_each(|&took| values.observe(took));
        sample(name, SampleValue::Timer(Box::new(values)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statistic_is_passed_on_with_its_type() {
        let mut values = TimerValues::default();
        values.observe(7);
        let mut taken = Vec::new();
        let mut take = |sample| taken.push(sample);
        let mut writer = SampleWriter::new(&mut take);
        assert_eq!(format!("{writer:?}"), "SampleWriter { .. }");
        writer.counter("total", 3);
        writer.gauge("present", 4);
        writer.timer("time", values);
        let expected = [
            make::counter("total", 3),
            make::gauge("present", 4),
            make::timer("time", &[7]),
        ];
        assert_eq!(taken, expected);
    }
}
