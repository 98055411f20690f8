//! statsd names → Prometheus names and labels, by the rules of a statsd_exporter mapping file.
//!
//! The format is the one that statsd_exporter documents, with its old and its new keys. Globs are
//! tried before regular expressions, wherever they stand in the file, as they are there.

use std::{collections::BTreeMap, sync::Arc};

use regex::{Captures, Regex};
use serde::{Deserialize, de::IgnoredAny};

use super::sample::Kind;

/// A mapping file that can be used.
#[derive(Debug)]
pub struct Mapper {
    /// In the order in which they are tried.
    globs: Vec<Mapping<Glob>>,
    regexes: Vec<Mapping<Regex>>,
    unmapped_observer: Observer,
}

/// What a file was read into.
#[derive(Debug)]
pub struct Loaded {
    pub mapper: Mapper,
    /// What was not understood and left out.
    pub warnings: Vec<String>,
}

/// What becomes of a metric.
#[derive(Debug)]
pub enum Outcome<'m> {
    Mapped {
        name: String,
        labels: Vec<(&'m str, String)>,
        target: &'m Target,
    },
    Dropped,
    /// No rule is for it.
    Unmapped,
}

/// What a rule says of the metrics that it maps, whatever their names.
#[derive(Clone, Debug)]
pub struct Target {
    pub help: Option<String>,
    /// Values are multiplied by it; those of timers are milliseconds before.
    pub scale: f64,
    pub observer: Observer,
    name: Template,
    labels: Vec<(String, Template)>,
}

/// What a timer is shown as.
#[derive(Clone, Debug, PartialEq)]
pub enum Observer {
    /// With these upper bounds, ascending, and an infinite one.
    Histogram(Arc<[f64]>),
    Summary,
}

/// The unit of the response times in the built-in mapping:
/// PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS. The name says seconds either way, as it does in the
/// reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseTime {
    Seconds,
    Milliseconds,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// Knows the line and the column.
    #[error("not a mapping file")]
    Format(#[source] serde_yaml::Error),
    #[error("mappings[{at}]: no `match`")]
    NoMatch { at: usize },
    #[error("mappings[{at}]: no `name` for what matches `{matches}`")]
    NoName { at: usize, matches: String },
    #[error("mappings[{at}]: every segment of a glob is a word or `*`, not so in `{matches}`")]
    Glob { at: usize, matches: String },
    #[error("mappings[{at}]: `match` is not a regular expression")]
    Regex {
        at: usize,
        #[source]
        source: Box<regex::Error>,
    },
    #[error("mappings[{at}]: a label is letters, digits and `_`, not `{label}`")]
    Label { at: usize, label: String },
    #[error("mappings[{at}]: a scale is more than 0, not {scale}")]
    Scale { at: usize, scale: f64 },
    #[error("{place}: buckets must ascend, not so {buckets:?}")]
    Buckets { place: String, buckets: Vec<f64> },
}

/// The buckets of a histogram for which a file has none; those of Prometheus' clients.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

const BUILT_IN: &str = include_str!("mapping.yaml");

impl Mapper {
    /// Reads a mapping file. Keys that are not known are left out with a warning.
    ///
    /// # Errors
    ///
    /// Every reason why it cannot be used, or the first if it is not even of the format.
    pub fn parse(text: &str) -> Result<Loaded, Vec<MappingError>> {
        let file: Option<File> =
            serde_yaml::from_str(text).map_err(|error| vec![MappingError::Format(error)])?;
        let File {
            defaults,
            mappings,
            unknown,
        } = file.unwrap_or_default();
        let mut reader = Reader::new(defaults.unwrap_or_default());
        reader.warn("", &unknown);
        for (at, mapping) in mappings.unwrap_or_default().into_iter().enumerate() {
            reader.read(at, mapping);
        }
        reader.finish()
    }

    /// The mapping in use when no file is named.
    pub fn built_in(response_time: ResponseTime) -> Self {
        let loaded = Self::parse(BUILT_IN).expect("the built-in mapping is tested");
        let mut mapper = loaded.mapper;
        if response_time == ResponseTime::Milliseconds {
            // Only one rule has a scale.
            for mapping in &mut mapper.globs {
                if let Some(target) = &mut mapping.target {
                    target.scale = 1.0;
                }
            }
        }
        mapper
    }

