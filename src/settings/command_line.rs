//! Turns flags and environment into typed [`Settings`]. Only this module and its submodules read the environment.

pub(crate) mod clients;
pub(crate) mod lint_envoy;
mod shell;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::{clients::CountersCommand, lint_envoy::LintEnvoy};
use crate::{
    core::counter::KeyFormat,
    foundation::build::VERSION_AND_COMMIT,
    settings::{
        command_line::clients::{Reading, ReportFormat},
        environment::{self, UsageError},
        resolved::resolved,
        serve::Settings,
        shapes::{ArgShape as _, named},
    },
};

pub(crate) use crate::settings::command_line::clients::Ask;
pub(crate) use crate::settings::command_line::clients::Explain;
pub(crate) use crate::settings::command_line::clients::HealthCheck;
pub(crate) use shell::{Completions, Manual};

/// The command line of tollgate.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version = VERSION_AND_COMMIT,
    about = "Rate-limit sidecar for Envoy: several periods on one descriptor, counted in memory or in Redis",
    after_help = "\
Examples:
  tollgate check rules/
  tollgate serve --config-dir rules/ --redis-url redis://localhost
  tollgate ask --domain shop -d remote_address=192.0.2.1

Without a command, `serve` is assumed. Each of its settings has an environment variable, which `tollgate serve --help` \
names. The documents are in docs/ of the repository, and its README.md lists them."
)]
pub struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve Envoy's ShouldRateLimit calls (the default command)
    #[command(
        after_help = "Traces have variables only: TRACING_ENABLED and others of envoyproxy/ratelimit, and those of \
                      OpenTelemetry's SDK, such as OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS; \
                      docs/run/traces.md has all of them."
    )]
    Serve(Box<Settings>),
    /// Check rule files: reports every problem, each with file, line, column and rule
    Check(Check),
    /// Ask a running server for a decision, as Envoy does
    Ask(Ask),
    /// Show or reset the counters of a running server
    Counters(CountersCommand),
    /// Explain how a request would be decided, and why: by rule files, or by a running server
    Explain(Explain),
    /// Find settings in Envoy configurations that Envoy accepts but that limit nothing
    LintEnvoy(LintEnvoy),
    /// Ask the server on this machine for its health, using the variables that it was started with
    Healthcheck(HealthCheck),
    /// Print the JSON Schema of rule files, by which editors complete and check them
    Schema,
    /// Print a script that completes the command line in a shell
    Completions(Completions),
    /// Print a manual page
    Man(Manual),
}

impl Cli {
    /// Parses the process's own arguments and its environment.
    ///
    /// # Errors
    ///
    /// If they ask for help, or one of them is wrong.
    pub(crate) fn from_process() -> Result<Self, UsageError> {
        // File names can be any bytes.
        let arguments: Vec<OsString> = std::env::args_os().collect();
        let (command, arguments) = if is_ratelimit(&arguments) {
            // As in the reference's image, only the environment counts.
            (
                as_ratelimit(Self::command()),
                vec![arguments[0].clone(), "serve".into()],
            )
        } else {
            (Self::command(), with_command(arguments))
        };
        let environment = std::env::vars_os().collect();
        let matches = environment::parse(&command, &arguments, &environment)?;
        let mut cli = Self::resolve(&command, &matches);
        if let Command::Serve(settings) = &mut cli.command {
            settings.unread_variables = environment::unread(&command, &environment);
        }
        Ok(cli)
    }
}

impl Cli {
    /// The command in `matches`, which `command` has validated.
    fn resolve(command: &clap::Command, matches: &ArgMatches) -> Self {
        let mut cli = Self::from_arg_matches(matches).expect("clap has checked the values");
        if let (Command::Serve(settings), Some(serve), Some(("serve", matches))) = (
            &mut cli.command,
            command.find_subcommand("serve"),
            matches.subcommand(),
        ) {
            settings.resolved = resolved(serve, matches);
        }
        cli
    }
}

#[cfg(test)]
impl Settings {
    /// The settings of a process without flags.
    pub(crate) fn from_environment() -> Self {
        match Cli::parse_from(["tollgate", "serve"]).command {
            Command::Serve(settings) => *settings,
            _ => unreachable!("that is what was asked for"),
        }
    }
}

