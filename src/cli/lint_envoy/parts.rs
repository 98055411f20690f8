//! The parts of a file: its own text, and the files in the ConfigMaps that it contains.

use super::{
    Linted,
    document::Unreadable,
    finding::{Finding, SeenParts},
    lint,
};
use crate::{
    config::{
        manifest::{ConfigMapFile, config_map_files},
        position::Position,
    },
    core::matcher::Matcher,
};

/// The traps in a file, or in a file inside it.
#[derive(Debug)]
pub(super) struct ConfigPart {
    /// The name of the file inside a ConfigMap.
    pub(super) inside: Option<String>,
    pub(super) seen: SeenParts,
    /// Their positions refer to the outer file.
    pub(super) findings: Vec<Finding>,
}

/// Checks all parts of a file that are Envoy configurations. If there is no such part, returns the error of the file
/// itself.
pub(super) fn parts_of(text: &str, rules: Option<&Matcher>) -> Vec<Result<ConfigPart, Unreadable>> {
    let mut parts = in_config_maps(text, rules);
    match lint(text, rules) {
        Err(error) if parts.is_empty() => parts.push(Err(error)),
        // A file of ConfigMaps is not a configuration itself.
        Err(_) => {}
        Ok(Linted { findings, seen }) => parts.insert(
            0,
            Ok(ConfigPart {
                inside: None,
                seen,
                findings,
            }),
        ),
    }
    parts
}

fn in_config_maps(text: &str, rules: Option<&Matcher>) -> Vec<Result<ConfigPart, Unreadable>> {
    // An Envoy dump can be large, and should not be parsed twice.
    if !text.contains("ConfigMap") {
        return Vec::new();
    }
    let mut parts = Vec::new();
    for file in config_map_files(text) {
        match lint(&file.text, rules) {
            Ok(Linted { mut findings, seen }) => {
                for finding in &mut findings {
                    relocate(finding, &file);
                }
                parts.push(Ok(ConfigPart {
                    inside: Some(file.name),
                    seen,
                    findings,
                }));
            }
            Err(error @ Unreadable::Syntax { .. }) if mentions_envoy(&file.text) => {
                parts.push(Err(error.moved(|at| file.place.position(at))));
            }
            // A ConfigMap can contain anything.
            Err(_) => {}
        }
    }
    parts
}

/// Moves a finding to its position in the manifest. If the file's lines are not lines of the manifest, its line becomes
/// part of the path.
fn relocate(finding: &mut Finding, file: &ConfigMapFile) {
    if let Some(Position { line, .. }) = finding.position
        && !file.place.is_exact()
    {
        finding.path = format!("line {line}: {}", finding.path);
    }
    let place = finding.position.map(|at| file.place.position(at));
    finding.position = Some(place.unwrap_or(file.key_position));
}

/// Whether an unparsable text was probably meant to be an Envoy configuration.
pub(super) fn mentions_envoy(text: &str) -> bool {
    const WORDS: [&str; 4] = [
        "type.googleapis.com/envoy.",
        "static_resources",
        "staticResources",
        "EnvoyFilter",
    ];
    WORDS.iter().any(|word| text.contains(word))
}