    /// What becomes of the metric of this name. A glob or a regular expression for metrics of
    /// another kind is passed over.
    pub fn map(&self, name: &str, kind: Kind) -> Outcome<'_> {
        let segments: Vec<&str> = name.split('.').collect();
        for mapping in self.globs.iter().filter(|mapping| mapping.is_for(kind)) {
            if let Some(groups) = mapping.pattern.find(&segments) {
                return mapping.outcome(|template| template.fill(&groups));
            }
        }
        for mapping in self.regexes.iter().filter(|mapping| mapping.is_for(kind)) {
            if let Some(found) = mapping.pattern.captures(name) {
                return mapping.outcome(|template| template.expand(&found));
            }
        }
        Outcome::Unmapped
    }

    /// What timers without a rule are shown as.
    pub fn unmapped_observer(&self) -> &Observer {
        &self.unmapped_observer
    }
}

/// A rule of the file.
#[derive(Debug)]
struct Mapping<Pattern> {
    pattern: Pattern,
    /// The only kind of metrics that it is for, if not for all.
    kind: Option<Kind>,
    /// Nothing to drop what matches.
    target: Option<Target>,
}

impl<Pattern> Mapping<Pattern> {
    fn is_for(&self, kind: Kind) -> bool {
        self.kind.is_none_or(|only| only == kind)
    }

    fn outcome(&self, fill: impl Fn(&Template) -> String) -> Outcome<'_> {
        let Some(target) = &self.target else {
            return Outcome::Dropped;
        };
        let labels = target.labels.iter();
        Outcome::Mapped {
            name: fill(&target.name),
            labels: labels
                .map(|(label, value)| (label.as_str(), fill(value)))
                .collect(),
            target,
        }
    }
}

/// Words, and stars that stand for any one segment between dots.
#[derive(Clone, Debug)]
struct Glob(Vec<Segment>);

/// Words come before stars in the order of specificity.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Word(String),
    Star,
}

impl Glob {
    fn parse(text: &str) -> Option<Self> {
        let segments = text.split('.').map(|segment| match segment {
            "*" => Some(Segment::Star),
            word if word.is_empty() || word.contains('*') => None,
            word => Some(Segment::Word(word.to_owned())),
        });
        segments.collect::<Option<_>>().map(Self)
    }

    /// What the stars stand for if this is the name's glob.
    fn find<'n>(&self, name: &[&'n str]) -> Option<Vec<&'n str>> {
        if self.0.len() != name.len() {
            return None;
        }
        let pairs = || self.0.iter().zip(name);
        let is_it = pairs().all(|(segment, found)| match segment {
            Segment::Word(word) => word == found,
            Segment::Star => true,
        });
        let stars = || pairs().filter(|(segment, _)| **segment == Segment::Star);
        is_it.then(|| stars().map(|(_, found)| *found).collect())
    }

    /// Which segments are stars. Of two globs for one name, the one with the lesser of these has a
    /// word where the other has its first star.
    fn stars(&self) -> Vec<bool> {
        self.0
            .iter()
            .map(|segment| *segment == Segment::Star)
            .collect()
    }
}

/// A text with references such as `$1` or `${1}`.
#[derive(Clone, Debug)]
struct Template(String);

impl Template {
    /// With what a glob's stars stand for. A reference to none of them is empty.
    fn fill(&self, groups: &[&str]) -> String {
        let mut filled = String::new();
        let mut rest = self.0.as_str();
        while let Some(at) = rest.find('$') {
            filled.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let Some((number, behind)) = reference(rest) else {
                filled.push('$');
                continue;
            };
            // The first group is 1.
            let group = number
                .parse::<usize>()
                .ok()
                .and_then(|number| number.checked_sub(1));
            filled.push_str(group.and_then(|at| groups.get(at)).unwrap_or(&""));
            rest = behind;
        }
        filled.push_str(rest);
        filled
    }

