//! Settings of the ports: gRPC with its TLS, HTTP and debug, and bounds on what clients can send.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};

use crate::{
    service::admin::ChangeAccess,
    settings::{
        shapes::ArgShape as _,
        values::{duration, file_mode, file_path, number, port, some_time},
    },
};

/// The addresses of the ports, and how long connections can be silent or live.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Listeners")]
pub(crate) struct Listen {
    /// Serve gRPC on this Unix socket instead of a port
    #[arg(long, env = "GRPC_UDS", value_parser = file_path, value_name = "PATH")]
    pub grpc_uds: Option<PathBuf>,

    /// Permissions of that socket, in octal
    #[arg(long, env = "TOLLGATE_GRPC_UDS_MODE", default_value = "666", value_parser = file_mode, value_name = "MODE")]
    pub grpc_uds_mode: u32,

    /// Address of the gRPC port
    #[arg(long, env = "GRPC_HOST", text = ("HOST", "0.0.0.0"))]
    pub grpc_host: String,

    /// gRPC port; 0 takes a free one
    #[arg(long, env = "GRPC_PORT", default_value_t = 8081, value_parser = port, value_name = "PORT")]
    pub grpc_port: u16,

    /// Ask clients to reconnect after this long, give or take a tenth, so that new replicas get load; 0 means never
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", value_parser = duration, time = "24h")]
    pub max_connection_age: Duration,

    /// How long running calls may then take to finish
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", value_parser = duration, time = "1h")]
    pub max_connection_age_grace: Duration,

    /// Close a connection whose first call has not begun within this time, TLS handshake and HTTP/2 preface included
    #[arg(long, env = "TOLLGATE_FIRST_CALL_TIMEOUT", value_parser = some_time, time = "10s")]
    pub first_call_timeout: Duration,

    /// Ping a connection that has been silent for this long, and close it if no answer comes within as long, but at
    /// most 20 s; 0 means never
    #[arg(long, env = "TOLLGATE_KEEPALIVE_INTERVAL", value_parser = duration, time = "60s")]
    pub keepalive_interval: Duration,

    /// Share the ports with other processes (SO_REUSEPORT); a port that is in use by mistake then goes unnoticed
    #[arg(long, env = "TOLLGATE_REUSE_PORT", boolean = false)]
    pub reuse_port: bool,

    /// Address of the HTTP port (/healthcheck, /json)
    #[arg(long, env = "HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub host: String,

    /// HTTP port; 0 takes a free one
    #[arg(long, env = "PORT", default_value_t = 8080, value_parser = port, value_name = "PORT")]
    pub port: u16,

    /// Answer requests in JSON at /json of the HTTP port; every client that reaches the port can then count hits
    #[arg(long, env = "TOLLGATE_HTTP_JSON", boolean = true)]
    pub http_json: bool,

    /// Address of the debug port, whose page / lists the others; loopback by default
    #[arg(long, env = "DEBUG_HOST", text = ("HOST", "127.0.0.1"))]
    pub debug_host: String,

    /// Debug port; 0 takes a free one
    #[arg(long, env = "DEBUG_PORT", default_value_t = 6070, value_parser = port, value_name = "PORT")]
    pub debug_port: u16,

    /// Further host names, separated by commas, under which this machine may read the debug port; all others are
    /// refused, because a web page could use them
    #[arg(
        long,
        env = "TOLLGATE_DEBUG_HOSTS",
        value_delimiter = ',',
        value_name = "HOSTS"
    )]
    pub debug_hosts: Vec<String>,

    /// File with the token that changes counters through the debug port (`authorization: Bearer TOKEN`); read for each
    /// such call
    #[arg(long, env = "TOLLGATE_ADMIN_TOKEN_FILE", value_parser = file_path, value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// Callers who may change counters through the debug port: those with the token, those on this machine too, or none
    /// [default: token with --admin-token-file, else loopback]
    #[arg(
        long,
        env = "TOLLGATE_ADMIN_CHANGES",
        requires_if("token", "admin_token_file"),
        value_name = "WHO"
    )]
    pub admin_changes: Option<AdminChanges>,
}

/// The callers who may change counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AdminChanges {
    Token,
    Loopback,
    Off,
}

impl Listen {
    /// The callers who may change counters. Without a file, `token` lets no caller in.
    pub(crate) fn change_access(&self) -> ChangeAccess {
        let file = self.token_file().map(Path::to_owned);
        match (self.admin_changes, file) {
            (Some(AdminChanges::Off), _) | (Some(AdminChanges::Token), None) => ChangeAccess::Off,
            (None | Some(AdminChanges::Token), Some(file)) => ChangeAccess::Token(file),
            (None | Some(AdminChanges::Loopback), file) => ChangeAccess::Loopback(file),
        }
    }

