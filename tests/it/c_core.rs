//! Names that gRPC's C-core sends: Python's grpcio here, and Envoy's `google_grpc` in `envoy`.
//!
//! C-core writes the name `:authority` out, and over a Unix socket its value is the socket's path, which is not a
//! valid authority.

use crate::support::{
    clients::{Channel, Client, RULES, Served, Transport},
    tollgate,
};

const ISTIO: &str = "outbound|8081||tollgate.tollgate.svc.cluster.local";

/// Two channels in turn: the limit of each value is enforced, and no stream is reset.
#[track_caller]
fn check_limited(transport: Transport, authority: Option<&str>, replaced: bool) -> Served {
    let served = Served::over(transport);
    let channel = Channel {
        authority: authority.map(str::to_owned),
        ..served.channel.clone()
    };
    for value in ["a", "b"] {
        let expected = ["Ok", "Ok", "OverLimit", "OverLimit"];
        let replies = Client::Grpcio.ask(&channel, value, 4);
        assert_eq!(replies, expected, "{transport:?} {authority:?}");
    }
    let count = |name: &str| served.server.metric(name);
    let mended = count("tollgate_authorities_replaced_total");
    assert_eq!(mended > 0, replaced, "{mended}");
    assert_eq!(count("tollgate_authorities_refused_total"), 0);
    served
}

#[test]
fn over_a_unix_socket_grpcio_is_limited() {
    check_limited(Transport::Unix, None, true);
}

#[test]
fn over_tcp_grpcio_is_limited() {
    check_limited(Transport::Tcp, None, false);
}

#[test]
fn over_tls_grpcio_is_limited() {
    check_limited(Transport::Tls, None, false);
}

#[test]
fn under_a_mesh_s_name_grpcio_is_limited() {
    let served = check_limited(Transport::Tcp, Some(ISTIO), true);
    served.server.log().with(ISTIO);
}

/// Every character that a path or a name may contain: C-core sends them unchanged.
#[test]
fn under_any_name_grpcio_is_limited() {
    let server = tollgate::with_rules(RULES).start();
    for name in ["<tollgate>", "a:b:c:d", "{x}^`", "tollgäte", "[", "a@"] {
        let channel = Channel {
            target: server.grpc.to_string(),
            authority: Some(name.to_owned()),
            ..Channel::default()
        };
        let replies = Client::Grpcio.ask(&channel, name, 3);
        assert_eq!(replies, ["Ok", "Ok", "OverLimit"], "{name}");
    }
    assert_eq!(server.metric("tollgate_authorities_refused_total"), 0);
}
