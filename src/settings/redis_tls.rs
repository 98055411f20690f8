//! Settings of TLS to Redis.

use std::path::PathBuf;

use clap::Args;

use super::shapes::ArgShape as _;
use super::values::{boolean, file_path};
use crate::net::tls::client::ClientTls;

/// Certificates for TLS to both Redis.
#[derive(Clone, Debug, Args)]
pub(crate) struct RedisTls {
    /// Certificate authority of Redis, trusted instead of the public ones
    #[arg(long, env = "REDIS_TLS_CACERT", value_parser = file_path, value_name = "FILE")]
    pub redis_tls_ca: Option<PathBuf>,

    /// Client certificate for Redis
    #[arg(long, env = "REDIS_TLS_CLIENT_CERT", value_parser = file_path, value_name = "FILE")]
    pub redis_tls_cert: Option<PathBuf>,

    /// Key of that certificate
    #[arg(long, env = "REDIS_TLS_CLIENT_KEY", value_parser = file_path, value_name = "FILE")]
    pub redis_tls_key: Option<PathBuf>,

    /// Accept a certificate of Redis that is valid but names another host
    #[arg(long, env = "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", boolean = false)]
    pub redis_tls_any_host: bool,

    /// Whether to use TLS to the sentinels of both Redis [default: as for their Redis]
    #[arg(
        long,
        env = "TOLLGATE_REDIS_SENTINEL_TLS",
        value_parser = boolean,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    pub redis_sentinel_tls: Option<bool>,
}

impl RedisTls {
    /// The files that the flags name.
    pub(super) fn read(&self) -> ClientTls {
        let given = |path: &Option<PathBuf>| {
            let path = path.clone()?;
            (!path.as_os_str().is_empty()).then_some(path)
        };
        ClientTls {
            ca: given(&self.redis_tls_ca),
            pair: given(&self.redis_tls_cert).zip(given(&self.redis_tls_key)),
            any_host: self.redis_tls_any_host,
            http2: false,
        }
    }
}
