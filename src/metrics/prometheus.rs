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

use super::{
    mapper::{Mapper, Observer, Outcome, Target, is_label},
    process,
    sample::{Kind, Sample, Value},
};

/// The `Content-Type` of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Renders pages. All the work is done on a scrape; between them it costs nothing.
#[derive(Debug)]
pub struct Renderer {
    mapper: Mapper,
    /// EXTRA_TAGS, on every series. A label of the mapping with the same name wins.
    extra_labels: Labels,
    conflicts: Conflicts,
}

/// Sorted, so that equal sets are equal; none empty, since an empty label is none.
type Labels = BTreeMap<String, String>;

/// Samples that could not be shown, since the start, by [`Kind`].
#[derive(Debug, Default)]
struct Conflicts {
    counters: AtomicU64,
    gauges: AtomicU64,
    timers: AtomicU64,
}

const CONFLICTS: &str = "statsd_exporter_events_conflict_total";

/// What a family is for, if the mapping does not say.
const NO_HELP: &str = "The statsd metric of the same name.";

impl Renderer {
    pub fn new(mapper: Mapper, extra_tags: &[(String, String)]) -> Self {
        let mut extra_labels = Labels::new();
        for (tag, value) in extra_tags {
            insert_label(&mut extra_labels, tag, value);
        }
        Self {
            mapper,
            extra_labels,
            conflicts: Conflicts::default(),
        }
    }

    /// The page of these samples.
    ///
    /// Samples of one series are added up, but of gauges the last is shown. If two samples want
    /// one family to be of different types, the first has its way; the others are counted as
    /// conflicts.
    pub fn render(&self, samples: &[Sample]) -> String {
        let mut page = Page::new();
        for sample in samples {
            let shown = match self.mapper.map(&sample.name, sample.value.kind()) {
                Outcome::Dropped => continue,
                Outcome::Mapped {
                    name,
                    labels,
                    target,
                } => {
                    let labels = self.labels(labels);
                    let observer = &target.observer;
                    page.add(&name, labels, &sample.value, observer, Some(target))
                }
                Outcome::Unmapped => {
                    let labels = self.extra_labels.clone();
                    let observer = self.mapper.unmapped_observer();
                    page.add(&sample.name, labels, &sample.value, observer, None)
                }
            };
            if shown.is_err() {
                self.conflicts.of(sample.value.kind()).fetch_add(1, Relaxed);
            }
        }
        let mut text = page.text();
        self.conflicts.write(&mut text);
        text
    }

    fn labels(&self, mapped: Vec<(&str, String)>) -> Labels {
        let mut labels = Labels::new();
        for (label, value) in &mapped {
            insert_label(&mut labels, label, value);
        }
        for (label, value) in &self.extra_labels {
            labels.entry(label.clone()).or_insert_with(|| value.clone());
        }
        labels
    }
}

/// Puts in what Prometheus takes for this label. The first value of a name stays.
fn insert_label(labels: &mut Labels, name: &str, value: &str) {
    // These two are what histograms and summaries tell their lines apart by.
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

impl Conflicts {
    fn of(&self, kind: Kind) -> &AtomicU64 {
        match kind {
            Kind::Counter => &self.counters,
            Kind::Gauge => &self.gauges,
            Kind::Timer => &self.timers,
        }
    }

    fn write(&self, text: &mut String) {
        let by_type = [
            ("counter", self.counters.load(Relaxed)),
            ("gauge", self.gauges.load(Relaxed)),
            ("observer", self.timers.load(Relaxed)),
        ];
        if by_type.iter().all(|(_, count)| *count == 0) {
            return;
        }
        let help = "Samples that were not shown because their family is of another type.";
        let _ = writeln!(
            text,
            "# HELP {CONFLICTS} {help}\n# TYPE {CONFLICTS} counter"
        );
        for (kind, count) in by_type.iter().filter(|(_, count)| *count > 0) {
            let _ = writeln!(text, "{CONFLICTS}{{type=\"{kind}\"}} {count}");
        }
    }
}

/// A sample that would have made the page invalid.
struct Conflict;

/// Families by name.
struct Page {
    families: BTreeMap<String, Family>,
    /// Which family a name at the beginning of a line belongs to: histograms and summaries have
    /// several.
    owners: HashMap<String, String>,
}

struct Family {
    shape: Shape,
    help: Option<String>,
    series: BTreeMap<Labels, Number>,
}

#[derive(Clone, PartialEq)]
enum Shape {
    Counter,
    Gauge,
    /// With its upper bounds.
    Histogram(Arc<[f64]>),
    Summary,
}

/// What a series shows.
enum Number {
    Plain(f64),
    /// In the unit of the family.
    Timer {
        /// How many were at most each upper bound of the histogram.
        at_most: Vec<u64>,
        count: u64,
        sum: f64,
    },
}

impl Page {
    fn new() -> Self {
        // What others write on the same page.
        let others = process::NAMES.iter().chain([&CONFLICTS]);
        Self {
            families: BTreeMap::new(),
            owners: others
                .map(|&name| (name.to_owned(), String::new()))
                .collect(),
        }
    }

    fn add(
        &mut self,
        name: &str,
        labels: Labels,
        value: &Value,
        observer: &Observer,
        target: Option<&Target>,
    ) -> Result<(), Conflict> {
        let name = escape_name(name);
        let shape = Shape::of(value, observer);
        if name.is_empty() {
            return Err(Conflict);
        }
        let family = match self.families.get_mut(name.as_ref()) {
            Some(family) if family.shape == shape => family,
            Some(_) => return Err(Conflict),
            None => self.found(&name, shape.clone())?,
        };
        if family.help.is_none() {
            family.help = target.and_then(|target| target.help.clone());
        }
        let number = Number::new(value, &shape, target.map_or(1.0, |target| target.scale));
        match family.series.entry(labels) {
            Entry::Vacant(place) => {
                place.insert(number);
            }
            Entry::Occupied(mut known) if family.shape == Shape::Gauge => {
                known.insert(number);
            }
            Entry::Occupied(mut known) => known.get_mut().add(&number),
        }
        Ok(())
    }

    /// Makes a family, unless one of the names of its lines belongs to another.
    fn found(&mut self, name: &str, shape: Shape) -> Result<&mut Family, Conflict> {
        let suffixes = shape.suffixes();
        let names = || suffixes.iter().map(|suffix| format!("{name}{suffix}"));
        if names().any(|name| self.owners.contains_key(&name)) {
            return Err(Conflict);
        }
        self.owners
            .extend(names().map(|line| (line, name.to_owned())));
        Ok(self.families.entry(name.to_owned()).or_insert(Family {
            shape,
            help: None,
            series: BTreeMap::new(),
        }))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.families {
            let help = family.help.as_deref().unwrap_or(NO_HELP);
            let help = help.replace('\\', r"\\").replace('\n', r"\n");
            let kind = family.shape.name();
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, number) in &family.series {
                // Writing to a string cannot fail.
                let _ = family.write(&mut text, name, labels, number);
            }
        }
        text
    }
}

