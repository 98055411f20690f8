//! Reads the command line and the environment by clap, whose errors name flags. If the value comes from a variable, the
//! error names that instead, and does not show it if it can be a secret.

use std::ffi::{OsStr, OsString};

use clap::{
    Arg, ArgMatches, Command,
    builder::Resettable,
    error::{ContextKind, ContextValue},
};

use super::process::LogFormat;

/// The names and values of all environment variables.
pub(super) type Environment = Vec<(OsString, OsString)>;

/// The prefix of tollgate's own variables.
const OURS: &str = "TOLLGATE_";

/// The command line or the environment is bad, or asks for help.
#[derive(Debug)]
pub(crate) struct UsageError {
    pub(crate) error: clap::Error,
    /// The log format that was asked for.
    pub(crate) log_format: LogFormat,
}

/// Parses `arguments` and `environment` as `command` defines them.
///
/// # Errors
///
/// If one of them is bad, or asks for help.
pub(super) fn parse(
    command: &Command,
    arguments: &[OsString],
    environment: &Environment,
) -> Result<ArgMatches, UsageError> {
    let is_link = |name: &OsStr| {
        let mut variables = environment.iter();
        variables.any(|(known, value)| known == name && is_service_link(name, value))
    };
    let mut command = command.clone().mut_subcommands(|command| {
        command.mut_args(|argument| {
            // A negative number is a wrong value at worst, not an unexpected argument.
            let takes_values = argument.get_action().takes_values();
            let argument = argument.allow_negative_numbers(takes_values);
            match argument.get_env() {
                Some(name) if is_link(name) => argument.env(Resettable::Reset),
                _ => argument,
            }
        })
    });
    let parsed = command.try_get_matches_from_mut(arguments);
    parsed.map_err(|error| UsageError {
        error: by_variable(&mut command, arguments, error),
        log_format: log_format(arguments, environment),
    })
}

/// Whether Kubernetes set this variable for a Service: one called `statsd` causes `STATSD_PORT=tcp://10.0.0.3:8125`.
fn is_service_link(name: &OsStr, value: &OsStr) -> bool {
    let is_url = value.to_str().is_some_and(|value| value.contains("://"));
    is_url && name.to_str().is_some_and(|name| name.ends_with("_PORT"))
}

/// Names the variables in `error` that the values of its arguments come from.
fn by_variable(
    command: &mut Command,
    arguments: &[OsString],
    mut error: clap::Error,
) -> clap::Error {
    // Only a built command names its flags as they appear in errors.
    command.build();
    let name = arguments.get(1);
    let Some(command) = name.and_then(|name| command.find_subcommand(name)) else {
        return error;
    };
    let variable = |shown: &String| -> Option<(&Arg, String)> {
        let argument = command
            .get_arguments()
            .find(|one| one.to_string() == *shown)?;
        let name = argument.get_env()?.to_str()?;
        let flag = format!("--{}", argument.get_long()?);
        let is_flag = |given: &OsString| {
            let given = given.to_string_lossy();
            given.split('=').next() == Some(&flag)
        };
        let is_given = arguments.iter().any(is_flag) || std::env::var_os(name).is_none();
        (!is_given).then(|| (argument, name.to_owned()))
    };
    let mut is_secret = false;
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        let Some(ContextValue::String(shown)) = error.get(kind) else {
            continue;
        };
        if let Some((argument, name)) = variable(shown) {
            is_secret |= argument.is_hide_env_values_set();
            error.insert(kind, ContextValue::String(name));
        }
    }
    if is_secret {
        let hidden = ContextValue::String("…".to_owned());
        error.insert(ContextKind::InvalidValue, hidden);
    }
    error
}

/// The names of tollgate's own variables that no setting of `command` reads, such as those of former settings. Values
/// can be secrets.
pub(super) fn unread(command: &Command, environment: &Environment) -> Vec<String> {
    let flags = command.get_subcommands().flat_map(Command::get_arguments);
    let known: Vec<&OsStr> = flags.filter_map(Arg::get_env).collect();
    let unread = environment.iter().filter(|(name, value)| {
        !known.contains(&name.as_os_str()) && !is_service_link(name, value)
    });
    let mut names: Vec<_> = unread
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with(OURS))
        .collect();
    names.sort();
    names
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
    use clap::CommandFactory as _;

    use super::*;
    use crate::settings::command_line::Cli;

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

    #[test]
    fn our_variables_that_no_setting_reads_are_found() {
        let environment = [
            ("TOLLGATE_STATE_FILE", "x"),
            ("TOLLGATE_MAX_COUNTER", "5"),
            ("TOLLGATE_MAX_COUNTERS", "5"),
            ("TOLLGATE_PORT", "tcp://10.0.0.1:8081"),
            ("TOLLGATEWAY", "x"),
            ("PATH", "/bin"),
        ];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let unread = unread(&Cli::command(), &environment.into());
        assert_eq!(unread, ["TOLLGATE_MAX_COUNTER", "TOLLGATE_STATE_FILE"]);
    }

    #[test]
    fn only_the_url_of_a_port_is_that_of_a_service() {
        for (name, value, expected) in [
            ("STATSD_PORT", "tcp://10.0.0.3:8125", true),
            ("STATSD_PORT", "8125", false),
            ("REDIS_URL", "tcp://10.0.0.3:6379", false),
        ] {
            assert_eq!(
                is_service_link(name.as_ref(), value.as_ref()),
                expected,
                "{name}={value}"
            );
        }
    }
}
