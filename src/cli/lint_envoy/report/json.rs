//! A report as a JSON document.

use serde_json::{Value, json};

use super::LintReport;
use crate::config::position::Position;

impl LintReport<'_> {
    /// The report as JSON.
    pub(crate) fn json(&self) -> String {
        let findings = self.files.iter().flat_map(|file| {
            file.findings.iter().map(|finding| {
                let (line, column) = line_and_column(finding.position);
                json!({
                    "file": file.name,
                    "inside": file.inside,
                    "line": line,
                    "column": column,
                    "path": finding.path,
                    "severity": finding.severity.name(),
                    "trap": finding.trap,
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
            let (line, column) = line_and_column(failure.position);
            json!({
                "file": failure.name,
                "line": line,
                "column": column,
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
}

/// Both are null if there is no position.
fn line_and_column(position: Option<Position>) -> (Value, Value) {
    match position {
        Some(Position { line, column }) => (line.into(), column.into()),
        None => (Value::Null, Value::Null),
    }
}
