//! Flags and environment → typed [`Settings`]. The only file that reads the environment.

use std::{net::IpAddr, ops::RangeBounds, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, builder::RangedU64ValueParser};

/// The command line of tollgate.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    about = "Rate-limit sidecar for Envoy: several periods on one descriptor, counted in memory or in Redis",
    after_help = "Without a command tollgate serves: `tollgate --redis-url …` is `tollgate serve --redis-url …`."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer Envoy's ShouldRateLimit calls (what no command means, too)
    Serve(Box<Settings>),
    /// Check rule files: every problem at once, each with file, line, column and rule
    Check(Check),
    /// Ask a running server for a decision, as Envoy would
    Ask(Ask),
}

impl Cli {
    /// Parses the process's own arguments; ends the process with help or an error.
    pub fn from_process() -> Self {
        Self::parse_from(with_command(std::env::args()))
    }
}

/// Puts `serve` where no command is named.
fn with_command(arguments: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut arguments: Vec<String> = arguments.into_iter().collect();
    let names_no_command = match arguments.get(1).map(String::as_str) {
        None => true,
        Some("-h" | "--help" | "-V" | "--version") => false,
        Some(first) => first.starts_with('-'),
    };
    if names_no_command {
        arguments.insert(arguments.len().min(1), "serve".to_owned());
    }
    arguments
}

/// Everything that `serve` can be told. Each flag has an environment variable, under the name
/// that envoyproxy/ratelimit gives it where there is one.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// Folder of rule files (.yaml, .yml, .json, sub-folders included); watched for changes
    #[arg(
        long,
        env = "TOLLGATE_CONFIG_DIR",
        default_value = "config",
        value_name = "DIR"
    )]
    pub config_dir: PathBuf,

    /// Let several files name one domain; their descriptors are put together
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub merge_domains: bool,

    /// Start even if the first load of the rules fails; calls get UNAVAILABLE until one succeeds
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub start_without_rules: bool,

    #[command(flatten)]
    pub listen: Listen,

    #[command(flatten)]
    pub redis: Redis,

    /// Most counters held in memory; new ones above it are refused with UNAVAILABLE
    #[arg(
        long,
        env = "TOLLGATE_MAX_COUNTERS",
        default_value_t = 1_000_000,
        value_parser = number(1..),
        value_name = "N",
        help_heading = "Memory"
    )]
    pub max_counters: usize,

    #[command(flatten)]
    pub decisions: Decisions,

    #[command(flatten)]
    pub bounds: Bounds,

    #[command(flatten)]
    pub process: Process,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Listeners")]
pub struct Listen {
    /// Address of the gRPC port
    #[arg(long, env = "GRPC_HOST", default_value = "0.0.0.0", value_name = "IP")]
    pub grpc_host: IpAddr,

    /// gRPC port; 0 takes a free one
    #[arg(long, env = "GRPC_PORT", default_value_t = 8081, value_name = "PORT")]
    pub grpc_port: u16,

    /// Address of the HTTP port (/healthcheck)
    #[arg(long, env = "HOST", default_value = "0.0.0.0", value_name = "IP")]
    pub host: IpAddr,

    /// HTTP port; 0 takes a free one
    #[arg(long, env = "PORT", default_value_t = 8080, value_name = "PORT")]
    pub port: u16,

    /// Address of the debug port (/metrics, /rlconfig); loopback unless told otherwise
    #[arg(
        long,
        env = "DEBUG_HOST",
        default_value = "127.0.0.1",
        value_name = "IP"
    )]
    pub debug_host: IpAddr,

    /// Debug port; 0 takes a free one
    #[arg(long, env = "DEBUG_PORT", default_value_t = 6070, value_name = "PORT")]
    pub debug_port: u16,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Redis")]
pub struct Redis {
    /// Count in this Redis instead of in memory: redis://[user:password@]host:port[/database],
    /// host:port or a socket path
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    pub redis_url: Option<String>,

    /// Longest that a decision waits for Redis; keep it below Envoy's timeout, which is 20ms
    #[arg(long, env = "TOLLGATE_REDIS_TIMEOUT", default_value = "10ms", value_parser = duration, value_name = "DURATION")]
    pub redis_timeout: Duration,

    /// Connections of each worker; one makes the largest batches
    #[arg(long, env = "TOLLGATE_REDIS_CONNECTIONS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    pub redis_connections: u32,

