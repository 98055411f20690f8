//! Settings of the Redis that holds the counters, and of the second one for limits per second.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::{
    core::counter::KeyFormat,
    net::tls::client::ClientTls,
    settings::{
        shapes::{ArgShape as _, named},
        values::{Hidden, boolean, file_path, number, some_time, whole_number},
    },
    store::redis::{
        self,
        options::{Options, TimeSource},
        topology::address::{Address, Secret, TopologyKind},
    },
};

/// The Redis that holds the counters, and how it is used.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Redis")]
pub(crate) struct Redis {
    /// Count in this Redis instead of in memory: redis://user:password@host:port/database (only host and port are
    /// required), host:port, or a socket path; several host:port with commas for a cluster;
    /// redis+sentinel://sentinel:port,sentinel:port/master. rediss:// and rediss+sentinel:// use TLS
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    pub redis_url: Option<Hidden>,

    /// File that contains the address, for an address with a password
    #[arg(long, env = "TOLLGATE_REDIS_URL_FILE", file_instead_of = "redis_url")]
    pub redis_url_file: Option<PathBuf>,

    /// Form of keys: `reference` shares counters with envoyproxy/ratelimit during a migration, and refuses rules that
    /// its keys cannot distinguish
    #[arg(long, env = "TOLLGATE_KEY_FORMAT", value_parser = named::<KeyFormat>(), choice = ("FORMAT", "native"))]
    pub key_format: KeyFormat,

    /// Where to count: only `redis`; memory needs no name
    #[arg(long, env = "BACKEND_TYPE", value_parser = backend, value_name = "NAME")]
    pub backend: Option<BackendFlag>,

    /// How to read a --redis-url without a scheme: as a TCP address or as the path of a socket
    #[arg(long, env = "REDIS_SOCKET_TYPE", one_of = "TYPE")]
    pub redis_socket_type: Option<SocketType>,

    /// How to read an address without a scheme: one server, `master,sentinel:port,…`, or nodes of a cluster separated
    /// by commas
    #[arg(long, env = "REDIS_TYPE", value_parser = named::<TopologyKind>(), one_of = "TYPE")]
    pub redis_type: Option<TopologyKind>,

    /// Password, or user:password, for an address that has none
    #[arg(long, env = "REDIS_AUTH", hidden = "SECRET")]
    pub redis_auth: Option<Hidden>,

    /// File that contains that password; read again for every connection
    #[arg(long, env = "TOLLGATE_REDIS_AUTH_FILE", file_instead_of = "redis_auth")]
    pub redis_auth_file: Option<PathBuf>,

    /// Password, or user:password, of the sentinels themselves
    #[arg(long, env = "REDIS_SENTINEL_AUTH", hidden = "SECRET")]
    pub redis_sentinel_auth: Option<Hidden>,

    /// File that contains that password; read again for every connection
    #[arg(
        long,
        env = "TOLLGATE_REDIS_SENTINEL_AUTH_FILE",
        file_instead_of = "redis_sentinel_auth"
    )]
    pub redis_sentinel_auth_file: Option<PathBuf>,

    /// Clock for windows: Redis', so that all replicas agree, or this machine's
    #[arg(long, env = "TOLLGATE_CLOCK", value_parser = named::<TimeSource>(), choice = ("CLOCK", "redis"))]
    pub clock: TimeSource,

    /// Use TLS to Redis; a rediss:// address does so too
    #[arg(long, env = "REDIS_TLS", boolean = false)]
    pub redis_tls: bool,

    #[command(flatten)]
    pub tls: RedisTls,

    /// How long connecting to Redis may take; decisions do not wait for it
    #[arg(long, env = "REDIS_TIMEOUT", value_parser = some_time, time = "1s")]
    pub redis_connect_timeout: Duration,

    /// Delay the expiry of keys by a random time of up to this many seconds
    #[arg(
        long,
        env = "EXPIRATION_JITTER_MAX_SECONDS",
        default_value_t = 0,
        value_parser = whole_number,
        allow_negative_numbers = true,
        value_name = "SECONDS"
    )]
    pub expiration_jitter: i64,

    /// Longest wait of a decision for Redis; at most nine tenths of the caller's own deadline (grpc-timeout; Envoy's
    /// default is 20ms)
    #[arg(long, env = "TOLLGATE_REDIS_TIMEOUT", value_parser = some_time, time = "100ms")]
    pub redis_timeout: Duration,

    /// Prefix of every key in Redis
    #[arg(long, env = "CACHE_KEY_PREFIX", text = ("TEXT", ""))]
    pub key_prefix: String,

    /// Memory for counters that are over their limit, which are refused without asking Redis; 0 turns this off
    #[arg(long, env = "LOCAL_CACHE_SIZE_IN_BYTES", text = ("BYTES", "8388608"), value_parser = number::<usize>(..))]
    pub local_cache_bytes: usize,

    /// Report healthy only while Redis answers; otherwise the process stays in rotation
    #[arg(long, env = "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", boolean = false)]
    pub health_follows_redis: bool,
}

