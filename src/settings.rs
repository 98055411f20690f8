//! Flags and environment → typed [`Settings`]. Only this module and its submodules read the environment.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::config::{self, Source};

pub mod loss;
pub mod redis;
pub mod reference;
pub mod stats;
pub mod tls;
pub mod traces;
mod values;
pub mod xds;

use redis::{KeyFormat, Redis, RedisPerSecond};
use stats::Stats;
use tls::Tls;
use traces::Traces;
pub use values::{Entries, Hidden};
use values::{boolean, duration, entries, file_mode, file_path, header_name, number, some_time};
use xds::Xds;

/// The command line of tollgate.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    about = "Rate-limit sidecar for Envoy: several periods on one descriptor, counted in memory or in Redis",
    after_help = "Without a command, `serve` is assumed: `tollgate --redis-url …` is `tollgate serve --redis-url …`."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve Envoy's ShouldRateLimit calls (the default command)
    Serve(Box<Settings>),
    /// Check rule files: reports every problem, each with file, line, column and rule
    Check(Check),
    /// Ask a running server for a decision, as Envoy does
    Ask(Ask),
    /// Check an Envoy configuration for traps: settings that Envoy accepts and that limit nothing
    LintEnvoy(LintEnvoy),
}

impl Cli {
    /// Parses the process's own arguments; exits with the help or an error if they ask for that.
    pub fn from_process() -> Self {
        // File names may be any bytes.
        let arguments: Vec<OsString> = std::env::args_os().collect();
        let matches = if is_ratelimit(&arguments) {
            // As in the reference's image: only the environment counts.
            let arguments = [arguments[0].as_os_str(), "serve".as_ref()];
            as_ratelimit(Self::command()).get_matches_from(arguments)
        } else {
            Self::command().get_matches_from(with_command(arguments))
        };
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Whether the program was started under the reference's name.
fn is_ratelimit(arguments: &[OsString]) -> bool {
    let program = arguments.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| name == "ratelimit")
}

/// The reference's defaults that differ from ours in ways an operator could notice.
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

/// All settings of `serve`. Each flag has an environment variable, with envoyproxy/ratelimit's name where there is
/// one.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// Folder of rule files (.yaml, .yml, .json, sub-folders included); watched for changes [default: config, or the
    /// folder that --runtime-root names]
    #[arg(long, env = "TOLLGATE_CONFIG_DIR", value_parser = file_path, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,

    /// Let several files name one domain; their descriptors are merged
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub merge_domains: bool,

    /// Match keys and values separately; without this flag the entry (a, b) also matches the bare key a_b, as in
    /// envoyproxy/ratelimit
    #[arg(long, env = "TOLLGATE_STRICT_MATCHING", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub strict_matching: bool,

    /// Start even if the first load of the rules fails, or before a control plane has pushed any; calls get
    /// UNAVAILABLE until a load succeeds
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub start_without_rules: bool,

    /// Report healthy only while the rules in use have at least one domain
    #[arg(long, env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub healthy_with_rules_only: bool,

    #[command(flatten)]
    pub runtime: Runtime,

    #[command(flatten)]
    pub xds: Xds,

    #[command(flatten)]
    pub listen: Listen,

    #[command(flatten)]
    pub tls: Tls,

    #[command(flatten)]
    pub redis: Redis,

    #[command(flatten)]
    pub redis_per_second: RedisPerSecond,

    /// Most counters held in memory; beyond it, hits on a new counter are refused with UNAVAILABLE, or pass if they
    /// count locally (on_store_loss: local)
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
    pub loss: loss::StoreLoss,

    #[command(flatten)]
    pub bounds: Bounds,

    #[command(flatten)]
    pub stats: Stats,

    #[command(flatten)]
    pub traces: Traces,

    #[command(flatten)]
    pub process: Process,
}

impl Settings {
    /// The settings of a process without any flag.
    pub fn from_environment() -> Self {
        match Cli::parse_from(["tollgate", "serve"]).command {
            Command::Serve(settings) => *settings,
            _ => unreachable!("that is what was asked for"),
        }
    }

