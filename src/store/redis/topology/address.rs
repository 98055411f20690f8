//! The address of a Redis: as the settings give it, and its endpoints and credentials.
//!
//! No library reads it: lists of hosts, sentinels with the name of their master, and the reference's forms without a
//! scheme are no URLs.

use std::{
    ffi::OsStr,
    fmt, fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use percent_encoding::percent_decode;

use crate::{
    foundation::causes::chain,
    net::{
        endpoint::{BareIpv6, Endpoint},
        pem::PemError,
        tls::{TlsError, client::ClientTls},
    },
};

/// The address of a Redis, and its credentials.
#[derive(Clone, Debug)]
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
    /// Whether to speak TLS to the sentinels; if `None`, as to Redis.
    pub sentinels_tls: Option<bool>,
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

impl crate::foundation::named::Named for TopologyKind {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("single", Self::Single),
        ("sentinel", Self::Sentinel),
        ("cluster", Self::Cluster),
    ];
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
    pub(crate) fn read(&self) -> Result<String, BadUrl> {
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

/// The text is not the address of a Redis. The message gives the reason without the text: addresses hold
/// passwords.
#[derive(Debug, thiserror::Error)]
#[error(
    "not a Redis address ({reason}); expected redis://[user:password@]host:port[/database], several host:port \
         of a cluster with commas between, redis+sentinel://sentinel:port,sentinel:port/master, host:port or a \
         socket path"
)]
pub struct BadUrl {
    pub(crate) reason: String,
}

impl BadUrl {
    /// The files for TLS cannot be used.
    pub(crate) fn of_tls(error: TlsError) -> Self {
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

/// The reason without any part of the address.
fn bad(reason: impl Into<String>) -> BadUrl {
    BadUrl {
        reason: reason.into(),
    }
}

/// The endpoints, credentials and other parts of an address.
#[derive(Clone, Debug)]
pub(crate) struct ParsedAddress {
    pub(crate) kind: TopologyKind,
    /// The endpoints to ask first: the server itself, sentinels, or some of a cluster.
    pub(crate) seeds: Vec<Endpoint>,
    /// The sentinels' name for the master.
    pub(crate) master: String,
    pub(crate) login: Login,
    pub(crate) is_tls: bool,
}

/// Credentials and database of a URL.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
}

impl fmt::Debug for Login {
    /// Leaves out all fields, because a password may have been written as a user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Shown for each address whose credentials are not understood; the credentials are not.
const ENCODE: &str = "write user:password@ once, before the first host, with / ? # @ and , percent-encoded as %2F \
                      %3F %23 %40 and %2C, or set --redis-auth (REDIS_AUTH)";

impl ParsedAddress {
    /// Parses `text`. `kind` and `is_tls` come from other settings.
    pub(crate) fn parse(
        text: &str,
        kind: Option<TopologyKind>,
        is_tls: bool,
    ) -> Result<Self, BadUrl> {
        if text.starts_with('/') {
            return Self::of_socket(text);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Self::without_scheme(text, kind, is_tls);
        };
        let (is_tls, kind) = match scheme {
            "redis" | "valkey" => (is_tls, kind),
            "rediss" | "valkeys" => (true, kind),
            "redis+sentinel" | "redis-sentinel" => (is_tls, Some(TopologyKind::Sentinel)),
            "rediss+sentinel" | "rediss-sentinel" => (true, Some(TopologyKind::Sentinel)),
            "redis+cluster" => (is_tls, Some(TopologyKind::Cluster)),
            "rediss+cluster" => (true, Some(TopologyKind::Cluster)),
            "unix" | "redis+unix" | "valkey+unix" => return Self::of_socket(rest),
            _ if scheme.contains(',') => {
                return Err(bad(
                    "a list begins with a scheme or has none; sentinels are written mymaster,host:port, and their \
                     password is --redis-sentinel-auth (REDIS_SENTINEL_AUTH)",
                ));
            }
            _ => return Err(bad("the scheme is not one of Redis")),
        };
        // Lists are written both ways: `redis://a,b` and `redis://a,redis://b`.
        let rest = rest.replace(&format!(",{scheme}://"), ",");
        let (authority, after) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (credentials, hosts) = authority.split_once('@').unwrap_or(("", authority));
        if hosts.contains('@') || after.contains(['@', '#']) {
            return Err(bad(ENCODE));
        }
        let (path, query) = after.split_once('?').unwrap_or((after, ""));
        let path = path.strip_prefix('/').unwrap_or(path);
        let (master, database) = match kind {
            Some(TopologyKind::Sentinel) => path.split_once('/').unwrap_or((path, "")),
            _ => ("", path),
        };
        if kind == Some(TopologyKind::Sentinel) && master.is_empty() {
            return Err(bad("the master's name is missing after the sentinels"));
        }
        let login = Login::parse(credentials, database, query, false)?;
        Self::of_hosts(hosts, master, login, kind, is_tls)
    }

