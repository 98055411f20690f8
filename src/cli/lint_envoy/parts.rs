//! The parts of a file: its own text, and the files in the ConfigMaps that it holds.

use super::{
    Linted,
    document::Unreadable,
    finding::{Finding, SeenParts},
    lint,
};
use crate::{
    config::{
        manifest::{ConfigMapFile, Manifest},
        position::Position,
    },
    core::matcher::Matcher,
};

/// The traps of a file, or of one inside of it.
#[derive(Debug)]
pub(super) struct ConfigPart {
    /// The name of a file in a ConfigMap.
    pub(super) inside: Option<String>,
    pub(super) seen: SeenParts,
    /// Their positions are those in the outer file.
    pub(super) findings: Vec<Finding>,
}

/// The traps of all parts of a file that are Envoy configurations, or the only error if there is no such part.
pub(super) fn parts_of(
    name: &str,
    text: &str,
    rules: Option<&Matcher>,
) -> Vec<Result<ConfigPart, Unreadable>> {
    let mut parts = in_config_maps(name, text, rules);
    match lint(text, rules) {
        Err(error) if parts.is_empty() => parts.push(Err(error)),
        // ConfigMaps themselves are not configurations.
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

fn in_config_maps(
    name: &str,
    text: &str,
    rules: Option<&Matcher>,
) -> Vec<Result<ConfigPart, Unreadable>> {
    // A dump of Envoy can be large, and is read only once.
    let manifest = if text.contains("ConfigMap") {
        Manifest::read(name, text)
    } else {
        None
    };
    let mut parts = Vec::new();
    for config_map in manifest
        .into_iter()
        .flat_map(|manifest| manifest.config_maps)
    {
        for file in config_map.files {
            match lint(&file.text, rules) {
                Ok(Linted { mut findings, seen }) => {
                    for finding in &mut findings {
                        relocate(finding, &file);
                    }
                    parts.push(Ok(ConfigPart {
                        inside: Some(format!("{}/{}", config_map.name, file.key)),
                        seen,
                        findings,
                    }));
                }
                Err(error @ Unreadable::Syntax { .. }) if mentions_envoy(&file.text) => {
                    parts.push(Err(error.moved(|at| file.place.position(at))));
                }
                // A ConfigMap may hold anything.
                Err(_) => {}
            }
        }
    }
    parts
}

/// Gives a finding its position in the manifest. If the file has no lines there, its own line becomes part of the path.
fn relocate(finding: &mut Finding, file: &ConfigMapFile) {
    if let Some(Position { line, .. }) = finding.position
        && !file.place.is_exact()
    {
        finding.path = format!("line {line}: {}", finding.path);
    }
    let place = finding.position.map(|at| file.place.position(at));
    finding.position = Some(place.unwrap_or(file.key_position));
}

/// Whether a text that cannot be parsed was probably meant to be an Envoy configuration.
pub(super) fn mentions_envoy(text: &str) -> bool {
    const WORDS: [&str; 4] = [
        "type.googleapis.com/envoy.",
        "static_resources",
        "staticResources",
        "EnvoyFilter",
    ];
    WORDS.iter().any(|word| text.contains(word))
}
