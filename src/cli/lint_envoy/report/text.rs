//! A report as lines.

use super::{LintReport, LintedFile, UncheckedFile};
use crate::{
    config::position::Position,
    foundation::printable::{CountOf, on_one_line},
};

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