/// Whether the program was started under the reference's name.
fn is_ratelimit(arguments: &[OsString]) -> bool {
    let program = arguments.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| name == "ratelimit")
}

/// Defaults of the reference that differ from tollgate's in ways that an operator could notice.
const RATELIMIT_DEFAULTS: [(&str, &str); 6] = [
    ("runtime_root", "/srv/runtime_data/current"),
    ("backend", "redis"),
    ("statsd", "true"),
    ("expiration_jitter", "300"),
    ("local_cache_bytes", "0"),
    ("log_level", "warn"),
];

/// The command line with the reference's defaults.
fn as_ratelimit(command: clap::Command) -> clap::Command {
    command.mut_subcommand("serve", |serve| {
        RATELIMIT_DEFAULTS
            .into_iter()
            .fold(serve, |serve, (id, default)| {
                serve.mut_arg(id, |argument| argument.default_value(default))
            })
    })
}

/// Inserts `serve` if the arguments name no command.
fn with_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let first = arguments.get(1).map(|first| first.as_encoded_bytes());
    let names_no_command = match first {
        None => true,
        Some(b"-h" | b"--help" | b"-V" | b"--version") => false,
        Some(first) => first.starts_with(b"-"),
    };
    if names_no_command {
        arguments.insert(arguments.len().min(1), "serve".into());
    }
    arguments
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 if the rules can be used, 1 if there are errors, or warnings under --deny-warnings, \
                  2 if something cannot be read or the command line is wrong."
)]
pub(crate) struct Check {
    /// Rule files, or folders of them; - is standard input
    #[arg(required = true, value_name = "DIR|FILE")]
    pub paths: Vec<PathBuf>,

    /// Form of the report
    #[arg(long, default_value = "text", value_enum, value_name = "FORMAT")]
    pub format: ReportFormat,

    /// Fail if there are warnings
    #[arg(long)]
    pub deny_warnings: bool,

    #[command(flatten)]
    pub(crate) reading: Reading,

    /// Also check that `serve --key-format` can write the keys
    #[arg(long, env = "TOLLGATE_KEY_FORMAT", value_parser = named::<KeyFormat>(), choice = ("FORMAT", "native"))]
    pub key_format: KeyFormat,

