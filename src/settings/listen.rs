//! Settings of the ports: gRPC with its TLS, HTTP and debug.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};

use crate::{
    service::admin::ChangeAccess,
    settings::{
        shapes::ArgShape as _,
        values::{duration, file_path, port},
    },
};

/// The addresses of the ports, and how long connections can be silent or live.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Listeners")]
pub(crate) struct Listen {
    /// Serve gRPC on this Unix socket instead of a port
    #[arg(long, env = "GRPC_UDS", value_parser = file_path, value_name = "PATH")]
    pub grpc_uds: Option<PathBuf>,

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
