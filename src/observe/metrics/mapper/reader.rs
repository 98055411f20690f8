//! Reads a mapping file into a [`Mapper`], or finds every error in it.

use std::{collections::BTreeMap, sync::Arc};

use regex::Regex;
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    foundation::sample::SampleKind,
    observe::metrics::mapper::{
        Glob, Mapper, Mapping, MappingTarget, MappingTemplate, Observer, is_label,
    },
};

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

/// The result of reading a file.
#[derive(Debug)]
pub struct LoadedMapping {
    pub mapper: Mapper,
    /// Unknown keys, which are ignored.
    pub warnings: Vec<String>,
}

/// The unit of response times in the built-in mapping: PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS. As in the reference,
/// the metric's name says seconds either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseTime {
    Seconds,
    Milliseconds,
}

/// Default buckets of a histogram, as in Prometheus' client libraries.
pub(super) const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

const BUILT_IN: &str = include_str!("../mapping.yaml");

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
        reader.warn("", &unknown, &[]);
        for (at, mapping) in mappings.unwrap_or_default().into_iter().enumerate() {
            reader.read(at, mapping);
        }
        reader.finish()
    }

    /// The mapping that is used without a mapping file.
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
        reader.warn("defaults", &unknown, &IGNORED);
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
        self.warn(&location, &entry.unknown, &IGNORED);
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

    /// The buckets under the new key, or else under the old key, or else the default ones.
    fn buckets(
        &mut self,
        location: &str,
        old: Option<Vec<f64>>,
        options: Option<HistogramOptions>,
    ) -> Arc<[f64]> {
        let new = options.and_then(|options| {
            let location = format!("{location}.histogram_options");
            self.warn(&location, &options.unknown, &[]);
            options.buckets
        });
        let given = |buckets: &Vec<f64>| !buckets.is_empty();
        let Some(mut buckets) = new.filter(given).or(old.filter(given)) else {
            return self.default_buckets.clone();
        };
        // Every histogram has an infinite bound anyway.
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

    /// Warns of unknown keys, except for those in `ignored`.
    fn warn(&mut self, location: &str, unknown: &Unknown, ignored: &[&str]) {
        let dot = if location.is_empty() { "" } else { "." };
        let unknown = unknown
            .keys()
            .filter(|key| !ignored.contains(&key.as_str()));
        let warnings = unknown.map(|key| format!("{location}{dot}{key}: unknown key, ignored"));
        self.warnings.extend(warnings);
    }
}

/// The file as written.
#[derive(Debug, Default, Deserialize)]
pub(super) struct MappingFile {
    pub(super) defaults: Option<MappingDefaults>,
    pub(super) mappings: Option<Vec<MappingEntry>>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

pub(super) type Unknown = BTreeMap<String, IgnoredAny>;

/// Keys of defaults and rules that have no effect here: totals do not expire, and summaries have no quantiles.
pub(super) const IGNORED: [&str; 3] = ["ttl", "quantiles", "summary_options"];

#[derive(Debug, Default, Deserialize)]
pub(super) struct MappingDefaults {
    pub(super) observer_type: Option<ObserverType>,
    pub(super) timer_type: Option<ObserverType>,
    pub(super) buckets: Option<Vec<f64>>,
    pub(super) histogram_options: Option<HistogramOptions>,
    pub(super) match_type: Option<MatchType>,
    pub(super) glob_disable_ordering: Option<bool>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Debug, Deserialize)]
pub(super) struct MappingEntry {
    #[serde(rename = "match")]
    pub(super) matches: Option<String>,
    pub(super) match_type: Option<MatchType>,
    pub(super) match_metric_type: Option<MetricType>,
    pub(super) action: Option<Action>,
    pub(super) name: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) help: Option<String>,
    pub(super) observer_type: Option<ObserverType>,
    pub(super) timer_type: Option<ObserverType>,
    pub(super) buckets: Option<Vec<f64>>,
    pub(super) histogram_options: Option<HistogramOptions>,
    pub(super) scale: Option<f64>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Debug, Deserialize)]
pub(super) struct HistogramOptions {
    pub(super) buckets: Option<Vec<f64>>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ObserverType {
    Histogram,
    Summary,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MatchType {
    Glob,
    Regex,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MetricType {
    Counter,
    Gauge,
    #[serde(alias = "timer")]
    Observer,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Map,
    Drop,
}
