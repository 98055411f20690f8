//! statsd names → Prometheus names and labels, by the rules of a statsd_exporter mapping file.
//!
//! The format is the one that statsd_exporter documents, with its old and its new keys. As there, globs are tried
//! before regular expressions, whatever their order in the file.

use std::{collections::BTreeMap, sync::Arc};

use regex::{Captures, Regex};
use serde::{Deserialize, de::IgnoredAny};

use crate::foundation::sample::SampleKind;

#[cfg(test)]
mod tests;

/// A valid mapping file.
#[derive(Debug)]
pub struct Mapper {
    /// In the order in which they are tried.
    mappings: Vec<Mapping>,
    unmapped_observer: Observer,
}

/// A rule of the file.
#[derive(Debug)]
struct Mapping {
    pattern: Regex,
    /// Restricts the rule to one kind of metrics; `None` means all kinds.
    kind: Option<SampleKind>,
    /// `None` drops the metrics that match.
    target: Option<MappingTarget>,
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
    /// Factor for values. Timers are in milliseconds before it is applied.
    pub scale: f64,
    pub observer: Observer,
    /// A template of the regex crate, as the values of labels are.
    name: String,
    labels: Vec<(String, String)>,
}

/// How a timer is shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Observer {
    /// A histogram with these ascending upper bounds, and an infinite one.
    Histogram(Arc<[f64]>),
    Summary,
}

impl Mapper {
    /// Maps the metric of this name, by the rules for its kind.
    pub fn map(&self, name: &str, kind: SampleKind) -> MappingOutcome<'_> {
        for mapping in &self.mappings {
            if mapping.kind.is_none_or(|only| only == kind)
                && let Some(found) = mapping.pattern.captures(name)
            {
                return match &mapping.target {
                    Some(target) => target.mapped(&found),
                    None => MappingOutcome::Dropped,
                };
            }
        }
        MappingOutcome::Unmapped
    }

    /// How timers without a rule are shown.
    pub fn unmapped_observer(&self) -> &Observer {
        &self.unmapped_observer
    }
}

