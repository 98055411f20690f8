//! Samples → a page in Prometheus' text format, version 0.0.4.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, btree_map::Entry},
    fmt::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    foundation::sample::{Sample, SampleValue},
    observe::metrics::{
        mapper::{BUCKETS, Mapper, MappingOutcome, Observer, is_label},
        process,
        worker_stats::{CALL_DURATION, RESPONSE_TIME},
    },
};

#[cfg(test)]
mod tests;

/// The `Content-Type` of a page.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// Buckets of [`CALL_DURATION`].
const FINE_BUCKETS: [f64; 16] = [
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0,
];

/// The names and help texts of families, one a line.
const HELP: &str = include_str!("help.txt");

/// Help text of a family without one.
const NO_HELP: &str = "The statsd metric of the same name.";

/// Counts of samples that could not be shown, by their kind.
const CONFLICTS: &str = "statsd_exporter_events_conflict_total";

/// Renders pages. All work happens during a scrape; between scrapes it costs nothing.
#[derive(Debug)]
pub struct Renderer {
    names: MetricNames,
    help: HashMap<&'static str, &'static str>,
    /// EXTRA_TAGS, which every series gets. A metric's own label of equal name takes precedence.
    extra_labels: Labels,
    conflicts: [AtomicU64; 3],
}

/// The names and labels on pages.
#[derive(Debug)]
pub enum MetricNames {
    /// Those of the samples. The reference's response times are seconds or milliseconds, whatever their name says.
    Own { in_milliseconds: bool },
    /// Those that a file makes of their names in statsd.
    Mapped(Mapper),
}

impl Renderer {
    /// A renderer that shows `extra_tags` too.
    pub fn new(names: MetricNames, extra_tags: &[(String, String)]) -> Self {
        let mut extra_labels = Labels::new();
        for (tag, value) in extra_tags {
            insert_label(&mut extra_labels, tag, value);
        }
        Self {
            names,
            help: HELP
                .lines()
                .filter_map(|line| line.split_once(' '))
                .collect(),
            extra_labels,
            conflicts: Default::default(),
        }
    }

