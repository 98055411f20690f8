//! Flags and environment → typed [`Settings`]. The only file that reads the environment.

use std::{
    convert::Infallible,
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    ops::RangeBounds,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
    builder::RangedU64ValueParser,
};

use crate::{
    config::{self, Source},
    counter,
    metrics::{
        mogrifier::{Mogrifier, MogrifierError},
        statsd,
    },
    store::redis,
};

pub mod reference;

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
        // Names of files may be any bytes.
        let arguments: Vec<OsString> = std::env::args_os().collect();
        let matches = if is_ratelimit(&arguments) {
            // As the reference's image starts it: by environment alone.
            let arguments = [arguments[0].as_os_str(), "serve".as_ref()];
            as_ratelimit(Self::command()).get_matches_from(arguments)
        } else {
            Self::command().get_matches_from(with_command(arguments))
        };
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Whether the program goes by the name of the reference's.
fn is_ratelimit(arguments: &[OsString]) -> bool {
    let program = arguments.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| name == "ratelimit")
}

/// Defaults of the reference where ours are others and somebody could notice.
const RATELIMIT_DEFAULTS: [(&str, &str); 5] = [
    ("runtime_root", "/srv/runtime_data/current"),
    ("backend", "redis"),
    ("statsd", "true"),
    ("expiration_jitter", "300"),
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

impl Stats {
    /// Who gets statistics sent, and how.
    ///
    /// # Errors
    ///
    /// If a mogrifier's variables do not make a rule.
    pub fn sinks(&self) -> Result<Vec<statsd::Options>, MogrifierError> {
        let mut sinks = Vec::new();
        let sink = |transport, dialect| statsd::Options {
            host: self.statsd_host.clone(),
            port: self.statsd_port,
            transport,
            dialect,
            extra_tags: self.extra_tags.clone(),
            flush_interval: self.stats_flush_interval,
        };
        if self.disable_stats {
            return Ok(sinks);
        }
        if self.statsd && !self.dog_statsd {
            let transport = match self.statsd_protocol {
                StatsdProtocol::Tcp => statsd::Transport::Tcp,
                StatsdProtocol::Udp => statsd::Transport::Udp,
            };
            sinks.push(sink(transport, statsd::Dialect::Statsd));
        }
        if self.dog_statsd {
            let names = self
                .dog_statsd_mogrifiers
                .iter()
                .filter(|name| !name.is_empty());
            let rules = names
                .map(|name| mogrifier(name))
                .collect::<Result<_, _>>()?;
            sinks.push(sink(
                statsd::Transport::Udp,
                statsd::Dialect::DogStatsd(rules),
            ));
        }
        Ok(sinks)
    }
}

/// The rule that the variables of `name` make.
fn mogrifier(name: &str) -> Result<Mogrifier, MogrifierError> {
    #[expect(clippy::disallowed_methods, reason = "this file reads the environment")]
    let part = |part: &str| {
        std::env::var(format!("DOG_STATSD_MOGRIFIER_{name}_{part}")).unwrap_or_default()
    };
    let tags = part("TAGS");
    let tags: Vec<_> = tags
        .split(',')
        .filter(|tag| !tag.is_empty())
        .map(|tag| {
            let (tag, value) = tag.split_once(':').unwrap_or((tag, ""));
            (tag.to_owned(), value.to_owned())
        })
        .collect();
    Mogrifier::new(name, &part("PATTERN"), &part("NAME"), &tags)
}

/// What to say of the reference's variables that are set and have no effect.
///
/// # Errors
///
/// If one of them asks for something that must not be left out.
pub fn reference_notes() -> Result<Vec<String>, reference::Unsupported> {
    reference::notes(std::env::vars_os())
}

/// Puts `serve` where no command is named.
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

/// Everything that `serve` can be told. Each flag has an environment variable, under the name
/// that envoyproxy/ratelimit gives it where there is one.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// Folder of rule files (.yaml, .yml, .json, sub-folders included); watched for changes
    /// [default: config, or what --runtime-root says]
    #[arg(long, env = "TOLLGATE_CONFIG_DIR", value_parser = file_path, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,

    /// Let several files name one domain; their descriptors are put together
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub merge_domains: bool,

    /// Match keys and values apart; without it the entry (a, b) is also the bare key a_b, as in
    /// envoyproxy/ratelimit
    #[arg(long, env = "TOLLGATE_STRICT_MATCHING", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub strict_matching: bool,

    /// Start even if the first load of the rules fails; calls get UNAVAILABLE until one succeeds
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub start_without_rules: bool,

    /// Report good health only while the rules in use have at least one domain
    #[arg(long, env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub healthy_with_rules_only: bool,

    #[command(flatten)]
    pub runtime: Runtime,

    #[command(flatten)]
    pub listen: Listen,

    #[command(flatten)]
    pub redis: Redis,

    #[command(flatten)]
    pub redis_per_second: RedisPerSecond,

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
    pub stats: Stats,

    #[command(flatten)]
    pub process: Process,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Statistics")]
pub struct Stats {
    /// Send statistics to a statsd collector
    #[arg(long, env = "USE_STATSD", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub statsd: bool,

    /// Host of the collector
    #[arg(
        long,
        env = "STATSD_HOST",
        default_value = "localhost",
        value_name = "HOST"
    )]
    pub statsd_host: String,

    /// Port of the collector
    #[arg(long, env = "STATSD_PORT", default_value_t = 8125, value_name = "PORT")]
    pub statsd_port: u16,

    /// How lines travel to a statsd collector
    #[arg(
        long,
        env = "STATSD_PROTOCOL",
        default_value = "tcp",
        value_enum,
        ignore_case = true,
        value_name = "PROTOCOL"
    )]
    pub statsd_protocol: StatsdProtocol,

    /// Send statistics to a DogStatsD agent, over UDP
    #[arg(long, env = "USE_DOG_STATSD", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub dog_statsd: bool,

    /// Names of rules that rewrite names for DogStatsD; each has its own variables
    /// DOG_STATSD_MOGRIFIER_NAME_PATTERN, …_NAME and …_TAGS, with its own name for NAME
    #[arg(
        long,
        env = "USE_DOG_STATSD_MOGRIFIERS",
        value_delimiter = ',',
        value_name = "NAME,…"
    )]
    pub dog_statsd_mogrifiers: Vec<String>,

    /// Tags for everything, as tag:value pairs
    #[arg(long, env = "EXTRA_TAGS", value_delimiter = ',', value_parser = tag, value_name = "TAG:VALUE,…")]
    pub extra_tags: Vec<(String, String)>,

    /// How often statistics are sent
    #[arg(long, env = "STATS_FLUSH_INTERVAL",
        default_value = "10s",
        value_parser = some_time, value_name = "DURATION")]
    pub stats_flush_interval: Duration,

    /// Send nothing, whatever the other flags say; the debug port shows statistics all the same
    #[arg(long, env = "DISABLE_STATS", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub disable_stats: bool,

    /// Serve statistics to Prometheus on a port of their own
    #[arg(long, env = "USE_PROMETHEUS", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub prometheus: bool,

    /// Address of that port; without a host on all of them
    #[arg(long, env = "PROMETHEUS_ADDR", default_value = ":9090", value_parser = address, value_name = "[HOST]:PORT")]
    pub prometheus_address: SocketAddr,

    /// Path of the page
    #[arg(long, env = "PROMETHEUS_PATH", default_value = "/metrics", value_parser = path, value_name = "PATH")]
    pub prometheus_path: String,

    /// File that maps statsd names to Prometheus', in the format of statsd_exporter; a missing
    /// one is said and left out
    #[arg(long, env = "PROMETHEUS_MAPPER_YAML", value_parser = file_path, value_name = "FILE")]
    pub prometheus_mapping: Option<PathBuf>,

    /// Tell response times in milliseconds where the mapping file does not say otherwise
    #[arg(long, env = "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub prometheus_milliseconds: bool,

    /// Most names of statistics that requests make up: values of detailed_metric and
    /// value_to_metric, limit overrides, unknown domains
    #[arg(
        long,
        env = "TOLLGATE_MAX_METRIC_NAMES",
        default_value_t = 10_000,
        value_name = "N"
    )]
    pub max_metric_names: usize,
}