impl MappingTarget {
    /// Fills in the groups of a match. As in Go, the name of a reference is as long as possible: `$1_x` is the group
    /// `1_x`, which does not exist and is empty; `${1}_x` is group 1 and `_x`.
    fn mapped(&self, found: &Captures<'_>) -> MappingOutcome<'_> {
        let fill = |template: &str| {
            let mut text = String::new();
            found.expand(template, &mut text);
            text
        };
        let labels = self.labels.iter();
        MappingOutcome::Mapped {
            name: fill(&self.name),
            labels: labels
                .map(|(label, value)| (label.as_str(), fill(value)))
                .collect(),
            target: self,
        }
    }
}

/// Whether the text is a valid Prometheus label name.
pub(super) fn is_label(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The regular expression of a pattern of words and stars, of which each matches any one part of a name between dots;
/// `None` if a part is neither a word nor a star.
fn glob(text: &str) -> Option<String> {
    let parts = text.split('.').map(|part| match part {
        "*" => Some("([^.]*)".to_owned()),
        word if word.is_empty() || word.contains('*') => None,
        word => Some(regex::escape(word)),
    });
    let parts: Vec<_> = parts.collect::<Option<_>>()?;
    Some(format!("^{}$", parts.join(r"\.")))
}

/// A template of a glob as one of the regex crate. References are `$1` and `${1}`, whatever follows; `$0` is empty.
fn glob_template(text: &str) -> String {
    let mut parts = text.split('$');
    let mut template = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let braced = part.strip_prefix('{');
        let number = braced.unwrap_or(part);
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = number.split_at(digits);
        let rest = match braced {
            Some(_) => rest.strip_prefix('}'),
            None => Some(rest),
        };
        template += &match (number.parse::<usize>(), rest) {
            (Ok(0), Some(rest)) => rest.to_owned(),
            (_, Some(rest)) if digits > 0 => format!("${{{number}}}{rest}"),
            _ => format!("$${part}"),
        };
    }
    template
}

/// Why a mapping file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The source has the line and the column.
    #[error("not a mapping file")]
    Format(#[source] serde_yaml::Error),
    #[error("{at}: {fault}")]
    Rule { at: String, fault: String },
    #[error("{at}: `match` is not a regular expression")]
    Regex {
        at: String,
        #[source]
        source: Box<regex::Error>,
    },
}

/// The result of reading a file.
#[derive(Debug)]
pub struct LoadedMapping {
    pub mapper: Mapper,
    /// Unknown keys, which are ignored.
    pub warnings: Vec<String>,
}

/// Default buckets of a histogram, as in Prometheus' client libraries.
pub(super) const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

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
        let mut reader = MappingReader::default();
        let mut defaults = defaults.unwrap_or_default();
        let buckets = reader.buckets("defaults", &mut defaults);
        let default_buckets = buckets.unwrap_or_else(|| BUCKETS.into());
        reader.warn("defaults", &defaults.unknown, &IGNORED);
        reader.warn("", &unknown, &[]);
        let (mut globs, mut regexes) = (Vec::new(), Vec::new());
        for (at, entry) in mappings.unwrap_or_default().into_iter().enumerate() {
            let at = format!("mappings[{at}]");
            let kind = entry.match_type.or(defaults.match_type);
            let stars = match kind.unwrap_or(MatchType::Glob) {
                MatchType::Glob => entry.matches.as_deref().map(stars),
                MatchType::Regex => None,
            };
            if let Some(mapping) = reader.mapping(&at, entry, &defaults, &default_buckets, kind) {
                match stars {
                    Some(stars) => globs.push((stars, mapping)),
                    None => regexes.push(mapping),
                }
            }
        }
        if defaults.glob_disable_ordering == Some(true) {
            globs.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        if !reader.errors.is_empty() {
            return Err(reader.errors);
        }
        let globs = globs.into_iter().map(|(_, mapping)| mapping);
        Ok(LoadedMapping {
            mapper: Mapper {
                mappings: globs.chain(regexes).collect(),
                unmapped_observer: observer(&defaults, &defaults, default_buckets),
            },
            warnings: reader.warnings,
        })
    }
}

/// Which parts of a glob are stars. Of two globs that match one name, the one with the smaller vector has a word where
/// the other has its first star.
fn stars(glob: &str) -> Vec<bool> {
    glob.split('.').map(|part| part == "*").collect()
}

/// How a rule shows timers.
fn observer(rule: &MappingEntry, defaults: &MappingEntry, buckets: Arc<[f64]>) -> Observer {
    let kind = rule.observer_type.or(rule.timer_type);
    let default = defaults.observer_type.or(defaults.timer_type);
    match kind.or(default).unwrap_or(ObserverType::Summary) {
        ObserverType::Histogram => Observer::Histogram(buckets),
        ObserverType::Summary => Observer::Summary,
    }
}

/// The mistakes that were found so far.
#[derive(Default)]
struct MappingReader {
    warnings: Vec<String>,
    errors: Vec<MappingError>,
}

