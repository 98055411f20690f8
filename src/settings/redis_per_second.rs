//! Settings of the second Redis, which holds the counters of limits per second.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::redis_address::{SocketType, file, secret, with_socket_type};
use super::redis_tls::RedisTls;
use super::shapes::{ArgShape as _, named};
use super::values::{Hidden, some_time};
use crate::store::redis::topology::address::{Address, Secret, TopologyKind};

/// A second Redis, for limits per second. It uses the deadline, connections, prefix and jitter of the first.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "A second Redis for limits per second")]
pub(crate) struct RedisPerSecond {
    /// Count limits per second in a second Redis
    #[arg(long, env = "REDIS_PERSECOND", boolean = false)]
    pub redis_per_second: bool,

    /// Address of the second Redis
    #[arg(
        long,
        env = "REDIS_PERSECOND_URL",
        default_value = "/var/run/nutcracker/ratelimitpersecond.sock",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub redis_per_second_url: Hidden,

    /// File that contains the address of the second Redis
    #[arg(
        long,
        env = "TOLLGATE_REDIS_PERSECOND_URL_FILE",
        file_instead_of = "redis_per_second_url"
    )]
    pub redis_per_second_url_file: Option<PathBuf>,

    /// How to read an address without a scheme
    #[arg(long, env = "REDIS_PERSECOND_SOCKET_TYPE", one_of = "TYPE")]
    pub redis_per_second_socket_type: Option<SocketType>,

    /// How to read an address without a scheme: one server, a master with sentinels, or a cluster
    #[arg(long, env = "REDIS_PERSECOND_TYPE", value_parser = named::<TopologyKind>(), one_of = "TYPE")]
    pub redis_per_second_type: Option<TopologyKind>,

    /// Password, or user:password, for an address that has none
    #[arg(long, env = "REDIS_PERSECOND_AUTH", hidden = "SECRET")]
    pub redis_per_second_auth: Option<Hidden>,

    /// File that contains that password; read again for every connection
    #[arg(
        long,
        env = "TOLLGATE_REDIS_PERSECOND_AUTH_FILE",
        file_instead_of = "redis_per_second_auth"
    )]
    pub redis_per_second_auth_file: Option<PathBuf>,

    /// Password, or user:password, of the sentinels of the second Redis
    #[arg(long, env = "REDIS_PERSECOND_SENTINEL_AUTH", hidden = "SECRET")]
    pub redis_per_second_sentinel_auth: Option<Hidden>,

    /// File that contains that password; read again for every connection
    #[arg(
        long,
        env = "TOLLGATE_REDIS_PERSECOND_SENTINEL_AUTH_FILE",
        file_instead_of = "redis_per_second_sentinel_auth"
    )]
    pub redis_per_second_sentinel_auth_file: Option<PathBuf>,

    /// Use TLS to the second Redis, with the certificates of the first
    #[arg(long, env = "REDIS_PERSECOND_TLS", boolean = false)]
    pub redis_per_second_tls: bool,

    /// How long connecting to the second Redis may take
    #[arg(long, env = "REDIS_PERSECOND_TIMEOUT", value_parser = some_time, time = "1s")]
    pub redis_per_second_connect_timeout: Duration,
}

impl RedisPerSecond {
    /// The address of the second Redis, if there is one.
    pub(crate) fn address(&self, tls: &RedisTls) -> Option<Address> {
        let kind = self.redis_per_second_socket_type;
        let url = || Secret::Text(with_socket_type(&self.redis_per_second_url, kind));
        self.redis_per_second.then(|| Address {
            url: file(&self.redis_per_second_url_file).unwrap_or_else(url),
            kind: self.redis_per_second_type,
            auth: secret(
                &self.redis_per_second_auth,
                &self.redis_per_second_auth_file,
            ),
            sentinel_auth: secret(
                &self.redis_per_second_sentinel_auth,
                &self.redis_per_second_sentinel_auth_file,
            ),
            timeout: self.redis_per_second_connect_timeout,
            is_tls: self.redis_per_second_tls,
            sentinels_tls: tls.redis_sentinel_tls,
            tls: tls.read(),
        })
    }
}
