//! The arguments of `tollgate lint-envoy`.

use std::{fmt, path::PathBuf};

use clap::{Args, ValueEnum};

use crate::settings::command_line::clients::Reading;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 without findings, 1 with findings, 2 if a file cannot be read. \
                  docs/envoy/lint-envoy.md describes each trap."
)]
pub(crate) struct LintEnvoy {
    /// Bootstraps in YAML or JSON, outputs of Envoy's /config_dump, Istio's EnvoyFilters, ConfigMaps that contain one
    /// of these, or folders of them; - is standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    pub paths: Vec<PathBuf>,

    /// Also report domains and descriptors that no rule in this folder covers
    #[arg(long, value_name = "DIR")]
    pub rules: Option<PathBuf>,

    /// Print lines, or one JSON document
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: LintFormat,

    /// Leave out findings that are less severe; they do not change the exit code
    #[arg(long, value_enum, default_value = "advice", value_name = "SEVERITY")]
    pub min_severity: TrapSeverity,

    /// Leave out findings of this trap; can be given several times
    #[arg(long = "allow", value_enum, value_name = "TRAP")]
    pub allowed: Vec<Trap>,

    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// The format in which findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LintFormat {
    Text,
    Json,
}

/// The severity of a finding, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum TrapSeverity {
    /// Nothing is limited there, or every request is refused
    Error,
    /// Limits apply, but not always or not as the text suggests
    Warning,
    /// It works, but can surprise
    Advice,
}

/// A setting that does not limit what its author meant to limit. Envoy accepts most of them. Their names do not change
/// in later versions, and are in alphabetical order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Trap {
    AbsentValue,
    AddendWithoutEstimate,
    Authority,
    BehindRouter,
    ChargedRefusals,
    Descriptor,
    DirectResponse,
    Domain,
    FailureMode,
    FilterDisabled,
    ForgedAddress,
    Headers,
    HiddenLimits,
    HitsAddend,
    Http2,
    LateHeader,
    ListOfOne,
    LostCost,
    MisplacedLimits,
    NoFilter,
    NoHostYet,
    NoMatch,
    NoRelease,
    NoTrafficInterval,
    NotEnforced,
    NothingChecked,
    PanicThreshold,
    QueryString,
    QuotaService,
    Redirect,
    Retries,
    RouteDisabled,
    RouteFilterName,
    ServiceTimeout,
    SharedMetadata,
    Stage,
    Status,
    StreamDone,
    StringMetadata,
    SwitchedOff,
    TcpDescriptor,
    Timeout,
    UngatedGiveBack,
    UnknownCluster,
    UnknownField,
    WrongPort,
}

impl fmt::Display for TrapSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}

/// Writes the name of a value on the command line.
fn write_name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let value = value.to_possible_value();
    f.write_str(value.as_ref().map_or("", |value| value.get_name()))
}
