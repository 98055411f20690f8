//! statsd names → Prometheus names and labels, by the rules of a statsd_exporter mapping file.
//!
//! The format is the one that statsd_exporter documents, with its old and its new keys. As there, globs are tried
//! before regular expressions, whatever their order in the file.

use std::{collections::BTreeMap, sync::Arc};

use regex::{Captures, Regex};
use serde::{Deserialize, de::IgnoredAny};

use super::sample::SampleKind;

/// A valid mapping file.
#[derive(Debug)]
pub struct Mapper {
    /// In the order of the attempts.
    globs: Vec<Mapping<Glob>>,
    regexes: Vec<Mapping<Regex>>,
    unmapped_observer: Observer,
}

/// The result of reading a file.
#[derive(Debug)]
pub struct LoadedMapping {
    pub mapper: Mapper,
    /// Unknown keys, which are ignored.
    pub warnings: Vec<String>,
}

/// How a metric is shown.
#[derive(Debug)]
pub enum MappingOutcome<'m> {
    Mapped {
        name: String,
        labels: Vec<(&'m str, String)>,
        target: &'m MappingTarget,
    },
    Dropped,
    /// No rule matches.
    Unmapped,
}

/// The properties that a rule gives to the metrics that it maps.
#[derive(Clone, Debug)]
pub struct MappingTarget {
    pub help: Option<String>,
    /// Factor for values; values of timers are in milliseconds before.
    pub scale: f64,
    pub observer: Observer,
    name: MappingTemplate,
    labels: Vec<(String, MappingTemplate)>,
}

/// How a timer is shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Observer {
    /// With these upper bounds, ascending, and an infinite one.
    Histogram(Arc<[f64]>),
    Summary,
}

/// The unit of response times in the built-in mapping: PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS. The name says
/// seconds either way, as in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseTime {
    Seconds,
    Milliseconds,
}

/// Why a mapping file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The source has the line and the column.
    #[error("not a mapping file")]
    Format(#[source] serde_yaml::Error),
    #[error("mappings[{at}]: no `match`")]
    NoMatch { at: usize },
    #[error("mappings[{at}]: no `name` for the match `{matches}`")]
    NoName { at: usize, matches: String },
    #[error("mappings[{at}]: every segment of a glob must be a word or `*`: `{matches}`")]
    Glob { at: usize, matches: String },
    #[error("mappings[{at}]: `match` is not a regular expression")]
    Regex {
        at: usize,
        #[source]
        source: Box<regex::Error>,
    },
    #[error("mappings[{at}]: a label consists of letters, digits and `_`, not `{label}`")]
    Label { at: usize, label: String },
    #[error("mappings[{at}]: a scale must be more than 0, not {scale}")]
    Scale { at: usize, scale: f64 },
    #[error("{location}: buckets must ascend: {buckets:?}")]
    Buckets { location: String, buckets: Vec<f64> },
}

/// Default buckets of a histogram, those of Prometheus' client libraries.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

const BUILT_IN: &str = include_str!("mapping.yaml");

impl Mapper {
    /// Reads a mapping file. Unknown keys are ignored with a warning.
    ///
    /// # Errors
    ///
    /// Every reason why the file is invalid, or only the first if its format is wrong.
    pub fn parse(text: &str) -> Result<LoadedMapping, Vec<MappingError>> {
        let file: Option<MappingFile> =
            serde_yaml::from_str(text).map_err(|error| vec![MappingError::Format(error)])?;
        let MappingFile {
            defaults,
            mappings,
            unknown,
        } = file.unwrap_or_default();
        let mut reader = MappingReader::new(defaults.unwrap_or_default());
        reader.warn("", &unknown);
        for (at, mapping) in mappings.unwrap_or_default().into_iter().enumerate() {
            reader.read(at, mapping);
        }
        reader.finish()
    }

    /// The mapping without a mapping file.
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

    /// Maps the metric of this name. Rules for metrics of another kind are skipped.
    pub fn map(&self, name: &str, kind: SampleKind) -> MappingOutcome<'_> {
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
        MappingOutcome::Unmapped
    }

    /// How timers without a rule are shown.
    pub fn unmapped_observer(&self) -> &Observer {
        &self.unmapped_observer
    }
}

/// A rule of the file.
#[derive(Debug)]
struct Mapping<Pattern> {
    pattern: Pattern,
    /// Restricts the rule to one kind of metrics; `None` means all kinds.
    kind: Option<SampleKind>,
    /// `None` drops the metrics that match.
    target: Option<MappingTarget>,
}

impl<Pattern> Mapping<Pattern> {
    fn is_for(&self, kind: SampleKind) -> bool {
        self.kind.is_none_or(|only| only == kind)
    }

    fn outcome(&self, fill: impl Fn(&MappingTemplate) -> String) -> MappingOutcome<'_> {
        let Some(target) = &self.target else {
            return MappingOutcome::Dropped;
        };
        let labels = target.labels.iter();
        MappingOutcome::Mapped {
            name: fill(&target.name),
            labels: labels
                .map(|(label, value)| (label.as_str(), fill(value)))
                .collect(),
            target,
        }
    }
}