    /// With what a regular expression found. Here the name of a reference is as long as can be:
    /// `$1_x` is group `1_x`, hence empty, and `${1}_x` what was meant. As in Go.
    fn expand(&self, found: &Captures<'_>) -> String {
        let mut filled = String::new();
        found.expand(&self.0, &mut filled);
        filled
    }
}

/// The number behind a `$`, and what follows it.
fn reference(text: &str) -> Option<(&str, &str)> {
    let (number, is_closed) = match text.strip_prefix('{') {
        Some(braced) => (braced, true),
        None => (text, false),
    };
    let digits = number.bytes().take_while(u8::is_ascii_digit).count();
    let (number, behind) = number.split_at(digits);
    let behind = if is_closed {
        behind.strip_prefix('}')?
    } else {
        behind
    };
    (!number.is_empty()).then_some((number, behind))
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
struct File {
    defaults: Option<Defaults>,
    mappings: Option<Vec<Entry>>,
    #[serde(flatten)]
    unknown: Unknown,
}

type Unknown = BTreeMap<String, IgnoredAny>;

/// What has no effect here: totals do not expire, and summaries have no quantiles.
type Ignored = Option<IgnoredAny>;

#[derive(Debug, Default, Deserialize)]
struct Defaults {
    observer_type: Option<ObserverType>,
    timer_type: Option<ObserverType>,
    buckets: Option<Vec<f64>>,
    histogram_options: Option<HistogramOptions>,
    match_type: Option<MatchType>,
    glob_disable_ordering: Option<bool>,
    #[serde(rename = "ttl")]
    _ttl: Ignored,
    #[serde(rename = "quantiles")]
    _quantiles: Ignored,
    #[serde(rename = "summary_options")]
    _summary_options: Ignored,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "match")]
    matches: Option<String>,
    match_type: Option<MatchType>,
    match_metric_type: Option<MetricType>,
    action: Option<Action>,
    name: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    help: Option<String>,
    observer_type: Option<ObserverType>,
    timer_type: Option<ObserverType>,
    buckets: Option<Vec<f64>>,
    histogram_options: Option<HistogramOptions>,
    scale: Option<f64>,
    #[serde(rename = "ttl")]
    _ttl: Ignored,
    #[serde(rename = "quantiles")]
    _quantiles: Ignored,
    #[serde(rename = "summary_options")]
    _summary_options: Ignored,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct HistogramOptions {
    buckets: Option<Vec<f64>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ObserverType {
    Histogram,
    Summary,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MatchType {
    Glob,
    Regex,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MetricType {
    Counter,
    Gauge,
    #[serde(alias = "timer")]
    Observer,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Map,
    Drop,
}

/// Compiles a file entry by entry.
struct Reader {
    defaults: Defaults,
    default_buckets: Arc<[f64]>,
    globs: Vec<Mapping<Glob>>,
    regexes: Vec<Mapping<Regex>>,
    warnings: Vec<String>,
    errors: Vec<MappingError>,
}

impl Reader {
    fn new(mut defaults: Defaults) -> Self {
        let buckets = defaults.buckets.take();
        let options = defaults.histogram_options.take();
        let mut reader = Self {
            defaults,
            default_buckets: BUCKETS.into(),
            globs: Vec::new(),
            regexes: Vec::new(),
            warnings: Vec::new(),
            errors: Vec::new(),
        };
        let unknown = std::mem::take(&mut reader.defaults.unknown);
        reader.warn("defaults", &unknown);
        reader.default_buckets = reader.buckets("defaults", buckets, options);
        reader
    }

    fn finish(mut self) -> Result<Loaded, Vec<MappingError>> {
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        if self.defaults.glob_disable_ordering == Some(true) {
            self.globs
                .sort_by_cached_key(|mapping| mapping.pattern.stars());
        }
        let unmapped_observer = self.observer(None, self.default_buckets.clone());
        Ok(Loaded {
            mapper: Mapper {
                globs: self.globs,
                regexes: self.regexes,
                unmapped_observer,
            },
            warnings: self.warnings,
        })
    }

    fn read(&mut self, at: usize, entry: Entry) {
        let place = format!("mappings[{at}]");
        self.warn(&place, &entry.unknown);
        let Some(matches) = entry.matches.filter(|matches| !matches.is_empty()) else {
            self.errors.push(MappingError::NoMatch { at });
            return;
        };
        let kind = entry.match_metric_type.map(|only| match only {
            MetricType::Counter => Kind::Counter,
            MetricType::Gauge => Kind::Gauge,
            MetricType::Observer => Kind::Timer,
        });
        let buckets = self.buckets(&place, entry.buckets, entry.histogram_options);
        let observer = self.observer(entry.observer_type.or(entry.timer_type), buckets);
        let scale = entry.scale.unwrap_or(1.0);
        if !(scale > 0.0 && scale.is_finite()) {
            self.errors.push(MappingError::Scale { at, scale });
        }
        let labels = entry.labels.unwrap_or_default();
        for label in labels.keys().filter(|label| !is_label(label)) {
            let label = label.clone();
            self.errors.push(MappingError::Label { at, label });
        }
        let target = match (entry.action.unwrap_or(Action::Map), entry.name) {
            (Action::Drop, _) => None,
            (Action::Map, Some(name)) if !name.is_empty() => Some(Target {
                help: entry.help.filter(|help| !help.is_empty()),
                scale,
                observer,
                name: Template(name),
                labels: labels
                    .into_iter()
                    .map(|(label, value)| (label, Template(value)))
                    .collect(),
            }),
            (Action::Map, _) => {
                self.errors.push(MappingError::NoName { at, matches });
                return;
            }
        };
        match entry
            .match_type
            .or(self.defaults.match_type)
            .unwrap_or(MatchType::Glob)
        {
            MatchType::Glob => match Glob::parse(&matches) {
                Some(pattern) => self.globs.push(Mapping {
                    pattern,
                    kind,
                    target,
                }),
                None => self.errors.push(MappingError::Glob { at, matches }),
            },
            MatchType::Regex => match Regex::new(&matches) {
                Ok(pattern) => self.regexes.push(Mapping {
                    pattern,
                    kind,
                    target,
                }),
                Err(error) => {
                    let source = Box::new(error);
                    self.errors.push(MappingError::Regex { at, source });
                }
            },
        }
    }

    fn observer(&self, kind: Option<ObserverType>, buckets: Arc<[f64]>) -> Observer {
        let kind = kind
            .or(self.defaults.observer_type)
            .or(self.defaults.timer_type);
        match kind.unwrap_or(ObserverType::Summary) {
            ObserverType::Histogram => Observer::Histogram(buckets),
            ObserverType::Summary => Observer::Summary,
        }
    }

    /// The buckets under the new key, else under the old one, else the default ones.
    fn buckets(
        &mut self,
        place: &str,
        old: Option<Vec<f64>>,
        options: Option<HistogramOptions>,
    ) -> Arc<[f64]> {
        let new = options.and_then(|options| {
            self.warn(&format!("{place}.histogram_options"), &options.unknown);
            options.buckets
        });
        let given = |buckets: &Vec<f64>| !buckets.is_empty();
        let Some(mut buckets) = new.filter(given).or(old.filter(given)) else {
            return self.default_buckets.clone();
        };
        // It is there anyway.
        buckets.pop_if(|last| *last == f64::INFINITY);
        let ascends = buckets.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascends || !buckets.iter().all(|bound| bound.is_finite()) {
            let place = place.to_owned();
            self.errors.push(MappingError::Buckets { place, buckets });
            return self.default_buckets.clone();
        }
        buckets.into()
    }

    fn warn(&mut self, place: &str, unknown: &Unknown) {
        let dot = if place.is_empty() { "" } else { "." };
        let warnings = unknown
            .keys()
            .map(|key| format!("{place}{dot}{key}: unknown key, ignored"));
        self.warnings.extend(warnings);
    }
}

/// Whether Prometheus takes it as the name of a label.
pub(super) fn is_label(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests;
