//! Decides which callers may change counters: those with the token, those on this machine, or none.

use std::{
    fmt,
    fs::File,
    io::Read as _,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use axum::http::{HeaderMap, Uri, header::AUTHORIZATION};

use super::super::{
    origin::{Peer, is_for_this_machine, is_foreign, is_through_proxy},
    page::BlockingQueue,
};
use crate::foundation::log_throttle::LogThrottle;

/// Which callers may change counters.
#[derive(Clone, Debug)]
pub(crate) enum ChangeAccess {
    /// Callers that send the token in this file.
    Token(PathBuf),
    /// Callers on this machine, and callers that send the token, if there is one.
    Loopback(Option<PathBuf>),
    Off,
}

/// A caller that may change counters, for the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    peer: SocketAddr,
    has_token: bool,
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.has_token { "token" } else { "loopback" };
        write!(f, "{} ({by})", self.peer)
    }
}

/// Why a caller may not change counters.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum NotAllowed {
    #[error(
        "counters change only with `authorization: Bearer` and the token in the server's --admin-token-file"
    )]
    NoToken,
    #[error(
        "only a call from this machine to localhost, without a proxy and without a page of another site, may change \
         counters, or one with `authorization: Bearer` and the token in the server's --admin-token-file"
    )]
    NotLocal,
    #[error("this server changes no counters: --admin-changes is off")]
    Off,
}

/// Longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 4 << 10;

/// Anyone who can reach the port can cause refusals, so their log lines are throttled.
static REFUSALS: LogThrottle = LogThrottle::new();

impl ChangeAccess {
    /// Checks a caller. The token is read for each call, so it can be changed while the server runs.
    ///
    /// # Errors
    ///
    /// If the caller may not change counters.
    pub(super) async fn check(
        &self,
        peer: Peer,
        uri: &Uri,
        headers: &HeaderMap,
        blocking: &BlockingQueue,
    ) -> Result<Allowed, NotAllowed> {
        let allowed = |has_token| Allowed {
            peer: peer.0,
            has_token,
        };
        let (token_file, refusal) = match self {
            Self::Loopback(_) if is_local(peer, uri, headers) => return Ok(allowed(false)),
            Self::Loopback(file) => (file.as_ref(), NotAllowed::NotLocal),
            Self::Token(file) => (Some(file), NotAllowed::NoToken),
            Self::Off => (None, NotAllowed::Off),
        };
        if let (Some(sent), Some(path)) = (sent_token(headers), token_file) {
            let (sent, path) = (sent.to_vec(), path.clone());
            let is_known =
                blocking.work(move || token(&path).is_some_and(|own| equal(&own, &sent)));
            if is_known.await {
                return Ok(allowed(true));
            }
        }
        if REFUSALS.may_log() {
            tracing::warn!(peer = %peer.0, "refused to change counters: {refusal}");
        }
        Err(refusal)
    }
}

/// Whether a call comes from a program on this machine and is meant for this machine, as far as its connection and
/// headers show. A local proxy that adds no header to the calls that it forwards goes unnoticed.
fn is_local(peer: Peer, uri: &Uri, headers: &HeaderMap) -> bool {
    peer.is_this_machine()
        && is_for_this_machine(uri, headers)
        && !is_through_proxy(headers)
        && !is_foreign(headers)
}

fn sent_token(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// The token in a file; `None` if the file has no usable one.
fn token(path: &Path) -> Option<Vec<u8>> {
    let read = || {
        let mut token = Vec::new();
        File::open(path)?
            .take(MAX_TOKEN_BYTES as u64 + 1)
            .read_to_end(&mut token)?;
        Ok::<_, std::io::Error>(token)
    };
    let mut token = read()
        .inspect_err(|error| tracing::error!(%error, "cannot read {}", path.display()))
        .ok()?;
    while token.last().is_some_and(|last| b"\r\n".contains(last)) {
        token.pop();
    }
    (1..=MAX_TOKEN_BYTES)
        .contains(&token.len())
        .then_some(token)
}

/// Compares two texts in a time that does not depend on where they differ.
fn equal(own: &[u8], sent: &[u8]) -> bool {
    let differences = own.iter().zip(sent).fold(0, |all, (a, b)| all | (a ^ b));
    own.len() == sent.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_local(
        peer: &str,
        uri: &str,
        headers: &[(&'static str, &'static str)],
        expected: bool,
    ) {
        let named = headers.iter().map(|(name, value)| {
            let name: axum::http::HeaderName = name.parse().unwrap();
            (name, value.parse().unwrap())
        });
        let peer = Peer((peer.parse::<std::net::IpAddr>().unwrap(), 1).into());
        let is_local = is_local(peer, &uri.parse().unwrap(), &named.collect());
        assert_eq!(is_local, expected, "{peer:?} {uri} {headers:?}");
    }

    #[test]
    fn only_programs_on_this_machine_that_talk_to_it_directly_are_local() {
        const PATH: &str = "/counters/reset";
        for host in [
            "localhost",
            "LOCALHOST:6070",
            "127.0.0.1:6070",
            "[::1]:6070",
            "[::1]",
        ] {
            for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
                check_local(peer, PATH, &[("host", host)], true);
            }
            // The second address is a sidecar's.
            for peer in ["192.0.2.1", "127.0.0.6", "::ffff:127.0.0.6"] {
                check_local(peer, PATH, &[("host", host)], false);
            }
            let foreign = "http://evil.example/counters/reset";
            check_local("127.0.0.1", foreign, &[("host", host)], false);
        }
        check_local("127.0.0.1", PATH, &[], false);
        for host in [
            "evil.example",
            "localhost.evil.example",
            "192.0.2.1:6070",
            "",
            "::1:x",
        ] {
            check_local("127.0.0.1", PATH, &[("host", host)], false);
        }
        for (name, value, expected) in [
            ("forwarded", "x", false),
            ("via", "x", false),
            ("x-real-ip", "x", false),
            ("x-forwarded-for", "x", false),
            ("x-forwarded-proto", "http", false),
            ("x-forwarded-client-cert", "x", false),
            ("x-envoy-expected-rq-timeout-ms", "15000", false),
            ("x-request-id", "x", false),
            ("origin", "http://evil.example", false),
            ("origin", "null", false),
            ("origin", "http://localhost:6070", true),
            ("sec-fetch-site", "cross-site", false),
            ("sec-fetch-site", "same-site", false),
            ("sec-fetch-site", "same-origin", true),
            ("user-agent", "x", true),
        ] {
            let headers = [("host", "localhost:6070"), (name, value)];
            check_local("127.0.0.1", PATH, &headers, expected);
        }
    }

    #[test]
    fn tokens_are_equal_as_a_whole_only() {
        assert!(equal(b"sesame", b"sesame"));
        for other in [&b"sesam"[..], b"sesamee", b"sesamf", b""] {
            assert!(!equal(b"sesame", other));
        }
    }
}