    /// Parses an address in the reference's form: no scheme, no credentials, no database.
    fn without_scheme(
        text: &str,
        kind: Option<TopologyKind>,
        is_tls: bool,
    ) -> Result<Self, BadUrl> {
        if text.contains(['@', '/', '?', '#', '=']) {
            return Err(bad(
                "credentials, a database and parameters need a scheme: write redis://user:password@host:port/database, \
                 or set --redis-auth (REDIS_AUTH)",
            ));
        }
        let list = text.split_once(',');
        let (master, hosts) = match (kind, list) {
            (Some(TopologyKind::Sentinel), Some(list)) => list,
            (Some(TopologyKind::Sentinel), None) => {
                return Err(bad(
                    "expected the master's name and the addresses of its sentinels, with commas between",
                ));
            }
            (None, Some((name, hosts))) if looks_like_sentinels(name, hosts) => {
                return Err(bad(
                    "this looks like a master's name and its sentinels: set --redis-type sentinel \
                     (REDIS_TYPE=SENTINEL), or cluster if the first is a host as well",
                ));
            }
            _ => ("", text),
        };
        Self::of_hosts(hosts, master, Login::default(), kind, is_tls)
    }

    /// Parses `host:port,host:port`.
    fn of_hosts(
        hosts: &str,
        master: &str,
        login: Login,
        kind: Option<TopologyKind>,
        is_tls: bool,
    ) -> Result<Self, BadUrl> {
        let default_port = match kind {
            Some(TopologyKind::Sentinel) => SENTINEL_PORT,
            _ => REDIS_PORT,
        };
        let seeds = hosts
            .split(',')
            .map(|host| Endpoint::parse(host.trim(), default_port, BareIpv6::WithPort))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| bad(error.to_string()))?;
        let kind = kind.unwrap_or(match seeds.len() {
            1 => TopologyKind::Single,
            _ => TopologyKind::Cluster,
        });
        match kind {
            TopologyKind::Single if seeds.len() > 1 => {
                Err(bad("one server has one address, not several"))
            }
            TopologyKind::Cluster if login.database != 0 => {
                Err(bad("a cluster has no database but 0"))
            }
            _ => Ok(Self {
                kind,
                seeds,
                master: master.to_owned(),
                login,
                is_tls,
            }),
        }
    }

    /// Parses the path of a socket, with credentials before it or after it.
    fn of_socket(text: &str) -> Result<Self, BadUrl> {
        let (credentials, rest) = match text.split_once("@/") {
            Some((credentials, _)) if !text.starts_with('/') => {
                (credentials, &text[credentials.len() + 1..])
            }
            _ => ("", text),
        };
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if credentials.contains('@')
            || !credentials.is_empty() && rest.contains('@')
            || rest.contains('#')
        {
            return Err(bad(ENCODE));
        }
        if !path.starts_with('/') {
            return Err(bad("the path of a socket does not begin with /"));
        }
        let path: Vec<u8> = percent_decode(path.as_bytes()).collect();
        Ok(Self {
            kind: TopologyKind::Single,
            seeds: vec![Endpoint::Unix(OsStr::from_bytes(&path).into())],
            master: String::new(),
            login: Login::parse(credentials, "", query, true)?,
            is_tls: false,
        })
    }
}

/// Whether a list without a scheme is `name,host:26379,…`.
fn looks_like_sentinels(name: &str, hosts: &str) -> bool {
    let port = format!(":{SENTINEL_PORT}");
    !name.contains(':') && hosts.split(',').all(|host| host.trim().ends_with(&port))
}

impl Login {
    /// Reads credentials, the database and `name=value&name=value`. The address of a socket can have credentials there.
    fn parse(
        credentials: &str,
        database: &str,
        query: &str,
        is_socket: bool,
    ) -> Result<Self, BadUrl> {
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        let database = database.trim_end_matches('/');
        let mut login = Self {
            user: decoded(user)?,
            password: decoded(password)?,
            database: number(database)?,
        };
        // An empty item may be a part of a password.
        let items = query.split('&').filter(|_| !query.is_empty());
        for item in items {
            match item.split_once('=') {
                Some(("db" | "database", _)) if !database.is_empty() => {
                    return Err(bad("the database stands there twice"));
                }
                Some(("db" | "database", value)) => login.database = number(value)?,
                Some(("user", value)) if is_socket => login.user = decoded(value)?,
                Some(("pass", value)) if is_socket => login.password = decoded(value)?,
                // Its name may be a part of a password.
                _ => {
                    return Err(bad(format!(
                        "a parameter after the ? is not `db`, the only one; TLS, certificates and times have settings \
                         of their own, and for credentials {ENCODE}"
                    )));
                }
            }
        }
        Ok(login)
    }
}

fn number(database: &str) -> Result<u32, BadUrl> {
    if database.is_empty() {
        return Ok(0);
    }
    let words = format!("the database is not a number; for credentials {ENCODE}");
    database.parse().map_err(|_| bad(words))
}

/// `text` with its percent-encoded bytes as they are; `None` if it is empty.
fn decoded(text: &str) -> Result<Option<String>, BadUrl> {
    let decoded = percent_decode(text.as_bytes()).decode_utf8();
    let decoded = decoded
        .map_err(|_| bad("a user or a password is not UTF-8; percent-encode a % in it as %25"))?;
    Ok((!text.is_empty()).then(|| decoded.into()))
}

/// The endpoint that the server `by` reports as `host` and `port`. A server that does not know its own name leaves
/// the host out: it means the endpoint that was asked.
pub(crate) fn reported(host: &str, port: u16, by: &Endpoint) -> Endpoint {
    let host = if matches!(host, "" | "?") {
        by.host()
    } else {
        host
    };
    Endpoint::Tcp {
        host: host.to_owned(),
        port,
    }
}

#[cfg(test)]
mod tests {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_secret_does_not_show() {
        assert_eq!(format!("{:?}", Secret::Text("x-sesame".into())), "Text(..)");
    }

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
        assert_eq!(found.login.user.as_deref(), Some("u"));
        assert_eq!(found.login.password.as_deref(), Some("p@q"));
        assert_eq!(found.login.database, 2);
        assert!(found.is_tls);
    }

