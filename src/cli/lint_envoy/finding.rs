//! A finding is a setting at one place that does not limit what its author meant, and its fix.

use std::collections::BTreeMap;

use super::document::{EnvoyFile, EnvoyValue};
use crate::config::{fault::FaultLevel, position::Position};

pub(crate) use crate::settings::command_line::lint_envoy::Trap;

/// Most findings that are collected before they are sorted, so that a hostile file ends soon. Others are counted.
const MAX_COLLECTED: usize = 2_000;

/// A setting that does not limit what was meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    /// Its number in the order of the file.
    order: usize,
    /// `None` for JSON, which is read without positions.
    pub(super) position: Option<Position>,
    /// The path in the file, such as `static_resources.clusters[0]`.
    pub(super) path: String,
    pub(super) level: FaultLevel,
    pub(super) trap: Trap,
    /// The mistake, and after a semicolon the fix.
    pub(super) message: String,
}

impl Finding {
    pub(super) fn new(level: FaultLevel, trap: Trap, path: &str, message: String) -> Self {
        Self {
            order: 0,
            position: None,
            path: path.to_owned(),
            level,
            trap,
            message,
        }
    }
}

/// Collects findings.
#[derive(Debug, Default)]
pub(super) struct Findings<'d> {
    found: Vec<(EnvoyValue<'d>, Finding)>,
    /// How many others there are of each kind.
    pub(super) others: BTreeMap<(FaultLevel, Trap), usize>,
}

impl<'d> Findings<'d> {
    /// Reports a setting at `value`.
    pub(super) fn add(
        &mut self,
        level: FaultLevel,
        trap: Trap,
        value: EnvoyValue<'d>,
        message: impl Into<String>,
    ) {
        if self.found.len() < MAX_COLLECTED {
            let finding = Finding::new(level, trap, "", message.into());
            self.found.push((value, finding));
        } else {
            *self.others.entry((level, trap)).or_default() += 1;
        }
    }

    /// The findings in the order of the file, each once.
    pub(super) fn finish(self, file: &EnvoyFile<'_>) -> Vec<Finding> {
        let places = file.places(self.found.iter().map(|(value, _)| *value));
        let mut findings = Vec::with_capacity(self.found.len());
        for (value, mut finding) in self.found {
            let place = places.get(&value.id()).cloned();
            (finding.order, finding.path) = place.unwrap_or_default();
            finding.position = file.position(value);
            findings.push(finding);
        }
        findings.sort();
        findings.dedup();
        findings
    }
}
