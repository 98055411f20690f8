//! The result of a check: problems, and the number of rules.

use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;

use crate::{
    config::{
        fault::{FaultLevel, Problem},
        source::STDIN,
    },
    foundation::printable::CountOf,
};

/// The result of a check.
#[derive(Debug)]
pub(super) struct CheckReport {
    /// The folder to which the names of files are relative, if the command line names only one.
    pub(super) folder: Option<PathBuf>,
    pub(super) denies_warnings: bool,
    /// In the order of the files.
    pub(super) problems: Vec<Problem>,
    /// The rules of the files without errors.
    pub(super) rules: CheckedRules,
}

/// How many rules, limits, domains and files there are.
#[derive(Debug, Default, Serialize)]
pub(super) struct CheckedRules {
    pub(super) rules: usize,
    pub(super) limits: usize,
    pub(super) domains: usize,
    pub(super) files: usize,
}

impl CheckReport {
    pub(super) fn count(&self, level: FaultLevel) -> usize {
        let of_level = self.problems.iter();
        let of_level = of_level.filter(|problem| problem.fault.level() == level);
        of_level.map(Problem::count).sum()
    }

    pub(super) fn is_ok(&self) -> bool {
        let is_denied = self.denies_warnings && self.count(FaultLevel::Warning) > 0;
        self.count(FaultLevel::Error) == 0 && !is_denied
    }

    pub(super) fn exit_code(&self) -> ExitCode {
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
    pub(super) fn to_text(&self) -> String {
        let lines = self.problems.iter().map(Problem::to_string);
        let lines: Vec<_> = lines.chain([self.summary()]).collect();
        lines.join("\n")
    }

    /// One line, such as `ok: 1 rule with 4 limits in 1 domain`.
    pub(super) fn summary(&self) -> String {
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
    pub(super) fn path(&self, problem: &Problem) -> String {
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
pub(super) fn message(problem: &Problem) -> String {
    let Problem { path, fault, .. } = problem;
    match path.as_str() {
        "" => fault.to_string(),
        path => format!("{path}: {fault}"),
    }
}
