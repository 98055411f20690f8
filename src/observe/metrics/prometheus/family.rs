//! A family: its name, its type and the names of its lines.

use std::sync::Arc;

use crate::{foundation::sample::SampleValue, observe::metrics::mapper::Observer};

/// All series of one name.
#[derive(Debug)]
pub(super) struct MetricFamily {
    pub(super) name: Arc<str>,
    pub(super) shape: FamilyType,
    pub(super) help: Option<String>,
}

/// The type of a family.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FamilyType {
    Counter,
    Gauge,
    /// A histogram with these upper bounds.
    Histogram(Arc<[f64]>),
    Summary,
}

impl MetricFamily {
    /// Whether the family has this name and this shape.
    pub(super) fn is(&self, name: &str, shape: &FamilyType) -> bool {
        *self.name == *name && self.shape == *shape
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.help.as_ref().map_or(0, String::len)
    }
}

impl FamilyType {
    pub(super) fn of(value: &SampleValue, observer: &Observer) -> Self {
        match (value, observer) {
            (SampleValue::Counter(_), _) => Self::Counter,
            (SampleValue::Gauge(_), _) => Self::Gauge,
            (SampleValue::Timer(_), Observer::Histogram(bounds)) => Self::Histogram(bounds.clone()),
            // No quantiles, because quantiles over the lifetime of the process would not describe the present.
            (SampleValue::Timer(_), Observer::Summary) => Self::Summary,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
            Self::Summary => "summary",
        }
    }

    /// The suffixes of all names that belong to a family. The bare name always does.
    pub(super) fn suffixes(&self) -> &'static [&'static str] {
        match self {
            Self::Counter | Self::Gauge => &[""],
            Self::Histogram(_) => &["", "_bucket", "_sum", "_count"],
            Self::Summary => &["", "_sum", "_count"],
        }
    }
}
