//! Settings of the process: threads, drain, and log.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};

use super::shapes::{ArgShape as _, named};
use super::values::{duration, number};
use crate::observe::decision_log::{
    DecisionChoice, LoggedValues, file::FileOptions, writer::LineTarget,
};

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

    /// Log decisions, one a line, with the values of requests: off, refused (some limit is over), sampled=SHARE or all
    /// [default: all at the log levels debug and trace, else off]
    #[arg(long, env = "TOLLGATE_LOG_DECISIONS", value_name = "CHOICE")]
    pub log_decisions: Option<DecisionChoice>,

    /// Write logged decisions to standard error (stderr) or to this file, which is rotated when full [default: among
    /// the lines of the log]
    #[arg(long, env = "TOLLGATE_LOG_DECISIONS_TO", value_name = "stderr|FILE")]
    pub log_decisions_to: Option<PathBuf>,

    /// Values of requests in logged decisions: as they are (show), or the first digits of their SHA-256 (hash)
    #[arg(
        long,
        env = "TOLLGATE_LOG_DECISIONS_VALUES",
        value_parser = named::<LoggedValues>(),
        choice = ("FORM", "show")
    )]
    pub log_decisions_values: LoggedValues,

    /// Size above which the file of logged decisions is rotated
    #[arg(
        long,
        env = "TOLLGATE_LOG_DECISIONS_MAX_BYTES",
        default_value_t = 100 << 20,
        value_parser = number::<u64>(1..),
        value_name = "BYTES"
    )]
    pub log_decisions_max_bytes: u64,
}

/// How many earlier files of logged decisions are kept: FILE.1, FILE.2 and so on.
const KEPT_FILES: u32 = 3;

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

    /// The decisions to log among the lines of the log.
    pub(crate) fn decisions_in_log(&self) -> DecisionChoice {
        match self.log_decisions_to {
            None => self.decision_choice(),
            Some(_) => DecisionChoice::Off,
        }
    }

    /// Where to write logged decisions, if not among the lines of the log.
    pub(crate) fn decision_lines(&self) -> Option<LineTarget> {
        let path = self.log_decisions_to.clone()?;
        if self.decision_choice() == DecisionChoice::Off {
            return None;
        }
        if path == Path::new("stderr") {
            return Some(LineTarget::StandardError);
        }
        Some(LineTarget::File(FileOptions {
            path,
            max_bytes: self.log_decisions_max_bytes,
            kept: KEPT_FILES,
        }))
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
