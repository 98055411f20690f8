//! The flags of the commands that ask a running server: `ask`, `counters`, `explain` and `healthcheck`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};

use crate::{
    config::rule_defaults::Options,
    core::{counter::KeyFormat, request::Entries},
    settings::{
        shapes::{ArgShape as _, named},
        values::{duration, file_path, port, some_time},
    },
};

#[derive(Debug, Args)]
#[command(
    after_help = "The debug port is open to this machine only unless --debug-host says otherwise. docs/openapi.yaml \
                  describes the endpoints behind these commands."
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

    /// Print the JSON of `/explain`, which docs/openapi.yaml describes
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

/// The settings of `serve` that change the meaning of rule files.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Reading {
    /// Let several files name one domain, as `serve --merge-domains` does
    #[arg(
        long,
        env = "MERGE_DOMAIN_CONFIG",
        boolean = false,
        require_equals = true
    )]
    pub(crate) merge_domains: bool,

    /// Match keys and values separately, as `serve --strict-matching` does
    #[arg(
        long,
        env = "TOLLGATE_STRICT_MATCHING",
        boolean = false,
        require_equals = true
    )]
    pub(crate) strict_matching: bool,
}

impl Reading {
    /// The options of the rule compiler. Those that depend on other settings keep their defaults.
    pub(crate) fn options(self) -> Options {
        Options {
            merge_domains: self.merge_domains,
            strict_matching: self.strict_matching,
            ..Options::default()
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "It reads the variables that `serve` reads, so a probe inside the container needs no flag. Exit code: \
                  0 if the server is healthy, 1 if not or if there is no answer, 2 for a bad command line."
)]
pub(crate) struct HealthCheck {
    /// Ask /healthcheck on the HTTP port; always the case if the gRPC port has TLS
    #[arg(long)]
    pub http: bool,

    /// How long to wait for the answer; the default fits into the second that Kubernetes gives a probe
    #[arg(long, value_parser = some_time, time = "700ms")]
    pub timeout: Duration,

    /// Unix socket of the gRPC service, instead of a port
    #[arg(long, env = "GRPC_UDS", value_parser = file_path, value_name = "PATH")]
    pub grpc_uds: Option<PathBuf>,

    /// Address of the gRPC port; an address that means all of them is replaced by loopback
    #[arg(long, env = "GRPC_HOST", text = ("HOST", "0.0.0.0"))]
    pub grpc_host: String,

    /// gRPC port
    #[arg(long, env = "GRPC_PORT", default_value_t = 8081, value_parser = port, value_name = "PORT")]
    pub grpc_port: u16,

    /// The gRPC port has TLS, so the HTTP port is asked
    #[arg(long, env = "GRPC_SERVER_USE_TLS", boolean = false)]
    pub grpc_tls: bool,

    /// Address of the HTTP port; an address that means all of them is replaced by loopback
    #[arg(long, env = "HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub host: String,

    /// HTTP port
    #[arg(long, env = "PORT", default_value_t = 8080, value_parser = port, value_name = "PORT")]
    pub port: u16,
}

impl HealthCheck {
    /// The socket of the gRPC service, if it has one.
    pub(crate) fn grpc_socket(&self) -> Option<&Path> {
        // An empty variable counts as unset.
        let path = self.grpc_uds.as_deref();
        path.filter(|path| !path.as_os_str().is_empty())
    }
}

/// Form of a report.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ReportFormat {
    /// One line for each problem, and a summary
    Text,
    /// The JSON of docs/rules/check.md
    Json,
    /// SARIF 2.1.0
    Sarif,
    /// Workflow commands of GitHub Actions
    Github,
}

#[cfg(test)]
mod tests {
    use clap::{Arg, CommandFactory as _};

    use crate::settings::command_line::Cli;

    /// With another variable or another default, the probe would ask somewhere else.
    #[test]
    fn each_variable_means_the_same_as_in_serve() {
        let command = Cli::command();
        let flags = |name| command.find_subcommand(name).unwrap().get_arguments();
        let shape = |flag: &Arg| {
            (
                flag.get_long().map(str::to_owned),
                flag.get_default_values().to_vec(),
            )
        };
        let mut compared = 0;
        for flag in flags("healthcheck").filter(|flag| flag.get_env().is_some()) {
            let mut others = flags("serve");
            let other = others.find(|other| other.get_env() == flag.get_env());
            assert_eq!(shape(flag), shape(other.expect("a setting of serve")));
            compared += 1;
        }
        assert_eq!(compared, 6);
    }
}
