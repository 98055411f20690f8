//! Samples → a page in Prometheus' text format, version 0.0.4.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    mapper::{Mapper, MappingOutcome, MappingTarget, Observer, is_label},
    process,
    sample::{Sample, SampleKind, SampleValue},
};

/// The `Content-Type` of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Renders pages. All work happens during a scrape; between scrapes it costs nothing.
#[derive(Debug)]
pub struct Renderer {
    mapper: Mapper,
    /// EXTRA_TAGS, on every series. A label of the mapping with an equal name wins.
    extra_labels: Labels,
    conflicts: Conflicts,
}

/// Sorted, so that equal sets are equal; without empty values, since an empty label equals an absent one.
type Labels = BTreeMap<String, String>;

/// Counts of samples that could not be shown, since the start, by [`SampleKind`].
#[derive(Debug, Default)]
struct Conflicts {
    counters: AtomicU64,
    gauges: AtomicU64,
    timers: AtomicU64,
}

const CONFLICTS: &str = "statsd_exporter_events_conflict_total";

/// Help text of a family without one in the mapping.
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

    /// Renders the samples that `each` passes on.
    ///
    /// Samples of one series are added up; of gauges, the last one is shown. If two samples require different types
    /// of one family, the first one's type stays, and the others count as conflicts.
    pub fn page(&self, each: impl FnOnce(&mut dyn FnMut(Sample))) -> MetricsPage {
        let mut draft = PageDraft::new();
        each(&mut |sample| {
            let shown = match self.mapper.map(&sample.name, sample.value.kind()) {
                MappingOutcome::Dropped => return,
                MappingOutcome::Mapped {
                    name,
                    labels,
                    target,
                } => {
                    let labels = self.labels(labels);
                    let observer = &target.observer;
                    draft.add(&name, &labels, &sample.value, observer, Some(target))
                }
                MappingOutcome::Unmapped => {
                    let observer = self.mapper.unmapped_observer();
                    let labels = &self.extra_labels;
                    draft.add(&sample.name, labels, &sample.value, observer, None)
                }
            };
            if shown.is_err() {
                self.conflicts.of(sample.value.kind()).fetch_add(1, Relaxed);
            }
        });
        let mut end = String::new();
        self.conflicts.write(&mut end);
        draft.finish(end)
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

/// Inserts a label with a name that Prometheus accepts. The first value of a name stays.
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

impl Conflicts {
    fn of(&self, kind: SampleKind) -> &AtomicU64 {
        match kind {
            SampleKind::Counter => &self.counters,
            SampleKind::Gauge => &self.gauges,
            SampleKind::Timer => &self.timers,
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

/// A sample that would make the page invalid.
struct Conflict;

/// The samples so far. A page can have tens of thousands of series, so each is small: its labels are stored as the
/// rendered text, which the series of a rule share.
struct PageDraft {
    families: Vec<MetricFamily>,
    /// The family that owns a name at the beginning of a line; histograms and summaries own several names. `None`
    /// marks names that other code writes on the page.
    owners: HashMap<Arc<str>, Option<usize>>,
    series: Vec<Series>,
}

/// A page that is written piece by piece.
pub struct MetricsPage {
    families: Vec<MetricFamily>,
    /// In the order of the page.
    series: std::vec::IntoIter<Series>,
    /// The family whose head was written last.
    current: Option<usize>,
    /// Text after the last series.
    end: String,
    bytes: usize,
}

#[derive(Debug)]
struct MetricFamily {
    name: Arc<str>,
    shape: FamilyType,
    help: Option<String>,
}

#[derive(Debug)]
struct Series {
    family: usize,
    /// Separated by commas.
    labels: Arc<str>,
    number: SeriesValue,
}

#[derive(Clone, Debug, PartialEq)]
enum FamilyType {
    Counter,
    Gauge,
    /// With its upper bounds.
    Histogram(Arc<[f64]>),
    Summary,
}

/// The value of a series.
#[derive(Debug)]
enum SeriesValue {
    Plain(f64),
    Timer(Box<TimerSeries>),
}

/// Durations in the unit of the family.
#[derive(Debug)]
struct TimerSeries {
    /// For each upper bound of the histogram, the number of durations up to it.
    at_most: Vec<u64>,
    count: u64,
    sum: f64,
}

impl PageDraft {
    fn new() -> Self {
        // Names that other code writes on the page.
        let others = process::NAMES.iter().chain([&CONFLICTS]);
        Self {
            families: Vec::new(),
            owners: others.map(|&name| (name.into(), None)).collect(),
            series: Vec::new(),
        }
    }

    fn add(
        &mut self,
        name: &str,
        labels: &Labels,
        value: &SampleValue,
        observer: &Observer,
        target: Option<&MappingTarget>,
    ) -> Result<(), Conflict> {
        let name = escape_name(name);
        let shape = FamilyType::of(value, observer);
        if name.is_empty() {
            return Err(Conflict);
        }
        let known = self.owners.get(name.as_ref()).copied();
        let at = match known {
            // A name that ends in `_count`, for example, can be a line of another family.
            Some(Some(at)) if self.families[at].is(&name, &shape) => at,
            Some(_) => return Err(Conflict),
            None => self.found(&name, shape.clone())?,
        };
        let family = &mut self.families[at];
        if family.help.is_none() {
            family.help = target.and_then(|target| target.help.clone());
        }
        let number = SeriesValue::new(value, &shape, target.map_or(1.0, |target| target.scale));
        let labels = label_text(labels);
        let labels = match self.series.last() {
            Some(last) if *last.labels == *labels => last.labels.clone(),
            _ => labels.into(),
        };
        self.series.push(Series {
            family: at,
            labels,
            number,
        });
        Ok(())
    }

    /// Creates a family, unless another family owns one of its lines' names.
    fn found(&mut self, name: &str, shape: FamilyType) -> Result<usize, Conflict> {
        let at = self.families.len();
        let own: Arc<str> = name.into();
        let names = shape.suffixes().iter().map(|suffix| match *suffix {
            "" => own.clone(),
            suffix => format!("{name}{suffix}").into(),
        });
        let names: Vec<Arc<str>> = names.collect();
        if names.iter().any(|name| self.owners.contains_key(name)) {
            return Err(Conflict);
        }
        self.owners
            .extend(names.into_iter().map(|line| (line, Some(at))));
        self.families.push(MetricFamily {
            name: own,
            shape,
            help: None,
        });
        Ok(at)
    }

    fn finish(self, end: String) -> MetricsPage {
        let Self {
            families,
            owners,
            mut series,
        } = self;
        drop(owners);
        let name_and_labels =
            |series: &Series| (&*families[series.family].name, series.labels.clone());
        series.sort_by(|a, b| {
            let names = families[a.family].name.cmp(&families[b.family].name);
            names.then_with(|| a.labels.cmp(&b.labels))
        });
        series.dedup_by(|next, kept| {
            let is_same = name_and_labels(next) == name_and_labels(kept);
            if is_same {
                let next = std::mem::replace(&mut next.number, SeriesValue::Plain(0.0));
                match families[kept.family].shape {
                    FamilyType::Gauge => kept.number = next,
                    _ => kept.number.add(&next),
                }
            }
            is_same
        });
        let mut bytes = families.iter().map(MetricFamily::bytes).sum::<usize>() + end.len();
        let mut before: Option<&Arc<str>> = None;
        for one in &series {
            bytes += size_of::<Series>();
            if before.is_none_or(|before| !Arc::ptr_eq(before, &one.labels)) {
                bytes += one.labels.len();
            }
            before = Some(&one.labels);
        }
        MetricsPage {
            families,
            series: series.into_iter(),
            current: None,
            end,
            bytes,
        }
    }
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsPage")
            .field("bytes", &self.bytes)
            .finish()
    }
}

impl MetricsPage {
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

    /// Continues until `text` has `most` bytes or slightly more; returns whether more follows.
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
                family.write_head(text);
            }
            // Writing to a string cannot fail.
            let _ = family.write(text, &labels, &number);
        }
        true
    }
}