    /// Renders the samples that `each` passes on.
    ///
    /// Samples of one series are added up, except that the last sample of a gauge is shown. If samples need one family
    /// to have different types, the first one decides, and the others count as conflicts.
    pub fn page(&self, each: impl FnOnce(&mut dyn FnMut(&Sample<'_>))) -> MetricsPage {
        let mut page = MetricsPage::default();
        each(&mut |sample| {
            let is_shown = match &self.names {
                MetricNames::Own { in_milliseconds } => {
                    self.add_own(&mut page, sample, *in_milliseconds)
                }
                MetricNames::Mapped(mapper) => self.add_mapped(&mut page, sample, mapper),
            };
            if !is_shown {
                self.conflicts[sample.value.kind() as usize].fetch_add(1, Relaxed);
            }
        });
        page.ending_with(&self.conflict_family())
    }

    /// Adds a sample under its own name, and returns whether it could.
    fn add_own(&self, page: &mut MetricsPage, sample: &Sample<'_>, in_milliseconds: bool) -> bool {
        let name = escape_name(sample.name);
        let buckets: &[f64] = match sample.name {
            CALL_DURATION => &FINE_BUCKETS,
            _ => &BUCKETS,
        };
        let scale = match (&sample.value, sample.name) {
            (SampleValue::Timer(_), RESPONSE_TIME) if in_milliseconds => 1.0,
            (SampleValue::Timer(_), _) => 0.001,
            _ => 1.0,
        };
        let form = FamilyForm {
            help: self.help.get(&*name).copied(),
            shape: FamilyType::of(&sample.value, || Observer::Histogram(buckets.into())),
            scale,
        };
        page.add(name, &self.labels(sample.labels), &sample.value, form)
    }

    /// Adds a sample as `mapper` shows it, and returns whether it could.
    fn add_mapped(&self, page: &mut MetricsPage, sample: &Sample<'_>, mapper: &Mapper) -> bool {
        let statsd = sample.statsd_name();
        let shape = |observer: &Observer| FamilyType::of(&sample.value, || observer.clone());
        let (name, labels, form) = match mapper.map(&statsd, sample.value.kind()) {
            MappingOutcome::Dropped => return true,
            MappingOutcome::Mapped {
                name,
                labels,
                target,
            } => {
                let labels = labels.iter().map(|(label, value)| (*label, value.as_str()));
                let form = FamilyForm {
                    help: target.help.as_deref(),
                    shape: shape(&target.observer),
                    scale: target.scale,
                };
                (name, self.labels(&labels.collect::<Vec<_>>()), form)
            }
            MappingOutcome::Unmapped => {
                let form = FamilyForm {
                    help: None,
                    shape: shape(mapper.unmapped_observer()),
                    scale: 1.0,
                };
                (statsd, self.labels(&[]), form)
            }
        };
        page.add(escape_name(&name), &labels, &sample.value, form)
    }

    /// These labels and those of all series.
    fn labels(&self, own: &[(&str, &str)]) -> Labels {
        let mut labels = Labels::new();
        for (label, value) in own {
            insert_label(&mut labels, label, value);
        }
        for (label, value) in &self.extra_labels {
            labels.entry(label.clone()).or_insert_with(|| value.clone());
        }
        labels
    }

    /// Counts of samples that could not be shown, as a family of their own; empty if there are none.
    fn conflict_family(&self) -> String {
        let counts = self.conflicts.iter().map(|count| count.load(Relaxed));
        let by_type = ["counter", "gauge", "observer"].into_iter().zip(counts);
        let lines: String = by_type
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| format!("{CONFLICTS}{{type=\"{kind}\"}} {count}\n"))
            .collect();
        if lines.is_empty() {
            return lines;
        }
        let help = "Samples that were not shown because their family is of another type.";
        format!("# HELP {CONFLICTS} {help}\n# TYPE {CONFLICTS} counter\n{lines}")
    }
}

/// Labels by name, sorted so that equal sets have equal texts. Empty values are left out, because an empty label means
/// an absent one.
type Labels = BTreeMap<String, String>;

/// Inserts a label under a name that Prometheus accepts, unless the name is taken.
fn insert_label(labels: &mut Labels, name: &str, value: &str) {
    // Histograms and summaries use these two labels for their own lines.
    let name = match name {
        "le" | "quantile" => Cow::Owned(format!("exported_{name}")),
        name if is_label(name) => Cow::Borrowed(name),
        name => escape_name(name),
    };
    if !value.is_empty() && !name.is_empty() {
        labels
            .entry(name.into_owned())
            .or_insert_with(|| value.to_owned());
    }
}

/// The labels as they stand between braces.
fn label_text(labels: &Labels) -> String {
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

/// Escapes a name as statsd_exporter does: `_` for each character that is not a letter, a digit or `_`, but only one
/// for a run of dashes, and an additional one before a leading digit.
fn escape_name(name: &str) -> Cow<'_, str> {
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

/// A page that has not been written completely.
#[derive(Default)]
pub struct MetricsPage {
    /// By name, without those that have been written.
    families: BTreeMap<Arc<str>, MetricFamily>,
    /// The family whose help and type were written last.
    current: Option<(Arc<str>, MetricFamily)>,
    /// The labels of the last series: those of a rule are stored once.
    last_labels: Arc<str>,
    /// Text after the last series.
    end: String,
}

/// All series of one name.
struct MetricFamily {
    shape: FamilyType,
    help: Option<Box<str>>,
    /// By their labels, as text. A page can have tens of thousands, so each is small.
    series: BTreeMap<Arc<str>, SeriesValue>,
}

/// How the family of a sample is shown.
struct FamilyForm<'h> {
    help: Option<&'h str>,
    shape: FamilyType,
    /// Factor for values. Timers are in milliseconds before it is applied.
    scale: f64,
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsPage").finish_non_exhaustive()
    }
}

impl MetricsPage {
    /// Adds a value to the series with this name and these labels. Returns whether the page stays valid with it.
    fn add(
        &mut self,
        name: Cow<'_, str>,
        labels: &Labels,
        value: &SampleValue,
        form: FamilyForm<'_>,
    ) -> bool {
        let FamilyForm { help, shape, scale } = form;
        let is_valid = match self.families.get(&*name) {
            Some(family) => family.shape == shape,
            None => !name.is_empty() && !self.has_line_of(&name, &shape),
        };
        if !is_valid {
            return false;
        }
        let labels = label_text(labels);
        if *self.last_labels != *labels {
            self.last_labels = labels.into();
        }
        let number = SeriesValue::new(value, &shape, scale);
        let family = self.families.entry(name.into());
        let family = family.or_insert_with(|| MetricFamily {
            shape,
            help: help.map(Into::into),
            series: BTreeMap::new(),
        });
        match family.series.entry(self.last_labels.clone()) {
            Entry::Vacant(place) => {
                place.insert(number);
            }
            Entry::Occupied(mut series) => match family.shape {
                FamilyType::Gauge => *series.get_mut() = number,
                _ => series.get_mut().add(&number),
            },
        }
        true
    }

    /// Whether another family has a line that a family of this name and type would have too: histograms and summaries
    /// have lines of several names, and other code writes some.
    fn has_line_of(&self, name: &str, shape: &FamilyType) -> bool {
        let is_reserved = |line: &str| {
            let others = process::FAMILIES.iter().map(|(name, ..)| *name);
            let mut others = others.chain([process::BUILD_INFO, CONFLICTS]);
            others.any(|other| other == line)
        };
        let is_of_other = |suffix: &&str| {
            let other = name
                .strip_suffix(suffix)
                .and_then(|other| self.families.get(other));
            other.is_some_and(|other| other.shape.suffixes().contains(suffix))
        };
        let is_taken = |suffix: &&str| {
            let line = format!("{name}{suffix}");
            is_reserved(&line) || self.families.contains_key(&*line)
        };
        let suffixes = shape.suffixes();
        is_reserved(name)
            || ["_bucket", "_sum", "_count"].iter().any(is_of_other)
            || suffixes.iter().any(is_taken)
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
            if let Some((name, family)) = &mut self.current
                && let Some((labels, number)) = family.series.pop_first()
            {
                // Writing to a string cannot fail.
                let _ = number.write(text, name, &family.shape, &labels);
                continue;
            }
            let Some((name, family)) = self.families.pop_first() else {
                text.push_str(&std::mem::take(&mut self.end));
                return false;
            };
            let help = family.help.as_deref().unwrap_or(NO_HELP);
            let help = help.replace('\\', r"\\").replace('\n', r"\n");
            let kind = family.shape.name();
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            self.current = Some((name, family));
        }
        true
    }
}

