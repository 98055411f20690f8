//! Compares snapshots with the values that were sent, and writes the differences as lines in the collector's dialect.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    io,
    time::Duration,
};

use crate::{
    foundation::{
        histogram::TimerValues,
        metric_name::breaks_line,
        sample::{Sample, SampleKind, SampleValue},
    },
    observe::metrics::mogrifier::{Mogrified, Mogrifier, mogrify},
};

/// Turns snapshots into lines with the differences to what was sent.
#[derive(Debug)]
pub(crate) struct Flusher {
    dialect: Dialect,
    /// Sorted, as in the reference's lines.
    extra_tags: BTreeMap<String, String>,
    known: HashMap<String, SentMetric>,
    round: u64,
}

/// A metric of the last snapshot.
#[derive(Debug)]
struct SentMetric {
    /// Number of the last snapshot that contained it.
    round: u64,
    value: SampleValue,
    /// The value as last sent.
    sent: SampleValue,
    /// The text of a line before `:`; `tags` is the text after the type.
    name: Box<str>,
    tags: Box<str>,
}

impl Flusher {
    /// A flusher whose first flush sends everything.
    pub(crate) fn new(dialect: &Dialect, extra_tags: &[(String, String)]) -> Self {
        Self {
            dialect: dialect.clone(),
            extra_tags: extra_tags.iter().cloned().collect(),
            known: HashMap::new(),
            round: 0,
        }
    }

    /// Offers differences to `take`: all lines of one metric at a time, in no particular order. A later flush offers
    /// refused metrics again.
    ///
    /// Counters and timers of equal names are added up. A name that is missing from a snapshot is forgotten, and starts
    /// from zero if it returns.
    pub(crate) fn flush(&mut self, samples: &[Sample], mut take: impl FnMut(&str) -> bool) {
        self.round += 1;
        for sample in samples {
            self.learn(sample);
        }
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
        let mut lines = String::new();
        for known in self.known.values_mut() {
            lines.clear();
            known.write(&mut lines);
            if !lines.is_empty() && take(&lines) {
                known.sent = known.value.clone();
            }
        }
    }

    fn learn(&mut self, sample: &Sample) {
        let round = self.round;
        let Some(known) = self.known.get_mut(&sample.name) else {
            let (name, tags) = form(&self.dialect, &self.extra_tags, &sample.name);
            let known = SentMetric {
                round,
                value: sample.value.clone(),
                sent: nothing(sample.value.kind()),
                name,
                tags,
            };
            self.known.insert(sample.name.clone(), known);
            return;
        };
        let is_second = std::mem::replace(&mut known.round, round) == round;
        match (&mut known.value, &sample.value) {
            (SampleValue::Counter(total), SampleValue::Counter(more)) if is_second => {
                *total += more
            }
            (SampleValue::Timer(values), SampleValue::Timer(more)) if is_second => values.add(more),
            (value, sampled) => *value = sampled.clone(),
        }
        if known.sent.kind() != known.value.kind() {
            known.sent = nothing(known.value.kind());
        }
    }
}

fn nothing(kind: SampleKind) -> SampleValue {
    match kind {
        SampleKind::Counter => SampleValue::Counter(0),
        SampleKind::Gauge => SampleValue::Gauge(0),
        SampleKind::Timer => SampleValue::Timer(Box::default()),
    }
}

impl SentMetric {
    /// Writes the part of the value that has not been sent yet.
    fn write(&self, lines: &mut String) {
        let Self { name, tags, .. } = self;
        match (&self.value, &self.sent) {
            (SampleValue::Counter(total), SampleValue::Counter(sent)) => {
                // A total that shrank was reset.
                let delta = total.checked_sub(*sent).unwrap_or(*total);
                if delta > 0 {
                    let _ = writeln!(lines, "{name}:{delta}|c{tags}");
                }
            }
            (SampleValue::Gauge(now), _) => {
                let _ = writeln!(lines, "{name}:{now}|g{tags}");
            }
            (SampleValue::Timer(values), SampleValue::Timer(sent)) => {
                write_timer(lines, name, &values.since(sent), tags);
            }
            (SampleValue::Counter(_) | SampleValue::Timer(_), _) => {
                unreachable!("what was sent is of the value's kind")
            }
        }
    }
}

/// The destination, format and interval of a sink.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub host: String,
    pub port: u16,
    pub transport: Transport,
    pub dialect: Dialect,
    /// EXTRA_TAGS, added to every line.
    pub extra_tags: Vec<(String, String)>,
    pub flush_interval: Duration,
}

