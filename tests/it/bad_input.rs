//! Inputs that the server refuses: rules at its start, and messages that no Envoy sends.

use std::{fs, net::SocketAddr, process::Command};

use ::tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::RateLimitRequest,
};
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::{
    ask::{ask, connect, descriptor, is_ok, request, send, with_hits},
    eventually, finish,
    raw::{PATH, RawClient},
    tollgate,
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [1000000/10000years]}]\n";

#[test]
fn a_folder_without_rules_is_refused() {
    let builder = tollgate::builder();
    let expected = format!("{}: no rule files found", builder.rules().display());
    let (status, text) = builder.fail();
    assert_eq!(status.code(), Some(1));
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn every_problem_of_every_file_is_told() {
    let a = "domain: d\ndescriptors:\n  - key: ''\n  - key: k\n    rate_limits: [1/x, 2/m, 3/m]\n";
    let builder = tollgate::with_rules("domain: good\n").file("a.yaml", a);
    let builder = builder.file("b.yaml", "domain: e\nwhat: 1\n");
    let (status, text) = builder.file("c.yaml", "{").fail();
    assert_eq!(status.code(), Some(1), "{text}");
    let lines = text.lines().filter_map(|line| line.strip_prefix("  "));
    let lines: Vec<_> = lines.collect();
    let problems = [
        "a.yaml:3:11: d: descriptor has empty key",
        "a.yaml:5:19: d.k: cannot read the limit '1/x'",
        "a.yaml:5:29: d.k: two limits with a period of minute",
        "b.yaml:2:1: e: unknown key 'what'",
        "c.yaml:1:1: this `{` is not closed",
    ];
    assert_eq!(lines.len(), problems.len(), "{text}");
    for (line, problem) in lines.iter().zip(problems) {
        assert!(line.starts_with(problem), "{problem}: {text}");
    }
}

#[tokio::test]
async fn told_to_start_without_rules_it_waits_for_good_ones() {
    let builder = tollgate::builder().file("a.yaml", "domain: ''\n");
    let server = builder.args(["--start-without-rules"]).start();
    let log = server.log().text();
    let error = "a.yaml:1:10: config file cannot have empty domain";
    assert!(log.contains(error), "{log}");
    let mut client = connect(server.grpc).await;
    let error = ask(&mut client, "d", &[("k", "v")]).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(error.message(), "no rate limit configuration loaded");
    // Errors of the request itself come first, as in the reference.
    let error = ask(&mut client, "", &[("k", "v")]).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);

    fs::write(server.rules().join("a.yaml"), RULES).unwrap();
    eventually("the good rules are in use", async || {
        let response = ask(&mut client.clone(), "d", &[("k", "v")]).await;
        response.is_ok_and(|response| response.statuses[0].current_limit.is_some())
    })
    .await;
}

/// A name, a message, its expected status, and a part of that status' text.
type Nasty = (&'static str, Vec<u8>, Code, &'static str);

/// `message` in a gRPC frame.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// A protobuf field with bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    prost::encode_length_delimiter(bytes.len(), &mut field).unwrap();
    field.extend(bytes);
    field
}

fn all_nasties() -> Vec<Nasty> {
    use Code::{Internal, InvalidArgument, OutOfRange};
    const UNREADABLE: &str = "not a readable message";
    const TOO_LONG: &str = "a domain, key or value is longer than 65536 bytes";
    const TOO_LARGE: &str = "the limit is: 262144 bytes";
    const EOF: &str = "Unexpected EOF decoding stream";
    const FLAG: &str = "invalid compression flag";
    const ENTRIES: &str = "a descriptor has more than 100 entries";
    const NO_DOMAIN: &str = "rate limit domain must not be empty";
    const PERIOD: &str =
        "the period of a limit override must be at least 1 unit and at most 10,000 years";
    let garbage = (0..10_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8);
    let one = || descriptor(&[("k", "v")]);
    let whole = request("d", vec![one()]).encode_to_vec();
    let unreadable = |name, message: &[u8]| (name, framed(message), InvalidArgument, UNREADABLE);
    let nasty = |name, domain: &str, all, says| {
        let message = request(domain, all).encode_to_vec();
        (name, framed(&message), InvalidArgument, says)
    };
    let overridden = |name, unit, unit_multiplier, says| {
        let limit = RateLimitOverride {
            requests_per_unit: 1,
            unit,
            unit_multiplier,
        };
        let mut one = one();
        one.limit = Some(limit);
        nasty(name, "d", vec![one], says)
    };
    let long = "x".repeat(100_000);
    let (value, key) = (descriptor(&[("k", &long)]), descriptor(&[(&long, "v")]));
    let (ones, entries) = (vec![one(); 10_000], vec![descriptor(&[("k", "v"); 10_000])]);
    let half = framed(&whole)[..10].to_vec();
    let five_mb = field(1, &vec![b'x'; 5_000_000]);
    let endless = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f";
    let odd = [&[9], &framed(&whole)[1..]].concat();
    vec![
        unreadable("garbage", &garbage.collect::<Vec<_>>()),
        unreadable("0xff", &[0xff; 64]),
        unreadable("a truncated message", &whole[..whole.len() - 1]),
        unreadable("a domain that is no text", &field(1, b"\xff")),
        unreadable("a length beyond all memory", endless),
        unreadable("groups in groups", &[0x0b; 100_000]),
        ("an empty message", framed(&[]), InvalidArgument, NO_DOMAIN),
        ("no message", vec![], Internal, "Missing request message"),
        ("half a frame", half, Internal, EOF),
        ("a frame of an unknown kind", odd, Internal, FLAG),
        ("five megabytes", framed(&five_mb), OutOfRange, TOO_LARGE),
        nasty("too much of a value", "d", vec![value], TOO_LONG),
        nasty("too much of a key", "d", vec![key], TOO_LONG),
        nasty("too much of a domain", &long, vec![one()], TOO_LONG),
        nasty("descriptors", "d", ones, "more than 1000 descriptors"),
        nasty("entries", "d", entries, ENTRIES),
        overridden("no unit", 0, None, "unknown unit 0 in a limit override"),
        overridden("unit 99", 99, None, "unknown unit 99 in a limit override"),
        overridden("unit -1", -1, None, "unknown unit -1 in a limit override"),
        overridden("a period of nothing", 6, Some(0), PERIOD),
        overridden("a period beyond all", 6, Some(u32::MAX), PERIOD),
    ]
}

