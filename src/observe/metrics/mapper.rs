//! statsd names → Prometheus names and labels, by the rules of a statsd_exporter mapping file.
//!
//! The format is the one that statsd_exporter documents, with its old and its new keys. As there, globs are tried
//! before regular expressions, whatever their order in the file.

use std::sync::Arc;

use regex::{Captures, Regex};

use crate::foundation::sample::SampleKind;

mod reader;
#[cfg(test)]
mod tests;

pub(crate) use reader::ResponseTime;

/// A valid mapping file.
#[derive(Debug)]
pub struct Mapper {
    /// In the order in which they are tried.
    globs: Vec<Mapping<Glob>>,
    regexes: Vec<Mapping<Regex>>,
    unmapped_observer: Observer,
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
    name: MappingTemplate,
    labels: Vec<(String, MappingTemplate)>,
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

/// Whether the text is a valid Prometheus label name.
pub(super) fn is_label(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A pattern of words and stars. Each star matches any one segment of a name between dots.
#[derive(Clone, Debug)]
struct Glob(Vec<Segment>);

/// The derived order of globs is by specificity: words come before stars.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Word(String),
    Star,
}

impl Glob {
    /// The glob of this text; `None` if a segment is neither a word nor a star.
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

    /// Which segments are stars. Of two globs that match one name, the one with the smaller vector has a word where the
    /// other has its first star.
    fn stars(&self) -> Vec<bool> {
        self.0
            .iter()
            .map(|segment| *segment == Segment::Star)
            .collect()
    }
}

/// A template with references such as `$1` or `${1}`.
#[derive(Clone, Debug)]
struct MappingTemplate(String);

impl MappingTemplate {
    /// Fills in the segments that a glob's stars matched. A reference beyond the last star is empty.
    fn fill(&self, groups: &[&str]) -> String {
        let mut filled = String::new();
        let mut rest = self.0.as_str();
        while let Some(at) = rest.find('$') {
            filled.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let Some((number, after)) = reference(rest) else {
                filled.push('$');
                continue;
            };
            // The first group is 1.
            let group = number
                .parse::<usize>()
                .ok()
                .and_then(|number| number.checked_sub(1));
            filled.push_str(group.and_then(|at| groups.get(at)).unwrap_or(&""));
            rest = after;
        }
        filled.push_str(rest);
        filled
    }

    /// Fills in the groups of a regular expression. As in Go, the name of a reference is as long as possible: `$1_x` is
    /// the group `1_x`, which does not exist and is empty; `${1}_x` is group 1 and `_x`.
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
    let (number, after) = number.split_at(digits);
    let after = if is_closed {
        after.strip_prefix('}')?
    } else {
        after
    };
    (!number.is_empty()).then_some((number, after))
}
