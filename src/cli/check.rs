//! `tollgate check`: prints every problem in rule files, and a summary of their rules.

mod formats;
mod report;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::print::print;
use crate::{
    config::{files::Files, options::Options, source::Source},
    core::limit::Allows,
    settings::command_line::{Check, ReportFormat},
};

use self::report::{CheckReport, CheckedRules};

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
        ReportFormat::Json => formats::json(&report),
        ReportFormat::Sarif => formats::sarif(&report),
        ReportFormat::Github => formats::github(&report),
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
