//! `tollgate check`: prints every problem in rule files, and a summary of their rules. docs/rules/check.md describes
//! the JSON.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;

use crate::{
    cli::report::{Report, ReportEntry},
    config::{
        fault::{FaultLevel, Problem},
        files::Files,
        rule_defaults::Options,
        source::{STDIN, Source},
    },
    core::limit::Allows,
    foundation::printable::CountOf,
    settings::command_line::Check,
};

/// Prints every problem and a summary. The exit code is 1 if there are errors, or warnings that are denied, and 2 if
/// something cannot be read.
///
/// # Errors
///
/// If they cannot be printed.
pub(crate) fn check_files(check: &Check) -> anyhow::Result<ExitCode> {
    let (problems, rules) = checked(check);
    let is_unread = problems.iter().any(|problem| problem.fault.is_unread());
    let (_, paths) = inputs(check);
    let folder = only_folder(&paths);
    let entries = problems
        .iter()
        .map(|problem| ReportEntry::of_problem(problem, path(problem, folder)));
    let mut report = Report {
        tool: "tollgate check",
        is_ok: true,
        entries: entries.collect(),
        summary: Vec::new(),
        facts: json!({
            "rules": rules.rules, "limits": rules.limits, "domains": rules.domains, "files": rules.files,
        }),
    };
    let is_denied = check.deny_warnings && report.count(FaultLevel::Warning) > 0;
    report.is_ok = report.count(FaultLevel::Error) == 0 && !is_denied;
    report.summary = vec![summary(&report, &rules)];
    report.print(check.format)?;
    Ok(match report.is_ok {
        _ if is_unread => ExitCode::from(2),
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Whether standard input is to be checked, and the other paths.
fn inputs(check: &Check) -> (bool, Vec<PathBuf>) {
    let mut paths = check.paths.clone();
    paths.retain(|path| path != Path::new("-"));
    (paths.len() < check.paths.len(), paths)
}

/// The problems, and the rules of files without errors.
fn checked(check: &Check) -> (Vec<Problem>, CheckedRules) {
    let options = Options {
        key_format: check.key_format,
        lacks_replicas: check.replicas.fixed().is_none(),
        ..check.reading.options()
    };
    let (standard_input, paths) = inputs(check);
    let mut files = match paths.is_empty() {
        true => Files::none(),
        false => Files::read(&Source::Paths(paths)),
    };
    if standard_input {
        files.add_standard_input();
    }
    match files.compile(options) {
        Ok(loaded) => {
            let rules = loaded.matcher.rules();
            let limits = rules.iter().map(|rule| match &rule.allows {
                Allows::Unlimited => 0,
                Allows::Within(limits) => limits.len(),
            });
            let rules = CheckedRules {
                rules: rules.len(),
                limits: limits.sum(),
                domains: loaded.matcher.domain_count(),
                files: loaded.files,
            };
            (loaded.warnings, rules)
        }
        Err(problems) => (problems, CheckedRules::default()),
    }
}

/// The folder to which the names of files are relative, if `paths` names only one.
fn only_folder(paths: &[PathBuf]) -> Option<&Path> {
    match paths {
        [folder] if folder.is_dir() => Some(folder),
        _ => None,
    }
}

/// How many rules, limits, domains and files there are.
#[derive(Debug, Default)]
struct CheckedRules {
    rules: usize,
    limits: usize,
    domains: usize,
    files: usize,
}

/// One line, such as `ok: 1 rule with 4 limits in 1 domain`.
fn summary(report: &Report, rules: &CheckedRules) -> String {
    let warnings = CountOf(report.count(FaultLevel::Warning), "warning");
    let errors = CountOf(report.count(FaultLevel::Error), "error");
    let more = match warnings.0 {
        0 => String::new(),
        _ => format!(", {warnings}"),
    };
    if errors.0 > 0 {
        return format!("failed: {errors}{more}");
    }
    if !report.is_ok {
        return format!("failed: {warnings}, and --deny-warnings is set");
    }
    format!(
        "ok: {} with {} in {}{more}",
        CountOf(rules.rules, "rule"),
        CountOf(rules.limits, "limit"),
        CountOf(rules.domains, "domain"),
    )
}

/// The path of a problem's file from the current folder.
fn path(problem: &Problem, folder: Option<&Path>) -> String {
    let file = &problem.file;
    match folder {
        // A problem of the folder itself carries the folder's name.
        Some(folder) if file != STDIN && folder.as_os_str() != file.as_str() => {
            folder.join(file).display().to_string()
        }
        _ => file.clone(),
    }
}
