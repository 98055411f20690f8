//! A report as a JSON document.

use serde_json::json;

use super::LintReport;

impl LintReport<'_> {
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
}