    #[command(flatten)]
    pub replicas: super::serve::ReplicaSettings,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::source::Source;
    use crate::settings::process::LogLevel;
    use crate::settings::resolved::{ResolvedValue, SettingSource};
    use crate::store::redis::topology::address::Secret;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        as_ratelimit(Cli::command()).debug_assert();
    }

    /// The settings of a process with this `name` and these `arguments`.
    fn settings(name: &str, arguments: &[&str]) -> Settings {
        let command = match name {
            "ratelimit" => as_ratelimit(Cli::command()),
            _ => Cli::command(),
        };
        let arguments = [&[name, "serve"], arguments].concat();
        let matches = command.clone().try_get_matches_from(arguments).unwrap();
        match Cli::resolve(&command, &matches).command {
            Command::Serve(settings) => *settings,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn settings_can_be_printed_without_a_secret() {
        let flags = [
            ("--redis-url", "redis://u:sesame@h:1"),
            ("--redis-auth", "u:sesame"),
            ("--redis-sentinel-auth", "sesame"),
            ("--redis-per-second-url", "redis://:sesame@h:1"),
            ("--redis-per-second-auth", "sesame"),
            ("--redis-per-second-sentinel-auth", "sesame"),
            ("--xds-headers", "authorization:sesame"),
        ];
        let arguments: Vec<_> = flags
            .iter()
            .flat_map(|(name, value)| [*name, value])
            .collect();
        let settings = settings("tollgate", &arguments);
        let printed = format!("{settings:?} {:?}", settings.redis.address());
        assert!(printed.contains("redis_url"), "{printed}");
        assert!(!printed.contains("sesame"), "{printed}");
        let shown = settings.resolved.iter();
        let secrets = shown.filter(|setting| setting.value == ResolvedValue::Secret);
        let secrets: BTreeSet<_> = secrets.map(|setting| &*setting.flag).collect();
        assert_eq!(secrets, flags.map(|(flag, _)| flag).into());
    }

    #[test]
    fn settings_in_use_are_shown_with_their_origin() {
        let settings = settings("tollgate", &["--port", "1", "--extra-tags", "a:b,c:d"]);
        let find = |flag: &str| {
            settings
                .resolved
                .iter()
                .find(|one| one.flag == flag)
                .unwrap()
        };
        let text = |text: &str| ResolvedValue::Text(text.to_owned());
        for (flag, value, source) in [
            ("--port", text("1"), SettingSource::Flag),
            ("--debug-port", text("6070"), SettingSource::Default),
            ("--extra-tags", text("a:b,c:d"), SettingSource::Flag),
            ("--strict-matching", text("false"), SettingSource::Default),
            ("--redis-url", ResolvedValue::Unset, SettingSource::Default),
        ] {
            let found = find(flag);
            assert_eq!((&found.value, found.source), (&value, source), "{flag}");
        }
        assert_eq!(find("--port").variable.as_deref(), Some("PORT"));
        assert_eq!(find("--redis-url").group, "Redis");
    }

    #[test]
    fn by_the_name_of_the_reference_its_defaults_hold() {
        let ours = settings("tollgate", &[]);
        assert!(ours.redis.address().is_none());
        assert!(matches!(ours.source(), Source::Paths(paths) if paths == [Path::new("config")]));
        let theirs = settings("ratelimit", &[]);
        let socket = "/var/run/nutcracker/ratelimit.sock";
        let text = |url: &str| Secret::Text(url.to_owned());
        assert_eq!(theirs.redis.address().unwrap().url, text(socket));
        assert_eq!(theirs.process.log_level, LogLevel::Warn);
        let Source::Runtime(runtime) = theirs.source() else {
            panic!("{:?}", theirs.source());
        };
        assert_eq!(runtime.root, Path::new("/srv/runtime_data/current"));
        assert!(runtime.watches_root);
        assert!(is_ratelimit(&["/bin/ratelimit".into()]));
        assert!(!is_ratelimit(&["/bin/tollgate".into()]));
    }

    #[test]
    fn memory_is_the_store_only_if_no_backend_was_named() {
        let address = |arguments: &[&str]| {
            let address = settings("tollgate", arguments).redis.address();
            address.map(|address| match address.url {
                Secret::Text(url) => url,
                Secret::File(path) => path.display().to_string(),
            })
        };
        assert_eq!(address(&["--redis-url-file", "f"]).as_deref(), Some("f"));
        assert_eq!(address(&["--redis-url", ""]), None);
        assert_eq!(address(&["--redis-url", "h:1"]).as_deref(), Some("h:1"));
        let unix = ["--redis-url", "run/x", "--redis-socket-type", "unix"];
        assert_eq!(address(&unix).as_deref(), Some("unix://run/x"));
        let default = "/var/run/nutcracker/ratelimit.sock";
        assert_eq!(address(&["--backend", "redis"]).as_deref(), Some(default));
        assert_eq!(address(&["--redis-auth", "x"]).as_deref(), Some(default));
    }

    #[test]
    fn every_flag_of_serve_has_an_environment_variable() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let without: Vec<_> = serve
            .get_arguments()
            .filter(|argument| argument.get_env().is_none() && argument.get_id() != "help")
            .map(|argument| argument.get_id().as_str())
            .collect();
        assert_eq!(without, [""; 0]);
    }

    #[test]
    fn no_command_means_serve() {
        let with = |arguments: &[&str]| {
            with_command(arguments.iter().map(OsString::from).collect()).join(" ".as_ref())
        };
        assert_eq!(with(&["tollgate"]), "tollgate serve");
        assert_eq!(
            with(&["tollgate", "--port", "1"]),
            "tollgate serve --port 1"
        );
        assert_eq!(with(&["tollgate", "check", "x"]), "tollgate check x");
        assert_eq!(with(&["tollgate", "--help"]), "tollgate --help");
    }
}
