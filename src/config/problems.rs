//! The problems of many files, of which each can have any number, and the paths of rules in them.

use std::{collections::HashMap, fmt};

use crate::config::{
    fault::{Fault, FaultLevel, Problem},
    node::{NodeKind, YamlNode},
};

/// The errors, the warnings and the notes of a file that are kept; the others are counted. A person reads the first
/// ones, and a generated file of 1 MiB could have 300,000.
pub(crate) const MAX_OF_A_LEVEL: usize = 100;

/// The problems of all files that are logged or printed at a start. Each file has a bounded number, but there may be
/// many files.
const MAX_LISTED: usize = 200;

/// The problems to list, and how many more there are.
pub(crate) fn listed(problems: &[Problem]) -> (&[Problem], usize) {
    let (listed, others) = problems.split_at(problems.len().min(MAX_LISTED));
    (listed, others.iter().map(Problem::count).sum())
}

/// Sorts them by file and position.
fn sort(problems: &mut [Problem]) {
    problems.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
}

/// Problems, of which a bounded number for each file is kept.
#[derive(Debug, Default)]
pub(super) struct Problems {
    kept: Vec<Problem>,
    /// How many errors, warnings and notes each file has.
    counts: HashMap<String, [usize; 3]>,
}

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        if self.count(&problem.file, problem.fault.level()) {
            self.kept.push(problem);
        }
    }

    /// Counts a problem of a file; returns whether it is one of those that are kept.
    pub(super) fn count(&mut self, file: &str, level: FaultLevel) -> bool {
        let count = &mut self.counts.entry(file.to_owned()).or_default()[level as usize];
        *count += 1;
        *count <= MAX_OF_A_LEVEL
    }

    /// Whether the next problem of this file is kept.
    pub(super) fn has_room(&self, file: &str, level: FaultLevel) -> bool {
        let counts = self.counts.get(file);
        counts.is_none_or(|counts| counts[level as usize] < MAX_OF_A_LEVEL)
    }

    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        problems.into_iter().for_each(|problem| self.push(problem));
    }

    pub(super) fn has_error(&self) -> bool {
        self.kept.iter().any(|problem| !problem.fault.is_warning())
    }

    /// The problems in the order of their files and positions. Of a file that has too many, the last of a level says
    /// how many more there are.
    pub(super) fn sorted(self) -> Vec<Problem> {
        let Self { mut kept, counts } = self;
        sort(&mut kept);
        let mut lasts: HashMap<(String, FaultLevel), (usize, Problem)> = HashMap::new();
        for problem in &kept {
            let level = problem.fault.level();
            let all = counts[&problem.file][level as usize];
            if all <= MAX_OF_A_LEVEL {
                continue;
            }
            let (listed, last) = lasts
                .entry((problem.file.clone(), level))
                .or_insert_with(|| (0, more(problem, 0)));
            *listed += 1;
            *last = more(problem, all - *listed);
        }
        let mores = lasts.into_values().map(|(_, last)| last);
        kept.extend(mores.filter(|last| last.count() > 0));
        sort(&mut kept);
        kept
    }
}

/// The problem after the `last` one of its file and level.
fn more(last: &Problem, count: usize) -> Problem {
    let level = last.fault.level();
    Problem {
        file: last.file.clone(),
        position: last.position,
        path: String::new(),
        fault: Fault::More { count, level },
    }
}

impl From<Vec<Problem>> for Problems {
    fn from(problems: Vec<Problem>) -> Self {
        let mut all = Self::default();
        all.extend(problems);
        all
    }
}

/// The path from the root of the tree to a map, formatted only for a report.
#[derive(Clone, Copy)]
pub(super) enum NodePath<'w> {
    Root,
    Map {
        above: &'w Self,
        entries: &'w [(YamlNode<'w>, YamlNode<'w>)],
    },
}

impl fmt::Display for NodePath<'_> {
    /// The domain and the joined texts of the descriptors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Map { above, entries } => f.write_str(&extended(&above.to_string(), entries)),
        }
    }
}

impl NodePath<'_> {
    /// Whether the map has a key with this text, among its first ones: no map of rules has many.
    pub(super) fn has(&self, wanted: &str, wanted_text: &str) -> bool {
        let Self::Map { entries, .. } = self else {
            return false;
        };
        let mut first = entries.iter().take(64);
        first.any(|(key, value)| match (&key.kind, &value.kind) {
            (NodeKind::Scalar { text: key, .. }, NodeKind::Scalar { text, .. }) => {
                key == wanted && text == wanted_text
            }
            _ => false,
        })
    }
}

/// The path of a descriptor, formatted only for a report.
pub(super) struct DescriptorPath<'p> {
    pub(super) parent: &'p dyn fmt::Display,
    pub(super) key: &'p str,
    pub(super) value: &'p str,
}

impl fmt::Display for DescriptorPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.parent, joined(self.key, self.value))
    }
}

/// Extends `path` by one map: a file's path is its domain, a descriptor's ends with its own text.
fn extended(path: &str, entries: &[(YamlNode<'_>, YamlNode<'_>)]) -> String {
    let text = |wanted: &str| {
        let mut texts = entries
            .iter()
            .filter_map(|(key, value)| match (&key.kind, &value.kind) {
                (NodeKind::Scalar { text: key, .. }, NodeKind::Scalar { text, .. })
                    if key == wanted =>
                {
                    (!value.is_null()).then_some(&**text)
                }
                _ => None,
            });
        texts.next_back()
    };
    match (path, text("domain"), text("key")) {
        ("", Some(domain), _) => domain.to_owned(),
        ("", None, _) | (_, _, None) => path.to_owned(),
        (_, _, Some(key)) => format!("{path}.{}", joined(key, text("value").unwrap_or_default())),
    }
}

/// The text that identifies a node among its siblings.
pub(super) fn joined(key: &str, value: &str) -> String {
    if value.is_empty() {
        key.to_owned()
    } else {
        format!("{key}_{value}")
    }
}

#[cfg(test)]
mod tests {
    use crate::config::fault::unlocated;

    use super::*;

    #[test]
    fn each_file_has_its_own_bound_for_each_level_and_says_how_many_more_there_are() {
        let mut problems = Problems::default();
        for number in 0..1000 {
            for (file, fault) in [
                ("a", Fault::EmptyKey),
                ("b", Fault::NoLimitHere),
                ("b", Fault::EmptyKey),
            ] {
                if file == "a" || number < 101 {
                    problems.push(unlocated(std::path::Path::new(file), fault));
                }
            }
        }
        let sorted = problems.sorted();
        let count = |file: &str, level: FaultLevel| -> (usize, usize) {
            let of = sorted.iter();
            let of = of.filter(|problem| problem.file == file && problem.fault.level() == level);
            (of.clone().count(), of.map(Problem::count).sum())
        };
        assert_eq!(count("a", FaultLevel::Error), (101, 1000));
        assert_eq!(count("b", FaultLevel::Error), (101, 101));
        assert_eq!(count("b", FaultLevel::Warning), (101, 101));
        let last = sorted.iter().rfind(|problem| problem.file == "a");
        assert_eq!(
            last.unwrap().to_string(),
            "a: and 900 more errors in this file"
        );
    }
}
