//! Addresses of servers: a host with a port, or a Unix socket.

use std::{fmt, path::PathBuf};

/// The endpoint of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    Tcp {
        /// A name or an IP address, without brackets.
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

/// Why a text is not the address of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error("a port is not a number from 1 to 65535")]
    Port,
    #[error("a host is empty or has a character that no host has")]
    Host,
}

/// How a text with several colons and no brackets is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BareIpv6 {
    /// `::1:6379` ends with a port, as Redis writes it.
    WithPort,
    /// `::1` is a host alone, as gRPC reads it.
    WithoutPort,
}

/// The host of `host:port`, `[host]:port`, `[host]` or `host`, and the port if there is one. Neither is checked.
pub(crate) fn split(text: &str, bare: BareIpv6) -> (&str, Option<&str>) {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match bracketed {
        Some((host, "")) => return (host, None),
        Some((host, rest)) if rest.starts_with(':') => return (host, Some(&rest[1..])),
        _ => {}
    }
    match text.rsplit_once(':') {
        Some((host, _)) if bare == BareIpv6::WithoutPort && host.contains(':') => (text, None),
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    }
}

impl Endpoint {
    /// The endpoint that `text` names; see [`split`] for its forms.
    ///
    /// # Errors
    ///
    /// If the host or the port cannot be one.
    pub(crate) fn parse(
        text: &str,
        default_port: u16,
        bare: BareIpv6,
    ) -> Result<Self, EndpointError> {
        let (host, port) = split(text, bare);
        let port = match port.map(str::parse) {
            None => default_port,
            Some(Ok(port @ 1..)) => port,
            Some(_) => return Err(EndpointError::Port),
        };
        let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_of_host) {
            return Err(EndpointError::Host);
        }
        let host = host.to_owned();
        Ok(Self::Tcp { host, port })
    }

    /// The socket that `unix:path` or `unix:///path` names. `None` if `text` has no such form.
    pub(crate) fn unix(text: &str) -> Option<Self> {
        let path = text.strip_prefix("unix:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        (!path.is_empty()).then(|| Self::Unix(path.into()))
    }

    /// The name that its certificate has to be valid for, unless another one is set.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Tcp { host, .. } => host,
            Self::Unix(_) => "localhost",
        }
    }

    /// The authority of requests to it, unless another one is set.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Tcp { .. } => self.to_string(),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

/// `host:port`, with an IPv6 address in brackets, or the path of the socket.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, bare: BareIpv6, expected: Result<&str, EndpointError>) {
        let found = Endpoint::parse(text, 7, bare).map(|endpoint| endpoint.to_string());
        assert_eq!(found.as_deref(), expected.as_ref().copied(), "{text}");
    }

    #[test]
    fn each_form_of_host_and_port_is_read() {
        for bare in [BareIpv6::WithPort, BareIpv6::WithoutPort] {
            check("h", bare, Ok("h:7"));
            check("h:1", bare, Ok("h:1"));
            check("10.0.0.1:1", bare, Ok("10.0.0.1:1"));
            check("[::1]", bare, Ok("[::1]:7"));
            check("[::1]:2", bare, Ok("[::1]:2"));
            check("[fe80::1%eth0]:2", bare, Ok("[fe80::1%eth0]:2"));
        }
        check("::1:2", BareIpv6::WithPort, Ok("[::1]:2"));
        check("::1", BareIpv6::WithoutPort, Ok("[::1]:7"));
    }

    #[test]
    fn a_text_without_a_host_or_with_a_bad_port_is_refused() {
        for bare in [BareIpv6::WithPort, BareIpv6::WithoutPort] {
            for text in ["", ":1", "a b:1", "h/x:1", "u@h", "[]:1", "h]:1"] {
                check(text, bare, Err(EndpointError::Host));
            }
            for text in ["h:", "h:0", "h:65536", "h:x", "[::1]:", ":x"] {
                check(text, bare, Err(EndpointError::Port));
            }
            for text in ["[h:1", "[::1", "[::1]2"] {
                assert!(Endpoint::parse(text, 7, bare).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn the_path_of_a_socket_is_read() {
        let path = |text: &str| Endpoint::unix(text).map(|endpoint| endpoint.to_string());
        assert_eq!(path("unix:/run/x").as_deref(), Some("/run/x"));
        assert_eq!(path("unix:///run/x").as_deref(), Some("/run/x"));
        assert_eq!(path("unix:x").as_deref(), Some("x"));
        for text in ["unix:", "unix://", "/run/x", "h:1"] {
            assert_eq!(path(text), None, "{text}");
        }
    }
}
