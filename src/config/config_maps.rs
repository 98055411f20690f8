//! Takes the rule files out of Kubernetes manifests.

use super::{
    fault::{Fault, Problem},
    file::{File, Inside},
    files::{Files, problem_of},
    foreign::is_rules,
    manifest::{ConfigMap, ConfigMapFile, Manifest},
    parse::parse_all,
    position::Position,
    source::{Source, is_rules as is_rules_name},
};

use std::{collections::BTreeSet, path::Path};

/// Rule files, in sets that belong together.
#[derive(Debug)]
pub(crate) struct RuleFileSets {
    /// The files that are rules as they are, if there are any; then those of each ConfigMap, which is the folder that a
    /// pod mounts.
    pub(crate) sets: Vec<Files>,
    /// Keys and files that were passed over, in the order of the files.
    pub(crate) notes: Vec<Problem>,
}

impl Files {
    /// Takes the manifests among the files of `source` apart. One without any rule file is an error if it was named
    /// itself, and passed over if it is in a folder; so is an Envoy configuration.
    pub(crate) fn by_config_map(self, source: &Source) -> RuleFileSets {
        let mut plain = Self {
            files: Vec::new(),
            problems: self.problems,
        };
        let mut found = RuleFileSets {
            sets: Vec::new(),
            notes: Vec::new(),
        };
        for file in self.files {
            let manifest = Manifest::read(&file.name, &file.text);
            // Compiling them reports documents that are no rules among others.
            let Some(manifest) = manifest.filter(|manifest| !manifest.has_other_documents) else {
                plain.files.push(file);
                continue;
            };
            let sets_before = found.sets.len();
            for config_map in manifest.config_maps {
                found.add(&file, config_map);
            }
            if found.sets.len() > sets_before {
                continue;
            }
            let content = content(&manifest.kinds, manifest.has_envoy);
            if !source.names(&file.name) {
                let note = file.problem(None, "", Fault::FilePassedOver(content));
                found.notes.push(note);
            } else if manifest.kinds.is_empty() {
                plain.files.push(file);
            } else {
                let problem = file.problem(None, "", Fault::NoRuleFile(content));
                plain.problems.push(problem);
            }
        }
        let is_empty = plain.files.is_empty() && plain.problems.is_empty();
        if is_empty && found.sets.is_empty() {
            plain.problems.push(problem_of(source, Fault::NoFiles));
        }
        if !plain.files.is_empty() || !plain.problems.is_empty() {
            found.sets.insert(0, plain);
        }
        found
    }
}

/// The content of a file without rules, for a sentence about it.
fn content(kinds: &BTreeSet<String>, has_envoy: bool) -> String {
    let kinds: Vec<_> = kinds.iter().map(String::as_str).collect();
    match (kinds.as_slice(), has_envoy) {
        ([], _) => "an Envoy configuration".to_owned(),
        ([kind], false) => format!("a Kubernetes {kind}"),
        (kinds, false) => format!("Kubernetes resources ({})", kinds.join(", ")),
        (kinds, true) => format!("Kubernetes resources ({}) and Envoy's", kinds.join(", ")),
    }
}

impl RuleFileSets {
    fn add(&mut self, file: &File, config_map: ConfigMap) {
        let ConfigMap {
            name,
            files,
            binary,
        } = config_map;
        let mut rules = Vec::new();
        for found in files {
            if let Some(reason) = reason_against(&found) {
                self.note(file, &name, &found.key, found.key_position, reason);
                continue;
            }
            let inside = Inside {
                name: format!("{name}/{}", found.key),
                place: found.place,
            };
            rules.push(File::inside(file.name.clone(), found.text, inside));
        }
        for (key, position) in binary {
            self.note(file, &name, &key, position, "`binaryData` is not read");
        }
        if !rules.is_empty() {
            rules.sort_by(|a, b| a.inside_name().cmp(&b.inside_name()));
            self.sets.push(Files {
                files: rules,
                problems: Vec::new(),
            });
        }
    }

    fn note(&mut self, file: &File, map: &str, key: &str, at: Position, reason: &'static str) {
        let fault = Fault::KeyPassedOver {
            key: format!("{map}/{key}"),
            reason,
        };
        let mut problem = file.problem(None, "", fault);
        problem.position = Some(at);
        self.notes.push(problem);
    }
}

/// Why a key of a ConfigMap is no rule file; `None` if it is one.
fn reason_against(file: &ConfigMapFile) -> Option<&'static str> {
    if !has_rules(&file.text) {
        return Some("it has no `domain`");
    }
    if !is_rules_name(Path::new(&file.key)) {
        return Some("its name does not end in .yaml, .yml or .json");
    }
    None
}

/// Whether a text has a key of rule files at the top.
fn has_rules(text: &str) -> bool {
    match parse_all(text) {
        Ok(roots) => roots.iter().any(is_rules),
        // A file that cannot be read is judged by its lines.
        Err(_) => text.lines().any(|line| {
            let line = line.trim_start_matches(['"', '\'', '{', ' ', '\u{feff}']);
            line.starts_with("domain") || line.starts_with("descriptors")
        }),
    }
}

#[cfg(test)]
mod tests;
