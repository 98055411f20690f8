//! Settings of the process: threads, its end, and log lines.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::shapes::ArgShape as _;
use super::values::{duration, number};
use crate::observe::decision_log::DecisionChoice;

/// Threads, drain and log.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct Process {
    /// Worker threads, each with its own runtime; 0 means one per core
    #[arg(
        long,
        env = "TOLLGATE_WORKERS",
        default_value_t = 0,
        value_parser = number::<usize>(0..=1024),
        value_name = "N"
    )]
    pub workers: usize,

    /// How long to keep serving after SIGTERM, with health already failing, before connections get a GOAWAY
    #[arg(long, env = "TOLLGATE_DRAIN_DELAY", value_parser = duration, time = "3s")]
    pub drain_delay: Duration,

    /// How long running calls may then take to finish
    #[arg(long, env = "TOLLGATE_DRAIN_TIMEOUT", value_parser = duration, time = "30s")]
    pub drain_timeout: Duration,

    /// Lowest level of log lines; libraries have details at trace only
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

    /// Log decisions, one a line, with descriptors, rules and counts: off, refused (some limit is over), sampled=SHARE
    /// or all; values of requests are in the log then [default: all at the log levels debug and trace, else off]
    #[arg(long, env = "TOLLGATE_LOG_DECISIONS", value_name = "CHOICE")]
    pub log_decisions: Option<DecisionChoice>,
}

impl Process {
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
pub(crate) enum LogFormat {
    Text,
    Json,
}
