//! The flags of `tollgate counters`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use crate::{core::descriptor_text::Entries, settings::values::duration};

#[derive(Debug, Args)]
#[command(
    after_help = "The debug port is open to this machine only unless --debug-host says otherwise. docs/run/counters.md \
                  describes the answers and the endpoints behind these commands."
)]
pub(crate) struct CountersCommand {
    #[command(subcommand)]
    pub action: CountersAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CountersAction {
    /// Show the counters of descriptors, without counting a hit
    Get(GetCounters),
    /// Take all hits off the counters of descriptors, so that their limits start over
    Reset(ResetCounters),
}

/// The server to ask, and how to print its answer.
#[derive(Debug, Args)]
pub(crate) struct DebugPortFlags {
    /// Debug port of the server: http://HOST:PORT
    #[arg(long, default_value = "http://127.0.0.1:6070", value_name = "URL")]
    pub server: String,

    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,

    /// How long to wait for each answer of the server
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Descriptors of one domain.
#[derive(Debug, Args)]
pub(crate) struct Descriptors {
    /// Namespace of the rules
    #[arg(long, value_name = "NAME")]
    pub domain: String,

    /// A descriptor: its entries in order, separated by commas; `\,` is a comma, `\=` an equals
    /// sign and `\\` a backslash
    #[arg(short, long = "descriptor", required = true, value_name = "K=V[,K=V…]")]
    pub descriptors: Vec<Entries>,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit code: 0 for an answer, 1 if there is none, 2 for a bad command line.")]
pub(crate) struct GetCounters {
    #[command(flatten)]
    pub of: Descriptors,

    #[command(flatten)]
    pub port: DebugPortFlags,
}

/// Proof that this caller may change counters.
#[derive(Debug, Args)]
pub(crate) struct Token {
    /// File with the token in the server's --admin-token-file; a server on this machine without such a file needs none
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 if the counters were reset, 1 if not, 2 for a bad command line."
)]
pub(crate) struct ResetCounters {
    #[command(flatten)]
    pub of: Descriptors,

    #[command(flatten)]
    pub token: Token,

    #[command(flatten)]
    pub port: DebugPortFlags,
}