/// Where the reference keeps its rules. Every file counts there, whatever its name.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Rules where envoyproxy/ratelimit keeps them")]
pub struct Runtime {
    /// Upper part of the folder; unless --config-dir is given, this or the next flag turns from
    /// tollgate's own way of reading rules to the reference's [default: /srv/runtime_data/current]
    #[arg(long, env = "RUNTIME_ROOT", value_parser = file_path, value_name = "DIR")]
    pub runtime_root: Option<PathBuf>,

    /// Middle part of the folder
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", value_parser = file_path, value_name = "DIR")]
    pub runtime_subdirectory: Option<PathBuf>,

    /// Last part of the folder
    #[arg(
        long,
        env = "RUNTIME_APPDIRECTORY", value_parser = file_path,
        default_value = "config",
        value_name = "DIR"
    )]
    pub runtime_app_directory: PathBuf,

    /// Leave out names that begin with a dot
    #[arg(long, env = "RUNTIME_IGNOREDOTFILES", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub runtime_ignore_dot_files: bool,

    /// Take the last part for the beginning of names in the middle folder, with dots for slashes
    #[arg(long, env = "RUNTIME_WATCH_ROOT", default_value = "true", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub runtime_watch_root: bool,
}

impl Settings {
    /// Where the rules are.
    pub fn source(&self) -> Source {
        let runtime = &self.runtime;
        let is_runtime = runtime.runtime_root.is_some() || runtime.runtime_subdirectory.is_some();
        match &self.config_dir {
            Some(folder) if !folder.as_os_str().is_empty() => Source::Paths(vec![folder.clone()]),
            _ if is_runtime => Source::Runtime(config::Runtime {
                root: runtime
                    .runtime_root
                    .clone()
                    .unwrap_or_else(|| "/srv/runtime_data/current".into()),
                subdirectory: runtime.runtime_subdirectory.clone().unwrap_or_default(),
                app_directory: runtime.runtime_app_directory.clone(),
                ignores_dot_files: runtime.runtime_ignore_dot_files,
                watches_root: runtime.runtime_watch_root,
            }),
            _ => Source::Paths(vec!["config".into()]),
        }
    }
}

