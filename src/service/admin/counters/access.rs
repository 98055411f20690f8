//! The callers who may change counters: those on this machine, and those that have the token.

use std::{
    fmt,
    fs::File,
    io::Read as _,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use axum::http::{
    HeaderMap,
    header::{AUTHORIZATION, FORWARDED, HOST, VIA},
};

use super::super::page::BlockingQueue;
use crate::foundation::log_throttle::LogThrottle;

/// The address of the client of an HTTP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// A caller who may change counters, for the log.
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

/// The call is neither from this machine nor has the token.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "only a call from this machine to localhost, without a proxy, may change counters, or one with `authorization: \
     Bearer` and the token in the server's --admin-token-file"
)]
pub(super) struct NotAllowed;

/// Longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 4 << 10;

/// Anyone who can reach the port can be refused.
static REFUSALS: LogThrottle = LogThrottle::new();

/// Checks a caller. The token is read anew each time, so that it can change.
///
/// # Errors
///
/// If the caller may not change counters.
pub(super) async fn check(
    Peer(peer): Peer,
    headers: &HeaderMap,
    token_file: Option<&PathBuf>,
    blocking: &BlockingQueue,
) -> Result<Allowed, NotAllowed> {
    if is_from_here(peer.ip(), headers) {
        return Ok(Allowed {
            peer,
            has_token: false,
        });
    }
    if let (Some(sent), Some(path)) = (sent_token(headers), token_file) {
        let (sent, path) = (sent.to_vec(), path.clone());
        let is_known = blocking.work(move || token(&path).is_some_and(|own| equal(&own, &sent)));
        if is_known.await {
            return Ok(Allowed {
                peer,
                has_token: true,
            });
        }
    }
    if REFUSALS.may_log() {
        tracing::warn!(%peer, "refused to change counters: {NotAllowed}");
    }
    Err(NotAllowed)
}

/// Whether a call comes from a program on this machine that wants to talk to this machine. A proxy here may have passed
/// on the call of another machine, and a page in a browser here may be of a site whose name leads to this machine.
fn is_from_here(peer: IpAddr, headers: &HeaderMap) -> bool {
    let proxies = [
        FORWARDED.as_str(),
        VIA.as_str(),
        "x-forwarded-for",
        "x-real-ip",
    ];
    peer.to_canonical().is_loopback()
        && !proxies.iter().any(|name| headers.contains_key(*name))
        && headers
            .get_all(HOST)
            .iter()
            .all(|host| host.to_str().is_ok_and(is_here))
}

/// Whether `host`, which may have a port, is a name of this machine for itself.
fn is_here(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let address = address.unwrap_or(name).parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn sent_token(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// The token in a file; `None` if there is none.
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

/// Compares in a time that does not depend on where the texts differ.
fn equal(own: &[u8], sent: &[u8]) -> bool {
    let differences = own.iter().zip(sent).fold(0, |all, (a, b)| all | (a ^ b));
    own.len() == sent.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_here(peer: &str, headers: &[(&'static str, &'static str)], expected: bool) {
        let headers = headers.iter().map(|(name, value)| {
            let name: axum::http::HeaderName = name.parse().unwrap();
            (name, value.parse().unwrap())
        });
        let is_here = is_from_here(peer.parse().unwrap(), &headers.collect());
        assert_eq!(is_here, expected, "{peer}");
    }

    #[test]
    fn only_programs_on_this_machine_that_talk_to_it_directly_are_from_here() {
        for host in [
            "localhost",
            "LOCALHOST:6070",
            "127.0.0.1:6070",
            "[::1]:6070",
            "[::1]",
        ] {
            check_here("127.0.0.1", &[("host", host)], true);
            check_here("::ffff:127.0.0.1", &[("host", host)], true);
            check_here("192.0.2.1", &[("host", host)], false);
        }
        check_here("::1", &[], true);
        for host in [
            "evil.example",
            "localhost.evil.example",
            "192.0.2.1:6070",
            "",
            "::1:x",
        ] {
            check_here("127.0.0.1", &[("host", host)], false);
        }
        for proxy in ["forwarded", "via", "x-forwarded-for", "x-real-ip"] {
            check_here("127.0.0.1", &[("host", "localhost"), (proxy, "x")], false);
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
