//! statsd names → Prometheus names and labels, by the rules of a statsd_exporter mapping file.
//!
//! The format is the one that statsd_exporter documents, with its old and its new keys. As there, globs are tried
//! before regular expressions, whatever their order in the file.

use std::sync::Arc;

use regex::Regex;

use crate::foundation::sample::SampleKind;

mod file;
mod pattern;
mod reader;
#[cfg(test)]
mod tests;

pub(crate) use reader::ResponseTime;

use pattern::{Glob, MappingTemplate};

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