impl MappingReader {
    /// The rule of an entry, unless an error is in it.
    fn mapping(
        &mut self,
        at: &str,
        mut entry: MappingEntry,
        defaults: &MappingEntry,
        default_buckets: &Arc<[f64]>,
        match_type: Option<MatchType>,
    ) -> Option<Mapping> {
        self.warn(at, &entry.unknown, &IGNORED);
        let Some(matches) = entry.matches.take().filter(|matches| !matches.is_empty()) else {
            self.fault(at, "no `match`".to_owned());
            return None;
        };
        let buckets = self.buckets(at, &mut entry);
        let observer = observer(&entry, defaults, buckets.unwrap_or(default_buckets.clone()));
        let scale = entry.scale.unwrap_or(1.0);
        if !(scale > 0.0 && scale.is_finite()) {
            self.fault(at, format!("a scale must be more than 0, not {scale}"));
        }
        let labels = entry.labels.unwrap_or_default();
        for label in labels.keys().filter(|label| !is_label(label)) {
            let fault = format!("a label consists of letters, digits and `_`, not `{label}`");
            self.fault(at, fault);
        }
        let is_glob = match_type != Some(MatchType::Regex);
        let template = |text: String| match is_glob {
            true => glob_template(&text),
            false => text,
        };
        let target = match (entry.action.unwrap_or(Action::Map), entry.name) {
            (Action::Drop, _) => None,
            (Action::Map, Some(name)) if !name.is_empty() => Some(MappingTarget {
                help: entry.help.filter(|help| !help.is_empty()),
                scale,
                observer,
                name: template(name),
                labels: labels
                    .into_iter()
                    .map(|(label, value)| (label, template(value)))
                    .collect(),
            }),
            (Action::Map, _) => {
                self.fault(at, format!("no `name` for the match `{matches}`"));
                return None;
            }
        };
        let pattern = match is_glob {
            true => glob(&matches),
            false => Some(matches.clone()),
        };
        let Some(pattern) = pattern else {
            let fault = "every segment of a glob must be a word or `*`";
            self.fault(at, format!("{fault}: `{matches}`"));
            return None;
        };
        let pattern = Regex::new(&pattern).map_err(|error| MappingError::Regex {
            at: at.to_owned(),
            source: Box::new(error),
        });
        match pattern {
            Ok(pattern) => Some(Mapping {
                pattern,
                kind: entry.match_metric_type.map(MetricType::kind),
                target,
            }),
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }

    /// The buckets under the new key, or else under the old key, if there are any.
    fn buckets(&mut self, at: &str, entry: &mut MappingEntry) -> Option<Arc<[f64]>> {
        let new = entry.histogram_options.take().and_then(|options| {
            self.warn(&format!("{at}.histogram_options"), &options.unknown, &[]);
            options.buckets
        });
        let given = |buckets: &Vec<f64>| !buckets.is_empty();
        let mut buckets = new.filter(given).or(entry.buckets.take().filter(given))?;
        // Every histogram has an infinite bound anyway.
        buckets.pop_if(|last| *last == f64::INFINITY);
        let ascends = buckets.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascends || !buckets.iter().all(|bound| bound.is_finite()) {
            self.fault(at, format!("buckets must ascend: {buckets:?}"));
        }
        Some(buckets.into())
    }

    fn fault(&mut self, at: &str, fault: String) {
        let at = at.to_owned();
        self.errors.push(MappingError::Rule { at, fault });
    }

    /// Warns of unknown keys, except for those in `ignored`.
    fn warn(&mut self, at: &str, unknown: &Unknown, ignored: &[&str]) {
        let dot = if at.is_empty() { "" } else { "." };
        let unknown = unknown.keys();
        let unknown = unknown.filter(|key| !ignored.contains(&key.as_str()));
        let warnings = unknown.map(|key| format!("{at}{dot}{key}: unknown key, ignored"));
        self.warnings.extend(warnings);
    }
}

/// The file as written.
#[derive(Debug, Default, Deserialize)]
struct MappingFile {
    /// Used by entries that say nothing else.
    defaults: Option<MappingEntry>,
    mappings: Option<Vec<MappingEntry>>,
    #[serde(flatten)]
    unknown: Unknown,
}

type Unknown = BTreeMap<String, IgnoredAny>;

/// Keys of defaults and rules that have no effect here: totals do not expire, and summaries have no quantiles.
const IGNORED: [&str; 3] = ["ttl", "quantiles", "summary_options"];

#[derive(Debug, Default, Deserialize)]
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
    /// Of defaults only.
    glob_disable_ordering: Option<bool>,
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

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
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

impl MetricType {
    fn kind(self) -> SampleKind {
        match self {
            Self::Counter => SampleKind::Counter,
            Self::Gauge => SampleKind::Gauge,
            Self::Observer => SampleKind::Timer,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Map,
    Drop,
}
