//! The settings of `serve`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};

use crate::config::{self, source::Source};

use super::redis::{Redis, RedisPerSecond};
use super::stats::Stats;
use super::tls::TlsSettings;
use super::traces::Traces;

use super::values::{boolean, duration, file_mode, file_path, header_name, number, some_time};
use super::xds::Xds;

/// All settings of `serve`. Each flag has an environment variable, with envoyproxy/ratelimit's name where there is
/// one.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// Folder of rule files (.yaml, .yml, .json, sub-folders included); watched for changes [default: config, or the
    /// folder that --runtime-root names]
    #[arg(long, env = "TOLLGATE_CONFIG_DIR", value_parser = file_path, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,

    /// Let several files name one domain; their descriptors are merged
    #[arg(
        long,
        env = "MERGE_DOMAIN_CONFIG",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub merge_domains: bool,

    /// Match keys and values separately; without this flag the entry (a, b) also matches the bare key a_b, as in
    /// envoyproxy/ratelimit
    #[arg(
        long,
        env = "TOLLGATE_STRICT_MATCHING",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub strict_matching: bool,

    /// Start even if the first load of the rules fails, or before a control plane has pushed any; calls get
    /// UNAVAILABLE until a load succeeds
    #[arg(
        long,
        env = "FORCE_START_WITHOUT_INITIAL_CONFIG",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub start_without_rules: bool,

    /// Report healthy only while the rules in use have at least one domain
    #[arg(
        long,
        env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub healthy_with_rules_only: bool,

    #[command(flatten)]
    pub runtime: RuntimeSettings,

    #[command(flatten)]
    pub xds: Xds,

    #[command(flatten)]
    pub listen: Listen,

    #[command(flatten)]
    pub tls: TlsSettings,

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
    pub loss: super::loss::StoreLoss,

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
    /// Notes for the log on variables of the reference that are set and have no effect.
    pub fn reference_notes(&self) -> Vec<String> {
        super::reference::notes(std::env::vars_os(), self.xds.config_type)
    }

    /// Whether no rule can count locally because the number of replicas is unknown. With counters in memory no rule
    /// needs it.
    pub fn lacks_replicas(&self) -> bool {
        self.redis.address().is_some() && !self.loss.replicas.are_known()
    }

    /// Where the rules are, if they come from files.
    pub fn source(&self) -> Source {
        let runtime = &self.runtime;
        let is_runtime = runtime.runtime_root.is_some() || runtime.runtime_subdirectory.is_some();
        match &self.config_dir {
            Some(folder) if !folder.as_os_str().is_empty() => Source::Paths(vec![folder.clone()]),
            _ if is_runtime => Source::Runtime(config::source::RuntimeFolder {
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
pub struct RuntimeSettings {
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
    #[arg(
        long,
        env = "RUNTIME_IGNOREDOTFILES",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub runtime_ignore_dot_files: bool,

    /// Treat the last part as a prefix of file names in the middle folder, with dots in place of slashes
    #[arg(
        long,
        env = "RUNTIME_WATCH_ROOT",
        default_value = "true",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
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
    #[arg(
        long,
        env = "GRPC_MAX_CONNECTION_AGE",
        default_value = "24h",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub max_connection_age: Duration,

    /// How long running calls may then take to finish
    #[arg(
        long,
        env = "GRPC_MAX_CONNECTION_AGE_GRACE",
        default_value = "1h",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub max_connection_age_grace: Duration,

    /// Close a connection whose first call has not begun within this time; the TLS handshake and the HTTP/2 preface
    /// count
    #[arg(
        long,
        env = "TOLLGATE_FIRST_CALL_TIMEOUT",
        default_value = "10s",
        value_parser = some_time,
        value_name = "DURATION",
    )]
    pub first_call_timeout: Duration,

    /// Send a keepalive ping on a connection that has been silent for this long; 0 means never
    #[arg(
        long,
        env = "TOLLGATE_KEEPALIVE_INTERVAL",
        default_value = "60s",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub keepalive_interval: Duration,

    /// How long the answer to that ping may take before the connection is closed
    #[arg(
        long,
        env = "TOLLGATE_KEEPALIVE_TIMEOUT",
        default_value = "20s",
        value_parser = some_time,
        value_name = "DURATION",
    )]
    pub keepalive_timeout: Duration,

    /// Let other processes listen on the same ports (SO_REUSEPORT) and share connections; a port that is in use by
    /// mistake then goes unnoticed
    #[arg(
        long,
        env = "TOLLGATE_REUSE_PORT",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub reuse_port: bool,

    /// Address of the HTTP port (/healthcheck, /json)
    #[arg(long, env = "HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub host: String,

    /// HTTP port; 0 takes a free one
    #[arg(long, env = "PORT", default_value_t = 8080, value_name = "PORT")]
    pub port: u16,

    /// How long a connection to the HTTP, debug or Prometheus port may take for a request, its reply and the wait for
    /// the next one
    #[arg(
        long,
        env = "TOLLGATE_HTTP_TIMEOUT",
        default_value = "30s",
        value_parser = some_time,
        value_name = "DURATION",
    )]
    pub http_timeout: Duration,

    /// Answer requests in JSON at /json of the HTTP port; every client that can reach that port can then count hits
    #[arg(
        long,
        env = "TOLLGATE_HTTP_JSON",
        default_value = "true",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
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
    #[arg(
        long,
        env = "SHADOW_MODE",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub shadow_mode: bool,

    /// Refuse only if every limited descriptor of a request is over its limit
    #[arg(
        long,
        env = "QUOTA_MODE",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub quota_mode: bool,

    /// If a request exceeds some of its limits, count it only against those
    #[arg(
        long,
        env = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub stop_when_over: bool,

    /// Add three headers to responses: limit, remaining and seconds until reset
    #[arg(
        long,
        env = "LIMIT_RESPONSE_HEADERS_ENABLED",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub response_headers: bool,

    /// Name of the header with the limit
    #[arg(
        long,
        env = "LIMIT_LIMIT_HEADER",
        default_value = "RateLimit-Limit",
        value_parser = header_name,
        value_name = "NAME",
    )]
    pub limit_header: String,

    /// Name of the header with the remaining hits
    #[arg(
        long,
        env = "LIMIT_REMAINING_HEADER",
        default_value = "RateLimit-Remaining",
        value_parser = header_name,
        value_name = "NAME",
    )]
    pub remaining_header: String,

    /// Name of the header with the seconds until reset
    #[arg(
        long,
        env = "LIMIT_RESET_HEADER",
        default_value = "RateLimit-Reset",
        value_parser = header_name,
        value_name = "NAME",
    )]
    pub reset_header: String,

    /// Add a Retry-After header to refused requests: the seconds until they would pass
    #[arg(
        long,
        env = "TOLLGATE_RETRY_AFTER",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
    pub retry_after: bool,

    /// Return the request and the metadata of the matched rules as dynamic metadata
    #[arg(
        long,
        env = "RESPONSE_DYNAMIC_METADATA",
        default_value = "false",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
    )]
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
    #[arg(
        long,
        env = "TOLLGATE_MAX_MESSAGE_BYTES",
        default_value_t = 256 << 10,
        value_parser = number(1..),
        value_name = "N",
    )]
    pub max_message_bytes: usize,

    /// How long a message, or a body at /json, may take to arrive
    #[arg(
        long,
        env = "TOLLGATE_MESSAGE_TIMEOUT",
        default_value = "10s",
        value_parser = some_time,
        value_name = "DURATION",
    )]
    pub message_timeout: Duration,

    /// Memory budget for all clients together, in bytes: incoming messages, unread replies, unfinished headers,
    /// pages. Above it the connection that has held the most for the longest is closed, or new input is refused with
    /// RESOURCE_EXHAUSTED, or 503 over HTTP
    #[arg(
        long,
        env = "TOLLGATE_MAX_HELD_BYTES",
        default_value_t = 32 << 20,
        value_parser = number(1 << 20..),
        value_name = "N",
    )]
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
    #[arg(
        long,
        env = "TOLLGATE_MAX_TEXT_BYTES",
        default_value_t = 64 << 10,
        value_parser = number(1..),
        value_name = "N",
    )]
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
    #[arg(
        long,
        env = "TOLLGATE_DRAIN_TIMEOUT",
        default_value = "30s",
        value_parser = duration,
        value_name = "DURATION",
    )]
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
