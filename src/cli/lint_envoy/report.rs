//! The findings of all files of a run, and how they are printed.

use std::path::Path;

use serde_json::json;

use crate::{
    cli::lint_envoy::{
        document::Unreadable,
        finding::{Finding, SeenParts, Trap, TrapSeverity},
        inputs::{ConfigPart, LintInput, ReadError, files_below, mentions_envoy, parts_of},
    },
    config::position::Position,
    core::matcher::Matcher,
    foundation::printable::{CountOf, file_name, on_one_line},
};

/// Which findings are reported.
#[derive(Debug)]
pub(crate) struct WantedFindings<'a> {
    pub(crate) min_severity: TrapSeverity,
    /// Traps that are not reported.
    pub(crate) allowed: &'a [Trap],
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct LintReport<'a> {
    wanted: WantedFindings<'a>,
    rules: Option<&'a Matcher>,
    files: Vec<LintedFile>,
    failures: Vec<UncheckedFile>,
    /// How many files in folders are not Envoy configurations.
    not_envoy: usize,
    /// How many files in folders have neither a rate limit filter nor `rate_limits`.
    nothing_to_check: usize,
    /// How many files in folders are templates.
    templates: usize,
    has_folder: bool,
}

/// The findings in a file, or in a part of one.
#[derive(Debug)]
struct LintedFile {
    name: String,
    /// The name of the part, such as a file in a ConfigMap.
    inside: Option<String>,
    seen: SeenParts,
    findings: Vec<Finding>,
    /// How many findings are not reported, because they are not severe enough or are allowed.
    left_out: usize,
}

/// A file that cannot be checked.
#[derive(Debug)]
struct UncheckedFile {
    name: String,
    position: Option<Position>,
    text: String,
}

impl<'a> LintReport<'a> {
    pub(crate) fn new(wanted: WantedFindings<'a>, rules: Option<&'a Matcher>) -> Self {
        Self {
            wanted,
            rules,
            files: Vec::new(),
            failures: Vec::new(),
            not_envoy: 0,
            nothing_to_check: 0,
            templates: 0,
            has_folder: false,
        }
    }

    /// Checks the file or folder that a path on the command line names.
    pub(crate) fn add(&mut self, path: &Path) {
        if path.is_dir() {
            self.has_folder = true;
            self.folder(path);
            return;
        }
        let input = LintInput::of(path);
        match input.read() {
            Ok(text) => self.text(&input.name(), &text, IsNamed::Itself),
            Err(error) => self.unread(&input, &error),
        }
    }

    /// Whether some file could not be checked.
    pub(crate) fn has_failures(&self) -> bool {
        !self.failures.is_empty()
    }

    pub(crate) fn has_findings(&self) -> bool {
        self.files.iter().any(|file| !file.findings.is_empty())
    }

    /// The report as JSON.
    pub(crate) fn json(&self) -> String {
        let findings = self.files.iter().flat_map(|file| {
            file.findings.iter().map(|finding| {
                let place = finding.position;
                json!({
                    "file": file.name,
                    "inside": file.inside,
                    "line": place.map(|place| place.line),
                    "column": place.map(|place| place.column),
                    "path": finding.path,
                    "severity": finding.severity.to_string(),
                    "trap": finding.trap.to_string(),
                    "message": finding.text,
                    "fix": finding.fix,
                })
            })
        });
        let files = self.files.iter().map(|file| {
            json!({
                "file": file.name,
                "inside": file.inside,
                "filters": file.seen.filters,
                "routes": file.seen.routes,
                "clusters": file.seen.clusters,
                "rate_limits": file.seen.items,
                "findings": file.findings.len(),
                "left_out": file.left_out,
            })
        });
        let errors = self.failures.iter().map(|failure| {
            let place = failure.position;
            json!({
                "file": failure.name,
                "line": place.map(|place| place.line),
                "column": place.map(|place| place.column),
                "message": failure.text,
            })
        });
        let document = json!({
            "version": 1,
            "findings": findings.collect::<Vec<_>>(),
            "files": files.collect::<Vec<_>>(),
            "errors": errors.collect::<Vec<_>>(),
            "passed_over": {
                "not_envoy": self.not_envoy,
                "nothing_to_check": self.nothing_to_check,
                "templates": self.templates,
            },
        });
        format!("{document:#}")
    }

    fn text(&mut self, name: &str, text: &str, is_named: IsNamed) {
        let mut has_parts = false;
        for part in parts_of(text, self.rules) {
            match part {
                Ok(part) if part.seen.is_nothing() => {}
                Ok(part) => {
                    has_parts = true;
                    self.file(name, part);
                }
                Err(Unreadable::NoEnvoy) if is_named == IsNamed::ByItsFolder => {
                    self.not_envoy += 1;
                    return;
                }
                Err(Unreadable::Syntax { .. })
                    if is_named == IsNamed::ByItsFolder && is_template(text) =>
                {
                    self.templates += 1;
                    return;
                }
                Err(Unreadable::Syntax { .. })
                    if is_named == IsNamed::ByItsFolder && !mentions_envoy(text) =>
                {
                    self.not_envoy += 1;
                    return;
                }
                Err(error) => {
                    has_parts = true;
                    self.fail(name, error.position(), error.to_string());
                }
            }
        }
        match is_named {
            _ if has_parts => {}
            IsNamed::ByItsFolder => self.nothing_to_check += 1,
            IsNamed::Itself => {
                let part = nothing_checked(
                    "the whole file",
                    "no rate limit filter in it: nothing was checked",
                    "name the file with envoy.filters.http.ratelimit",
                );
                self.file(name, part);
            }
        }
    }

