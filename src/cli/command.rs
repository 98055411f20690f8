//! Runs the command that the command line asks for.

use std::process::ExitCode;

use anyhow::Context as _;

use super::{
    ask,
    check::check_files,
    counters::counters,
    explain,
    healthcheck::healthcheck,
    lint_file::lint_files,
    print::{PrintError, failed, print, print_bytes, print_error},
    size::print_size,
};
use crate::{
    config::schema::schema,
    server::{log, run::run},
    settings::{
        command_line::{Ask, Cli, Command, Manual, counters::CountersCommand},
        environment::{UsageError, UsageErrorKind},
        process::{LogFormat, LogLevel},
        serve::Settings,
    },
};

/// The exit code for a failure.
const FAILURE: u8 = 1;

/// The exit code for a bad command line or environment.
const BAD_USAGE: u8 = 2;

/// Runs the command of this process' arguments. The exit code is 0 for success, 1 for failure, 2 for a bad command
/// line, or as `--help` of the command lists them.
#[must_use]
pub fn run_command() -> ExitCode {
    let cli = match Cli::from_process() {
        Ok(cli) => cli,
        Err(error) => return report(error).unwrap_or_else(|error| failed(&error, FAILURE)),
    };
    // The code of a failure, which for some commands is not that of a finding.
    let (ran, failure) = match cli.command {
        Command::Serve(settings) => (serve(&settings), FAILURE),
        Command::Check(check) => (check_files(&check), BAD_USAGE),
        Command::Ask(ask) => (print_answer(ask), FAILURE),
        Command::Counters(CountersCommand { action }) => (print_called(counters(action)), FAILURE),
        Command::Explain(explain) => (print_called(explain::explanation(&explain)), FAILURE),
        Command::LintEnvoy(lint) => (lint_files(&lint), BAD_USAGE),
        Command::Healthcheck(settings) => (print_called(healthcheck(settings)), FAILURE),
        Command::Size(size) => (print_size(&size), BAD_USAGE),
        Command::Schema => (print_all(format!("{:#}\n", schema()).as_bytes()), FAILURE),
        Command::Completions(completions) => (print_all(&completions.script()), FAILURE),
        Command::Man(manual) => (print_manual(&manual), FAILURE),
    };
    ran.unwrap_or_else(|error| failed(&error, failure))
}

/// Prints what is wrong with the command line or the environment, in the format of the log, or the help.
fn report(error: UsageError) -> anyhow::Result<ExitCode> {
    let UsageError { kind, log_format } = error;
    let lines = match kind {
        UsageErrorKind::CommandLine(error) => {
            if !error.use_stderr() {
                error.print().map_err(PrintError::from)?;
                return Ok(ExitCode::SUCCESS);
            }
            if log_format == LogFormat::Text {
                // Standard error may be closed, and then nothing can report that.
                let _ = error.print();
                return Ok(ExitCode::from(BAD_USAGE));
            }
            let text = error.render().to_string();
            let (problem, _usage) = text.split_once("\n\nUsage:").unwrap_or((&text, ""));
            vec![problem.trim_start_matches("error: ").trim_end().to_owned()]
        }
        UsageErrorKind::Environment(problems) => problems,
    };
    match log_format {
        LogFormat::Json => {
            let _log = log::start_at(log_format, LogLevel::Error)?;
            for line in lines {
                tracing::error!("{line}");
            }
        }
        LogFormat::Text => {
            for line in lines {
                print_error(&format!("error: {line}"));
            }
        }
    }
    Ok(ExitCode::from(BAD_USAGE))
}

/// Serves until the process is stopped. The log has the error, if there is one.
fn serve(settings: &Settings) -> anyhow::Result<ExitCode> {
    let log = log::start(&settings.process)?;
    for note in settings.reference_notes() {
        tracing::warn!("{note}");
    }
    let served = run(settings, &log).context("tollgate cannot serve");
    Ok(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Prints the text that a call of a server results in.
fn print_called<E: Into<anyhow::Error>>(
    call: impl Future<Output = Result<String, E>>,
) -> anyhow::Result<ExitCode> {
    print(&called(call)?)?;
    Ok(ExitCode::SUCCESS)
}

fn print_answer(ask: Ask) -> anyhow::Result<ExitCode> {
    let answer = called(ask::ask(ask))?;
    print(&answer.text)?;
    Ok(answer.code)
}

/// The result of a call of a server.
fn called<T, E: Into<anyhow::Error>>(
    call: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<T> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    runtime.block_on(call).map_err(Into::into)
}

fn print_manual(manual: &Manual) -> anyhow::Result<ExitCode> {
    print_all(&manual.page()?)
}

fn print_all(bytes: &[u8]) -> anyhow::Result<ExitCode> {
    print_bytes(bytes)?;
    Ok(ExitCode::SUCCESS)
}
