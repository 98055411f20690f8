//! The gRPC libraries of callers, over every transport, with and without compression, and under any name. Envoy's two
//! are in `envoy`.

use std::{
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::support::{
    clients::{Channel, Client, RULES, Served, Transport},
    redis::Redis,
    tollgate, wait_until,
};

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
        let [replaced, refused] = authorities(&served);
        assert_eq!(refused, 0, "{client:?}, {transport:?}");
        // C-core sends the path of the socket.
        if matches!(client, Client::Grpcio) {
            assert_eq!(replaced > 0, transport == Transport::Unix);
        }
    }
}

/// How many authorities were replaced and refused.
fn authorities(served: &Served) -> [u64; 2] {
    ["replaced", "refused"].map(|what| {
        let name = format!("tollgate_authorities_{what}_total");
        served.server.metric(&name)
    })
}

/// C-core sends a message uncompressed if compression does not make it shorter.
fn compressible(letter: &str) -> String {
    letter.repeat(500)
}

#[test]
fn clients_are_limited_over_every_transport() {
    check_limited(Client::Grpcio, &[false, true]);
    check_limited(Client::GrpcJs, &[false, true]);
    check_limited(Client::Grpcurl, &[false]);
}

/// Makes sure that the case above tests compression at all.
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

/// A call that waits for Redis when its connection has to end, at its age or at a drain, is answered.
#[test]
fn calls_in_flight_are_answered() {
    const AGE: Duration = Duration::from_secs(1);
    let check = |client: Client, is_drain: bool| {
        let redis = Redis::start();
        let builder = tollgate::with_rules(RULES).redis_at(&redis.url(), "20s");
        let mut server = match is_drain {
            true => builder,
            false => builder.args(["--max-connection-age", "1s"]),
        }
        .start();
        let channel = Channel {
            target: server.grpc.to_string(),
            ..Channel::default()
        };
        redis.freeze();
        let asked = thread::spawn(move || client.ask(&channel, "v", 1));
        let began = Instant::now();
        wait_until("the call waits for Redis", || {
            let stats = server.page("/stats");
            stats.lines().any(|line| line.ends_with(".in_flight: 1"))
        });
        if is_drain {
            server.signal(Signal::SIGTERM);
        }
        // The connection is told to go meanwhile.
        wait_until("it is old", || began.elapsed() > AGE * 3 / 2);
        redis.thaw();
        let replies = asked.join().unwrap();
        assert_eq!(replies, ["Ok"], "{client:?}, drain: {is_drain}");
        if is_drain {
            assert_eq!(server.wait().code(), Some(0));
        }
    };
    for client in [Client::Grpcio, Client::GrpcJs, Client::Grpcurl] {
        check(client, false);
        check(client, true);
    }
}

const ISTIO: &str = "outbound|8081||tollgate.tollgate.svc.cluster.local";

/// C-core writes the name `:authority` out, and sends every character that a name may contain unchanged.
#[test]
fn under_any_name_grpcio_is_limited() {
    let served = Served::over(Transport::Tcp);
    let odd = "<tollgate> a:b:c:d {x}^` tollgäte [ a@";
    for name in [ISTIO].into_iter().chain(odd.split(' ')) {
        let channel = Channel {
            authority: Some(name.to_owned()),
            ..served.channel.clone()
        };
        let replies = Client::Grpcio.ask(&channel, name, 3);
        assert_eq!(replies, ["Ok", "Ok", "OverLimit"], "{name}");
        let [replaced, refused] = authorities(&served);
        assert!(replaced > 0 && refused == 0, "{name}");
    }
    served.server.log().with(ISTIO);
}