impl Family {
    fn write(
        &self,
        text: &mut String,
        name: &str,
        labels: &Labels,
        number: &Number,
    ) -> fmt::Result {
        match number {
            Number::Plain(value) => write_line(text, name, "", labels, None, *value),
            Number::Timer {
                at_most,
                count,
                sum,
            } => {
                if let Shape::Histogram(bounds) = &self.shape {
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
}

fn write_line(
    text: &mut String,
    name: &str,
    suffix: &str,
    labels: &Labels,
    bound: Option<&str>,
    value: f64,
) -> fmt::Result {
    write!(text, "{name}{suffix}")?;
    let mut separator = '{';
    for (label, value) in labels {
        let value = value
            .replace('\\', r"\\")
            .replace('"', "\\\"")
            .replace('\n', r"\n");
        write!(text, "{separator}{label}=\"{value}\"")?;
        separator = ',';
    }
    if let Some(bound) = bound {
        write!(text, "{separator}le=\"{bound}\"")?;
        separator = ',';
    }
    let end = if separator == ',' { "}" } else { "" };
    writeln!(text, "{end} {value}")
}

impl Shape {
    fn of(value: &Value, observer: &Observer) -> Self {
        match (value, observer) {
            (Value::Counter(_), _) => Self::Counter,
            (Value::Gauge(_), _) => Self::Gauge,
            (Value::Timer(_), Observer::Histogram(bounds)) => Self::Histogram(bounds.clone()),
            // Without quantiles: those of all time would say nothing of now.
            (Value::Timer(_), Observer::Summary) => Self::Summary,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
            Self::Summary => "summary",
        }
    }

    /// What the names of a family's lines end in. The family's own name is taken, too.
    fn suffixes(&self) -> &'static [&'static str] {
        match self {
            Self::Counter | Self::Gauge => &[""],
            Self::Histogram(_) => &["", "_bucket", "_sum", "_count"],
            Self::Summary => &["", "_sum", "_count"],
        }
    }
}

impl Number {
    fn new(value: &Value, shape: &Shape, scale: f64) -> Self {
        match value {
            Value::Counter(value) | Value::Gauge(value) => Self::Plain(*value as f64 * scale),
            Value::Timer(values) => {
                let bounds = match shape {
                    Shape::Histogram(bounds) => bounds.as_ref(),
                    Shape::Counter | Shape::Gauge | Shape::Summary => &[],
                };
                let at_most = bounds
                    .iter()
                    .map(|bound| values.at_most(micros(*bound, scale)));
                Self::Timer {
                    at_most: at_most.collect(),
                    count: values.count(),
                    sum: values.sum_micros() as f64 * scale / 1_000.0,
                }
            }
        }
    }

    /// Adds the number of another sample of the same family.
    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Plain(value), Self::Plain(more)) => *value += more,
            (
                Self::Timer {
                    at_most,
                    count,
                    sum,
                },
                Self::Timer {
                    at_most: more,
                    count: more_count,
                    sum: more_sum,
                },
            ) => {
                at_most
                    .iter_mut()
                    .zip(more)
                    .for_each(|(below, more)| *below += more);
                *count += more_count;
                *sum += more_sum;
            }
            (Self::Plain(_) | Self::Timer { .. }, _) => {
                unreachable!("numbers of one family are of one shape")
            }
        }
    }
}

/// A bound of a family in microseconds, when its values are milliseconds times `scale`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, as a bound should, and nothing is measured in fractions"
)]
fn micros(bound: f64, scale: f64) -> u64 {
    // A little more, so that a division that is a hair too small does not cost a whole bucket.
    (bound / scale * 1_000.0 * (1.0 + 1e-9)) as u64
}

/// A number as Go writes it, since bounds are compared as text: dashboards say `le="1e+06"`.
fn go_float(value: f64) -> String {
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

/// What statsd_exporter makes of a name: `_` for every character that is not a letter, a digit or
/// `_`, but one for a run of dashes, and one before a digit at the start.
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

#[cfg(test)]
mod tests;
