//! `tollgate lint-envoy`: reads Envoy configurations and prints the traps in them.

use std::process::ExitCode;

use super::{
    lint_envoy::report::{LintReport, WantedFindings},
    print::{print, print_error},
};
use crate::{
    config::{files::Files, source::Source},
    core::matcher::Matcher,
    settings::command_line::lint_envoy::{LintEnvoy, LintFormat},
};

/// Prints every finding, and a summary of what was checked. The exit code is 0 without findings, 1 with findings, and 2
/// if a file could not be checked.
///
/// # Errors
///
/// If the rules cannot be read, or the findings cannot be printed.
pub(crate) fn lint_files(lint: &LintEnvoy) -> anyhow::Result<ExitCode> {
    let matcher = rules(lint)?;
    let wanted = WantedFindings {
        min_severity: lint.min_severity,
        allowed: &lint.allowed,
    };
    let mut report = LintReport::new(wanted, matcher.as_ref());
    for path in &lint.paths {
        report.add(path);
    }
    match lint.format {
        LintFormat::Json => print(&report.json())?,
        LintFormat::Text => {
            for line in report.lines() {
                print(&line)?;
            }
        }
    }
    for line in report.failure_lines() {
        print_error(&line);
    }
    Ok(if report.has_failures() {
        ExitCode::from(2)
    } else if report.has_findings() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The rules to compare with, if the command line names any.
fn rules(lint: &LintEnvoy) -> anyhow::Result<Option<Matcher>> {
    let Some(folder) = &lint.rules else {
        return Ok(None);
    };
    let files = Files::read(&Source::Paths(vec![folder.clone()]));
    let loaded = files.compile(lint.reading.options()).map_err(|problems| {
        let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", lines.join("\n"))
    })?;
    Ok(Some(loaded.matcher))
}
