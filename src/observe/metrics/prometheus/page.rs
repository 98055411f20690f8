//! A page in Prometheus' text format, written piece by piece: families, their series, labels and numbers.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::Arc,
};

use crate::{foundation::sample::SampleValue, observe::metrics::mapper::Observer};

/// Help text of a family without one in the mapping.
const NO_HELP: &str = "The statsd metric of the same name.";

/// A page that has not been written completely.
pub struct MetricsPage {
    families: Vec<MetricFamily>,
    /// In the order of the page.
    series: std::vec::IntoIter<Series>,
    /// The family whose help and type were written last.
    current: Option<usize>,
    /// Text after the last series.
    end: String,
    bytes: usize,
}

/// One set of labels of a family.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) family: usize,
    /// Separated by commas.
    pub(super) labels: Arc<str>,
    pub(super) number: SeriesValue,
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsPage")
            .field("bytes", &self.bytes)
            .finish()
    }
}

impl MetricsPage {
    /// A page of `series` in this order, followed by `end`. It holds `bytes` of memory until it is written.
    pub(super) fn new(
        families: Vec<MetricFamily>,
        series: Vec<Series>,
        end: String,
        bytes: usize,
    ) -> Self {
        Self {
            families,
            series: series.into_iter(),
            current: None,
            end,
            bytes,
        }
    }

    /// Memory that the page holds until it is written, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends `text` to the end of the page.
    #[must_use]
    pub fn ending_with(mut self, text: &str) -> Self {
        self.end.push_str(text);
        self
    }

    /// Continues the page until `text` has `most` bytes or slightly more. Returns whether more follows.
    pub fn write_some(&mut self, text: &mut String, most: usize) -> bool {
        while text.len() < most {
            let Some(Series {
                family: at,
                labels,
                number,
            }) = self.series.next()
            else {
                text.push_str(&std::mem::take(&mut self.end));
                return false;
            };
            let family = &self.families[at];
            if self.current != Some(at) {
                self.current = Some(at);
                write_head(family, text);
            }
            // Writing to a string cannot fail.
            let _ = write_series(family, text, &labels, &number);
        }
        true
    }
}

/// Writes the help and the type of a family.
fn write_head(family: &MetricFamily, text: &mut String) {
    let name = &family.name;
    let help = family.help.as_deref().unwrap_or(NO_HELP);
    let help = help.replace('\\', r"\\").replace('\n', r"\n");
    let kind = family.shape.name();
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Writes the lines of one series.
fn write_series(
    family: &MetricFamily,
    text: &mut String,
    labels: &str,
    number: &SeriesValue,
) -> fmt::Result {
    let name = &*family.name;
    match number {
        SeriesValue::Plain(value) => write_line(text, name, "", labels, None, *value),
        SeriesValue::Timer(times) => {
            let TimerSeries {
                at_most,
                count,
                sum,
            } = &**times;
            if let FamilyType::Histogram(bounds) = &family.shape {
                for (bound, below) in bounds.iter().zip(at_most) {
                    let bound = go_float(*bound);
                    write_line(text, name, "_bucket", labels, Some(&bound), *below as f64)?;
                }
                write_line(text, name, "_bucket", labels, Some("+Inf"), *count as f64)?;
            }
            write_line(text, name, "_sum", labels, None, *sum)?;
            write_line(text, name, "_count", labels, None, *count as f64)
        }
    }
}

fn write_line(
    text: &mut String,
    name: &str,
    suffix: &str,
    labels: &str,
    bound: Option<&str>,
    value: f64,
) -> fmt::Result {
    write!(text, "{name}{suffix}")?;
    match (labels, bound) {
        ("", None) => {}
        ("", Some(bound)) => write!(text, "{{le=\"{bound}\"}}")?,
        (labels, None) => write!(text, "{{{labels}}}")?,
        (labels, Some(bound)) => write!(text, "{{{labels},le=\"{bound}\"}}")?,
    }
    writeln!(text, " {value}")
}

/// Labels by name, sorted so that equal sets have equal texts. Empty values are left out, because an empty label means
/// an absent one.
pub(super) type Labels = BTreeMap<String, String>;

/// The labels as they stand between braces.
pub(super) fn label_text(labels: &Labels) -> String {
    let mut text = String::new();
    for (label, value) in labels {
        let value = value
            .replace('\\', r"\\")
            .replace('"', "\\\"")
            .replace('\n', r"\n");
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{label}=\"{value}\"");
    }
    text
}

/// A number as Go formats it, because bounds are compared as text: dashboards use `le="1e+06"`.
pub(super) fn go_float(value: f64) -> String {
    let text = format!("{value:e}");
    let exponent: i32 = match text.split_once('e') {
        Some((_, exponent)) => exponent.parse().unwrap_or_default(),
        None => 0,
    };
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let mantissa = text.split('e').next().unwrap_or_default();
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Escapes a name as statsd_exporter does: `_` for each character that is not a letter, a digit or `_`, but only one
/// for a run of dashes, and an additional one before a leading digit.
pub(super) fn escape_name(name: &str) -> Cow<'_, str> {
    let is_fit = |found: char| found.is_ascii_alphanumeric() || found == '_';
    let starts_badly = name.starts_with(|first: char| first.is_ascii_digit());
    if !starts_badly && name.chars().all(is_fit) {
        return Cow::Borrowed(name);
    }
    let mut escaped = String::with_capacity(name.len() + 1);
    if starts_badly {
        escaped.push('_');
    }
    let mut before = None;
    for found in name.chars() {
        if is_fit(found) {
            escaped.push(found);
        } else if found != '-' || before != Some('-') {
            escaped.push('_');
        }
        before = Some(found);
    }
    Cow::Owned(escaped)
}

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
