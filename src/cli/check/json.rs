//! A report in our own JSON, which docs/rules/check.md describes.

use serde_json::json;

use super::report::CheckReport;
use crate::config::fault::FaultLevel;

/// The report as JSON.
pub(super) fn json(report: &CheckReport) -> String {
    let problems = report.problems.iter().map(|problem| {
        let place = problem.position;
        json!({
            "file": report.path(problem),
            "line": place.map(|place| place.line),
            "column": place.map(|place| place.column),
            "inside": problem.inside,
            "path": problem.path,
            "severity": problem.fault.level().name(),
            "code": problem.fault.code(),
            "message": problem.fault.to_string(),
        })
    });
    let rules = &report.rules;
    let report = json!({
        "version": 1,
        "ok": report.is_ok(),
        "errors": report.count(FaultLevel::Error),
        "warnings": report.count(FaultLevel::Warning),
        "files": rules.files,
        "domains": rules.domains,
        "rules": rules.rules,
        "limits": rules.limits,
        "problems": problems.collect::<Vec<_>>(),
    });
    format!("{report:#}")
}
