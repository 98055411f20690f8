//! Samples: metrics of this process at one moment, in the one form that every sink renders.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::histogram::TimerValues;

/// Names of labels and their values.
pub(crate) type SampleLabels<'l> = &'l [(&'l str, &'l str)];

/// A metric at one moment. Labels that every metric gets (EXTRA_TAGS) are not among its own: each sink adds them in its
/// own form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<'s> {
    /// Its name in Prometheus, with dots between words that belong to different parts.
    pub name: &'s str,
    pub labels: SampleLabels<'s>,
    /// Its name in statsd, unless that is `name` and the values of `labels`, with dots between them.
    pub statsd: Option<&'s str>,
    pub value: SampleValue,
}

/// The value of a metric.
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

impl Sample<'_> {
    /// The name in statsd, which has no labels. Patterns of mapping files and mogrifiers match it.
    pub fn statsd_name(&self) -> String {
        let mut name = self.statsd.unwrap_or(self.name).to_owned();
        if self.statsd.is_none() {
            for (_, value) in self.labels {
                name.push('.');
                name.push_str(value);
            }
        }
        name
    }
}

/// Passes samples on, one by one.
pub struct SampleWriter<'a>(&'a mut dyn FnMut(&Sample<'_>));

impl fmt::Debug for SampleWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SampleWriter").finish_non_exhaustive()
    }
}

impl<'a> SampleWriter<'a> {
    /// Passes each sample to `take`.
    pub fn new(take: &'a mut dyn FnMut(&Sample<'_>)) -> Self {
        Self(take)
    }

    /// Passes on a sample whose name in statsd is another one.
    pub fn sample(&mut self, sample: &Sample<'_>) {
        (self.0)(sample);
    }

    /// Passes on a total since the start.
    pub fn counter(&mut self, name: &str, labels: SampleLabels<'_>, total: u64) {
        self.value(name, labels, SampleValue::Counter(total));
    }

    /// Passes on a total since the start that has no labels.
    pub(crate) fn total(&mut self, name: &str, total: &AtomicU64) {
        self.counter(name, &[], total.load(Relaxed));
    }

    /// Passes on a present value.
    pub fn gauge(&mut self, name: &str, labels: SampleLabels<'_>, value: u64) {
        self.value(name, labels, SampleValue::Gauge(value));
    }

    fn value(&mut self, name: &str, labels: SampleLabels<'_>, value: SampleValue) {
        self.sample(&Sample {
            name,
            labels,
            statsd: None,
            value,
        });
    }
}

/// Samples for tests.
#[cfg(test)]
pub(crate) mod make {
    use super::{Sample, SampleLabels, SampleValue, TimerValues};

    fn sample(name: &str, value: SampleValue) -> Sample<'_> {
        Sample {
            name,
            labels: &[],
            statsd: None,
            value,
        }
    }

    pub(crate) fn counter(name: &str, total: u64) -> Sample<'_> {
        sample(name, SampleValue::Counter(total))
    }

    pub(crate) fn labelled<'s>(name: &'s str, labels: SampleLabels<'s>, total: u64) -> Sample<'s> {
        Sample {
            labels,
            ..counter(name, total)
        }
    }

    pub(crate) fn gauge(name: &str, now: u64) -> Sample<'_> {
        sample(name, SampleValue::Gauge(now))
    }

    pub(crate) fn timer<'s>(name: &'s str, micros: &[u64]) -> Sample<'s> {
        let mut values = TimerValues::default();
        micros.iter().for_each(|&took| values.observe(took));
        sample(name, SampleValue::Timer(Box::new(values)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_end_of_a_statsd_name_unless_it_has_another_one() {
        let mut taken = Vec::new();
        let mut take = |sample: &Sample<'_>| {
            taken.push((sample.statsd_name(), sample.value.kind()));
        };
        let mut writer = SampleWriter::new(&mut take);
        assert_eq!(format!("{writer:?}"), "SampleWriter { .. }");
        writer.total("total", &AtomicU64::new(3));
        writer.gauge("present", &[("of", "a.b"), ("and", "")], 4);
        writer.sample(&Sample {
            statsd: Some("time.of.a"),
            labels: &[("of", "a")],
            ..make::timer("time_seconds", &[7])
        });
        let expected = [
            ("total", SampleKind::Counter),
            ("present.a.b.", SampleKind::Gauge),
            ("time.of.a", SampleKind::Timer),
        ];
        assert_eq!(taken, expected.map(|(name, kind)| (name.to_owned(), kind)));
    }
}
