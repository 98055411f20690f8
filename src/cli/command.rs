//! Runs the command that the command line asks for.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;

use super::{
    ask,
    check::check_files,
    counters::counters,
    explain,
    healthcheck::healthcheck,
    lint_file::lint_files,
    print::{print, print_bytes},
    size::print_size,
};
use crate::{
    config::schema::schema,
    server::{log, run::run},
    settings::{
        command_line::{
            Ask, Cli, Command, Explain, HealthCheck,
            counters::{CountersAction, CountersCommand},
        },
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
/// line.
#[must_use]
pub fn run_command() -> ExitCode {
    let cli = match Cli::from_process() {
        Ok(cli) => cli,
        Err(error) => return report(error),
    };
    match cli.command {
        Command::Serve(settings) => {
            log::start(&settings.process);
            match serve(&settings) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    tracing::error!("{error:#}");
                    ExitCode::FAILURE
                }
            }
        }
        Command::Check(check) => check_files(&check),
        Command::Ask(ask) => print_answer(ask).unwrap_or_else(|error| failed(&error, FAILURE)),
        Command::Counters(CountersCommand { action }) => {
            print_counters(action).unwrap_or_else(|error| failed(&error, FAILURE))
        }
        Command::Explain(explain) => {
            print_explanation(&explain).unwrap_or_else(|error| failed(&error, FAILURE))
        }
        Command::LintEnvoy(lint) => {
            lint_files(&lint).unwrap_or_else(|error| failed(&error, BAD_USAGE))
        }
        Command::Healthcheck(settings) => match print_health(settings) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error, FAILURE),
        },
        Command::Size(size) => match print_size(&size) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error, BAD_USAGE),
        },
        Command::Schema => print_all(&format!("{:#}\n", schema()).into_bytes()),
        Command::Completions(completions) => print_all(&completions.script()),
        Command::Man(manual) => match manual.page() {
            Ok(page) => print_all(&page),
            Err(error) => failed(&error.into(), FAILURE),
        },
    }
}

/// Prints what is wrong with the command line or the environment, in the format of the log, or the help.
fn report(error: UsageError) -> ExitCode {
    let UsageError { kind, log_format } = error;
    let lines = match kind {
        UsageErrorKind::CommandLine(error) => {
            if log_format == LogFormat::Text || !error.use_stderr() {
                let _ = error.print();
                let code = u8::try_from(error.exit_code());
                return code.map_or(ExitCode::FAILURE, ExitCode::from);
            }
            let text = error.render().to_string();
            let (problem, _usage) = text.split_once("\n\nUsage:").unwrap_or((&text, ""));
            vec![problem.trim_start_matches("error: ").trim_end().to_owned()]
        }
        UsageErrorKind::Environment(problems) => problems,
    };
    log::start_at(log_format, LogLevel::Error);
    for line in lines {
        match log_format {
            LogFormat::Json => tracing::error!("{line}"),
            LogFormat::Text => {
                let _ = writeln!(io::stderr(), "error: {line}");
            }
        }
    }
    ExitCode::from(BAD_USAGE)
}

fn serve(settings: &Settings) -> anyhow::Result<()> {
    for note in settings.reference_notes() {
        tracing::warn!("{note}");
    }
    run(settings).context("tollgate cannot serve")
}

fn client_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

fn print_counters(action: CountersAction) -> anyhow::Result<ExitCode> {
    let text = client_runtime()?.block_on(counters(action))?;
    print(&text);
    Ok(ExitCode::SUCCESS)
}

fn print_explanation(explain: &Explain) -> anyhow::Result<ExitCode> {
    let text = client_runtime()?.block_on(explain::explanation(explain))?;
    print(&text);
    Ok(ExitCode::SUCCESS)
}

fn print_answer(ask: Ask) -> anyhow::Result<ExitCode> {
    let answer = client_runtime()?.block_on(ask::ask(ask))?;
    print(&answer.text);
    Ok(answer.code)
}

fn print_health(settings: HealthCheck) -> anyhow::Result<()> {
    print(&client_runtime()?.block_on(healthcheck(settings))?);
    Ok(())
}

fn print_all(bytes: &[u8]) -> ExitCode {
    print_bytes(bytes);
    ExitCode::SUCCESS
}

/// Prints `error` and ends with `code`.
fn failed(error: &anyhow::Error, code: u8) -> ExitCode {
    // Standard error may be closed, and then nothing can report the error.
    let _ = writeln!(io::stderr(), "{error:#}");
    ExitCode::from(code)
}
