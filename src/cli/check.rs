//! `tollgate check`: every problem of rule files, or a summary of their rules.

use std::process::ExitCode;

use super::print::print;
use crate::{
    config::{fault::Problem, files::Files, options::Options, source::Source},
    settings::command_line::Check,
};

/// Prints every problem, or a summary of the rules.
pub(crate) fn check_files(check: &Check) -> ExitCode {
    let options = Options {
        key_format: check.key_format.into(),
        lacks_replicas: !check.replicas.are_known(),
        ..check.reading.options()
    };
    let source = Source::Paths(check.paths.clone());
    let found = Files::read(&source).by_config_map(&source);
    let mut problems = found.notes;
    let (mut rules, mut domains, mut files) = (0, 0, 0);
    let mut is_ok = true;
    for set in found.sets {
        match set.compile(options) {
            Ok(loaded) => {
                rules += loaded.matcher.rules().len();
                domains += loaded.matcher.domain_count();
                files += loaded.files;
                problems.extend(loaded.warnings);
            }
            Err(found) => {
                is_ok = false;
                problems.extend(found);
            }
        }
    }
    problems.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
    let mut lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
    if is_ok {
        lines.push(format!(
            "ok: {rules} rules in {domains} domains, from {files} files"
        ));
    }
    print(&lines.join("\n"));
    if is_ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