/// The type of a family.
#[derive(Clone, Debug, PartialEq)]
enum FamilyType {
    Counter,
    Gauge,
    /// A summary has no quantiles, because quantiles over the lifetime of the process would not describe the present.
    Timer(Observer),
}

impl FamilyType {
    /// That of a value; `observer` says how timers are shown.
    fn of(value: &SampleValue, observer: impl FnOnce() -> Observer) -> Self {
        match value {
            SampleValue::Counter(_) => Self::Counter,
            SampleValue::Gauge(_) => Self::Gauge,
            SampleValue::Timer(_) => Self::Timer(observer()),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Timer(Observer::Histogram(_)) => "histogram",
            Self::Timer(Observer::Summary) => "summary",
        }
    }

    /// The upper bounds of a histogram.
    fn bounds(&self) -> &[f64] {
        match self {
            Self::Timer(Observer::Histogram(bounds)) => bounds,
            Self::Counter | Self::Gauge | Self::Timer(Observer::Summary) => &[],
        }
    }

    /// The suffixes of further names that belong to a family.
    fn suffixes(&self) -> &'static [&'static str] {
        match self {
            Self::Counter | Self::Gauge => &[],
            Self::Timer(Observer::Histogram(_)) => &["_bucket", "_sum", "_count"],
            Self::Timer(Observer::Summary) => &["_sum", "_count"],
        }
    }
}

/// The value of a series.
enum SeriesValue {
    Plain(f64),
    Timer(Box<TimerSeries>),
}

/// Durations in the unit of the family.
struct TimerSeries {
    /// For each upper bound of the histogram, the number of durations up to it.
    at_most: Vec<u64>,
    count: u64,
    sum: f64,
}

impl SeriesValue {
    fn new(value: &SampleValue, shape: &FamilyType, scale: f64) -> Self {
        match value {
            SampleValue::Counter(value) | SampleValue::Gauge(value) => {
                Self::Plain(*value as f64 * scale)
            }
            SampleValue::Timer(values) => {
                let bounds = shape.bounds().iter();
                let at_most = bounds.map(|bound| values.at_most(micros(*bound, scale)));
                Self::Timer(Box::new(TimerSeries {
                    at_most: at_most.collect(),
                    count: values.count(),
                    sum: values.sum_micros() as f64 * scale / 1_000.0,
                }))
            }
        }
    }

    /// Adds the value of another sample of this series.
    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Plain(value), Self::Plain(more)) => *value += more,
            (Self::Timer(times), Self::Timer(more)) => {
                let bounds = times.at_most.iter_mut().zip(&more.at_most);
                bounds.for_each(|(below, more)| *below += more);
                times.count += more.count;
                times.sum += more.sum;
            }
            (Self::Plain(_) | Self::Timer(_), _) => {
                unreachable!("values of one family are of one type")
            }
        }
    }

    /// Writes the lines of a series.
    fn write(
        &self,
        text: &mut String,
        name: &str,
        shape: &FamilyType,
        labels: &str,
    ) -> fmt::Result {
        let times = match self {
            Self::Plain(value) => return write_line(text, name, "", labels, None, *value),
            Self::Timer(times) => times,
        };
        if let FamilyType::Timer(Observer::Histogram(bounds)) = shape {
            let bounds = bounds.iter().map(|bound| go_float(*bound));
            let bounds = bounds.chain(["+Inf".to_owned()]);
            let below = times.at_most.iter().chain([&times.count]);
            for (bound, below) in bounds.zip(below) {
                write_line(text, name, "_bucket", labels, Some(&bound), *below as f64)?;
            }
        }
        write_line(text, name, "_sum", labels, None, times.sum)?;
        write_line(text, name, "_count", labels, None, times.count as f64)
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

/// A number as Go formats it, because bounds are compared as text: dashboards use `le="1e+06"`.
fn go_float(value: f64) -> String {
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, ""));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// A bound in microseconds, for a family whose values are milliseconds times `scale`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, as a bound should, and nothing is measured in fractions"
)]
fn micros(bound: f64, scale: f64) -> u64 {
    // Slightly more than the bound, so that rounding in the division does not move a duration by a whole bucket.
    (bound / scale * 1_000.0 * (1.0 + 1e-9)) as u64
}
