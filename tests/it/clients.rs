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
        let refused = served.server.metric("tollgate_authorities_refused_total");
        assert_eq!(refused, 0, "{client:?}, {transport:?}");
    }
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

/// C-core writes the name `:authority` out, and over a Unix socket its value is the socket's path, which is not a valid
/// authority. It sends every character that a path or a name may contain unchanged. Two channels in turn: the limit of
/// each value is enforced, and no stream is reset.
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