impl Redis {
    /// The address of Redis, or nothing if counters are to be held in memory: that is so only if
    /// nothing at all was said about a backend.
    pub fn address(&self) -> Option<redis::Address> {
        let is_asked_for = self.backend.is_some()
            || self.redis_socket_type.is_some()
            || self.redis_type.is_some()
            || self.redis_auth.is_some();
        // The reference's default.
        let default = is_asked_for.then_some("/var/run/nutcracker/ratelimit.sock");
        let given = self.redis_url.as_deref().filter(|url| !url.is_empty());
        Some(redis::Address {
            url: with_socket_type(given.or(default)?, self.redis_socket_type),
            auth: self.redis_auth.clone(),
            timeout: self.redis_connect_timeout,
        })
    }
}

impl RedisPerSecond {
    /// The address of the second Redis, if there is one.
    pub fn address(&self) -> Option<redis::Address> {
        let url = with_socket_type(
            &self.redis_per_second_url,
            self.redis_per_second_socket_type,
        );
        self.redis_per_second.then(|| redis::Address {
            url,
            auth: self.redis_per_second_auth.clone(),
            timeout: self.redis_per_second_connect_timeout,
        })
    }
}

/// A bare address that is told to be a socket's path, as a URL; any other as it is.
fn with_socket_type(url: &str, socket_type: Option<SocketType>) -> String {
    match socket_type {
        Some(SocketType::Unix) if !url.contains("://") => format!("unix://{url}"),
        _ => url.to_owned(),
    }
}