    /// What every key in Redis begins with
    #[arg(
        long,
        env = "CACHE_KEY_PREFIX",
        default_value = "",
        value_name = "TEXT"
    )]
    pub key_prefix: String,

    /// Requests of one worker that may wait for Redis at a time; more get UNAVAILABLE at once
    #[arg(
        long,
        env = "TOLLGATE_REDIS_MAX_WAITING",
        default_value_t = 10_000,
        value_parser = number(1..),
        value_name = "N"
    )]
    pub redis_max_waiting: usize,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Decisions")]
pub struct Decisions {
    /// Count and report as usual, but answer OK to everything
    #[arg(long, env = "SHADOW_MODE", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub shadow_mode: bool,

    /// Refuse only if every limited descriptor of a request is over
    #[arg(long, env = "QUOTA_MODE", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub quota_mode: bool,

    /// Share of a limit above which hits are counted as near it
    #[arg(
        long,
        env = "NEAR_LIMIT_RATIO",
        default_value_t = 0.8,
        value_name = "RATIO"
    )]
    pub near_limit_ratio: f32,
}

#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Bounds on requests")]
pub struct Bounds {
    /// Largest message in bytes
    #[arg(long, env = "TOLLGATE_MAX_MESSAGE_BYTES", default_value_t = 4 << 20, value_parser = number(1..), value_name = "N")]
    pub max_message_bytes: usize,

    /// Most descriptors of a request
    #[arg(
        long,
        env = "TOLLGATE_MAX_DESCRIPTORS",
        default_value_t = 1000,
        value_parser = number(1..),
        value_name = "N"
    )]
    pub max_descriptors: usize,

    /// Most entries of a descriptor
    #[arg(
        long,
        env = "TOLLGATE_MAX_ENTRIES",
        default_value_t = 100,
        value_parser = number(1..),
        value_name = "N"
    )]
    pub max_entries: usize,

    /// Longest domain, key or value in bytes; Envoy's own bound on all headers is 60 KiB
    #[arg(long, env = "TOLLGATE_MAX_TEXT_BYTES", default_value_t = 64 << 10, value_parser = number(1..), value_name = "N")]
    pub max_text_bytes: usize,

    /// Most gRPC connections; further ones wait to be accepted
    #[arg(
        long,
        env = "TOLLGATE_MAX_CONNECTIONS",
        default_value_t = 10_000,
        value_parser = number(1..=1_000_000),
        value_name = "N"
    )]
    pub max_connections: usize,

    /// Most calls of one connection at a time
    #[arg(
        long,
        env = "TOLLGATE_MAX_STREAMS",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..),
        value_name = "N"
    )]
    pub max_streams: u32,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Process")]
pub struct Process {
    /// Worker threads, each with its own runtime; 0 means one a core
    #[arg(long, env = "TOLLGATE_WORKERS", default_value_t = 0, value_parser = number(0..=1024), value_name = "N")]
    pub workers: usize,

    /// How long to keep serving after SIGTERM, with health already bad, before connections are
    /// told to go
    #[arg(long, env = "TOLLGATE_DRAIN_DELAY", default_value = "3s", value_parser = duration, value_name = "DURATION")]
    pub drain_delay: Duration,

    /// How long calls under way may then take to end
    #[arg(long, env = "TOLLGATE_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration, value_name = "DURATION")]
    pub drain_timeout: Duration,

    /// Least level of log lines
    #[arg(
        long,
        env = "LOG_LEVEL",
        default_value = "info",
        value_enum,
        ignore_case = true,
        value_name = "LEVEL"
    )]
    pub log_level: LogLevel,

    /// Form of log lines on standard error
    #[arg(
        long,
        env = "LOG_FORMAT",
        default_value = "text",
        value_enum,
        ignore_case = true,
        value_name = "FORMAT"
    )]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Also the reference's `panic` and `fatal`, which tollgate does not tell apart
    #[value(aliases = ["panic", "fatal"])]
    Error,
    #[value(alias = "warning")]
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub struct Check {
    /// Rule files, or folders of them
    #[arg(required = true, value_name = "DIR|FILE")]
    pub paths: Vec<PathBuf>,

    /// Let several files name one domain, as `serve --merge-domains` does
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub merge_domains: bool,
}

