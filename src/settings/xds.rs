//! Settings of a control plane that pushes rules.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::shapes::ArgShape as _;
use super::values::{Hidden, decimal, duration, file_path, number, some_time};
use crate::{
    control::xds::options::{ControlPlaneTls, DEFAULT_MESSAGE_BYTES, OnEmptyPush, Options},
    foundation::backoff::Backoff,
};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Rules from a control plane (xDS)")]
pub(crate) struct Xds {
    /// Source of the rules: files, or a control plane that pushes them
    #[arg(long, env = "CONFIG_TYPE", choice = ("TYPE", "FILE"))]
    pub config_type: ConfigType,

    /// Address of the control plane: host:port, or unix: and the path of a socket
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_URL", text = ("HOST:PORT", "localhost:18000"))]
    pub xds_server: String,

    /// Node id that this process reports to the control plane
    #[arg(long, env = "CONFIG_GRPC_XDS_NODE_ID", text = ("ID", "default"))]
    pub xds_node_id: String,

    /// Further metadata that this process reports to the control plane
    #[arg(long, env = "CONFIG_GRPC_XDS_NODE_METADATA", text = ("KEY=VALUE,…", ""))]
    pub xds_node_metadata: String,

    /// Headers of the call to the control plane
    #[arg(
        long,
        env = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
        hide_env_values = true,
        default_value = "",
        value_name = "NAME:VALUE,…"
    )]
    pub xds_headers: Hidden,

    /// Use TLS to the control plane; its files are read again for each connection
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_USE_TLS", boolean = false)]
    pub xds_tls: bool,

    /// Client certificate for the control plane, in PEM
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", value_parser = file_path, value_name = "FILE")]
    pub xds_tls_cert: Option<PathBuf>,

    /// Key of that certificate, in PEM: PKCS#1, PKCS#8 or SEC1 (EC)
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", value_parser = file_path, value_name = "FILE")]
    pub xds_tls_key: Option<PathBuf>,

    /// Certificate authority of the control plane, trusted instead of the public ones
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", value_parser = file_path, value_name = "FILE")]
    pub xds_tls_ca: Option<PathBuf>,

    /// Name that the certificate of the control plane must be valid for, if not its host's; a wildcard there needs two
    /// labels after it
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_TLS_SAN", text = ("NAME", ""))]
    pub xds_tls_san: String,

    /// Effect of a push without rules: `allow` accepts it, so that nothing is limited, except as the first answer after
    /// a reconnect, because a control plane that has just started may not have its rules yet; `always` accepts it then
    /// too; `keep` refuses it while there are rules
    #[arg(long, env = "TOLLGATE_XDS_EMPTY_PUSH", choice = ("WHAT", "allow"))]
    pub xds_empty_push: EmptyPush,

    /// Largest push in bytes; 0 means 4 MiB, which is gRPC's default
    #[arg(long, env = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", text = ("N", "0"), value_parser = number::<usize>(..))]
    pub xds_max_message_bytes: usize,

    /// Wait before the first attempt to reconnect
    #[arg(long, env = "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", value_parser = some_time, time = "250ms")]
    pub xds_backoff_initial: Duration,

    /// Longest wait between two attempts
    #[arg(long, env = "XDS_CLIENT_BACKOFF_MAX_INTERVAL", value_parser = some_time, time = "5s")]
    pub xds_backoff_max: Duration,

    /// Each wait is this many times the one before; with 1 or less all waits equal the first
    #[arg(long, env = "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", text = ("FACTOR", "2"), value_parser = decimal)]
    pub xds_backoff_factor: f64,

    /// Randomise waits, so that processes do not all come back at once
    #[arg(long, env = "XDS_CLIENT_BACKOFF_JITTER", boolean = true)]
    pub xds_backoff_jitter: bool,

    /// Wait after a control plane refuses the call, times the refusals so far [default: the usual back-off]
    #[arg(
        long,
        env = "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        value_parser = some_time,
        value_name = "DURATION",
    )]
    pub xds_retry_interval: Option<Duration>,

    /// How often to ping a silent control plane; 0 means never. Servers in Go (Envoy Gateway) close connections that
    /// ping more often than every 5 minutes
    #[arg(long, env = "TOLLGATE_XDS_KEEPALIVE", value_parser = duration, time = "6m")]
    pub xds_keepalive: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConfigType {
    /// Files in the folder that the other flags name
    #[value(name = "FILE")]
    File,
    /// A control plane
    #[value(name = "GRPC_XDS_SOTW", alias = "xds")]
    Xds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EmptyPush {
    Allow,
    Always,
    Keep,
}

impl Xds {
    /// How to get rules from the control plane; `None` if they come from files.
    pub(crate) fn options(&self) -> Option<Options> {
        if self.config_type == ConfigType::File {
            return None;
        }
        let given = |path: &Option<PathBuf>| path.clone().filter(|p| !p.as_os_str().is_empty());
        Some(Options {
            server: self.xds_server.clone(),
            node_id: self.xds_node_id.clone(),
            node_metadata: items(&self.xds_node_metadata)
                // As in the reference, items without an equals sign are dropped.
                .filter_map(|item| item.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            headers: items(&self.xds_headers).map(str::to_owned).collect(),
            tls: self.xds_tls.then(|| ControlPlaneTls {
                certificate: given(&self.xds_tls_cert),
                key: given(&self.xds_tls_key),
                ca: given(&self.xds_tls_ca),
                name: Some(self.xds_tls_san.clone()).filter(|name| !name.is_empty()),
            }),
            empty: match self.xds_empty_push {
                EmptyPush::Allow => OnEmptyPush::Allow,
                EmptyPush::Always => OnEmptyPush::Always,
                EmptyPush::Keep => OnEmptyPush::Keep,
            },
            max_message_bytes: match self.xds_max_message_bytes {
                0 => DEFAULT_MESSAGE_BYTES,
                bytes => bytes,
            },
            backoff: Backoff {
                initial: self.xds_backoff_initial,
                max: self.xds_backoff_max,
                factor: self.xds_backoff_factor,
                jitter: self.xds_backoff_jitter,
            },
            retry_interval: self.xds_retry_interval,
            keepalive: Some(self.xds_keepalive).filter(|interval| !interval.is_zero()),
        })
    }
}

/// The items of a comma-separated list; an empty text has none.
fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(move |_| !list.is_empty())
}
