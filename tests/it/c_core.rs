//! Names that gRPC's C-core sends: Python's grpcio here, and Envoy's `google_grpc` in `envoy`.
//!
//! C-core writes the name `:authority` out, and over a Unix socket its value is the socket's path, which is not a
//! valid authority.

use crate::support::clients::{Channel, Client, Served, Transport};

const ISTIO: &str = "outbound|8081||tollgate.tollgate.svc.cluster.local";

/// Every character that a path or a name may contain: C-core sends them unchanged. Two channels in turn: the limit of each
/// value is enforced, and no stream is reset.
#[test]
fn over_every_transport_and_under_any_name_grpcio_is_limited() {
    for (transport, names, is_replaced) in [
        (Transport::Unix, &[None][..], true),
        (Transport::Tcp, &[None], false),
        (Transport::Tls, &[None], false),
        (Transport::Tcp, &[Some(ISTIO)], true),
        (Transport::Tcp, &NAMES.map(Some), true),
    ] {
        let served = Served::over(transport);
        for authority in names {
            let channel = Channel {
                authority: authority.map(str::to_owned),
                ..served.channel.clone()
            };
            for value in ["a", "b"] {
                let value = format!("{value}{authority:?}");
                let replies = Client::Grpcio.ask(&channel, &value, 4);
                let expected = ["Ok", "Ok", "OverLimit", "OverLimit"];
                assert_eq!(replies, expected, "{transport:?} {authority:?}");
            }
        }
        let count = |name: &str| served.server.metric(name);
        let replaced = count("tollgate_authorities_replaced_total");
        assert_eq!(replaced > 0, is_replaced, "{transport:?} {names:?}");
        assert_eq!(count("tollgate_authorities_refused_total"), 0);
        if names == [Some(ISTIO)] {
            served.server.log().with(ISTIO);
        }
    }
}

const NAMES: [&str; 6] = ["<tollgate>", "a:b:c:d", "{x}^`", "tollgäte", "[", "a@"];
