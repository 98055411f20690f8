//! The arguments of `tollgate lint-envoy`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, builder::PossibleValuesParser};

use super::reading::Reading;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 without findings, 1 with findings, 2 if a file cannot be read. \
                  docs/envoy/lint-envoy.md describes each trap."
)]
pub(crate) struct LintEnvoy {
    /// Bootstraps in YAML or JSON, outputs of Envoy's /config_dump, Istio's EnvoyFilters, ConfigMaps that hold one of
    /// these, or folders of them; - is standard input
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
    #[arg(long = "allow", value_parser = PossibleValuesParser::new(TRAP_NAMES), value_name = "TRAP")]
    pub allowed: Vec<String>,

    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// The form in which findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LintFormat {
    Text,
    Json,
}

/// The consequence of a finding, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum TrapSeverity {
    /// Nothing is limited there, or every request is refused
    Error,
    /// Limits apply, but not always or not as the text suggests
    Warning,
    /// It works, but may surprise
    Advice,
}

impl TrapSeverity {
    /// `error`, `warning` or `advice`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Advice => "advice",
        }
    }
}

/// The names of all traps, in the order of the alphabet. They stay the same in later versions.
pub(crate) const TRAP_NAMES: [&str; 35] = [
    "absent-value",
    "authority",
    "descriptor",
    "direct-response",
    "domain",
    "failure-mode",
    "filter-disabled",
    "forged-address",
    "headers",
    "hidden-limits",
    "hits-addend",
    "http2",
    "list-of-one",
    "misplaced-limits",
    "no-filter",
    "no-host-yet",
    "no-match",
    "no-traffic-interval",
    "not-enforced",
    "nothing-checked",
    "panic-threshold",
    "query-string",
    "quota-service",
    "redirect",
    "retries",
    "route-disabled",
    "route-filter-name",
    "service-timeout",
    "stage",
    "status",
    "stream-done",
    "switched-off",
    "tcp-descriptor",
    "timeout",
    "unknown-cluster",
];
