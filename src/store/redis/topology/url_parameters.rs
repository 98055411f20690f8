//! The parameters after the `?` of an address.
//!
//! Other clients of Redis know many. Those that are not honoured are refused by name, with the setting that means the
//! same.

use percent_encoding::percent_decode;

/// Parameters that are honoured.
#[derive(Default)]
pub(crate) struct UrlParameters {
    pub(crate) database: Option<u32>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// Parameters of redis-rs, redis-py, go-redis, ioredis, Lettuce and StackExchange.Redis, and the words in their place.
const FOREIGN: [(&[&str], &str); 12] = [
    (
        &["password", "pass", "auth", "username", "user"],
        "write user:password@ before the host, or set --redis-auth (REDIS_AUTH)",
    ),
    (
        &["ssl", "tls", "useSsl"],
        "for TLS write rediss://, or set --redis-tls (REDIS_TLS)",
    ),
    (
        &[
            "ssl_cert_reqs",
            "ssl_check_hostname",
            "skip_verify",
            "insecure",
            "rejectUnauthorized",
            "verifyPeer",
            "sslHost",
        ],
        "certificates are always verified; --redis-tls-any-host (REDIS_TLS_SKIP_HOSTNAME_VERIFICATION) accepts those \
         of another host",
    ),
    (
        &["ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ca", "cacert"],
        "the authority is --redis-tls-ca (REDIS_TLS_CACERT)",
    ),
    (
        &["ssl_certfile", "ssl_keyfile", "cert", "key"],
        "the client certificate is --redis-tls-cert and --redis-tls-key (REDIS_TLS_CLIENT_CERT, REDIS_TLS_CLIENT_KEY)",
    ),
    (
        &[
            "timeout",
            "socket_timeout",
            "read_timeout",
            "write_timeout",
            "syncTimeout",
            "asyncTimeout",
            "commandTimeout",
        ],
        "set --redis-timeout (TOLLGATE_REDIS_TIMEOUT)",
    ),
    (
        &[
            "socket_connect_timeout",
            "dial_timeout",
            "connect_timeout",
            "connectTimeout",
        ],
        "set --redis-connect-timeout (REDIS_TIMEOUT)",
    ),
    (
        &[
            "pool_size",
            "max_connections",
            "min_idle_conns",
            "max_idle_conns",
            "max_active_conns",
        ],
        "remove it: each worker has one connection to each server",
    ),
    (
        &["protocol", "resp"],
        "leave it out: replies are read in RESP2, which every server speaks",
    ),
    (
        &[
            "master_name",
            "masterName",
            "sentinelMasterId",
            "serviceName",
        ],
        "write redis+sentinel://sentinel:port,sentinel:port/master",
    ),
    (&["addr"], "write several host:port with commas between"),
    (&["defaultDatabase"], "write redis://host:port/database"),
];

impl UrlParameters {
    /// Reads `name=value&name=value`. The address of a socket can have credentials there.
    ///
    /// # Errors
    ///
    /// The reason, which contains no value, if one of them is not honoured.
    pub(crate) fn read(query: &str, is_socket: bool) -> Result<Self, String> {
        let mut found = Self::default();
        if query.is_empty() {
            return Ok(found);
        }
        for item in query.split('&') {
            match item.split_once('=') {
                Some(("db" | "database", value)) => {
                    let database = value.parse();
                    let database =
                        database.map_err(|_| "the database is not a number".to_owned())?;
                    found.database = Some(database);
                }
                Some(("user", value)) if is_socket => found.user = Some(decoded(value)?),
                Some(("pass", value)) if is_socket => found.password = Some(decoded(value)?),
                Some((name, _)) if found.password.is_none() => return Err(refusal(name)),
                // It may be a part of the password.
                _ => return Err(UNKNOWN.to_owned()),
            }
        }
        Ok(found)
    }
}

const UNKNOWN: &str =
    "a parameter after the ? is not known; percent-encode ? and & in a password as %3F and %26";

/// Why the parameter `name` is refused.
pub(crate) fn refusal(name: &str) -> String {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !name.bytes().all(is_name) {
        return UNKNOWN.to_owned();
    }
    let known = FOREIGN.iter().find(|(names, _)| {
        let mut names = names.iter();
        names.any(|known| known.eq_ignore_ascii_case(name))
    });
    match known {
        Some((_, instead)) => format!("the parameter `{name}` is not honoured: {instead}"),
        None => format!("the parameter `{name}` is not known; `db` is the only one"),
    }
}

/// `text` with its percent-encoded bytes as they are.
///
/// # Errors
///
/// The advice, if they are not UTF-8.
pub(crate) fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode(text.as_bytes()).decode_utf8();
    decoded.map(Into::into).map_err(|_| {
        "a user or a password is not UTF-8; percent-encode a % in it as %25".to_owned()
    })
}