/// Words, and stars that each match any one segment between dots.
#[derive(Clone, Debug)]
struct Glob(Vec<Segment>);

/// In the order of specificity words come before stars.
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

    /// The segments that the stars match, if the glob matches the name.
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

    /// Which segments are stars. Of two globs that match one name, the smaller of these vectors has a word where the
    /// other one has its first star.
    fn stars(&self) -> Vec<bool> {
        self.0
            .iter()
            .map(|segment| *segment == Segment::Star)
            .collect()
    }
}

/// A text with references such as `$1` or `${1}`.
#[derive(Clone, Debug)]
struct MappingTemplate(String);

impl MappingTemplate {
    /// Fills in the segments matched by a glob's stars. A reference beyond them is empty.
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

    /// Fills in the groups of a regular expression. Here the name of a reference is as long as possible, as in Go:
    /// `$1_x` means group `1_x`, hence is empty; `${1}_x` means group 1.
    fn expand(&self, found: &Captures<'_>) -> String {
        let mut filled = String::new();
        found.expand(&self.0, &mut filled);
        filled
    }
}

/// The number after a `$`, and the text after the reference.
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

/// The file as written.
#[derive(Debug, Default, Deserialize)]
struct MappingFile {
    defaults: Option<MappingDefaults>,
    mappings: Option<Vec<MappingEntry>>,
    #[serde(flatten)]
    unknown: Unknown,
}

type Unknown = BTreeMap<String, IgnoredAny>;

/// Keys without effect here: totals do not expire, and summaries have no quantiles.
type Ignored = Option<IgnoredAny>;

#[derive(Debug, Default, Deserialize)]
struct MappingDefaults {
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
struct MappingEntry {
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
struct MappingReader {
    defaults: MappingDefaults,
    default_buckets: Arc<[f64]>,
    globs: Vec<Mapping<Glob>>,
    regexes: Vec<Mapping<Regex>>,
    warnings: Vec<String>,
    errors: Vec<MappingError>,
}

impl MappingReader {
    fn new(mut defaults: MappingDefaults) -> Self {
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

    fn finish(mut self) -> Result<LoadedMapping, Vec<MappingError>> {
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        if self.defaults.glob_disable_ordering == Some(true) {
            self.globs
                .sort_by_cached_key(|mapping| mapping.pattern.stars());
        }
        let unmapped_observer = self.observer(None, self.default_buckets.clone());
        Ok(LoadedMapping {
            mapper: Mapper {
                globs: self.globs,
                regexes: self.regexes,
                unmapped_observer,
            },
            warnings: self.warnings,
        })
    }

    fn read(&mut self, at: usize, entry: MappingEntry) {
        let location = format!("mappings[{at}]");
        self.warn(&location, &entry.unknown);
        let Some(matches) = entry.matches.filter(|matches| !matches.is_empty()) else {
            self.errors.push(MappingError::NoMatch { at });
            return;
        };
        let kind = entry.match_metric_type.map(|only| match only {
            MetricType::Counter => SampleKind::Counter,
            MetricType::Gauge => SampleKind::Gauge,
            MetricType::Observer => SampleKind::Timer,
        });
        let buckets = self.buckets(&location, entry.buckets, entry.histogram_options);
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
            (Action::Map, Some(name)) if !name.is_empty() => Some(MappingTarget {
                help: entry.help.filter(|help| !help.is_empty()),
                scale,
                observer,
                name: MappingTemplate(name),
                labels: labels
                    .into_iter()
                    .map(|(label, value)| (label, MappingTemplate(value)))
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

    /// The buckets under the new key, else under the old key, else the default ones.
    fn buckets(
        &mut self,
        location: &str,
        old: Option<Vec<f64>>,
        options: Option<HistogramOptions>,
    ) -> Arc<[f64]> {
        let new = options.and_then(|options| {
            self.warn(&format!("{location}.histogram_options"), &options.unknown);
            options.buckets
        });
        let given = |buckets: &Vec<f64>| !buckets.is_empty();
        let Some(mut buckets) = new.filter(given).or(old.filter(given)) else {
            return self.default_buckets.clone();
        };
        // Every histogram has this one anyway.
        buckets.pop_if(|last| *last == f64::INFINITY);
        let ascends = buckets.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascends || !buckets.iter().all(|bound| bound.is_finite()) {
            let location = location.to_owned();
            self.errors
                .push(MappingError::Buckets { location, buckets });
            return self.default_buckets.clone();
        }
        buckets.into()
    }

    fn warn(&mut self, location: &str, unknown: &Unknown) {
        let dot = if location.is_empty() { "" } else { "." };
        let warnings = unknown
            .keys()
            .map(|key| format!("{location}{dot}{key}: unknown key, ignored"));
        self.warnings.extend(warnings);
    }
}

/// Whether the text is a valid name of a label in Prometheus.
pub(super) fn is_label(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests;
