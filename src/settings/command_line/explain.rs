//! The flags of `tollgate explain`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{counters::Descriptors, reading::Reading};
use crate::settings::shapes::{ArgShape as _, named};
use crate::{core::counter::KeyFormat, settings::values::duration};

#[derive(Debug, Args)]
#[command(
    after_help = "No hit is counted. With --rules, all counters are assumed to be empty, and settings of a server \
                  (such as --shadow-mode) are unknown.\n\
                  Exit code: 0 if there is an explanation, 1 if there is none, 2 for a bad command line."
)]
pub(crate) struct Explain {
    /// Rule files, or folders of them, to explain with instead of asking a server
    #[arg(long, num_args = 1.., value_name = "DIR|FILE")]
    pub rules: Vec<PathBuf>,

    /// Address of the debug port of a running server
    #[arg(
        long,
        default_value = "http://127.0.0.1:6070",
        conflicts_with = "rules",
        value_name = "URL"
    )]
    pub server: String,

    #[command(flatten)]
    pub of: Descriptors,

    /// Hits of each descriptor; -2 gives two hits back [default: none, as Envoy: one hit, or the `estimate` of the
    /// rule]
    #[arg(long, value_name = "N")]
    pub hits: Option<i64>,

    /// Print the JSON of docs/run/explain.md
    #[arg(long)]
    pub json: bool,

    /// How long to wait for the server
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub timeout: Duration,

    #[command(flatten)]
    pub(crate) reading: Reading,

    /// Name counters as `serve --key-format` does
    #[arg(long, env = "TOLLGATE_KEY_FORMAT", value_parser = named::<KeyFormat>(), choice = ("FORMAT", "native"))]
    pub key_format: KeyFormat,
}
