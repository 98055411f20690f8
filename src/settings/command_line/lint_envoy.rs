//! The arguments of `tollgate lint-envoy`.

use std::{fmt, path::PathBuf};

use clap::{Args, ValueEnum};

use crate::{
    config::fault::FaultLevel,
    settings::command_line::clients::{Reading, ReportFormat},
};

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 without findings, 1 with findings, 2 if a file or the rules cannot be read. \
                  docs/envoy/lint-envoy.md describes each finding."
)]
pub(crate) struct LintEnvoy {
    /// Bootstraps in YAML or JSON, outputs of Envoy's /config_dump, Istio's EnvoyFilters, or folders of these; - is
    /// standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    pub paths: Vec<PathBuf>,

    /// Also report domains and descriptors that no rule in this folder covers
    #[arg(long, value_name = "DIR")]
    pub rules: Option<PathBuf>,

    /// Instead of findings, show the virtual host, the route, the descriptors and the rules of a request, such as
    /// "GET shop.example.com/cart"
    #[arg(long, value_name = "REQUEST", conflicts_with_all = ["format", "min_severity", "allowed"])]
    pub request: Option<String>,

    /// A header of that request; can be given several times
    #[arg(
        short = 'H',
        long = "header",
        value_name = "NAME:VALUE",
        requires = "request"
    )]
    pub headers: Vec<String>,

    /// Form of the report
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: ReportFormat,

    /// Leave out findings that are less severe; they do not change the exit code
    #[arg(long, value_enum, default_value = "note", value_name = "SEVERITY")]
    pub min_severity: TrapSeverity,

    /// Leave out findings of this name; can be given several times
    #[arg(long = "allow", value_enum, value_name = "NAME")]
    pub allowed: Vec<Trap>,

    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// The severity of a finding, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrapSeverity {
    /// Nothing is limited there, or every call fails
    Error,
    /// Limits apply, but not always or not as the text suggests
    Warning,
    /// It works, but can surprise
    Note,
}

impl TrapSeverity {
    pub(crate) fn level(self) -> FaultLevel {
        match self {
            Self::Error => FaultLevel::Error,
            Self::Warning => FaultLevel::Warning,
            Self::Note => FaultLevel::Note,
        }
    }
}

/// A setting that does not limit what its author meant to limit, and that Envoy accepts silently. Their names do not
/// change in later versions, and are in alphabetical order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Trap {
    Authority,
    CatchAll,
    Descriptor,
    DirectResponse,
    Domain,
    EarlyOrder,
    HiddenLimits,
    HitsAddend,
    Http2,
    LateCost,
    MisplacedLimits,
    NoFilter,
    NoMatch,
    NoRelease,
    NothingChecked,
    OrderMetadata,
    RouteFilterName,
    Stage,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}
