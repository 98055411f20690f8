//! Texts from the settings → endpoints and credentials of Redis.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use bb8_redis::redis::{ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo, RedisError};

use crate::{
    foundation::causes::chain,
    net::{
        endpoint::{BareIpv6, Endpoint},
        pem::PemError,
        tls::{TlsError, client::ClientTls},
    },
};

/// The text is not the address of a Redis. The message gives the reason without the text: addresses hold
/// passwords.
#[derive(Debug, thiserror::Error)]
#[error(
    "not a Redis address ({reason}); expected redis://[user:password@]host:port[/database], several host:port \
         of a cluster with commas between, redis+sentinel://sentinel:port,sentinel:port/master, host:port or a \
         socket path"
)]
pub struct BadUrl {
    pub(super) reason: String,
}

impl BadUrl {
    /// The files for TLS cannot be used.
    pub(super) fn of_tls(error: TlsError) -> Self {
        match error {
            TlsError::Pem(PemError::Unreadable(file, error)) => unreadable(&file, &error),
            TlsError::NoPair {
                certificate,
                source,
                ..
            } => bad(format!("{}: {source}", certificate.display())),
            TlsError::NoServerVerifier(source) => bad(source.to_string()),
            error => bad(chain(&error)),
        }
    }
}

fn unreadable(file: &Path, error: &io::Error) -> BadUrl {
    bad(format!("{} cannot be read: {error}", file.display()))
}

fn bad(reason: impl Into<String>) -> BadUrl {
    BadUrl {
        reason: reason.into(),
    }
}

/// The address of a Redis, and its credentials.
#[derive(Clone)]
pub struct Address {
    /// A URL, `host:port`, the path of a socket, or several of the first two.
    pub url: Secret,
    /// The kind of the servers there; if `None`, the URL determines it.
    pub kind: Option<TopologyKind>,
    /// A password or `user:password`, used where the URL has none.
    pub auth: Option<Secret>,
    /// A password or `user:password` for the sentinels, which do not get the one of Redis.
    pub sentinel_auth: Option<Secret>,
    /// How long a connection may take to come up.
    pub timeout: Duration,
    /// Whether to speak TLS; a `rediss://` URL asks for it too.
    pub is_tls: bool,
    /// The settings for TLS, if it is used.
    pub tls: ClientTls,
}

/// The kind of servers behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyKind {
    /// One server.
    Single,
    /// Sentinels, which know the master of several servers.
    Sentinel,
    /// Masters that own the slots between them.
    Cluster,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    Text(String),
    /// Read whenever it is needed, so that it may change; a line feed at its end is not part of it.
    File(PathBuf),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Secret {
    /// # Errors
    ///
    /// If the file cannot be read. The error names it.
    pub(super) fn read(&self) -> Result<String, BadUrl> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => {
                let bytes = fs::read(path).map_err(|error| unreadable(path, &error))?;
                let text = String::from_utf8(bytes)
                    .map_err(|_| bad(format!("{} is not UTF-8", path.display())))?;
                Ok(text.trim_end_matches(['\r', '\n']).to_owned())
            }
        }
    }
}

