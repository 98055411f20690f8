//! The memory that clients together can make the process hold: unfinished messages, unread replies, pages. Memory
//! always stays far below the limit of the manifests in `deploy/`, and other clients get answers.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use prost::Message as _;
use tonic::Code;

use crate::support::{
    ask::*,
    frames::{beginnings, headers},
    hoard::{
        Hoarder, calls_without_end, framed, made_up_names, many_descriptors, slow_bodies,
        unread_replies,
    },
    http::get,
    json,
    raw::RawClient,
    tollgate::{self, Tollgate},
    wait_until,
};

const RULES: &str = "
domain: d
descriptors:
  - { key: k, rate_limits: [1000000/10000years] }
  - { key: other, rate_limits: [1000000/10000years] }
  - { key: named, detailed_metric: true, rate_limits: [1000000/10000years] }
";

/// Bound on the growth: 32 MiB that clients may hold, and twice as much for the data structures around it.
const BOUND: u64 = 96 << 20;

fn start(args: &[&str]) -> Tollgate {
    let builder = tollgate::with_rules(RULES).args(["--workers", "2"]);
    let server = builder.args(args.iter().copied()).start();
    check_others(&server);
    server
}

/// Another client gets answers, over gRPC and JSON, and so does a probe.
#[track_caller]
fn check_others(server: &Tollgate) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for _ in 0..10 {
            let mut client = connect(server.grpc).await;
            assert!(passes(&mut client, "d", &[("other", "v")]).await);
            // Large enough to arrive in several pieces.
            let value = "x".repeat(60_000);
            let large = [("other", value.as_str()); 3];
            assert!(passes(&mut client, "d", &large).await);
        }
    });
    assert_eq!(get(server.http, "/healthcheck").body, "OK");
    let body = br#"{"domain":"d","descriptors":[{"entries":[{"key":"other","value":"v"}]}]}"#;
    assert_eq!(json::send(server.http, "POST", "/json", body).status, 200);
}

/// Runs `hoard`, checks other clients meanwhile, and checks that memory stays within the bound.
#[track_caller]
fn check_bounded<T>(server: &Tollgate, hoard: impl FnOnce() -> T) -> T {
    let before = server.resident_bytes();
    let hoarders = hoard();
    check_others(server);
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < BOUND, "{} MB", grown >> 20);
    hoarders
}

#[test]
fn calls_that_do_not_end_on_many_connections_are_bounded_in_sum() {
    let server = start(&[]);
    check_bounded(&server, || {
        let calls = |_| calls_without_end(server.grpc, 4, 200 << 10);
        (0..300).map(calls).collect::<Vec<_>>()
    });
}

#[test]
fn bodies_that_do_not_end_are_bounded_in_sum() {
    let server = start(&[]);
    check_bounded(&server, || slow_bodies(server.http, 976));
}

#[test]
fn replies_with_metadata_that_are_not_read_are_bounded_in_sum() {
    let server = start(&["--dynamic-metadata"]);
    let message = many_descriptors(4, &[0xff; 60_000]);
    check_bounded(&server, || unread_replies(server.grpc, 4, 200, &message));
}

fn begin(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// A caller may take some time for a message, and others get answers meanwhile.
#[test]
fn a_message_that_does_not_come_in_time_is_given_up() {
    let server = start(&[]);
    let started = "POST /json HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let mut stream = begin(server.http, started.as_bytes());
    let mut slow = Hoarder::connect(server.grpc, 65_535);
    let message = framed(&request("d", vec![descriptor(&[("k", "v")])]).encode_to_vec());
    assert!(slow.call(&message[..7], false));
    wait_until("its call is ended, and no more", || {
        slow.hear();
        assert!(!slow.is_closed);
        slow.ended > 0
    });
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"HTTP/1.1 408");
}

/// Nothing waits until the message of a closed connection would be late.
#[test]
fn a_connection_that_is_closed_for_a_new_one_is_gone_though_it_has_a_call() {
    let server = start(&["--max-connections", "8"]);
    let begun = [&beginnings()[4][..], &headers(1)].concat();
    let crowd = (0..200).map(|_| begin(server.grpc, &begun));
    let crowd: Vec<_> = crowd.collect();
    check_others(&server);
    let late = server.metric("tollgate_cut_off_total{reason=\"message_late\"}");
    let over = server.metric("tollgate_cut_off_total{reason=\"connection_limit\"}");
    assert!(late == 0 && over > 190, "{late} {over}");
    drop(crowd);
}

/// Names that requests create, as many and as long as possible, and the page with all of them.
#[tokio::test]
async fn a_scrape_of_the_largest_page_costs_little() {
    const MOST: u64 = 24 << 20;
    for length in [110, 490] {
        let server = tollgate::with_rules(RULES).start();
        let mut client = RawClient::connect(server.grpc).await;
        for message in made_up_names(10_000, length) {
            let status = client.send(framed(&message)).await;
            assert_eq!(status.code(), Code::Ok, "{status:?}");
        }
        for page in ["/metrics", "/stats"] {
            let before = server.resident_bytes();
            server.forget_peak();
            let text = get(server.debug, page).body;
            let grown = server.peak_bytes().saturating_sub(before);
            let size = text.len();
            assert!(size > 2 << 20, "{size}");
            assert!(grown < MOST, "{page}, {length}: {grown} for {size}");
        }
    }
}