    #[test]
    fn credentials_end_at_the_at() {
        for (url, user, password) in [
            ("redis://u:a:b,c;[d]@127.0.0.1:6379", Some("u"), "a:b,c;[d]"),
            ("redis://:50%off@127.0.0.1:6379", None, "50%off"),
            ("redis://:a%3Fb%2Fc@127.0.0.1:6379?db=0", None, "a?b/c"),
        ] {
            let found = ParsedAddress::parse(url, None, false).unwrap();
            assert_eq!(found.seeds[0].to_string(), "127.0.0.1:6379", "{url}");
            let login = found.login;
            let found = (login.user.as_deref(), login.password.as_deref());
            assert_eq!(found, (user, Some(password)), "{url}");
        }
    }

    #[test]
    fn a_database_is_honoured_in_every_place_where_it_may_stand() {
        for url in [
            "redis://h:1/3",
            "redis://h:1/3/",
            "redis://h:1?db=3",
            "redis://h:1/?db=3",
            "redis://:p@h:1?db=3",
            "redis+sentinel://s/m/3",
            "redis+sentinel://s/m?db=3",
            "unix:///run/x?db=3",
            "/run/x?db=3",
            "unix://:p@/run/x?db=3",
        ] {
            let found = ParsedAddress::parse(url, None, false).unwrap();
            assert_eq!(found.login.database, 3, "{url}");
        }
    }

    #[test]
    fn a_socket_has_credentials_before_or_after_its_path() {
        for url in [
            "unix://u:p%40/q@/run/user%401/x",
            "unix:///run/user@1/x?user=u&pass=p@/q",
            "unix:///run/user%401/x?pass=p%40%2Fq&user=u",
        ] {
            let found = ParsedAddress::parse(url, None, false).unwrap();
            let shown = found.seeds[0].to_string();
            let credentials = (found.login.user.as_deref(), found.login.password.as_deref());
            assert_eq!(
                (&*shown, credentials),
                ("/run/user@1/x", (Some("u"), Some("p@/q"))),
                "{url}"
            );
        }
    }

