//! `tollgate check`: prints every problem in rule files, and a summary of their rules. Programs get tollgate's own
//! JSON, which docs/rules/check.md describes, or one of two formats that code hosts show next to the lines of a change:
//! SARIF 2.1.0 (OASIS), and workflow commands of GitHub Actions.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    cli::print::print,
    config::{
        fault::{FaultLevel, Problem},
        files::Files,
        rule_defaults::Options,
        source::{STDIN, Source},
    },
    core::limit::Allows,
    foundation::{ascii_json::pretty_ascii_json, printable::CountOf},
    settings::command_line::{Check, ReportFormat},
};

/// Prints every problem and a summary. The exit code is 1 if there are errors, or warnings that are denied, and 2 if
/// something cannot be read.
///
/// # Errors
///
/// If they cannot be printed.
pub(crate) fn check_files(check: &Check) -> anyhow::Result<ExitCode> {
    let report = report(check);
    let text = match check.format {
        ReportFormat::Text => report.to_text(),
        ReportFormat::Json => json(&report),
        ReportFormat::Sarif => sarif(&report),
        ReportFormat::Github => github(&report),
    };
    print(&text)?;
    Ok(report.exit_code())
}

fn report(check: &Check) -> CheckReport {
    let options = Options {
        key_format: check.key_format,
        lacks_replicas: check.replicas.fixed().is_none(),
        ..check.reading.options()
    };
    let (standard_input, paths): (Vec<_>, Vec<_>) = check
        .paths
        .iter()
        .cloned()
        .partition(|path| path == Path::new("-"));
    let mut report = CheckReport {
        folder: only_folder(&paths),
        denies_warnings: check.deny_warnings,
        problems: Vec::new(),
        rules: CheckedRules::default(),
    };
    let mut files = match paths.is_empty() {
        true => Files::none(),
        false => Files::read(&Source::Paths(paths)),
    };
    if !standard_input.is_empty() {
        files.add_standard_input();
    }
    match files.compile(options) {
        Ok(loaded) => {
            let rules = loaded.matcher.rules();
            let limits = rules.iter().map(|rule| match &rule.allows {
                Allows::Unlimited => 0,
                Allows::Within(limits) => limits.len(),
            });
            report.rules = CheckedRules {
                rules: rules.len(),
                limits: limits.sum(),
                domains: loaded.matcher.domain_count(),
                files: loaded.files,
            };
            report.problems = loaded.warnings;
        }
        Err(problems) => report.problems = problems,
    }
    report
}

/// The folder to which the names of files are relative, if `paths` names only one.
fn only_folder(paths: &[PathBuf]) -> Option<PathBuf> {
    match paths {
        [folder] if folder.is_dir() => Some(folder.clone()),
        _ => None,
    }
}

/// The result of a check.
#[derive(Debug)]
struct CheckReport {
    /// The folder to which the names of files are relative, if the command line names only one.
    folder: Option<PathBuf>,
    denies_warnings: bool,
    /// In the order of the files.
    problems: Vec<Problem>,
    /// The rules of the files without errors.
    rules: CheckedRules,
}

/// How many rules, limits, domains and files there are.
#[derive(Debug, Default, Serialize)]
struct CheckedRules {
    rules: usize,
    limits: usize,
    domains: usize,
    files: usize,
}

impl CheckReport {
    fn count(&self, level: FaultLevel) -> usize {
        let of_level = self.problems.iter();
        let of_level = of_level.filter(|problem| problem.fault.level() == level);
        of_level.map(Problem::count).sum()
    }

    fn is_ok(&self) -> bool {
        let is_denied = self.denies_warnings && self.count(FaultLevel::Warning) > 0;
        self.count(FaultLevel::Error) == 0 && !is_denied
    }

    fn exit_code(&self) -> ExitCode {
        if self
            .problems
            .iter()
            .any(|problem| problem.fault.is_unread())
        {
            return ExitCode::from(2);
        }
        if self.is_ok() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    /// A line for each problem, and the summary.
    fn to_text(&self) -> String {
        let lines = self.problems.iter().map(Problem::to_string);
        let lines: Vec<_> = lines.chain([self.summary()]).collect();
        lines.join("\n")
    }

    /// One line, such as `ok: 1 rule with 4 limits in 1 domain`.
    fn summary(&self) -> String {
        let warnings = CountOf(self.count(FaultLevel::Warning), "warning");
        let errors = CountOf(self.count(FaultLevel::Error), "error");
        let more = match warnings.0 {
            0 => String::new(),
            _ => format!(", {warnings}"),
        };
        if errors.0 > 0 {
            return format!("failed: {errors}{more}");
        }
        if !self.is_ok() {
            return format!("failed: {warnings}, and --deny-warnings is set");
        }
        let CheckedRules {
            rules,
            limits,
            domains,
            ..
        } = self.rules;
        format!(
            "ok: {} with {} in {}{more}",
            CountOf(rules, "rule"),
            CountOf(limits, "limit"),
            CountOf(domains, "domain"),
        )
    }

    /// The path of a problem's file from the current folder.
    fn path(&self, problem: &Problem) -> String {
        let file = &problem.file;
        match &self.folder {
            // A problem of the folder itself carries the folder's name.
            Some(folder) if file != STDIN && folder.as_os_str() != file.as_str() => {
                folder.join(file).display().to_string()
            }
            _ => file.clone(),
        }
    }
}

/// The text of a problem without its position: the path of the rule, and the fault.
fn message(problem: &Problem) -> String {
    let Problem { path, fault, .. } = problem;
    match path.as_str() {
        "" => fault.to_string(),
        path => format!("{path}: {fault}"),
    }
}

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
fn json(report: &CheckReport) -> String {
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
fn sarif(report: &CheckReport) -> String {
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
fn github(report: &CheckReport) -> String {
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
