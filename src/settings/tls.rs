//! Settings of TLS on the gRPC port.

use std::path::{Path, PathBuf};

use clap::Args;

use super::shapes::ArgShape as _;
use super::values::file_path;

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