async fn check_answers(address: SocketAddr) {
    let mut client = connect(address).await;
    assert!(is_ok(&ask(&mut client, "d", &[("k", "good")]).await));
}

#[tokio::test]
async fn nonsense_gets_a_clear_status_and_the_next_call_an_answer() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = RawClient::connect(server.grpc).await;
    for (name, body, code, says) in all_nasties() {
        let status = client.send(body).await;
        assert_eq!(status.code(), code, "{name}: {status:?}");
        assert!(status.message().contains(says), "{name}: {status:?}");
        check_answers(server.grpc).await;
    }
    assert!(!server.log().text().contains("panicked"));
}

/// A message that would be answered.
fn good_message() -> Vec<u8> {
    request("d", vec![descriptor(&[("k", "v")])]).encode_to_vec()
}

const HEADERS: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

/// A page of a browser can send other types without being asked.
#[tokio::test]
async fn what_is_no_call_of_grpc_is_refused_and_not_counted() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = RawClient::connect(server.grpc).await;
    let body = framed(&good_message());
    for (content_type, expected) in [
        ("", 415),
        ("text/html", 415),
        ("application/grpc-web", 415),
        ("application/grpc", 200),
        ("application/grpc+proto", 200),
        ("Application/gRPC;x=y", 200),
    ] {
        let headers = [("content-type", content_type), ("te", "trailers")];
        let headers = &headers[usize::from(content_type.is_empty())..];
        let (http, status) = client.send_as("POST", PATH, headers, body.clone()).await;
        let found = (http, status.code());
        assert_eq!(found, (expected, Code::Ok), "{content_type}");
    }
    assert_eq!(server.metric("tollgate_decisions_total{code=\"ok\"}"), 3);
}

#[tokio::test]
async fn headers_that_are_too_large_are_refused() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = RawClient::connect(server.grpc).await;
    let body = framed(&good_message());
    for (bytes, expected) in [(60_000, 200), (80_000, 431)] {
        let long = "x".repeat(bytes);
        let headers = [HEADERS[0], HEADERS[1], ("x", &long)];
        let (http, _) = client.send_as("POST", PATH, &headers, body.clone()).await;
        assert_eq!(http, expected, "{bytes}");
    }
}

#[tokio::test]
async fn a_method_that_is_not_there_is_unimplemented() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = RawClient::connect(server.grpc).await;
    for path in ["/a.B/C", &format!("{PATH}2")] {
        let (http, status) = client.send_as("POST", path, &HEADERS, framed(&[])).await;
        assert_eq!((http, status.code()), (200, Code::Unimplemented), "{path}");
    }
}

/// `bytes` compressed by Python's `module`.
fn compressed(module: &str, bytes: &[u8]) -> Vec<u8> {
    let folder = tempfile::TempDir::new().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    fs::write(&from, bytes).unwrap();
    let script = format!(
        "import sys, {module}; open(sys.argv[2], 'wb').write({module}.compress(open(sys.argv[1], 'rb').read()))"
    );
    let mut python = Command::new("python3");
    let output = finish(python.args(["-c", &script]).args([&from, &to]));
    assert!(output.status.success(), "{output:?}");
    fs::read(&to).unwrap()
}

fn flagged(message: &[u8]) -> Vec<u8> {
    [&[1], &framed(message)[1..]].concat()
}