    /// Notes for the log on variables of the reference that are set and have no effect.
    pub fn reference_notes(&self) -> Vec<String> {
        reference::notes(std::env::vars_os(), self.xds.config_type)
    }

    /// Whether no rule can count locally because the number of replicas is unknown. With counters in memory no rule
    /// needs it.
    pub fn lacks_replicas(&self) -> bool {
        self.redis.address().is_some() && !self.loss.replicas.are_told()
    }

    /// Where the rules are, if they come from files.
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

/// The reference's folder of rules. Every file in it counts, whatever its name.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Rules where envoyproxy/ratelimit keeps them")]
pub struct Runtime {
    /// Upper part of the folder; without --config-dir, this flag or the next one switches from tollgate's own way of
    /// finding rule files to the reference's [default: /srv/runtime_data/current]
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

    /// Ignore names that begin with a dot
    #[arg(long, env = "RUNTIME_IGNOREDOTFILES", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub runtime_ignore_dot_files: bool,

    /// Treat the last part as a prefix of file names in the middle folder, with dots in place of slashes
    #[arg(long, env = "RUNTIME_WATCH_ROOT", default_value = "true", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub runtime_watch_root: bool,
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

    /// Ask clients to reconnect after this long, give or take a tenth, so that load reaches new replicas; 0 means
    /// never
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", default_value = "24h", value_parser = duration, value_name = "DURATION")]
    pub max_connection_age: Duration,

    /// How long running calls may then take to finish
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", default_value = "1h", value_parser = duration, value_name = "DURATION")]
    pub max_connection_age_grace: Duration,

    /// Close a connection whose first call has not begun within this time; the TLS handshake and the HTTP/2 preface
    /// count
    #[arg(long, env = "TOLLGATE_FIRST_CALL_TIMEOUT", default_value = "10s", value_parser = some_time, value_name = "DURATION")]
    pub first_call_timeout: Duration,

    /// Send a keepalive ping on a connection that has been silent for this long; 0 means never
    #[arg(long, env = "TOLLGATE_KEEPALIVE_INTERVAL", default_value = "60s", value_parser = duration, value_name = "DURATION")]
    pub keepalive_interval: Duration,

    /// How long the answer to that ping may take before the connection is closed
    #[arg(long, env = "TOLLGATE_KEEPALIVE_TIMEOUT", default_value = "20s", value_parser = some_time, value_name = "DURATION")]
    pub keepalive_timeout: Duration,

    /// Let other processes listen on the same ports (SO_REUSEPORT) and share connections; a port that is in use by
    /// mistake then goes unnoticed
    #[arg(long, env = "TOLLGATE_REUSE_PORT", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub reuse_port: bool,

    /// Address of the HTTP port (/healthcheck, /json)
    #[arg(long, env = "HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub host: String,

    /// HTTP port; 0 takes a free one
    #[arg(long, env = "PORT", default_value_t = 8080, value_name = "PORT")]
    pub port: u16,

    /// How long a connection to the HTTP, debug or Prometheus port may take for a request, its reply and the wait for
    /// the next one
    #[arg(long, env = "TOLLGATE_HTTP_TIMEOUT", default_value = "30s", value_parser = some_time, value_name = "DURATION")]
    pub http_timeout: Duration,

    /// Answer requests in JSON at /json of the HTTP port; every client that can reach that port can then count hits
    #[arg(long, env = "TOLLGATE_HTTP_JSON", default_value = "true", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub http_json: bool,

