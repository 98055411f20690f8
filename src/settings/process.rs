//! Settings of the process: threads, drain, and log.

use std::{ffi::OsString, time::Duration};

use clap::{Args, ValueEnum};

use super::shapes::ArgShape as _;
use super::values::{duration, number};
use crate::observe::decision_log::DecisionChoice;

/// Threads, drain and log.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct Process {
    /// Worker threads, each with its own runtime; 0 means one per core
    #[arg(long, env = "TOLLGATE_WORKERS", text = ("N", "0"), value_parser = number::<usize>(0..=1024))]
    pub workers: usize,

    /// How long to serve after SIGTERM, with health failing, before connections get a GOAWAY
    #[arg(long, env = "TOLLGATE_DRAIN_DELAY", value_parser = duration, time = "3s")]
    pub drain_delay: Duration,

    /// How long running calls may then take to finish
    #[arg(long, env = "TOLLGATE_DRAIN_TIMEOUT", value_parser = duration, time = "30s")]
    pub drain_timeout: Duration,

    /// Lowest level of log lines; details of libraries are at trace
    #[arg(long, env = "LOG_LEVEL", choice = ("LEVEL", "info"))]
    pub log_level: LogLevel,

    /// Format of log lines on standard error
    #[arg(long, env = "LOG_FORMAT", choice = ("FORMAT", "text"))]
    pub log_format: LogFormat,

    /// Log decisions, one a line with the target tollgate::decision and the values of requests: off, refused (some
    /// limit is over), sampled=SHARE or all [default: all at the log levels debug and trace, else off]
    #[arg(long, env = "TOLLGATE_LOG_DECISIONS", value_name = "CHOICE")]
    pub log_decisions: Option<DecisionChoice>,
}

impl Process {
    /// The socket on which systemd waits for the state of the process, if it does. Operators do not set it, so it has
    /// no flag.
    pub(crate) fn notify_socket() -> Option<OsString> {
        std::env::var_os("NOTIFY_SOCKET")
    }

    /// The decisions to log.
    pub(crate) fn decision_choice(&self) -> DecisionChoice {
        let by_level = match self.log_level {
            LogLevel::Error | LogLevel::Warn | LogLevel::Info => DecisionChoice::Off,
            LogLevel::Debug | LogLevel::Trace => DecisionChoice::All,
        };
        self.log_decisions.unwrap_or(by_level)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Also envoyproxy/ratelimit's `panic` and `fatal`, which tollgate does not distinguish
    #[value(aliases = ["panic", "fatal"])]
    Error,
    #[value(alias = "warning")]
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}