#[tokio::test]
async fn compressed_messages_are_answered() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = RawClient::connect(server.grpc).await;
    let message = good_message();
    let long = vec![b'x'; 100 << 20];
    for (encoding, module) in [("gzip", "gzip"), ("deflate", "zlib")] {
        let headers = [HEADERS[0], HEADERS[1], ("grpc-encoding", encoding)];
        let small = compressed(module, &message);
        for (body, code) in [
            (flagged(&small), Code::Ok),
            // A flag in each message says whether it is compressed.
            (framed(&message), Code::Ok),
            (flagged(&message), Code::Internal),
            (flagged(&compressed(module, &long)), Code::ResourceExhausted),
        ] {
            let length = body.len();
            let (_, status) = client.send_as("POST", PATH, &headers, body).await;
            assert_eq!(status.code(), code, "{encoding} {length} {status:?}");
        }
    }
    assert!(server.peak_bytes() < 100 << 20);
    let headers = [HEADERS[0], HEADERS[1], ("grpc-encoding", "zstd")];
    let (_, status) = client.send_as("POST", PATH, &headers, flagged(b"x")).await;
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("zstd"), "{status:?}");
}

#[tokio::test]
async fn what_is_just_within_the_bounds_is_answered() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let longest = "x".repeat(64 << 10);
    for descriptors in [
        vec![descriptor(&[("k", "v")]); 1000],
        vec![descriptor(&[("k", "v"); 100])],
        vec![descriptor(&[("k", &longest), (&longest, "v")])],
        vec![descriptor(&[("k", &longest)])],
    ] {
        let count = descriptors.len();
        let response = send(&mut client, request("d", descriptors)).await.unwrap();
        assert_eq!(response.statuses.len(), count);
    }
    let reply = send(&mut client, request(&longest, vec![descriptor(&[])])).await;
    assert!(is_ok(&reply));
}

#[tokio::test]
async fn values_that_are_no_text_have_counters_of_their_own() {
    const RULES: &str = "domain: d
descriptors: [{key: k, rate_limits: [1/10000years]}, {key: w, value: 'a*z', rate_limits: [1/10000years]}]";
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for (key, value, passes) in [
        ("k", &b"\xff"[..], true),
        ("k", b"\xfe", true),
        ("k", b"\xff", false),
        ("k", b"\xef\xbf\xbd", true),
        ("k", b"", true),
        ("w", b"a\xff\0z", true),
        ("w", b"a\xffz", true),
    ] {
        let mut one = descriptor(&[(key, "")]);
        one.entries[0].value = value.into();
        let reply = send(&mut client, request("d", vec![one])).await;
        assert!(reply.as_ref().unwrap().statuses[0].current_limit.is_some());
        assert_eq!(is_ok(&reply), passes, "{key} {value:?}");
    }
}

#[tokio::test]
async fn the_largest_addend_is_over_every_limit_and_refunds_nothing() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let huge = with_hits(&[("k", "v")], u64::MAX);
    for _ in 0..3 {
        let reply = send(&mut client, request("d", vec![huge.clone()])).await;
        assert!(!is_ok(&reply));
        assert!(!is_ok(&ask(&mut client, "d", &[("k", "v")]).await));
    }
    // As many hits for a whole request: the field has 32 bits.
    let request = RateLimitRequest {
        hits_addend: u32::MAX,
        ..request("d", vec![descriptor(&[("k", "w")])])
    };
    assert!(!is_ok(&send(&mut client, request).await));
    check_answers(server.grpc).await;
}

/// Bytes that a server may keep for a few seconds: buffers of connections, and memory that its allocator retains
/// after a burst of messages of megabytes.
const SLACK_BYTES: u64 = 64 << 20;

#[tokio::test]
async fn nonsense_leaves_no_memory_behind() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = RawClient::connect(server.grpc).await;
    let bodies = all_nasties().into_iter().map(|(_, body, ..)| body);
    let mut bodies: Vec<_> = bodies.collect();
    for body in &bodies {
        client.send(body.clone()).await;
    }
    bodies.retain(|body| body.len() > 5_000);
    assert!(bodies.len() >= 7);
    let before = server.resident_bytes();
    for _ in 0..600 {
        for body in &bodies {
            client.send(body.clone()).await;
        }
    }
    let after = server.resident_bytes();
    let most = before + SLACK_BYTES;
    assert!(after < most, "{before} bytes before, {after} after");
    check_answers(server.grpc).await;
}

/// A hundred thousand empty descriptors or entries fit into one message.
#[tokio::test]
async fn a_small_message_cannot_blow_up_in_memory() {
    let server = tollgate::with_rules(RULES).start();
    let empty = |tag: u8| [tag, 0].repeat(130_000);
    let descriptors = framed(&[field(1, b"d"), empty(0x12)].concat());
    let entries = framed(&[field(1, b"d"), field(2, &empty(0x0a))].concat());
    let before = server.peak_bytes();
    let mut calls = JoinSet::new();
    for body in [&descriptors, &entries, &descriptors, &entries] {
        let mut client = RawClient::connect(server.grpc).await;
        let body = body.clone();
        calls.spawn(async move { client.send(body).await });
    }
    for status in calls.join_all().await {
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains("more than 100"), "{status:?}");
    }
    let after = server.peak_bytes();
    let most = before + 2 * SLACK_BYTES;
    assert!(after < most, "{before} bytes before, {after} at the most");
    check_answers(server.grpc).await;
}