impl MetricFamily {
    /// Whether the family has this name and this shape.
    fn is(&self, name: &str, shape: &FamilyType) -> bool {
        *self.name == *name && self.shape == *shape
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.help.as_ref().map_or(0, String::len)
    }

    fn write_head(&self, text: &mut String) {
        let name = &self.name;
        let help = self.help.as_deref().unwrap_or(NO_HELP);
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        let kind = self.shape.name();
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn write(&self, text: &mut String, labels: &str, number: &SeriesValue) -> fmt::Result {
        let name = &*self.name;
        match number {
            SeriesValue::Plain(value) => write_line(text, name, "", labels, None, *value),
            SeriesValue::Timer(times) => {
                let TimerSeries {
                    at_most,
                    count,
                    sum,
                } = &**times;
                if let FamilyType::Histogram(bounds) = &self.shape {
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

impl FamilyType {
    fn of(value: &SampleValue, observer: &Observer) -> Self {
        match (value, observer) {
            (SampleValue::Counter(_), _) => Self::Counter,
            (SampleValue::Gauge(_), _) => Self::Gauge,
            (SampleValue::Timer(_), Observer::Histogram(bounds)) => Self::Histogram(bounds.clone()),
            // Without quantiles: those over the whole lifetime would not describe the present.
            (SampleValue::Timer(_), Observer::Summary) => Self::Summary,
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

    /// Suffixes of the names of a family's lines. The bare name belongs to the family too.
    fn suffixes(&self) -> &'static [&'static str] {
        match self {
            Self::Counter | Self::Gauge => &[""],
            Self::Histogram(_) => &["", "_bucket", "_sum", "_count"],
            Self::Summary => &["", "_sum", "_count"],
        }
    }
}

impl SeriesValue {
    fn new(value: &SampleValue, shape: &FamilyType, scale: f64) -> Self {
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
    fn add(&mut self, other: &Self) {
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
fn micros(bound: f64, scale: f64) -> u64 {
    // Slightly more, so that rounding in a division does not cost a whole bucket.
    (bound / scale * 1_000.0 * (1.0 + 1e-9)) as u64
}

/// A number as Go formats it, because bounds are compared as text: dashboards use `le="1e+06"`.
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

/// A name as statsd_exporter escapes it: `_` for every character that is not a letter, a digit or `_`, but only one
/// for a run of dashes, and one before a leading digit.
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