    /// Address of the debug port (/metrics, /stats, /rlconfig); loopback by default
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

impl Listen {
    /// The socket to serve gRPC on, if there is one.
    pub fn grpc_socket(&self) -> Option<&Path> {
        let path = self.grpc_uds.as_deref();
        path.filter(|path| !path.as_os_str().is_empty())
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Decisions")]
pub struct Decisions {
    /// Count and report as usual, but answer OK to every request
    #[arg(long, env = "SHADOW_MODE", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub shadow_mode: bool,

    /// Refuse only if every limited descriptor of a request is over its limit
    #[arg(long, env = "QUOTA_MODE", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub quota_mode: bool,

    /// If a request exceeds some of its limits, count it only against those
    #[arg(long, env = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub stop_when_over: bool,

    /// Add three headers to responses: limit, remaining and seconds until reset
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_ENABLED", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub response_headers: bool,

    /// Name of the header with the limit
    #[arg(long, env = "LIMIT_LIMIT_HEADER", default_value = "RateLimit-Limit", value_parser = header_name, value_name = "NAME")]
    pub limit_header: String,

    /// Name of the header with the remaining hits
    #[arg(long, env = "LIMIT_REMAINING_HEADER", default_value = "RateLimit-Remaining", value_parser = header_name, value_name = "NAME")]
    pub remaining_header: String,

    /// Name of the header with the seconds until reset
    #[arg(long, env = "LIMIT_RESET_HEADER", default_value = "RateLimit-Reset", value_parser = header_name, value_name = "NAME")]
    pub reset_header: String,

    /// Add a Retry-After header to refused requests: the seconds until they would pass
    #[arg(long, env = "TOLLGATE_RETRY_AFTER", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub retry_after: bool,

    /// Return the request and the metadata of the matched rules as dynamic metadata
    #[arg(long, env = "RESPONSE_DYNAMIC_METADATA", default_value = "false", value_parser = boolean, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub dynamic_metadata: bool,

    /// Share of a limit above which hits count as near it
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
    /// Largest message in bytes: four times the headers that Envoy accepts by default
    #[arg(long, env = "TOLLGATE_MAX_MESSAGE_BYTES", default_value_t = 256 << 10, value_parser = number(1..), value_name = "N")]
    pub max_message_bytes: usize,

    /// How long a message, or a body at /json, may take to arrive
    #[arg(long, env = "TOLLGATE_MESSAGE_TIMEOUT", default_value = "10s", value_parser = some_time, value_name = "DURATION")]
    pub message_timeout: Duration,

    /// Memory budget for all clients together, in bytes: incoming messages, unread replies, unfinished headers,
    /// pages. Above it the connection that has held the most for the longest is closed, or new input is refused with
    /// RESOURCE_EXHAUSTED, or 503 over HTTP
    #[arg(long, env = "TOLLGATE_MAX_HELD_BYTES", default_value_t = 32 << 20, value_parser = number(1 << 20..), value_name = "N")]
    pub max_held_bytes: usize,

    /// Most descriptors in a request
    #[arg(
        long,
        env = "TOLLGATE_MAX_DESCRIPTORS",
        default_value_t = 1000,
        value_parser = number(1..),
        value_name = "N"
    )]
    pub max_descriptors: usize,

    /// Most entries in a descriptor
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

    /// Most gRPC connections, unless the limit of open files allows fewer; one more closes the oldest that has not
    /// made a call yet, or waits
    #[arg(
        long,
        env = "TOLLGATE_MAX_CONNECTIONS",
        default_value_t = 10_000,
        value_parser = number(1..=1_000_000),
        value_name = "N"
    )]
    pub max_connections: usize,

    /// Most concurrent calls on one connection
    #[arg(
        long,
        env = "TOLLGATE_MAX_STREAMS",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..),
        value_name = "N"
    )]
    pub max_streams: u32,

    /// Largest header list of a call, in bytes
    #[arg(
        long,
        env = "TOLLGATE_MAX_HEADER_BYTES",
        default_value_t = 64 << 10,
        value_parser = clap::value_parser!(u32).range(1024..),
        value_name = "N"
    )]
    pub max_header_bytes: u32,

    /// Most calls of one connection that may be cancelled before the server has handled them; more close it. The server
    /// reads 16 kB at a time, so the calls of an Envoy that reaches its timeout stay far below the default
    #[arg(
        long,
        env = "TOLLGATE_MAX_PENDING_RESETS",
        default_value_t = 256,
        value_parser = number(1..),
        value_name = "N"
    )]
    pub max_pending_resets: usize,

    /// Most calls of one connection that may be refused for breaking the rules of HTTP/2; more close it
    #[arg(
        long,
        env = "TOLLGATE_MAX_BAD_STREAMS",
        default_value_t = 1024,
        value_parser = number(1..),
        value_name = "N"
    )]
    pub max_bad_streams: usize,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Process")]