/// A second Redis, for limits whose unit is the second. Deadline, connections, prefix and jitter
/// are those of the first.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "A second Redis for limits per second")]
pub struct RedisPerSecond {
    /// Count limits per second in a Redis of their own
    #[arg(long, env = "REDIS_PERSECOND", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub redis_per_second: bool,

    /// Its address
    #[arg(
        long,
        env = "REDIS_PERSECOND_URL",
        default_value = "/var/run/nutcracker/ratelimitpersecond.sock",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub redis_per_second_url: String,

    /// What an address without a scheme is
    #[arg(
        long,
        env = "REDIS_PERSECOND_SOCKET_TYPE",
        value_enum,
        ignore_case = true,
        value_name = "TYPE"
    )]
    pub redis_per_second_socket_type: Option<SocketType>,

    /// Kind of Redis behind the address
    #[arg(
        long,
        env = "REDIS_PERSECOND_TYPE",
        value_enum,
        ignore_case = true,
        value_name = "TYPE"
    )]
    pub redis_per_second_type: Option<RedisType>,

    /// Password, or user:password, for an address that has none
    #[arg(
        long,
        env = "REDIS_PERSECOND_AUTH",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    pub redis_per_second_auth: Option<String>,

    /// Longest that a connection may take to come up
    #[arg(long, env = "REDIS_PERSECOND_TIMEOUT", default_value = "1s", value_parser = some_time, value_name = "DURATION")]
    pub redis_per_second_connect_timeout: Duration,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Listeners")]
pub struct Listen {
    /// Serve gRPC on this Unix socket instead of a port
    #[arg(long, env = "GRPC_UDS", value_parser = file_path, value_name = "PATH")]
    pub grpc_uds: Option<PathBuf>,

    /// Permissions of that socket, in octal
    #[arg(long, env = "TOLLGATE_GRPC_UDS_MODE", default_value = "666", value_parser = file_mode, value_name = "MODE")]
    pub grpc_uds_mode: u32,

    /// Address of the gRPC port
    #[arg(
        long,
        env = "GRPC_HOST",
        default_value = "0.0.0.0",
        value_name = "HOST"
    )]
    pub grpc_host: String,

    /// gRPC port; 0 takes a free one
    #[arg(long, env = "GRPC_PORT", default_value_t = 8081, value_name = "PORT")]
    pub grpc_port: u16,

    /// After this long a connection is asked to be opened anew, give or take a tenth, so that
    /// load finds new replicas; 0 means never
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", default_value = "24h", value_parser = duration, value_name = "DURATION")]
    pub max_connection_age: Duration,

    /// How long calls under way may then take to end
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", default_value = "1h", value_parser = duration, value_name = "DURATION")]
    pub max_connection_age_grace: Duration,

    /// Address of the HTTP port (/healthcheck, /json)
    #[arg(long, env = "HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub host: String,

    /// HTTP port; 0 takes a free one
    #[arg(long, env = "PORT", default_value_t = 8080, value_name = "PORT")]
    pub port: u16,

    /// Address of the debug port (/metrics, /stats, /rlconfig); loopback unless told otherwise
    #[arg(
        long,
        env = "DEBUG_HOST",
        default_value = "127.0.0.1",
        value_name = "HOST"
    )]
    pub debug_host: String,

    /// Debug port; 0 takes a free one
    #[arg(long, env = "DEBUG_PORT", default_value_t = 6070, value_name = "PORT")]
    pub debug_port: u16,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Redis")]
