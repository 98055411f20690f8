//! The gRPC libraries of callers, over every transport, with and without compression. Envoy's two are in `envoy`.

use crate::support::clients::{Channel, Client, Served, Transport};

/// Two channels in turn over each transport: the limit of each value is enforced.
#[track_caller]
fn check_limited(client: Client, encodings: &[bool]) {
    for transport in Transport::ALL {
        let served = Served::over(transport);
        for &is_gzip in encodings {
            let channel = Channel {
                is_gzip,
                ..served.channel.clone()
            };
            for letter in ["a", "b"] {
                let value = format!("{is_gzip}{}", compressible(letter));
                let expected = ["Ok", "Ok", "OverLimit", "OverLimit"];
                let replies = client.ask(&channel, &value, 4);
                assert_eq!(replies, expected, "{client:?}, {transport:?}, {is_gzip}");
            }
        }
        let refused = served.server.metric("tollgate_authorities_refused_total");
        assert_eq!(refused, 0, "{client:?}, {transport:?}");
    }
}

/// C-core sends a message uncompressed if compression does not make it shorter.
fn compressible(letter: &str) -> String {
    letter.repeat(500)
}

#[test]
fn grpcio_is_limited_over_every_transport() {
    check_limited(Client::Grpcio, &[false, true]);
}

#[test]
fn grpc_js_is_limited_over_every_transport() {
    check_limited(Client::GrpcJs, &[false, true]);
}

#[test]
fn grpcurl_is_limited_over_every_transport() {
    check_limited(Client::Grpcurl, &[false]);
}

/// Makes sure that the cases above test compression at all.
#[test]
fn clients_that_are_to_compress_do() {
    for client in [Client::Grpcio, Client::GrpcJs] {
        for is_gzip in [false, true] {
            let channel = Channel {
                is_gzip,
                ..Channel::default()
            };
            let compresses = client.compresses(&channel, &compressible("a"));
            assert_eq!(compresses, is_gzip, "{client:?}");
        }
    }
}
