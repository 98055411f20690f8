//! A page in Prometheus' text format, written piece by piece.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use super::{
    family::{FamilyType, MetricFamily},
    series::{SeriesValue, TimerSeries},
    text::go_float,
};

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