/// How long a Redis can be silent before no decision waits for it and only a probe calls it, or the time of a decision
/// if that is longer. On Linux, retransmitting a segment takes that long (TCP_RTO_MIN).
const LOST_AFTER: Duration = Duration::from_millis(200);

impl Redis {
    /// How to use Redis.
    pub(crate) fn options(&self) -> Options {
        Options {
            key_prefix: self.key_prefix.clone(),
            deadline: self.redis_timeout,
            lose_after: LOST_AFTER.max(self.redis_timeout),
            jitter_secs: self.expiration_jitter.max(0).unsigned_abs(),
            clock: self.clock,
        }
    }

    /// The address of Redis; `None` if no flag names a backend, which means to count in memory.
    pub(crate) fn address(&self) -> Option<Address> {
        let auth = secret(&self.redis_auth, &self.redis_auth_file);
        let is_asked_for = self.backend.is_some()
            || self.redis_socket_type.is_some()
            || self.redis_type.is_some()
            || self.redis_auth.is_some()
            || auth.is_some();
        // This is the reference's default.
        let default = is_asked_for.then_some("/var/run/nutcracker/ratelimit.sock");
        let given = self.redis_url.as_deref().filter(|url| !url.is_empty());
        let url = match file(&self.redis_url_file) {
            Some(file) => file,
            None => Secret::Text(with_socket_type(given.or(default)?, self.redis_socket_type)),
        };
        Some(Address {
            url,
            kind: self.redis_type,
            auth,
            sentinel_auth: secret(&self.redis_sentinel_auth, &self.redis_sentinel_auth_file),
            timeout: self.redis_connect_timeout,
            is_tls: self.redis_tls,
            sentinels_tls: self.tls.redis_sentinel_tls,
            tls: self.tls.read(),
        })
    }
}

/// The value of a flag, or else the file that another flag names. An empty variable counts as unset.
pub(super) fn secret(
    text: &Option<Hidden>,
    path: &Option<PathBuf>,
) -> Option<redis::topology::address::Secret> {
    let text = text.as_ref().filter(|text| !text.is_empty());
    file(path)
        .or_else(|| text.map(|text| redis::topology::address::Secret::Text((**text).to_owned())))
}

/// The file that a flag names. An empty path counts as unset.
pub(super) fn file(path: &Option<PathBuf>) -> Option<redis::topology::address::Secret> {
    let path = path.as_ref().filter(|path| !path.as_os_str().is_empty());
    path.map(|path| redis::topology::address::Secret::File(path.clone()))
}

/// Turns a bare address into a URL if `socket_type` declares it to be a socket path. Other addresses are returned
/// unchanged.
pub(super) fn with_socket_type(url: &str, socket_type: Option<SocketType>) -> String {
    match socket_type {
        Some(SocketType::Unix) if !url.contains("://") => format!("unix://{url}"),
        _ => url.to_owned(),
    }
}

/// The only backend that can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendFlag {
    Redis,
}

/// As in the reference, an empty name means Redis.
pub(super) fn backend(text: &str) -> Result<BackendFlag, String> {
    match text {
        "" | "redis" => Ok(BackendFlag::Redis),
        "memcache" => {
            Err("expected redis: there is no memcached store, which could not count exactly".into())
        }
        _ => Err("expected redis".into()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SocketType {
    Tcp,
    Unix,
}

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

    /// How to read an address without a scheme
    #[arg(long, env = "REDIS_PERSECOND_SOCKET_TYPE", one_of = "TYPE")]
    pub redis_per_second_socket_type: Option<SocketType>,

    /// How to read an address without a scheme: one server, a master with sentinels, or a cluster
    #[arg(long, env = "REDIS_PERSECOND_TYPE", value_parser = named::<TopologyKind>(), one_of = "TYPE")]
    pub redis_per_second_type: Option<TopologyKind>,

    /// Password, or user:password, for an address that has none
    #[arg(long, env = "REDIS_PERSECOND_AUTH", hidden = "SECRET")]
    pub redis_per_second_auth: Option<Hidden>,

    /// Password, or user:password, of the sentinels of the second Redis
    #[arg(long, env = "REDIS_PERSECOND_SENTINEL_AUTH", hidden = "SECRET")]
    pub redis_per_second_sentinel_auth: Option<Hidden>,

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
        self.redis_per_second.then(|| Address {
            url: Secret::Text(with_socket_type(&self.redis_per_second_url, kind)),
            kind: self.redis_per_second_type,
            auth: secret(&self.redis_per_second_auth, &None),
            sentinel_auth: secret(&self.redis_per_second_sentinel_auth, &None),
            timeout: self.redis_per_second_connect_timeout,
            is_tls: self.redis_per_second_tls,
            sentinels_tls: tls.redis_sentinel_tls,
            tls: tls.read(),
        })
    }
}