pub struct Redis {
    /// Count in this Redis instead of in memory: redis://host:port/database, with user:password@
    /// in front of the host if need be, host:port, or a socket path
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    pub redis_url: Option<String>,

    /// How keys are written: `reference` counts together with envoyproxy/ratelimit during a
    /// migration, and refuses rules that its keys cannot tell apart
    #[arg(
        long,
        env = "TOLLGATE_KEY_FORMAT",
        default_value = "native",
        value_enum,
        ignore_case = true,
        value_name = "FORMAT"
    )]
    pub key_format: KeyFormat,

    /// Where to count: `redis` is the only backend beside memory, which needs no name
    #[arg(long, env = "BACKEND_TYPE", value_parser = backend, value_name = "NAME")]
    pub backend: Option<Backend>,

    /// What a --redis-url without a scheme is: the address of a TCP port or a socket's path
    #[arg(
        long,
        env = "REDIS_SOCKET_TYPE",
        value_enum,
        ignore_case = true,
        value_name = "TYPE"
    )]
    pub redis_socket_type: Option<SocketType>,

    /// Kind of Redis behind the address
    #[arg(
        long,
        env = "REDIS_TYPE",
        value_enum,
        ignore_case = true,
        value_name = "TYPE"
    )]
    pub redis_type: Option<RedisType>,

    /// Password, or user:password, for an address that has none
    #[arg(
        long,
        env = "REDIS_AUTH",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    pub redis_auth: Option<String>,

    /// Longest that a connection to Redis may take to come up; decisions do not wait for it
    #[arg(long, env = "REDIS_TIMEOUT", default_value = "1s", value_parser = some_time, value_name = "DURATION")]
    pub redis_connect_timeout: Duration,

    /// Spread the ends of keys over this many seconds more
    #[arg(
        long,
        env = "EXPIRATION_JITTER_MAX_SECONDS",
        default_value_t = 0,
        allow_negative_numbers = true,
        value_name = "SECONDS"
    )]
    pub expiration_jitter: i64,

    /// Longest that a decision waits for Redis; keep it below Envoy's timeout, which is 20ms
    #[arg(long, env = "TOLLGATE_REDIS_TIMEOUT", default_value = "10ms", value_parser = some_time, value_name = "DURATION")]
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

    /// Answer for counters that are known to be over their limit without asking Redis, within
    /// this much memory; 0 turns it off
    #[arg(
        long,
        env = "LOCAL_CACHE_SIZE_IN_BYTES",
        default_value_t = 0,
        value_name = "BYTES"
    )]
    pub local_cache_bytes: usize,

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

    /// When a request passes some of its limits, count it against those only
    #[arg(long, env = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub stop_when_over: bool,

    /// Add three headers to responses: limit, remaining and seconds until reset
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_ENABLED", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub response_headers: bool,

    /// Name of the header that tells the limit
    #[arg(long, env = "LIMIT_LIMIT_HEADER", default_value = "RateLimit-Limit", value_parser = header_name, value_name = "NAME")]
    pub limit_header: String,

    /// Name of the header that tells what remains
    #[arg(long, env = "LIMIT_REMAINING_HEADER", default_value = "RateLimit-Remaining", value_parser = header_name, value_name = "NAME")]
    pub remaining_header: String,

    /// Name of the header that tells the seconds until reset
    #[arg(long, env = "LIMIT_RESET_HEADER", default_value = "RateLimit-Reset", value_parser = header_name, value_name = "NAME")]
    pub reset_header: String,

    /// Send the request and the metadata of the matched rules back as dynamic metadata
    #[arg(long, env = "RESPONSE_DYNAMIC_METADATA", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub dynamic_metadata: bool,

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

