//! The `tollgate` program: exit code 0 if all went well, 1 if not, 2 for a bad command line.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use tollgate::{
    ask,
    config::{Files, Options, Source},
    log, server,
    settings::{Ask, Check, Cli, Command, Settings},
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
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be gone, and then there is nobody to tell.
            let _ = writeln!(io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: &Settings) -> anyhow::Result<()> {
    for note in settings.reference_notes() {
        tracing::warn!("{note}");
    }
    server::run(settings).context("tollgate cannot serve")
}

/// Prints every problem, or what was found to be good.
fn check_files(check: &Check) -> ExitCode {
    let options = Options {
        merge_domains: check.merge_domains,
        strict_matching: check.strict_matching,
        key_format: check.key_format.into(),
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

fn print_answer(ask: Ask) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    print(&runtime.block_on(ask::ask(ask))?);
    Ok(())
}

/// Prints to standard output, whose reader may have left.
fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
