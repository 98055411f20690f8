//! A report in SARIF 2.1.0 (OASIS), which code hosts show beside the lines of a change.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::report::{CheckReport, message};
use crate::config::fault::Problem;

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
    format!("{log:#}")
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