/// The one backend that has to be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Redis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SocketType {
    Tcp,
    Unix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatsdProtocol {
    Tcp,
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RedisType {
    Single,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyFormat {
    Native,
    Reference,
}

impl From<KeyFormat> for counter::KeyFormat {
    fn from(format: KeyFormat) -> Self {
        match format {
            KeyFormat::Native => Self::Native,
            KeyFormat::Reference => Self::Reference,
        }
    }
}

#[derive(Debug, Args)]
pub struct Check {
    /// Rule files, or folders of them
    #[arg(required = true, value_name = "DIR|FILE")]
    pub paths: Vec<PathBuf>,

    /// Let several files name one domain, as `serve --merge-domains` does
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub merge_domains: bool,

    /// Match keys and values apart, as `serve --strict-matching` does
    #[arg(long, env = "TOLLGATE_STRICT_MATCHING", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub strict_matching: bool,

    /// Check for the keys that `serve --key-format` would write
    #[arg(
        long,
        env = "TOLLGATE_KEY_FORMAT",
        default_value = "native",
        value_enum,
        ignore_case = true,
        value_name = "FORMAT"
    )]
    pub key_format: KeyFormat,
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

/// The reference takes an empty name for Redis.
fn backend(text: &str) -> Result<Backend, String> {
    match text {
        "" | "redis" => Ok(Backend::Redis),
        "memcache" => {
            Err("there is no memcached store, for it cannot count exactly; use redis".into())
        }
        _ => Err("expected redis".into()),
    }
}

/// A path; a variable that is set to nothing is as good as none.
fn file_path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(text.into())
}

fn file_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("expected an octal number up to 777".to_owned()),
    }
}

/// `tag:value`, with exactly one colon, as the reference reads its maps.
fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((tag, value)) if !value.contains(':') => Ok((tag.to_owned(), value.to_owned())),
        _ => Err("expected TAG:VALUE".to_owned()),
    }
}

/// `:9090`, `127.0.0.1:9090`, `[::1]:9090`, `localhost:9090`
fn address(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = text.rsplit_once(':').ok_or("expected [HOST]:PORT")?;
    let port = port.parse().map_err(|_| "the port is no port")?;
    let ip = match host.trim_start_matches('[').trim_end_matches(']') {
        "" => IpAddr::from([0, 0, 0, 0]),
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        ip => ip.parse().map_err(|_| "the host is no IP address")?,
    };
    Ok(SocketAddr::new(ip, port))
}

fn path(text: &str) -> Result<String, String> {
    // Braces would be a pattern to the router.
    if text.starts_with('/') && !text.contains(['{', '}']) {
        Ok(text.to_owned())
    } else {
        Err("expected a path that begins with /".to_owned())
    }
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

/// A name that can stand in front of a header's colon (RFC 9110, `token`): Envoy sends on what it
/// is given.
fn header_name(text: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_token) {
        return Err("not a header name".to_owned());
    }
    Ok(text.to_owned())
}

/// A duration that is not zero.
fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than 0".to_owned()),
        some => Ok(some),
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
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        as_ratelimit(Cli::command()).debug_assert();
    }

    /// The settings of a process called `name` that is given `arguments`.
    fn settings(name: &str, arguments: &[&str]) -> Settings {
        let command = match name {
            "ratelimit" => as_ratelimit(Cli::command()),
            _ => Cli::command(),
        };
        let arguments = [&[name, "serve"], arguments].concat();
        let matches = command.try_get_matches_from(arguments).unwrap();
        match Cli::from_arg_matches(&matches).unwrap().command {
            Command::Serve(settings) => *settings,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn by_the_name_of_the_reference_its_defaults_hold() {
        let ours = settings("tollgate", &[]);
        assert!(ours.redis.address().is_none());
        assert!(matches!(ours.source(), Source::Paths(paths) if paths == [Path::new("config")]));
        let theirs = settings("ratelimit", &[]);
        let socket = "/var/run/nutcracker/ratelimit.sock";
        assert_eq!(theirs.redis.address().unwrap().url, socket);
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
            address.map(|address| address.url)
        };
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
