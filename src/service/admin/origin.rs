//! Where a call to an HTTP port comes from, as far as its connection and headers show.
//!
//! In a browser on this machine, a page of another site can call loopback in two ways: across origins, which browsers
//! declare (`Sec-Fetch-Site`, `Origin`), or by a name of its own that resolves to loopback (DNS rebinding), which only
//! the Host header shows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::{
    extract::Request,
    http::{
        HeaderMap, HeaderValue, StatusCode, Uri,
        header::{HOST, ORIGIN},
    },
    response::Response,
};

use super::json::plain;

/// The address of the client of an HTTP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Peer {
    /// Whether the client is on this machine. Sidecars, which forward the calls of others, use other addresses of
    /// 127.0.0.0/8 (Istio's has 127.0.0.6).
    pub(super) fn is_this_machine(self) -> bool {
        match self.0.ip().to_canonical() {
            IpAddr::V4(address) => address == Ipv4Addr::LOCALHOST,
            IpAddr::V6(address) => address == Ipv6Addr::LOCALHOST,
        }
    }
}

/// Refuses a call over loopback that is meant for another host.
pub(super) fn refuse_rebound(request: &Request) -> Option<Response> {
    let Some(Peer(peer)) = request.extensions().get().copied() else {
        let text = "the address of the caller is unknown\n";
        return Some(plain(StatusCode::FORBIDDEN, text));
    };
    let is_open = request.uri().path() == "/metrics";
    if is_open || !peer.ip().to_canonical().is_loopback() {
        return None;
    }
    let is_known = |host: Option<&str>| host.is_some_and(|host| is_here(without_port(host)));
    let are_known = hosts_of(request.uri(), request.headers()).all(is_known);
    let text = "only for localhost and its addresses\n";
    (!are_known).then(|| plain(StatusCode::FORBIDDEN, text))
}

/// Whether the call names at least one host, and each of them is this machine.
pub(super) fn is_for_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = hosts_of(uri, headers).peekable();
    hosts.peek().is_some() && hosts.all(|host| host.is_some_and(|host| is_here(without_port(host))))
}

/// The hosts that a call names: in its target, if that is a whole URI, and in its Host headers, of which there can be
/// several. A host that is not text is `None`.
fn hosts_of<'a>(
    uri: &'a Uri,
    headers: &'a HeaderMap,
) -> impl Iterator<Item = Option<&'a str>> + use<'a> {
    let headers = headers.get_all(HOST).into_iter();
    let headers = headers.map(|host| host.to_str().ok());
    uri.authority()
        .map(|host| Some(host.as_str()))
        .into_iter()
        .chain(headers)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether `host` is a name of this machine for itself.
fn is_here(host: &str) -> bool {
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let address = address.unwrap_or(host).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Whether a browser declares that a page of another origin makes the call. All browsers do so for a POST; other
/// clients never do.
pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return true;
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return false;
    };
    let server = headers.get(HOST).map(HeaderValue::as_bytes);
    let origin = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"));
    match (origin, server) {
        (Some((_, origin)), Some(server)) => !origin.as_bytes().eq_ignore_ascii_case(server),
        _ => true,
    }
}

/// Refuses a call by a page of another origin.
pub(super) fn refuse_foreign(headers: &HeaderMap) -> Option<Response> {
    let refused = || plain(StatusCode::FORBIDDEN, "not for pages of other origins\n");
    is_foreign(headers).then(refused)
}

/// Whether a proxy forwarded the call, as far as proxies declare it. With default settings Envoy adds only
/// `x-request-id` and `x-forwarded-proto`, for example.
pub(super) fn is_through_proxy(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        matches!(name, "forwarded" | "via" | "x-real-ip" | "x-request-id")
            || name.starts_with("x-forwarded-")
            || name.starts_with("x-envoy-")
    })
}
