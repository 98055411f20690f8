//! Reports for programs: tollgate's own JSON, which docs/rules/check.md describes, and two formats that code hosts show
//! next to the lines of a change: SARIF 2.1.0 (OASIS), and workflow commands of GitHub Actions.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::report::{CheckReport, CheckedRules, message};
use crate::{
    config::fault::{FaultLevel, Problem},
    foundation::ascii_json::pretty_ascii_json,
};

/// A report in tollgate's own JSON.
#[derive(Serialize)]
struct ReportDocument<'a> {
    version: u32,
    ok: bool,
    errors: usize,
    warnings: usize,
    #[serde(flatten)]
    rules: &'a CheckedRules,
    problems: Vec<ProblemDocument<'a>>,
}

#[derive(Serialize)]
struct ProblemDocument<'a> {
    file: String,
    line: Option<usize>,
    column: Option<usize>,
    path: &'a str,
    severity: &'static str,
    code: &'static str,
    message: String,
}

/// The report as tollgate's own JSON.
pub(super) fn json(report: &CheckReport) -> String {
    let problems = report.problems.iter().map(|problem| ProblemDocument {
        file: report.path(problem),
        line: problem.position.map(|place| place.line),
        column: problem.position.map(|place| place.column),
        path: &problem.path,
        severity: problem.fault.level().name(),
        code: problem.fault.code(),
        message: problem.fault.to_string(),
    });
    let document = json!(ReportDocument {
        version: 2,
        ok: report.is_ok(),
        errors: report.count(FaultLevel::Error),
        warnings: report.count(FaultLevel::Warning),
        rules: &report.rules,
        problems: problems.collect(),
    });
    pretty_ascii_json(&document)
}

/// The report as a SARIF log with one run.
pub(super) fn sarif(report: &CheckReport) -> String {
    let codes: BTreeSet<_> = report
        .problems
        .iter()
        .map(|problem| problem.fault.code())
        .collect();
    let rules: Vec<_> = codes.iter().map(|code| json!({ "id": code })).collect();
    let results = report.problems.iter();
    let results: Vec<_> = results.map(|problem| result(report, problem)).collect();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "tollgate check",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            } },
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    pretty_ascii_json(&log)
}

fn result(report: &CheckReport, problem: &Problem) -> Value {
    let mut location = json!({ "artifactLocation": { "uri": uri(&report.path(problem)) } });
    if let Some(place) = problem.position {
        location["region"] = json!({ "startLine": place.line, "startColumn": place.column });
    }
    json!({
        "ruleId": problem.fault.code(),
        "level": problem.fault.level().name(),
        "message": { "text": message(problem) },
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

/// A command for each problem, and the summary.
pub(super) fn github(report: &CheckReport) -> String {
    let commands = report.problems.iter().map(|problem| {
        let command = match problem.fault.level() {
            FaultLevel::Error => "error",
            FaultLevel::Warning => "warning",
            FaultLevel::Note => "notice",
        };
        let mut line = format!("::{command} file={}", property(&report.path(problem)));
        if let Some(place) = problem.position {
            line += &format!(",line={},col={}", place.line, place.column);
        }
        let title = property(&format!("tollgate check: {}", problem.fault.code()));
        line + &format!(",title={title}::{}", data(&message(problem)))
    });
    let lines: Vec<_> = commands.chain([report.summary()]).collect();
    lines.join("\n")
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