impl fmt::Debug for Address {
    /// Leaves out all fields, because some may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}

/// The endpoint that the server `by` reports as `host` and `port`. A server that does not know its own name leaves
/// the host out: it means the endpoint that was asked.
pub(super) fn reported(host: &str, port: u16, by: &Endpoint) -> Endpoint {
    let host = match (host, by) {
        ("" | "?", Endpoint::Tcp { host, .. }) => host,
        (host, _) => host,
    };
    Endpoint::Tcp {
        host: host.to_owned(),
        port,
    }
}

/// A parsed address.
#[derive(Clone, Debug)]
pub(super) struct ParsedAddress {
    pub(super) kind: TopologyKind,
    /// The endpoints to ask first: the server itself, sentinels, or some of a cluster.
    pub(super) seeds: Vec<Endpoint>,
    /// The sentinels' name for the master.
    pub(super) master: String,
    /// Credentials of the URL, and the database.
    pub(super) settings: RedisConnectionInfo,
    pub(super) is_tls: bool,
}

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl ParsedAddress {
    /// Parses `url`. `kind` and `is_tls` come from other settings.
    pub(super) fn parse(
        url: &str,
        kind: Option<TopologyKind>,
        is_tls: bool,
    ) -> Result<Self, BadUrl> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Self::parse_without_scheme(url, kind, is_tls);
        };
        let (is_tls, kind) = match scheme {
            "redis" | "valkey" => (is_tls, kind),
            "rediss" | "valkeys" => (true, kind),
            "redis+sentinel" | "redis-sentinel" => (is_tls, Some(TopologyKind::Sentinel)),
            "rediss+sentinel" | "rediss-sentinel" => (true, Some(TopologyKind::Sentinel)),
            "redis+cluster" => (is_tls, Some(TopologyKind::Cluster)),
            "rediss+cluster" => (true, Some(TopologyKind::Cluster)),
            "unix" | "redis+unix" | "valkey+unix" => return Self::parse_socket(url),
            _ => return Err(bad("the scheme is not one of Redis")),
        };
        // Lists are written both ways: `redis://a,b` and `redis://a,redis://b`.
        let rest = rest.replace(&format!(",{scheme}://"), ",");
        let split = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(split);
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (credentials, hosts),
            None => ("", authority),
        };
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (path, None),
        };
        let path = path.trim_start_matches('/');
        let (master, database) = match kind {
            Some(TopologyKind::Sentinel) => path.split_once('/').unwrap_or((path, "")),
            _ => ("", path),
        };
        if kind == Some(TopologyKind::Sentinel) && master.is_empty() {
            return Err(bad("the master's name is missing behind the sentinels"));
        }
        let default_port = match kind {
            Some(TopologyKind::Sentinel) => SENTINEL_PORT,
            _ => REDIS_PORT,
        };
        let seeds = seeds(hosts, default_port)?;
        let kind = kind.unwrap_or(match seeds.len() {
            1 => TopologyKind::Single,
            _ => TopologyKind::Cluster,
        });
        let mut plain = format!("redis://{credentials}@host/{database}");
        if let Some(query) = query {
            plain = format!("{plain}?{query}");
        }
        Self {
            kind,
            seeds,
            master: master.to_owned(),
            settings: settings(&plain)?,
            is_tls,
        }
        .checked()
    }

    /// Parses an address in the reference's form: no scheme, no credentials, no database.
    fn parse_without_scheme(
        text: &str,
        kind: Option<TopologyKind>,
        is_tls: bool,
    ) -> Result<Self, BadUrl> {
        if text.starts_with('/') {
            return Self::parse_socket(&format!("unix://{text}"));
        }
        let (master, hosts) = match kind {
            Some(TopologyKind::Sentinel) => text.split_once(',').ok_or_else(|| {
                bad("expected the master's name and the addresses of its sentinels, with commas between")
            })?,
            _ => ("", text),
        };
        let seeds = seeds(
            hosts,
            match kind {
                Some(TopologyKind::Sentinel) => SENTINEL_PORT,
                _ => REDIS_PORT,
            },
        )?;
        let kind = kind.unwrap_or(match seeds.len() {
            1 => TopologyKind::Single,
            _ => TopologyKind::Cluster,
        });
        Self {
            kind,
            seeds,
            master: master.to_owned(),
            settings: settings("redis://host")?,
            is_tls,
        }
        .checked()
    }

    fn parse_socket(url: &str) -> Result<Self, BadUrl> {
        let info = url.into_connection_info().map_err(library)?;
        let ConnectionAddr::Unix(path) = info.addr().clone() else {
            return Err(bad("not the path of a socket"));
        };
        Ok(Self {
            kind: TopologyKind::Single,
            seeds: vec![Endpoint::Unix(path)],
            master: String::new(),
            settings: info.redis_settings().clone(),
            is_tls: false,
        })
    }

    fn checked(self) -> Result<Self, BadUrl> {
        match self.kind {
            TopologyKind::Single if self.seeds.len() > 1 => {
                Err(bad("one server has one address, not several"))
            }
            TopologyKind::Cluster if self.settings.db() != 0 => {
                Err(bad("a cluster has no database but 0"))
            }
            _ => Ok(self),
        }
    }
}