#[derive(Debug, Args)]
pub struct Ask {
    /// Where the server listens
    #[arg(long, default_value = "http://127.0.0.1:8081", value_name = "URL")]
    pub server: String,

    /// Namespace of the rules
    #[arg(long, value_name = "NAME")]
    pub domain: String,

    /// A descriptor: its entries in order, separated by commas; `\,` is a comma, `\=` an equals
    /// sign and `\\` a backslash
    #[arg(short, long = "descriptor", required = true, value_name = "K=V[,K=V…]", value_parser = entries)]
    pub descriptors: Vec<Entries>,

    /// Hits of each descriptor; 0 looks without counting
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub hits: u64,

    /// Print the reply as proto3 JSON
    #[arg(long)]
    pub json: bool,

    /// How long to wait for the answer
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// The keys and values of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries(pub Vec<(String, String)>);

fn entries(text: &str) -> Result<Entries, String> {
    let mut entries = vec![(String::new(), None::<String>)];
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        let (key, value) = entries.last_mut().expect("there is always an entry");
        match (next, value) {
            (',', _) => entries.push((String::new(), None)),
            ('=', value @ None) => *value = Some(String::new()),
            (next, value) => {
                let literal = match next {
                    '\\' => rest.next().ok_or("nothing follows the last backslash")?,
                    other => other,
                };
                value.as_mut().unwrap_or(key).push(literal);
            }
        }
    }
    let pair = |(key, value): (String, Option<String>)| match value {
        Some(value) if !key.is_empty() => Ok((key, value)),
        _ => Err(format!("`{key}` is not KEY=VALUE")),
    };
    Ok(Entries(
        entries.into_iter().map(pair).collect::<Result<_, _>>()?,
    ))
}

/// A number in `range`: 0 of a thing that every request needs is a slip, and so is more than a
/// process could have.
fn number(range: impl RangeBounds<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// A boolean as Go's `strconv.ParseBool` reads it.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("expected true or false (or 1, t, 0, f)".to_owned()),
    }
}

/// A duration as Go's `time.ParseDuration` reads it: `10ms`, `1h30m`, `1.5s`, `0`; no negative
/// ones.
fn duration(text: &str) -> Result<Duration, String> {
    let bad = || {
        format!(
            "`{text}` is no duration; write a number and ns, us, ms, s, m or h, such as 10ms or 1h30m"
        )
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end_of_number = rest
            .find(|next: char| !next.is_ascii_digit() && next != '.')
            .ok_or_else(bad)?;
        let (number, behind) = rest.split_at(end_of_number);
        let end_of_unit = behind
            .find(|next: char| next.is_ascii_digit() || next == '.')
            .unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end_of_unit);
        let unit_secs = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        let part = Duration::try_from_secs_f64(number * unit_secs).map_err(|_| bad())?;
        total = total.checked_add(part).ok_or_else(bad)?;
        rest = behind;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
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
            with_command(arguments.iter().map(|&argument| argument.to_owned())).join(" ")
        };
        assert_eq!(with(&["tollgate"]), "tollgate serve");
        assert_eq!(
            with(&["tollgate", "--port", "1"]),
            "tollgate serve --port 1"
        );
        assert_eq!(with(&["tollgate", "check", "x"]), "tollgate check x");
        assert_eq!(with(&["tollgate", "--help"]), "tollgate --help");
    }

    #[test]
    fn durations_are_those_of_go() {
        assert_eq!(duration("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("150us"), Ok(Duration::from_micros(150)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1x",
            "1s5",
            "1..5s",
            "9999999999999999999999h",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn booleans_are_those_of_go() {
        assert_eq!(boolean("T"), Ok(true));
        assert_eq!(boolean("0"), Ok(false));
        assert!(boolean("yes").is_err());
        assert!(boolean("").is_err());
    }

    #[test]
    fn descriptors_are_pairs_with_an_escape() {
        let pairs = |text: &str| {
            let Entries(pairs) = entries(text).unwrap();
            pairs
                .iter()
                .map(|(key, value)| format!("{key}→{value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(pairs("a=b,c=d=e"), ["a→b", "c→d=e"]);
        assert_eq!(pairs(r"a\=b=c\,d,e="), ["a=b→c,d", "e→"]);
        for bad in ["", "a", "a=b,", "=b", "a=b\\"] {
            assert!(entries(bad).is_err(), "{bad}");
        }
    }
}
