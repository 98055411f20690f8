//! The report of `check` and `lint-envoy`: lines, JSON, or one of two formats that code hosts show next to the lines of
//! a change: SARIF 2.1.0 (OASIS), and workflow commands of GitHub Actions.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    cli::print::{PrintError, print},
    config::{
        fault::{FaultLevel, Problem},
        position::Position,
    },
    foundation::{
        ascii_json::pretty_ascii_json,
        printable::{file_name, on_one_line},
    },
    settings::command_line::clients::ReportFormat,
};

/// A report on some files.
#[derive(Debug)]
pub(crate) struct Report {
    /// The command that makes it.
    pub(crate) tool: &'static str,
    pub(crate) is_ok: bool,
    /// In the order of the files.
    pub(crate) entries: Vec<ReportEntry>,
    /// The last lines.
    pub(crate) summary: Vec<String>,
    /// Further facts in JSON, a map.
    pub(crate) facts: Value,
}

/// Something about one place of a file.
#[derive(Debug)]
pub(crate) struct ReportEntry {
    /// The path of the file from the current folder.
    pub(crate) file: String,
    pub(crate) position: Option<Position>,
    /// The path in the file, or of a rule.
    pub(crate) path: String,
    pub(crate) level: FaultLevel,
    pub(crate) code: String,
    pub(crate) message: String,
    /// How many it stands for.
    pub(crate) count: usize,
    /// All of it as a line.
    pub(crate) line: String,
}

impl ReportEntry {
    /// A problem of `file`, the path of the problem's file from the current folder.
    pub(crate) fn of_problem(problem: &Problem, file: String) -> Self {
        Self {
            file,
            position: problem.position,
            path: problem.path.clone(),
            level: problem.fault.level(),
            code: problem.fault.code().to_owned(),
            message: problem.message(),
            count: problem.count(),
            line: problem.to_string(),
        }
    }

    /// Something at a place: the path of a file, and a position in it.
    pub(crate) fn at(
        (file, position): (&str, Option<Position>),
        path: &str,
        level: FaultLevel,
        code: &str,
        message: &str,
    ) -> Self {
        let mut line = file_name(file);
        if let Some(Position {
            line: number,
            column,
        }) = position
        {
            line += &format!(":{number}:{column}");
        }
        if !path.is_empty() {
            line += &format!(": {}: {path}: [{code}]", level.name());
        }
        let separator = if path.is_empty() { ": " } else { " " };
        let message = on_one_line(message);
        Self {
            line: line + separator + &message,
            file: file.to_owned(),
            position,
            path: path.to_owned(),
            level,
            code: code.to_owned(),
            message,
            count: 1,
        }
    }

    /// Its text without its position.
    fn text(&self) -> String {
        match self.path.as_str() {
            "" => self.message.clone(),
            path => format!("{path}: {}", self.message),
        }
    }
}

#[derive(Serialize)]
struct ReportedEntry<'a> {
    file: &'a str,
    line: Option<usize>,
    column: Option<usize>,
    path: &'a str,
    severity: &'static str,
    code: &'a str,
    message: &'a str,
}

impl Report {
    /// # Errors
    ///
    /// If it cannot be printed.
    pub(crate) fn print(&self, format: ReportFormat) -> Result<(), PrintError> {
        print(&match format {
            ReportFormat::Text => {
                let lines = self.entries.iter().map(|entry| &entry.line);
                lines
                    .chain(&self.summary)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join("\n")
            }
            ReportFormat::Json => self.json(),
            ReportFormat::Sarif => self.sarif(),
            ReportFormat::Github => self.github(),
        })
    }

    /// How many entries there are of a level.
    pub(crate) fn count(&self, level: FaultLevel) -> usize {
        let of_level = self.entries.iter().filter(|entry| entry.level == level);
        of_level.map(|entry| entry.count).sum()
    }

    /// The report as tollgate's own JSON.
    fn json(&self) -> String {
        let problems = self.entries.iter().map(|entry| ReportedEntry {
            file: &entry.file,
            line: entry.position.map(|place| place.line),
            column: entry.position.map(|place| place.column),
            path: &entry.path,
            severity: entry.level.name(),
            code: &entry.code,
            message: &entry.message,
        });
        let mut document = json!({
            "version": 2,
            "ok": self.is_ok,
            "errors": self.count(FaultLevel::Error),
            "warnings": self.count(FaultLevel::Warning),
            "problems": problems.collect::<Vec<_>>(),
        });
        for (name, fact) in self.facts.as_object().into_iter().flatten() {
            document[name] = fact.clone();
        }
        pretty_ascii_json(&document)
    }

    /// The report as a SARIF log with one run.
    fn sarif(&self) -> String {
        let codes: BTreeSet<_> = self.entries.iter().map(|entry| &entry.code).collect();
        let rules: Vec<_> = codes.iter().map(|code| json!({ "id": code })).collect();
        let results: Vec<_> = self.entries.iter().map(result).collect();
        let log = json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": { "driver": {
                    "name": self.tool,
                    "version": env!("CARGO_PKG_VERSION"),
                    "rules": rules,
                } },
                "columnKind": "unicodeCodePoints",
                "results": results,
            }],
        });
        pretty_ascii_json(&log)
    }

    /// A command for each entry, and the summary.
    fn github(&self) -> String {
        let commands = self.entries.iter().map(|entry| {
            let command = match entry.level {
                FaultLevel::Error => "error",
                FaultLevel::Warning => "warning",
                FaultLevel::Note => "notice",
            };
            let mut line = format!("::{command} file={}", property(&entry.file));
            if let Some(place) = entry.position {
                line += &format!(",line={},col={}", place.line, place.column);
            }
            let title = property(&format!("{}: {}", self.tool, entry.code));
            line + &format!(",title={title}::{}", data(&entry.text()))
        });
        let lines: Vec<_> = commands.chain(self.summary.iter().cloned()).collect();
        lines.join("\n")
    }
}

fn result(entry: &ReportEntry) -> Value {
    let mut location = json!({ "artifactLocation": { "uri": uri(&entry.file) } });
    if let Some(place) = entry.position {
        location["region"] = json!({ "startLine": place.line, "startColumn": place.column });
    }
    json!({
        "ruleId": entry.code,
        "level": entry.level.name(),
        "message": { "text": entry.text() },
        "locations": [{ "physicalLocation": location }],
    })
}

/// A path as a URI (RFC 3986), relative unless the path is absolute.
fn uri(path: &str) -> String {
    let mut uri = String::new();
    if path.starts_with('/') {
        uri += "file://";
    }
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(byte.into());
        } else {
            uri += &format!("%{byte:02X}");
        }
    }
    uri
}

/// Escapes the text of a command.
fn data(text: &str) -> String {
    let text = text.replace('%', "%25");
    text.replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes the value of a property of a command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_properties_are_escaped_as_github_reads_them() {
        let text = "100%: a,\r\nb";
        assert_eq!(data(text), "100%25: a,%0D%0Ab");
        assert_eq!(property(text), "100%25%3A a%2C%0D%0Ab");
    }
}
