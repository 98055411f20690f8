//! The flags of `tollgate ask`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::counters::Descriptors;
use crate::settings::values::duration;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 for OK, 3 for OVER_LIMIT, 1 if there is no decision, 2 for a bad command line."
)]
pub(crate) struct Ask {
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

    #[command(flatten)]
    pub of: Descriptors,

    /// Hits of each descriptor; 0 reads without counting, and -2 gives two hits back [default: none, as Envoy: one
    /// hit, or the `estimate` of the rule]
    #[arg(long, value_name = "N")]
    pub hits: Option<i64>,

    /// Keep the slots that the request takes and the hits that it reserves, instead of giving them back at once
    #[arg(long)]
    pub keep: bool,

    /// Exit with 0 for OVER_LIMIT too: any decision is a success
    #[arg(long)]
    pub any_decision: bool,

    /// Print the reply as proto3 JSON
    #[arg(long)]
    pub json: bool,

    /// Also say why, as `tollgate explain` does just before the decision
    #[arg(long)]
    pub why: bool,

    /// Address of the debug port of the server, for --why
    #[arg(long, default_value = "http://127.0.0.1:6070", value_name = "URL")]
    pub debug_server: String,

    /// How long to wait for the answer
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub timeout: Duration,
}
