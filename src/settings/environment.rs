//! Reads the command line and the environment, and blames the right one for an error: a wrong value in a variable is an
//! error that names the variable, not the flag that reads it.
//!
//! clap's errors do not say where a value came from. So the command line is parsed alone first, and then each variable.
//! An error that only occurs with all of them together is about a relation between settings.

use std::{
    error::Error as _,
    ffi::{OsStr, OsString},
};

use clap::{
    Arg, ArgMatches, Command,
    builder::Resettable,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

use super::{
    process::LogFormat,
    service_links::is_service_link,
    short_help,
    unexpected::unexpected,
    values::boolean,
    variables::{Environment, unknown},
};

/// Why the command line and the environment do not result in a command to run.
#[derive(Debug)]
pub(crate) struct UsageError {
    pub(crate) kind: UsageErrorKind,
    /// The log format that was asked for.
    pub(crate) log_format: LogFormat,
}

#[derive(Debug)]
pub(crate) enum UsageErrorKind {
    /// The command line is bad, or asks for help.
    CommandLine(clap::Error),
    /// One line for each unusable variable.
    Environment(Vec<String>),
}

/// Parses `arguments` and `environment` as `command` defines them.
///
/// # Errors
///
/// If the command line is bad or asks for help, or if variables cannot be used; all of these are named.
pub(super) fn parse(
    command: &Command,
    arguments: &[OsString],
    environment: &Environment,
) -> Result<ArgMatches, UsageError> {
    let read = || -> Result<ArgMatches, UsageErrorKind> {
        if let Some(error) = detached_value(command, arguments) {
            return Err(UsageErrorKind::CommandLine(error));
        }
        let flags = without(command, |_| true)
            .try_get_matches_from(arguments)
            .map_err(|error| bad_command_line(command, arguments, error))?;
        let Some((name, flags)) = flags.subcommand() else {
            return Ok(flags);
        };
        let subcommand = command.find_subcommand(name);
        let subcommand = subcommand.expect("the command line names a command that there is");
        let mut problems = if name == "serve" {
            unknown(command, environment)
        } else {
            Vec::new()
        };
        let mut read: Vec<_> = subcommand
            .get_arguments()
            .filter(|argument| !is_given(flags, argument))
            .filter_map(|argument| {
                let name = argument.get_env()?;
                let (_, value) = environment.iter().find(|(known, _)| known == name)?;
                Some((argument, name, value))
            })
            .collect();
        read.retain(|(_, name, value)| !is_service_link(name, value));
        for (argument, name, value) in &read {
            let wrong = wrong_value(argument, value);
            problems.extend(wrong.map(|wrong| format!("the variable {}: {wrong}", name.display())));
        }
        if !problems.is_empty() {
            return Err(UsageErrorKind::Environment(problems));
        }
        let is_read = |name: &OsStr| read.iter().any(|(_, other, _)| *other == name);
        let mut usable = without(command, |name| !is_read(name));
        usable
            .clone()
            .try_get_matches_from(arguments)
            .map_err(|error| {
                // Only a built command names its flags as they appear in errors.
                usable.build();
                let subcommand = usable.find_subcommand(name).expect("it was there before");
                match conflict(subcommand, flags, &error) {
                    Some(problem) => UsageErrorKind::Environment(vec![problem]),
                    None => UsageErrorKind::CommandLine(error),
                }
            })
    };
    read().map_err(|kind| UsageError {
        kind,
        log_format: log_format(arguments, environment),
    })
}

/// Whether the command line itself contains this flag.
fn is_given(flags: &ArgMatches, argument: &Arg) -> bool {
    flags.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// `command` without the variables that `is_left_out` selects. It also accepts negative numbers as values.
fn without(command: &Command, is_left_out: impl Fn(&OsStr) -> bool) -> Command {
    command.clone().mut_subcommands(|command| {
        command.mut_args(|argument| {
            // A negative number is a wrong value at worst, not an unexpected argument.
            let takes_values = argument.get_action().takes_values();
            let argument = argument.allow_negative_numbers(takes_values);
            match argument.get_env() {
                Some(name) if is_left_out(name) => argument.env(Resettable::Reset),
                _ => argument,
            }
        })
    })
}

/// The error for a command line such as `check --merge-domains false rules`. Where a command takes files, a flag takes
/// its value only after an equals sign, so `false` would be read as a file.
fn detached_value(command: &Command, arguments: &[OsString]) -> Option<clap::Error> {
    let subcommand = command.find_subcommand(arguments.get(1)?)?;
    let flags = || {
        subcommand
            .get_arguments()
            .filter(|flag| flag.is_require_equals_set())
            .filter_map(Arg::get_long)
    };
    arguments.windows(2).find_map(|pair| {
        let (flag, value) = (pair[0].to_str()?.strip_prefix("--")?, pair[1].to_str()?);
        let is_detached = boolean(value).is_ok() && flags().any(|known| known == flag);
        is_detached.then(|| {
            let text = format!(
                "write `--{flag}={value}`: without the equals sign, `{value}` is read as a file"
            );
            command.clone().error(ErrorKind::ValueValidation, text)
        })
    })
}

/// The error of the command line alone. If it is a help page, the page shows the variables too.
fn bad_command_line(
    command: &Command,
    arguments: &[OsString],
    error: clap::Error,
) -> UsageErrorKind {
    let error = match error.kind() {
        ErrorKind::DisplayHelp => {
            let command = short_help::unless_long(command.clone(), arguments);
            let error = command.try_get_matches_from(arguments).err();
            error.expect("a command line that asks for the help has no matches")
        }
        _ => unexpected(command, arguments, &error).unwrap_or(error),
    };
    UsageErrorKind::CommandLine(error)
}

/// The mistake in the value of a variable, regardless of other settings.
fn wrong_value(argument: &Arg, value: &OsStr) -> Option<String> {
    if value.to_str().is_none() {
        return Some("expected text in UTF-8".to_owned());
    }
    let alone = argument
        .clone()
        .env(Resettable::Reset)
        .conflicts_with(Resettable::Reset)
        .requires(Resettable::Reset);
    let mut flag = OsString::from(format!("--{}=", argument.get_long()?));
    flag.push(value);
    let alone = Command::new("tollgate").no_binary_name(true).arg(alone);
    let error = alone.try_get_matches_from([flag]).err()?;
    Some(expectation(argument, &error))
}

/// The variable and the settings that exclude each other, if `error` is about that.
fn conflict(command: &Command, flags: &ArgMatches, error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::ArgumentConflict {
        return None;
    }
    let [blamed, others] =
        [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| context(error, kind));
    let is_concerned = |argument: &&Arg| {
        let name = argument.to_string();
        blamed.contains(&name) || others.contains(&name)
    };
    let variable = |argument: &Arg| {
        let name = argument.get_env().filter(|_| !is_given(flags, argument))?;
        std::env::var_os(name).map(|_| name.display().to_string())
    };
    let mut concerned: Vec<_> = command.get_arguments().filter(is_concerned).collect();
    let first = concerned.iter().position(|one| variable(one).is_some())?;
    let name = variable(concerned.remove(first))?;
    let others: Vec<_> = concerned
        .into_iter()
        .map(|other| {
            let flag = || format!("--{}", other.get_long().unwrap_or_default());
            variable(other).unwrap_or_else(flag)
        })
        .collect();
    Some(format!(
        "the variable {name}: cannot be set together with {}",
        others.join(", ")
    ))
}

/// The form that a value should have, and the value, unless it could be a secret.
fn expectation(argument: &Arg, error: &clap::Error) -> String {
    let values = context(error, ContextKind::ValidValue);
    let expected = match error.source() {
        Some(source) => source.to_string(),
        None if values.is_empty() => "expected another value".to_owned(),
        None => format!("expected one of {}", values.join(", ")),
    };
    match context(error, ContextKind::InvalidValue).first() {
        Some(value) if !argument.is_hide_env_values_set() => {
            format!("{expected}, not `{value}`")
        }
        _ => expected,
    }
}

fn context(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// The log format in a command line and an environment that may both be bad.
fn log_format(arguments: &[OsString], environment: &Environment) -> LogFormat {
    let mut format = None;
    let mut rest = arguments.iter().filter_map(|argument| argument.to_str());
    while let Some(argument) = rest.next() {
        match argument.split_once('=') {
            Some(("--log-format", value)) => format = Some(value),
            None if argument == "--log-format" => format = rest.next(),
            _ => {}
        }
    }
    let variable = environment.iter().find(|(name, _)| name == "LOG_FORMAT");
    let format = format.or_else(|| variable?.1.to_str());
    match format {
        Some(format) if format.eq_ignore_ascii_case("json") => LogFormat::Json,
        _ => LogFormat::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(arguments: &[&str], variable: Option<&str>, expected: LogFormat) {
        let arguments: Vec<_> = arguments.iter().map(OsString::from).collect();
        let environment: Environment = variable
            .map(|value| ("LOG_FORMAT".into(), value.into()))
            .into_iter()
            .collect();
        assert_eq!(log_format(&arguments, &environment), expected);
    }

    #[test]
    fn the_format_of_the_log_is_known_before_the_settings_are() {
        use LogFormat::{Json, Text};
        check(&["tollgate"], None, Text);
        check(&["tollgate", "--log-format", "json"], None, Json);
        check(&["tollgate", "--log-format=JSON", "--bad"], None, Json);
        check(&["tollgate", "--log-format"], None, Text);
        check(&["tollgate"], Some("json"), Json);
        check(&["tollgate", "--log-format", "text"], Some("json"), Text);
    }
}
