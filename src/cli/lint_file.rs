//! `tollgate lint-envoy`: reads an Envoy configuration and prints the traps in it.

use std::{
    fmt::Display,
    fs::File,
    io::{self, Read as _},
    path::Path,
    process::ExitCode,
};

use anyhow::Context as _;

use super::{lint_envoy, print::print};
use crate::{
    config::{files::Files, position::Position, source::Source},
    settings::command_line::LintEnvoy,
};

/// Prints every finding, or that there is none.
pub(crate) fn lint_file(lint: &LintEnvoy) -> anyhow::Result<ExitCode> {
    let name = lint.file.display();
    let text = read(&lint.file).with_context(|| format!("{name}: cannot be read"))?;
    let matcher = match &lint.rules {
        Some(folder) => {
            let loaded =
                Files::read(&Source::Paths(vec![folder.clone()])).compile(lint.reading.options());
            let loaded = loaded.map_err(|problems| {
                let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
                anyhow::anyhow!("{}", lines.join("\n"))
            })?;
            Some(loaded.matcher)
        }
        None => None,
    };
    let findings = lint_envoy::lint(&text, matcher.as_ref())
        .map_err(|error| anyhow::anyhow!(located(&name, error.position(), &error)))?;
    if findings.is_empty() {
        print(&format!("ok: no known trap in {name}"));
        return Ok(ExitCode::SUCCESS);
    }
    let lines: Vec<_> = findings
        .iter()
        .map(|finding| located(&name, finding.position, finding))
        .collect();
    print(&lines.join("\n"));
    Ok(ExitCode::FAILURE)
}

/// `FILE:LINE:COLUMN: …` or `FILE: …`. If there is a position, `text` already begins with it.
fn located(name: &impl Display, position: Option<Position>, text: &impl Display) -> String {
    let blank = if position.is_some() { "" } else { " " };
    format!("{name}:{blank}{text}")
}

/// Reads a file, or standard input if its name is `-`.
fn read(file: &Path) -> io::Result<String> {
    let from: Box<dyn io::Read> = if file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(file)?)
    };
    let mut text = String::new();
    let read = from
        .take(lint_envoy::MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)?;
    if read as u64 > lint_envoy::MAX_FILE_BYTES {
        return Err(io::Error::other(format!(
            "it is larger than {} bytes",
            lint_envoy::MAX_FILE_BYTES
        )));
    }
    Ok(text)
}
