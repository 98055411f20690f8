//! `tollgate check`: every problem of rule files, or a summary of their rules.

use std::process::ExitCode;

use super::print::print;
use crate::{
    config::{files::Files, options::Options, source::Source},
    settings::command_line::Check,
};

/// Prints every problem, or a summary of the rules.
pub(crate) fn check_files(check: &Check) -> ExitCode {
    let options = Options {
        key_format: check.key_format.into(),
        lacks_replicas: !check.replicas.are_known(),
        ..check.reading.options()
    };
    let (lines, code) = match Files::read(&Source::Paths(check.paths.clone())).compile(options) {
        Ok(loaded) => {
            let mut lines: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
            lines.push(format!(
                "ok: {} rules in {} domains, from {} files",
                loaded.matcher.rules().len(),
                loaded.matcher.domain_count(),
                loaded.files
            ));
            (lines, ExitCode::SUCCESS)
        }
        Err(problems) => (
            problems.iter().map(ToString::to_string).collect(),
            ExitCode::FAILURE,
        ),
    };
    print(&lines.join("\n"));
    code
}
