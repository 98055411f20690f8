//! The address of a Redis, as the settings give it.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    foundation::causes::chain,
    net::{
        endpoint::Endpoint,
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
pub(crate) fn bad(reason: impl Into<String>) -> BadUrl {
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

impl fmt::Debug for Address {
    /// Leaves out all fields, because some may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}

/// The endpoint that the server `by` reports as `host` and `port`. A server that does not know its own name leaves
/// the host out: it means the endpoint that was asked.
pub(crate) fn reported(host: &str, port: u16, by: &Endpoint) -> Endpoint {
    let host = match (host, by) {
        ("" | "?", Endpoint::Tcp { host, .. }) => host,
        (host, _) => host,
    };
    Endpoint::Tcp {
        host: host.to_owned(),
        port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_show() {
        assert_eq!(format!("{:?}", Secret::Text("x-sesame".into())), "Text(..)");
    }
}