    fn folder(&mut self, folder: &Path) {
        let name = file_name(&folder.to_string_lossy());
        let inputs = match files_below(folder) {
            Ok(inputs) => inputs,
            Err(error) => {
                let text = ReadError::Io(error).to_string();
                return self.fail(&name, None, text);
            }
        };
        let (files, failures) = (self.files.len(), self.failures.len());
        for input in inputs {
            match input.read() {
                Ok(text) => self.text(&input.name(), &text, IsNamed::ByItsFolder),
                Err(error) => self.unread(&input, &error),
            }
        }
        if (self.files.len(), self.failures.len()) == (files, failures) {
            let part = nothing_checked(
                "the whole folder",
                "no file in it has a rate limit filter: nothing was checked",
                "name the folder or the file with envoy.filters.http.ratelimit",
            );
            self.file(&name, part);
        }
    }

    fn file(&mut self, name: &str, part: ConfigPart) {
        let ConfigPart {
            inside,
            seen,
            mut findings,
        } = part;
        let all = findings.len();
        findings.retain(|finding| {
            let is_allowed = self.wanted.allowed.contains(&finding.trap);
            finding.severity <= self.wanted.min_severity && !is_allowed
        });
        self.files.push(LintedFile {
            name: name.to_owned(),
            inside,
            seen,
            left_out: all - findings.len(),
            findings,
        });
    }

    fn unread(&mut self, input: &LintInput, error: &ReadError) {
        self.fail(&input.name(), error.position(), error.to_string());
    }

    fn fail(&mut self, name: &str, position: Option<Position>, text: String) {
        self.failures.push(UncheckedFile {
            name: name.to_owned(),
            position,
            text,
        });
    }
}

/// How the command line names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IsNamed {
    Itself,
    ByItsFolder,
}

fn nothing_checked(path: &str, text: &str, fix: &str) -> ConfigPart {
    let finding = Finding {
        position: None,
        path: path.to_owned(),
        severity: TrapSeverity::Warning,
        trap: Trap::NothingChecked,
        text: text.to_owned(),
        fix: fix.to_owned(),
    };
    ConfigPart {
        inside: None,
        seen: SeenParts::default(),
        findings: vec![finding],
    }
}

/// Whether an unparsable text is a Go template, as in Helm charts, which has instructions on lines of their own.
fn is_template(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with("{{"))
}

impl LintReport<'_> {
    /// The findings, and what was checked.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.files.iter().flat_map(LintedFile::lines).collect();
        if self.has_folder || self.files.len() > 1 {
            lines.push(self.summary());
        }
        lines
    }

    /// The files that could not be checked.
    pub(crate) fn failure_lines(&self) -> Vec<String> {
        self.failures.iter().map(UncheckedFile::line).collect()
    }

    /// `3 files checked, 2 findings; passed over: 1 file that is not an Envoy configuration`
    fn summary(&self) -> String {
        let checked = self.files.iter().filter(|file| !file.seen.is_nothing());
        let findings = self.files.iter().map(|file| file.findings.len()).sum();
        let mut text = format!(
            "{} checked, {}",
            CountOf(checked.count(), "file"),
            CountOf(findings, "finding")
        );
        let mut passed_over = Vec::new();
        if self.nothing_to_check > 0 {
            let files = CountOf(self.nothing_to_check, "file");
            passed_over.push(format!("{files} without a rate limit filter"));
        }
        if self.templates > 0 {
            passed_over.push(CountOf(self.templates, "template").to_string());
        }
        match self.not_envoy {
            0 => {}
            1 => passed_over.push("1 file that is not an Envoy configuration".to_owned()),
            number => passed_over.push(format!("{number} files that are not Envoy configurations")),
        }
        if !passed_over.is_empty() {
            text += "; passed over: ";
            text += &passed_over.join(", ");
        }
        text
    }
}

impl LintedFile {
    fn lines(&self) -> Vec<String> {
        let inside = self.inside.as_ref();
        let inside = inside.map_or_else(String::new, |inside| format!(": {}", on_one_line(inside)));
        let name = format!("{}{inside}", self.name);
        let seen = self.seen;
        let mut lines: Vec<_> = self
            .findings
            .iter()
            .map(|finding| {
                let location = location(&self.name, finding.position);
                format!("{location}{inside}: {finding}")
            })
            .collect();
        if seen.is_nothing() {
            if lines.is_empty() {
                lines.push(format!(
                    "{name}: no rate limit filter in it: nothing was checked"
                ));
            }
        } else if lines.is_empty() {
            let left_out = match self.left_out {
                0 => String::new(),
                left_out => format!(" ({} left out)", CountOf(left_out, "finding")),
            };
            lines.push(format!("ok: {name}: {seen}, no known trap{left_out}"));
        } else {
            let findings = CountOf(lines.len(), "finding");
            lines.push(format!("{name}: {seen}: {findings}"));
        }
        lines
    }
}

impl UncheckedFile {
    fn line(&self) -> String {
        format!("{}: {}", location(&self.name, self.position), self.text)
    }
}

/// `FILE:LINE:COLUMN`, or `FILE` if there is no position.
fn location(name: &str, position: Option<Position>) -> String {
    match position {
        Some(Position { line, column }) => format!("{name}:{line}:{column}"),
        None => name.to_owned(),
    }
}