pub struct Process {
    /// Worker threads, each with its own runtime; 0 means one per core
    #[arg(long, env = "TOLLGATE_WORKERS", default_value_t = 0, value_parser = number(0..=1024), value_name = "N")]
    pub workers: usize,

    /// How long to keep serving after SIGTERM, with health already failing, before connections get a GOAWAY
    #[arg(long, env = "TOLLGATE_DRAIN_DELAY", default_value = "3s", value_parser = duration, value_name = "DURATION")]
    pub drain_delay: Duration,

    /// How long running calls may then take to finish
    #[arg(long, env = "TOLLGATE_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration, value_name = "DURATION")]
    pub drain_timeout: Duration,

    /// Lowest level of log lines
    #[arg(
        long,
        env = "LOG_LEVEL",
        default_value = "info",
        value_enum,
        ignore_case = true,
        value_name = "LEVEL"
    )]
    pub log_level: LogLevel,

    /// Format of log lines on standard error
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
    /// Also the reference's `panic` and `fatal`, which tollgate does not distinguish
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

    /// Match keys and values separately, as `serve --strict-matching` does
    #[arg(long, env = "TOLLGATE_STRICT_MATCHING", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub strict_matching: bool,

    /// Also check that `serve --key-format` can write the keys
    #[arg(
        long,
        env = "TOLLGATE_KEY_FORMAT",
        default_value = "native",
        value_enum,
        ignore_case = true,
        value_name = "FORMAT"
    )]
    pub key_format: KeyFormat,

    #[command(flatten)]
    pub replicas: loss::Replicas,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 without findings, 1 with findings, 2 if the file cannot be read."
)]
pub struct LintEnvoy {
    /// A bootstrap in YAML or JSON, the output of Envoy's /config_dump, or Istio's EnvoyFilters; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Also report domains and descriptors that no rule in this folder covers
    #[arg(long, value_name = "DIR")]
    pub rules: Option<PathBuf>,

    /// Read the rules as `serve --merge-domains` does
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub merge_domains: bool,

    /// Match keys and values separately, as `serve --strict-matching` does
    #[arg(long, env = "TOLLGATE_STRICT_MATCHING", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub strict_matching: bool,
}

#[derive(Debug, Args)]
pub struct Ask {
    /// Address of the server: http://HOST:PORT, https://HOST:PORT or unix:///PATH
    #[arg(long, default_value = "http://127.0.0.1:8081", value_name = "URL")]
    pub server: String,

    /// Speak TLS, as with an https:// URL; needs --ca
    #[arg(long)]
    pub tls: bool,

    /// CA certificate to verify the server, in PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// Client certificate, in PEM, for servers that require one
    #[arg(long, requires = "key", value_name = "FILE")]
    pub cert: Option<PathBuf>,

    /// Key of that certificate, in PEM
    #[arg(long, requires = "cert", value_name = "FILE")]
    pub key: Option<PathBuf>,

    /// Name of the server, in its certificate and as `:authority` [default: the host of the URL]
    #[arg(long, value_name = "NAME")]
    pub authority: Option<String>,

    /// Namespace of the rules
    #[arg(long, value_name = "NAME")]
    pub domain: String,

    /// A descriptor: its entries in order, separated by commas; `\,` is a comma, `\=` an equals
    /// sign and `\\` a backslash
    #[arg(short, long = "descriptor", required = true, value_name = "K=V[,K=V…]", value_parser = entries)]
    pub descriptors: Vec<Entries>,

    /// Hits of each descriptor; 0 reads without counting
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub hits: u64,

    /// Print the reply as proto3 JSON
    #[arg(long)]
    pub json: bool,

    /// How long to wait for the answer
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::Secret;

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
        let matches = command.try_get_matches_from(arguments).unwrap();
        match Cli::from_arg_matches(&matches).unwrap().command {
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
            ("--otlp-headers", "authorization=sesame"),
            ("--otlp-endpoint", "http://u:sesame@h"),
            ("--otlp-traces-endpoint", "http://u:sesame@h"),
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