fn seeds(hosts: &str, default_port: u16) -> Result<Vec<Endpoint>, BadUrl> {
    hosts
        .split(',')
        .map(|host| Endpoint::parse(host.trim(), default_port, BareIpv6::WithPort))
        .map(|endpoint| endpoint.map_err(|error| bad(error.to_string())))
        .collect()
}

/// Credentials and database of a URL.
fn settings(url: &str) -> Result<RedisConnectionInfo, BadUrl> {
    // The text behind the colon may quote the address.
    let without_quotes = |error: RedisError| {
        let text = error.to_string().to_lowercase();
        bad(text.split(": ").next().unwrap_or_default())
    };
    let info = url.into_connection_info().map_err(without_quotes)?;
    Ok(info.redis_settings().clone())
}

/// No credentials and no database, as for sentinels.
pub(super) fn no_settings() -> RedisConnectionInfo {
    RedisConnectionInfo::default()
}

fn library(error: RedisError) -> BadUrl {
    bad(error.to_string().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, kind: Option<TopologyKind>, expected: (TopologyKind, &str, &str)) {
        let found = ParsedAddress::parse(url, kind, false).unwrap();
        let seeds: Vec<_> = found.seeds.iter().map(ToString::to_string).collect();
        let found = (found.kind, &*seeds.join(" "), &*found.master);
        assert_eq!(found, expected, "{url}");
    }

    #[test]
    fn every_form_of_an_address_is_understood() {
        use TopologyKind::{Cluster, Sentinel, Single};
        check("h:1", None, (Single, "h:1", ""));
        check("h", None, (Single, "h:6379", ""));
        check("[::1]:7", None, (Single, "[::1]:7", ""));
        check("redis://h:1/3", None, (Single, "h:1", ""));
        check("redis://u:p@h", None, (Single, "h:6379", ""));
        check("/run/x", None, (Single, "/run/x", ""));
        check("unix:///run/x", None, (Single, "/run/x", ""));
        check("a:1,b:2", None, (Cluster, "a:1 b:2", ""));
        check("a:1", Some(Cluster), (Cluster, "a:1", ""));
        check("redis://:p@a:1,b:2", None, (Cluster, "a:1 b:2", ""));
        check("redis://a:1,redis://b:2", None, (Cluster, "a:1 b:2", ""));
        check("redis+cluster://a:1", None, (Cluster, "a:1", ""));
        check("m,a:1,b", Some(Sentinel), (Sentinel, "a:1 b:26379", "m"));
        check(
            "redis+sentinel://:p@a:1,b/m/2",
            None,
            (Sentinel, "a:1 b:26379", "m"),
        );
        check("rediss+sentinel://a/m", None, (Sentinel, "a:26379", "m"));
    }

    #[test]
    fn credentials_and_database_come_along() {
        let found = ParsedAddress::parse("rediss+sentinel://u:p%40q@a:1/m/2", None, false).unwrap();
        assert_eq!(found.settings.username(), Some("u"));
        assert_eq!(found.settings.password(), Some("p@q"));
        assert_eq!(found.settings.db(), 2);
        assert!(found.is_tls);
    }

    #[test]
    fn what_is_no_address_is_refused_without_repeating_it() {
        for (url, kind) in [
            ("redis://:sesame@h:port", None),
            ("http://:sesame@h", None),
            ("redis://:sesame@a:1,b:2/3", None),
            ("redis://:sesame@a:1,b:2", Some(TopologyKind::Single)),
            ("redis+sentinel://:sesame@a:1", None),
            ("sesame", Some(TopologyKind::Sentinel)),
            ("h:0", None),
            ("", None),
            ("redis://:sesame@h:1/x", None),
            ("redis://:sesame@[::1", None),
            ("redis://h:1?protocol=sesame", None),
        ] {
            let error = ParsedAddress::parse(url, kind, false).unwrap_err();
            assert!(!error.to_string().contains("sesame"), "{url}: {error}");
        }
    }

    #[test]
    fn a_secret_does_not_show() {
        assert_eq!(format!("{:?}", Secret::Text("x-sesame".into())), "Text(..)");
    }
}