    #[test]
    fn a_part_that_is_not_honoured_is_refused_with_the_words_in_its_place() {
        use TopologyKind::{Cluster, Sentinel};
        let both = "mymaster,127.0.0.1:26379";
        for (url, kind, words) in [
            ("redis://h?password=x", None, "REDIS_AUTH"),
            ("redis://h?protocol=3", None, "is not `db`"),
            (
                "rediss://h/0?ssl_ca_certs=/ca",
                None,
                "settings of their own",
            ),
            ("h:1,password=x,ssl=True", None, "need a scheme"),
            ("redis://h?db=x", None, "the database is not a number"),
            ("redis://h/1?db=2", None, "twice"),
            ("redis://:p/w", None, "percent-encoded"),
            ("redis://:p/w@127.0.0.1:6379/0", None, "percent-encoded"),
            (
                "redis://u:12345?rest@127.0.0.1:6379",
                None,
                "percent-encoded",
            ),
            ("redis://u:a@b@127.0.0.1", None, "percent-encoded"),
            ("rediss://h/#insecure", None, "percent-encoded"),
            ("redis://:a#b@h", None, "percent-encoded"),
            ("redis-sentinel://h:1/0#mymaster", None, "percent-encoded"),
            ("redis://h?password=a@b", None, "percent-encoded"),
            ("redis://:p@a:1,:p@b:2", None, "once, before the first host"),
            (
                "redis://:p@a:1,redis://:q@b:2",
                None,
                "once, before the first host",
            ),
            ("redis://:50%ff@h", None, "percent-encode a %"),
            ("unix://:p@q@/run/x", None, "percent-encoded"),
            ("u:p@h:1", None, "REDIS_AUTH"),
            ("h:1/3", None, "redis://user:password@host:port/database"),
            (
                "mymaster,redis://:pw@127.0.0.1:26379",
                Some(Sentinel),
                "mymaster,host:port",
            ),
            (
                "mymaster,redis://:pw@127.0.0.1:26379",
                Some(Sentinel),
                "REDIS_SENTINEL_AUTH",
            ),
            (both, None, "REDIS_TYPE=SENTINEL"),
        ] {
            let error = ParsedAddress::parse(url, kind, false).unwrap_err();
            assert!(error.to_string().contains(words), "{url}: {error}");
        }
        assert!(ParsedAddress::parse(both, Some(Cluster), false).is_ok());
        assert!(ParsedAddress::parse(both, Some(Sentinel), false).is_ok());
    }

    /// Addresses with `{}` for the password; those of the second list are refused.
    const WITH_PASSWORD: [&str; 8] = [
        "redis://:{}@h:1",
        "rediss://u:{}@h:1/2",
        "redis+sentinel://:{}@s:1,t:2/m/1",
        "redis://u:{}@a:1,b:2",
        "redis://u:{}@a:1,redis://b:2",
        "redis+cluster://:{}@[::1]:1",
        "unix://:{}@/run/x",
        "unix:///run/x?user=u&pass={}&db=1",
    ];
    const REFUSED: [&str; 13] = [
        "redis://u:{}@a:1,redis://u:{}@b:2",
        "u:{}@h:1",
        "m,redis://:{}@s:1",
        "http://:{}@h",
        "redis://h:1?password={}",
        "redis://h:1/0?username=u&password={}&db=3",
        "h:1,password={},ssl=true",
        "redis://:{}@h:port",
        "redis://:{}@h/x",
        "redis://:{}@[::1",
        "redis://:{}@h/#insecure",
        "redis+sentinel://:{}@s:1",
        "unix://u:{}@x",
    ];

    /// No error and no endpoint shows four characters of `password`. Its letters are in none of our texts.
    #[track_caller]
    fn check_hidden(url: &str, password: &str, parsed: &Result<ParsedAddress, BadUrl>) {
        let shown = match parsed {
            Ok(found) => {
                let seeds = found.seeds.iter().map(ToString::to_string);
                format!("{found:?} {}", seeds.collect::<Vec<_>>().join(" "))
            }
            Err(error) => format!("{error} {error:?}"),
        };
        let letters: Vec<_> = password.chars().collect();
        for part in letters
            .windows(4)
            .filter(|part| part.iter().any(|c| c.is_alphanumeric()))
        {
            let part: String = part.iter().collect();
            assert!(!shown.contains(&part), "{url}: {shown}");
        }
    }

    proptest! {
        #[test]
        fn no_part_of_a_password_is_ever_shown(password in "[QXZJ8@:/?#%\\[\\],;&= é漢]{4,20}") {
            use TopologyKind::{Cluster, Sentinel, Single};
            let encoded = utf8_percent_encode(&password, NON_ALPHANUMERIC).to_string();
            for kind in [None, Some(Single), Some(Sentinel), Some(Cluster)] {
                for form in WITH_PASSWORD.into_iter().chain(REFUSED) {
                    for text in [&password, &encoded] {
                        let url = form.replace("{}", text);
                        check_hidden(&url, &password, &ParsedAddress::parse(&url, kind, false));
                    }
                }
            }
            for form in REFUSED {
                let url = form.replace("{}", &password);
                prop_assert!(ParsedAddress::parse(&url, None, false).is_err(), "{url}");
            }
            for form in WITH_PASSWORD {
                let found = ParsedAddress::parse(&form.replace("{}", &encoded), None, false);
                let found = found.unwrap();
                prop_assert_eq!(found.login.password.as_deref(), Some(&*password), "{}", form);
                // As it is, it works or is refused.
                let raw = ParsedAddress::parse(&form.replace("{}", &password), None, false);
                if let Ok(raw) = raw && !password.contains('%') {
                    prop_assert_eq!(raw.login.password, found.login.password, "{}", form);
                    prop_assert_eq!(raw.seeds, found.seeds, "{}", form);
                }
            }
        }
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
}
