//! Runs the command that the command line asks for.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;

use super::{ask, check::check_files, lint_file::lint_file, print::print};
use crate::{
    server::{log, run::run},
    settings::{
        command_line::{Ask, Cli, Command},
        serve::Settings,
    },
};

/// Runs the command of this process' arguments. The exit code is 0 for success, 1 for failure, 2 for a bad command
/// line.
#[must_use]
pub fn run_command() -> ExitCode {
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
    run(settings).context("tollgate cannot serve")
}

fn print_answer(ask: Ask) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    print(&runtime.block_on(ask::ask(ask))?);
    Ok(())
}
