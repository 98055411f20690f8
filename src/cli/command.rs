//! Runs the command of the command line.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::{
    cli::{
        ask,
        check::check_files,
        counters::counters,
        explain,
        healthcheck::healthcheck,
        lint_envoy::report::lint_files,
        print::{PrintError, failed, print, print_bytes},
    },
    config::keys::RULES_SCHEMA,
    foundation::printable::on_one_line,
    server::{log, run::run},
    settings::{
        command_line::{Ask, Cli, Command, Manual, clients::CountersCommand},
        environment::UsageError,
        process::{LogFormat, LogLevel},
        serve::Settings,
    },
};

/// The exit code for a failure.
const FAILURE: u8 = 1;

/// The exit code for a bad command line or environment.
const BAD_USAGE: u8 = 2;

/// Runs the command that this process was called with. The exit code is 0 for success, 1 for failure and 2 for a bad
/// command line, unless `--help` of the command lists others.
#[must_use]
pub fn run_command() -> ExitCode {
    let cli = match Cli::from_process() {
        Ok(cli) => cli,
        Err(error) => return report(error).unwrap_or_else(|error| failed(&error, FAILURE)),
    };
    // The exit code if the command fails. Some commands return 1 for a finding, and therefore another code here.
    let (ran, failure) = match cli.command {
        Command::Serve(settings) => (serve(&settings), FAILURE),
        Command::Check(check) => (check_files(&check), BAD_USAGE),
        Command::Ask(ask) => (print_answer(ask), FAILURE),
        Command::Counters(CountersCommand { action }) => (print_called(counters(action)), FAILURE),
        Command::Explain(explain) => (print_called(explain::explanation(&explain)), FAILURE),
        Command::LintEnvoy(lint) => (lint_files(&lint), BAD_USAGE),
        Command::Healthcheck(settings) => (print_called(healthcheck(settings)), FAILURE),
        Command::Schema => (print_all(RULES_SCHEMA.as_bytes()), FAILURE),
        Command::Completions(completions) => (print_all(&completions.script()), FAILURE),
        Command::Man(manual) => (print_manual(&manual), FAILURE),
    };
    ran.unwrap_or_else(|error| failed(&error, failure))
}

/// Prints what is wrong with the command line or the environment, in the format of the log, or the help.
fn report(error: UsageError) -> anyhow::Result<ExitCode> {
    let UsageError { error, log_format } = error;
    if !error.use_stderr() {
        error.print().map_err(PrintError::from)?;
        return Ok(ExitCode::SUCCESS);
    }
    match log_format {
        LogFormat::Json => {
            let text = error.render().to_string();
            let ends = ["\n\nUsage:", "\n\nFor more information"];
            let end = ends.iter().filter_map(|end| text.find(end)).min();
            let problem = &text[..end.unwrap_or(text.len())];
            let problem = problem.trim_start_matches("error: ").trim_end();
            let _log = log::start_at(log_format, LogLevel::Error);
            tracing::error!("{problem}");
        }
        LogFormat::Text => {
            // If standard error is closed, nothing can report that.
            let _ = error.print();
        }
    }
    Ok(ExitCode::from(BAD_USAGE))
}

/// Serves until the process is stopped. An error goes into the log.
fn serve(settings: &Settings) -> anyhow::Result<ExitCode> {
    let log = log::start(&settings.process);
    for note in settings.reference_notes() {
        tracing::warn!("{note}");
    }
    if !settings.unread_variables.is_empty() {
        let names = on_one_line(&settings.unread_variables.join(", "));
        tracing::warn!("no setting reads {names}; `tollgate serve --help` has all variables");
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

/// Calls a server, and prints the text that results.
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

/// Calls a server, and waits for the result.
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
