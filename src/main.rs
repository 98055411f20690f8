//! The `tollgate` program. Exit codes: 0 for success, 1 for failure, 2 for a bad command line.

use std::{
    fmt::Display,
    fs::File,
    io::{self, Read as _, Write as _},
    path::Path,
    process::ExitCode,
};

use anyhow::Context as _;
use tollgate::{
    cli::{ask, lint_envoy},
    config::{self, files::Files, options::Options, source::Source},
    server::{self, log},
    settings::{
        command_line::{Ask, Check, Cli, Command, LintEnvoy},
        serve::Settings,
    },
};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let done = match Cli::from_process().command {
        Command::Serve(settings) => {
            log::start(&settings.process);
            serve(&settings)
        }
        Command::Check(check) => return check_files(&check),
        Command::Ask(ask) => print_answer(ask),
        Command::LintEnvoy(lint) => {
            return lint_file(&lint).unwrap_or_else(|error| {
                let _ = writeln!(io::stderr(), "{error:#}");
                ExitCode::from(2)
            });
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed, and then nothing can report the error.
            let _ = writeln!(io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: &Settings) -> anyhow::Result<()> {
    for note in settings.reference_notes() {
        tracing::warn!("{note}");
    }
    server::run::run(settings).context("tollgate cannot serve")
}

/// Prints every problem, or a summary of the rules.
fn check_files(check: &Check) -> ExitCode {
    let options = Options {
        merge_domains: check.merge_domains,
        strict_matching: check.strict_matching,
        key_format: check.key_format.into(),
        lacks_replicas: !check.replicas.are_known(),
        ..Options::default()
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

/// Prints every finding, or that there is none.
fn lint_file(lint: &LintEnvoy) -> anyhow::Result<ExitCode> {
    let name = lint.file.display();
    let text = read(&lint.file).with_context(|| format!("{name}: cannot be read"))?;
    let matcher = match &lint.rules {
        Some(folder) => {
            let options = Options {
                merge_domains: lint.merge_domains,
                strict_matching: lint.strict_matching,
                ..Options::default()
            };
            let loaded = Files::read(&Source::Paths(vec![folder.clone()])).compile(options);
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
fn located(
    name: &impl Display,
    position: Option<config::position::Position>,
    text: &impl Display,
) -> String {
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

fn print_answer(ask: Ask) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    print(&runtime.block_on(ask::ask(ask))?);
    Ok(())
}

/// Prints to standard output and ignores a closed pipe.
fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