    /// The file with the token for changes, if there is one.
    pub(crate) fn token_file(&self) -> Option<&Path> {
        let path = self.admin_token_file.as_deref();
        path.filter(|path| !path.as_os_str().is_empty())
    }

    /// The Unix socket to serve gRPC on, if there is one.
    pub(crate) fn grpc_socket(&self) -> Option<&Path> {
        let path = self.grpc_uds.as_deref();
        path.filter(|path| !path.as_os_str().is_empty())
    }
}

/// Most descriptors in a request. Envoy sends one for each of its actions.
pub(crate) const MAX_DESCRIPTORS: usize = 1000;

/// Most entries in a descriptor.
pub(crate) const MAX_ENTRIES: usize = 100;

/// Bounds on requests and connections.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Bounds on requests")]
pub(crate) struct Bounds {
    /// Largest message in bytes; by default four times the headers that Envoy accepts
    #[arg(long, env = "TOLLGATE_MAX_MESSAGE_BYTES", text = ("N", "262144"), value_parser = number::<usize>(1..))]
    pub max_message_bytes: usize,

    /// How long a message, or a body at /json, may take to arrive
    #[arg(long, env = "TOLLGATE_MESSAGE_TIMEOUT", value_parser = some_time, time = "10s")]
    pub message_timeout: Duration,

    /// Memory budget for all clients together, in bytes: incoming messages, unread replies, unfinished headers, pages.
    /// Above it, the connection that has held the most for the longest is closed, or new input is refused
    /// (RESOURCE_EXHAUSTED; 503 over HTTP) [default: 32 MiB, or the share of --max-memory-bytes: a tenth or more]
    #[arg(long, env = "TOLLGATE_MAX_HELD_BYTES", value_parser = number::<usize>(1 << 20..), value_name = "N")]
    pub max_held_bytes: Option<usize>,

    /// Longest domain, key or value in bytes; Envoy's own bound on all headers is 60 KiB
    #[arg(long, env = "TOLLGATE_MAX_TEXT_BYTES", text = ("N", "65536"), value_parser = number::<usize>(1..))]
    pub max_text_bytes: usize,

    /// Most gRPC connections, unless the limit of open files allows fewer. To make room for new ones, the oldest
    /// without a call in their first 100 ms are closed, or else the one without a call for the longest, at least a
    /// second; if there is none, new ones wait [default: 10000, or as many as fit in the share of --max-memory-bytes: a
    /// tenth or more]
    #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS", value_parser = number::<usize>(1..=1_000_000), value_name = "N")]
    pub max_connections: Option<usize>,

    /// Most concurrent calls on one connection
    #[arg(long, env = "TOLLGATE_MAX_STREAMS", text = ("N", "1024"), value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub max_streams: u32,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS on the gRPC port")]
pub(crate) struct TlsSettings {
    /// Require TLS 1.2 or 1.3 on the gRPC port; a Unix socket never has TLS
    #[arg(long, env = "GRPC_SERVER_USE_TLS", boolean = false)]
    pub grpc_tls: bool,

    /// Certificate of the server, with intermediate ones, in PEM; this file and the next two are read again when they
    /// change
    #[arg(long, env = "GRPC_SERVER_TLS_CERT", value_parser = file_path, value_name = "FILE")]
    pub grpc_tls_cert: Option<PathBuf>,

    /// Key of that certificate, in PEM: PKCS#1, PKCS#8 or SEC1 (EC)
    #[arg(long, env = "GRPC_SERVER_TLS_KEY", value_parser = file_path, value_name = "FILE")]
    pub grpc_tls_key: Option<PathBuf>,

    /// Require a client certificate from an authority in this PEM file, and no other
    #[arg(long, env = "GRPC_CLIENT_TLS_CACERT", value_parser = file_path, value_name = "FILE")]
    pub grpc_client_ca: Option<PathBuf>,

    /// Also require the client certificate to be valid for this name; a wildcard there needs two labels after it
    #[arg(long, env = "GRPC_CLIENT_TLS_SAN", value_name = "NAME")]
    pub grpc_client_san: Option<String>,
}

impl TlsSettings {
    pub(crate) fn certificate(&self) -> Option<&Path> {
        given(self.grpc_tls_cert.as_deref())
    }

    pub(crate) fn key(&self) -> Option<&Path> {
        given(self.grpc_tls_key.as_deref())
    }

    pub(crate) fn client_ca(&self) -> Option<&Path> {
        given(self.grpc_client_ca.as_deref())
    }

    pub(crate) fn client_san(&self) -> Option<&str> {
        self.grpc_client_san
            .as_deref()
            .filter(|name| !name.is_empty())
    }
}

/// An empty variable counts as unset.
fn given(path: Option<&Path>) -> Option<&Path> {
    path.filter(|path| !path.as_os_str().is_empty())
}