/// STATSD_PROTOCOL. DogStatsD agents listen on UDP only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// The syntax of tags.
#[derive(Clone, Debug)]
pub(crate) enum Dialect {
    /// Within the name: `name.__tag=value:1|c`.
    Statsd,
    /// After the value, `name:1|c|#tag:value`; the rules rewrite the name first.
    DogStatsd(Vec<Mogrifier>),
}

/// Logs when a collector becomes reachable or unreachable, once per change.
pub(super) struct CollectorState {
    target: String,
    is_up: Option<bool>,
}

impl CollectorState {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            target: format!("{}:{}", options.host, options.port),
            is_up: None,
        }
    }

    pub(super) fn report(&mut self, failure: Option<&io::Error>) {
        let was_up = self.is_up.replace(failure.is_none());
        match failure {
            None if was_up != Some(true) => {
                tracing::info!(target = %self.target, "statsd collector reached");
            }
            Some(error) if was_up != Some(false) => {
                tracing::warn!(target = %self.target, %error, "statsd collector not reached");
            }
            _ => {}
        }
    }
}

/// A name in the collector's dialect: the texts before `:` and after the type.
pub(super) fn form(
    dialect: &Dialect,
    extra_tags: &BTreeMap<String, String>,
    name: &str,
) -> (Box<str>, Box<str>) {
    match dialect {
        Dialect::Statsd => {
            let mut name = clean(name, breaks_line);
            for (key, value) in extra_tags {
                let (key, value) = (clean(key, breaks_line), clean(value, breaks_line));
                let _ = write!(name, ".__{key}={value}");
            }
            (name.into(), Box::default())
        }
        Dialect::DogStatsd(rules) => {
            let (name, own) = split_tags(name);
            let Mogrified { name, tags: found } =
                mogrify(rules, &name).unwrap_or_else(|| Mogrified {
                    name,
                    tags: Vec::new(),
                });
            let mut tags = extra_tags.clone();
            tags.extend(own);
            tags.extend(found);
            let mut text = String::new();
            for (key, value) in &tags {
                let separator = if text.is_empty() { "|#" } else { "," };
                let key = clean(key, |found| found == ',' || breaks_line(found));
                // The first colon ends the key; later ones belong to the value.
                let value = clean(value, |found| {
                    found == ',' || found != ':' && breaks_line(found)
                });
                let _ = write!(text, "{separator}{key}:{value}");
            }
            (clean(&name, breaks_line).into(), text.into())
        }
    }
}

fn clean(text: &str, is_unfit: impl Fn(char) -> bool) -> String {
    text.chars()
        .map(|found| if is_unfit(found) { '_' } else { found })
        .collect()
}

/// Extracts the tags from a name of the form `name.__tag=value`.
fn split_tags(name: &str) -> (String, Vec<(String, String)>) {
    let mut parts = name.split(".__");
    let mut bare = parts.next().unwrap_or_default().to_owned();
    let mut tags = Vec::new();
    for part in parts {
        match part.split_once('=') {
            Some((key, value)) if !key.is_empty() => tags.push((key.to_owned(), value.to_owned())),
            _ => {
                bare.push_str(".__");
                bare.push_str(part);
            }
        }
    }
    (bare, tags)
}

/// Writes one line for each bucket that contains durations: the middle of the bucket, with a sample rate that makes the
/// line stand for all of them.
///
/// The reference sends every duration on a line of its own. Collectors that apply the rate, as all the usual ones do,
/// arrive at an equal count and sum and nearly equal percentiles. A single mean per flush would look like one call of
/// average length. Values are fractions of milliseconds, which the protocol allows and fast replies need.
pub(super) fn write_timer(lines: &mut String, name: &str, values: &TimerValues, tags: &str) {
    let middles: f64 = values
        .middles()
        .map(|(middle, count)| middle * count as f64)
        .sum();
    // Scaling all values by one factor makes the sum exact, and also a single value.
    let stretch = values.sum_micros() as f64 / middles;
    for (middle, count) in values.middles() {
        let millis = middle * stretch / 1_000.0;
        // Rounded to the nanosecond, because further digits are noise.
        let millis = (millis * 1e6).round() / 1e6;
        let _ = write!(lines, "{name}:{millis}|ms");
        if count > 1 {
            let _ = write!(lines, "|@{}", rate(count));
        }
        lines.push_str(tags);
        lines.push('\n');
    }
}

/// The sample rate of a line that stands for `count` durations. It is never above 1 / `count`, because a collector that
/// divides and truncates would then count one too few.
pub(super) fn rate(count: u64) -> f64 {
    let rate = 1.0 / count as f64;
    if 1.0 / rate < count as f64 {
        rate.next_down()
    } else {
        rate
    }
}
