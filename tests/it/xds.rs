//! Rules that a control plane pushes: a valid push is taken into use completely and acknowledged, an invalid one
//! changes nothing and is refused with every reason.

use std::{
    io,
    net::{TcpListener, TcpStream},
    os::unix::net::UnixListener,
    process::Stdio,
    time::{Duration, Instant},
};

use ::tollgate::{
    TYPE_URL,
    proto::envoy::service::discovery::v3::DiscoveryResponse,
    rls_conf::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use prost_types::{Any, value::Kind};
use tempfile::TempDir;

use crate::support::{
    Process,
    ads::{Ads, Seen, snapshot},
    ask::{self, Status, ask, connect},
    certificates::{self, Authority, Secret},
    eventually, http,
    proxy::Proxy,
    storm::Storm,
    tollgate::{self, Builder, Tollgate},
    wait_until,
};

/// A domain in which each value of `k` has so many requests a year.
pub(crate) fn domain(name: &str, requests_per_unit: u32) -> RateLimitConfig {
    RateLimitConfig {
        name: name.to_owned(),
        domain: name.to_owned(),
        descriptors: vec![RateLimitDescriptor {
            key: "k".to_owned(),
            rate_limit: Some(RateLimitPolicy {
                unit: RateLimitUnit::Year.into(),
                requests_per_unit,
                ..RateLimitPolicy::default()
            }),
            ..RateLimitDescriptor::default()
        }],
        ..RateLimitConfig::default()
    }
}

/// A domain with two mistakes.
pub(crate) fn bad(name: &str) -> RateLimitConfig {
    let mut config = domain(name, 1);
    config.descriptors[0].rate_limit.as_mut().unwrap().unit = 0;
    config.descriptors.push(RateLimitDescriptor::default());
    config
}

/// A server that gets its rules from `ads`.
pub(crate) fn builder(ads: &Ads) -> Builder {
    of(&format!("localhost:{}", ads.address.port()))
}

pub(crate) fn of(server: &str) -> Builder {
    to(tollgate::builder(), server)
}

/// Sets the control plane by variables, so that a test can override them by flags.
fn to(builder: Builder, server: &str) -> Builder {
    builder
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .env("CONFIG_GRPC_XDS_SERVER_URL", server)
}

/// A control plane whose push 1 lets one request for each value pass, and a server that has taken it.
fn started(args: &[&str]) -> (Ads, Tollgate, Seen) {
    let ads = Ads::start();
    ads.set(snapshot("1", &[domain("a", 1)]));
    let server = builder(&ads).args(args.iter().copied()).start();
    let ack = ads.wait_for_ack("1");
    (ads, server, ack)
}

/// How many of three requests pass.
pub(crate) async fn passing(server: &Tollgate, domain: &str, value: &str) -> usize {
    let mut client = connect(server.grpc).await;
    ask::passing(&mut client, domain, &[("k", value)], 3).await
}

pub(crate) fn rlconfig(server: &Tollgate) -> String {
    http::get(server.debug, "/rlconfig").body
}

pub(crate) const LOADED: &str = "ratelimit_service_config_load_success";
pub(crate) const REFUSED: &str = "ratelimit_service_config_load_error";
pub(crate) const UP: &str = "tollgate_control_plane_up";

#[tokio::test]
async fn pushes_become_rules_and_are_acknowledged() {
    let ads = Ads::start();
    ads.set(snapshot("one", &[domain("a", 1), domain("b", 2)]));
    let headers = "x-tenant:blue,Authorization:secret";
    let server = builder(&ads)
        .args(["--xds-node-id", "n", "--xds-node-metadata", "x=y,z=1=2,no"])
        .env("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", headers)
        .start();
    let first = ads.next();
    assert_eq!(first.request.type_url, TYPE_URL);
    assert_eq!(first.request.resource_names, [""; 0]);
    assert_eq!(version_and_nonce(&first), ["", ""]);
    assert_eq!(first.headers.get("x-tenant").unwrap(), "blue");
    assert_eq!(first.headers.get("authorization").unwrap(), "secret");
    let node = first.request.node.unwrap();
    assert_eq!(node.id, "n");
    let metadata = node.metadata.unwrap().fields;
    assert_eq!(metadata.len(), 2, "{metadata:?}");
    for (key, expected) in [("x", "y"), ("z", "1=2")] {
        let expected = Kind::StringValue(expected.to_owned());
        assert_eq!(metadata[key].kind, Some(expected));
    }
    let ack = ads.next();
    assert_eq!(version_and_nonce(&ack), ["one", "nonce-1"]);
    assert_eq!(ack.refusal(), None);
    assert_eq!(passing(&server, "a", "x").await, 1);
    assert_eq!(passing(&server, "b", "x").await, 2);
    let shown = rlconfig(&server);
    let mut shown: Vec<_> = shown.lines().collect();
    shown.sort_unstable();
    let line = |start: &str| format!("{start}, shadow_mode: false, quota_mode: false");
    let [a, b] = [
        "a.k: unit=YEAR requests_per_unit=1",
        "b.k: unit=YEAR requests_per_unit=2",
    ]
    .map(line);
    assert_eq!(shown, [a, b]);

    // Each push is the complete set of rules, and counts stay.
    ads.set(snapshot("two", &[domain("b", 3)]));
    ads.wait_for_ack("two");
    let b = line("b.k: unit=YEAR requests_per_unit=3");
    assert_eq!(rlconfig(&server).trim_end(), b);
    assert_eq!(passing(&server, "a", "x").await, 3);
    assert_eq!(passing(&server, "b", "x").await, 0);
    assert_eq!((server.metric(LOADED), server.metric(REFUSED)), (2, 0));
    assert!(!server.log().text().contains("secret"));
}

fn version_and_nonce(seen: &Seen) -> [&str; 2] {
    [&seen.request.version_info, &seen.request.response_nonce]
}

#[tokio::test]
async fn without_a_good_push_grpc_is_not_served_and_health_is_bad() {
    let ads = Ads::start();
    // No other process listens at this address, so none takes a port before the server does.
    const HOST: &str = "127.7.7.7";
    let probes = [(); 3].map(|()| TcpListener::bind((HOST, 0)).unwrap());
    let [grpc, http, debug] = probes.map(|probe| probe.local_addr().unwrap());
    let ports = [grpc, http, debug].map(|address| address.port().to_string());
    let builder = to(tollgate::bare(), &ads.address.to_string())
        .args(["serve", "--log-format", "json"])
        .args(["--grpc-host", HOST, "--grpc-port", &ports[0]])
        .args(["--host", HOST, "--port", &ports[1]])
        .args(["--debug-host", HOST, "--debug-port", &ports[2]]);
    let starting = std::thread::spawn(move || builder.start());
    ads.next();
    let is_closed = || TcpStream::connect(grpc).is_err();
    let health = || http::get(http, "/healthcheck").status;
    assert_eq!((health(), is_closed()), (500, true));
    ads.set(snapshot("bad", &[bad("d")]));
    ads.wait_for_refusal();
    assert_eq!((health(), is_closed()), (500, true));
    let page = http::get(debug, "/metrics").body;
    assert!(!page.contains(&format!("{REFUSED} 0")), "{page}");
    ads.set(snapshot("good", &[domain("d", 1)]));
    let server = starting.join().unwrap();
    assert_eq!((health(), is_closed()), (200, false));
    assert_eq!(passing(&server, "d", "x").await, 1);
}

#[test]
fn who_still_waits_can_be_stopped() {
    let ads = Ads::start();
    let mut command = tollgate::program();
    command
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .env("CONFIG_GRPC_XDS_SERVER_URL", ads.address.to_string())
        .args(["serve", "--port", "0", "--debug-port", "0"]);
    let mut process = Process::start(command.stderr(Stdio::null()));
    ads.next();
    kill(Pid::from_raw(process.id().cast_signed()), Signal::SIGTERM).unwrap();
    wait_until("it has ended", || process.has_ended());
    assert_eq!(process.status().unwrap().code(), Some(0));
}

#[tokio::test]
async fn who_must_not_wait_serves_without_rules_and_health_can_wait_for_a_domain() {
    for (args, without) in [
        (&["--start-without-rules"][..], 200),
        (&["--start-without-rules", "--healthy-with-rules-only"], 500),
    ] {
        let ads = Ads::start();
        let server = builder(&ads).args(args.iter().copied()).start();
        let health = || http::get(server.http, "/healthcheck").status;
        assert_eq!(health(), without);
        let mut client = connect(server.grpc).await;
        let error = ask(&mut client, "d", &[("k", "x")]).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unavailable);
        assert_eq!(error.message(), "no rate limit configuration loaded");
        ads.set(snapshot("1", &[domain("d", 1)]));
        ads.wait_for_ack("1");
        assert_eq!(passing(&server, "d", "x").await, 1);
        wait_until("health is good", || health() == 200);
        ads.set(snapshot("2", &[]));
        ads.wait_for_ack("2");
        wait_until("health is as at the start", || health() == without);
    }
}

#[tokio::test]
async fn a_bad_push_is_refused_with_every_error_and_changes_nothing() {
    let (ads, server, _) = started(&[]);
    assert_eq!(passing(&server, "a", "x").await, 1);
    let before = rlconfig(&server);
    let without_domain = RateLimitConfig::default();
    let push = [domain("a", 3), bad("c"), bad("b"), without_domain];
    ads.set(snapshot("bad", &push));
    let seen = ads.wait_for_refusal();
    assert_eq!(version_and_nonce(&seen), ["1", "nonce-2"]);
    let lines: Vec<_> = seen.refusal().unwrap().lines().collect();
    let expected = [
        "(resource 4): config file cannot have empty domain",
        "b: b.k: invalid rate limit unit 'UNKNOWN'",
        "b: b: descriptor has empty key",
        "c: c.k: invalid rate limit unit 'UNKNOWN'",
        "c: c: descriptor has empty key",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}");
        server.log().with(expected);
    }
    assert_eq!(rlconfig(&server), before);
    assert_eq!(passing(&server, "a", "x").await, 0, "its count stays");
    // The next push is judged independent of the refused one.
    ads.set(snapshot("better", &[domain("a", 2)]));
    ads.wait_for_ack("better");
    assert_eq!(passing(&server, "a", "x").await, 0, "three were counted");
    assert_eq!(passing(&server, "a", "y").await, 2);
}

#[tokio::test]
async fn whatever_comes_the_call_goes_on() {
    const UNREADABLE: &str = "(resource 1): is not a readable RateLimitConfig";
    const OTHER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let (ads, server, ack) = started(&[]);
    let with = |type_url: &str, value: &[u8]| DiscoveryResponse {
        resources: vec![Any {
            type_url: type_url.to_owned(),
            value: value.to_owned(),
        }],
        ..snapshot("bad", &[])
    };
    let of_another_type = DiscoveryResponse {
        type_url: OTHER.to_owned(),
        ..snapshot("bad", &[domain("a", 3)])
    };
    const NO_DOMAIN: &str = "(resource 1): config file cannot have empty domain";
    const ESCAPED: &str = "(resource 1): is a resource of type '??[31m'";
    let of_type = format!("(push): is a resource of type '{OTHER}");
    for (number, (response, expected)) in (0..).zip([
        (with(TYPE_URL, b"\xff\xff\xff"), UNREADABLE),
        (with(TYPE_URL, &[0x0a; 1000]), UNREADABLE),
        (with("", b""), "(resource 1): is a resource of type ''"),
        (with("\n\u{1b}[31m", b""), ESCAPED),
        (with(TYPE_URL, b""), NO_DOMAIN),
        (of_another_type, &*of_type),
    ]) {
        ads.set(response);
        let is_it = |text: &str| text.starts_with(expected);
        let seen = ads.find(|seen| seen.refusal().is_some_and(is_it));
        assert_eq!((seen.call, version_and_nonce(&seen)[0]), (ack.call, "1"));
        // The second time because the control plane would take the version before for the last good one.
        for version in [&*format!("good-{number}"), "1"] {
            ads.set(snapshot(version, &[domain("a", 1)]));
            ads.wait_for_ack(version);
        }
    }
    assert_eq!(passing(&server, "a", "x").await, 1);
}

#[tokio::test]
async fn a_push_that_is_too_large_is_told_and_a_smaller_one_heals() {
    let (ads, server, _) = started(&["--xds-max-message-bytes", "10000"]);
    let large: Vec<_> = (0..1000).map(|n| domain(&format!("d{n}"), 1)).collect();
    ads.set(snapshot("large", &large));
    let log = server.log().with("message length too large");
    assert!(log.contains("--xds-max-message-bytes"), "{log}");
    let seen = ads.next();
    assert_eq!(seen.request.version_info, "1", "in a new call");
    assert!(server.metric(REFUSED) > 0);
    assert_eq!(passing(&server, "a", "x").await, 1);
    ads.set(snapshot("small", &[domain("a", 2)]));
    ads.wait_for_ack("small");
    assert_eq!(passing(&server, "a", "y").await, 2);
}

/// Also, a short break is healed at once.
#[tokio::test]
async fn what_was_refused_is_not_acknowledged_after_a_reconnect() {
    let (ads, server, _) = started(&[]);
    ads.set(snapshot("bad", &[bad("a")]));
    let refused = ads.wait_for_refusal();
    let cut = Instant::now();
    ads.hang_up();
    let first = ads.find(|seen| seen.call > refused.call);
    assert_eq!(version_and_nonce(&first), ["1", ""]);
    assert_eq!(first.refusal(), None);
    assert!(first.request.node.is_some());
    assert!(first.at - cut < Duration::from_secs(2));
    assert_eq!(passing(&server, "a", "x").await, 1);
}

/// go-control-plane answers a refusal with the refused push, at once.
#[tokio::test]
async fn a_refused_push_that_comes_again_and_again_is_answered_ever_more_slowly() {
    let (ads, server, _) = started(&[]);
    ads.set(snapshot("bad", &[bad("a")]));
    let refusals = [(); 4].map(|()| ads.wait_for_refusal());
    // The waits are at least 100, 200 and 400 ms.
    let took = refusals[3].at - refusals[0].at;
    assert!(took >= Duration::from_millis(700), "{took:?}");
    assert_eq!(server.metric(REFUSED), 1);
    let log = server.log().text();
    let reported = log.matches("invalid rate limit unit").count();
    assert_eq!(reported, 1, "once, however often it comes");
    ads.set(snapshot("better", &[domain("a", 2)]));
    ads.wait_for_ack("better");
}

/// Each call that ends soon makes the wait before the next one longer.
#[tokio::test]
async fn a_control_plane_that_ends_each_call_is_called_ever_more_slowly() {
    let backoff = ["--xds-backoff-initial", "20ms", "--xds-backoff-max", "1h"];
    let (ads, _server, Seen { mut at, .. }) = started(&backoff);
    let is_patient = (0..20).any(|_| {
        ads.end_calls(&Status::internal("not now"));
        let next = ads.find(|seen| seen.request.response_nonce.is_empty());
        let waited = next.at - at;
        at = next.at;
        waited > Duration::from_secs(1)
    });
    assert!(is_patient);
}

/// Away for long enough to reach the longest wait between two attempts.
#[tokio::test]
async fn a_control_plane_that_comes_back_is_found_soon() {
    let (ads, server, _) = started(&["--log-level", "debug"]);
    ads.leave();
    ads.set(snapshot("2", &[domain("a", 2)]));
    wait_until("five attempts failed", || {
        server.log().text().matches("is still away").count() >= 5
    });
    assert_eq!(passing(&server, "a", "x").await, 1, "the rules stay");
    assert_eq!(server.metric(UP), 0);
    ads.come_back();
    let came_back = Instant::now();
    ads.wait_for_ack("2");
    let took = came_back.elapsed();
    // The longest wait is five seconds; the rest is for a busy machine.
    assert!(took < Duration::from_secs(7), "{took:?}");
    assert_eq!(passing(&server, "a", "y").await, 2);
    assert_eq!(server.metric(UP), 1);
    let log = server.log().with(" is connected again");
    let away = log.matches(" is away: ").count();
    assert!(away <= 3, "once for each reason: {log}");
    assert_eq!(log.matches(" is connected again").count(), 1, "{log}");
}

/// Envoy Gateway counts its versions from 1 in each process: after a restart an old version number stands for other
/// rules, and a control plane that gets this number from the client sends nothing.
#[tokio::test]
async fn a_restarted_control_plane_that_counts_from_one_again_is_not_believed() {
    let (ads, server, _) = started(&[]);
    ads.leave();
    ads.set(snapshot("1", &[domain("a", 2)]));
    ads.come_back();
    for version in ["1", ""] {
        assert_eq!(version_and_nonce(&ads.next()), [version, ""]);
    }
    ads.wait_for_ack("1");
    assert_eq!(passing(&server, "a", "x").await, 2);
    assert_eq!(server.metric(LOADED), 2);
    // Equal rules are only acknowledged.
    ads.hang_up();
    ads.wait_for_ack("1");
    assert_eq!(server.metric(LOADED), 2);
}

#[tokio::test]
async fn a_push_without_rules_allows_everything_or_is_refused() {
    for (empty, is_kept) in [("allow", false), ("keep", true)] {
        let ads = Ads::start();
        // At first there are no rules to keep.
        ads.set(snapshot("0", &[]));
        let server = builder(&ads).args(["--xds-empty-push", empty]).start();
        ads.wait_for_ack("0");
        ads.set(snapshot("1", &[domain("a", 1)]));
        ads.wait_for_ack("1");
        ads.set(snapshot("2", &[]));
        if is_kept {
            let refused = ads.wait_for_refusal();
            assert_eq!(refused.request.version_info, "1");
            let text = refused.refusal().unwrap();
            let expected = "(push): a push without rules is refused";
            assert!(text.starts_with(expected), "{text}");
        } else {
            ads.wait_for_ack("2");
        }
        let expected = if is_kept { 1 } else { 3 };
        assert_eq!(passing(&server, "a", "x").await, expected);
    }
}

#[tokio::test]
async fn two_resources_of_one_domain_are_merged_only_if_told_so() {
    let mut other = domain("a", 1);
    other.name = "other".to_owned();
    other.descriptors[0].key = "l".to_owned();
    let both = snapshot("1", &[domain("a", 1), other]);
    let ads = Ads::start();
    ads.set(both.clone());
    let _server = builder(&ads).args(["--start-without-rules"]).start();
    let refused = ads.wait_for_refusal();
    let text = refused.refusal().unwrap();
    let expected = "other: duplicate domain 'a' in config file, already defined in a";
    assert!(text.starts_with(expected), "{text}");
    let ads = Ads::start();
    ads.set(both);
    let server = builder(&ads).args(["--merge-domains"]).start();
    ads.wait_for_ack("1");
    assert_eq!(rlconfig(&server).lines().count(), 2);
}

/// Clients continue while the rules change repeatedly.
#[tokio::test]
async fn rules_change_under_load_and_no_call_fails() {
    const PUSHES: u32 = 20;
    let ads = Ads::start();
    ads.set(snapshot("0", &[domain("d", 1_000_000)]));
    let server = builder(&ads).start();
    ads.wait_for_ack("0");
    let storm = Storm::start(&[server.grpc], &["a", "b"]);
    let answered = || server.metric("tollgate_decisions_total{code=\"ok\"}");
    for push in 1..=PUSHES {
        let so_far = answered();
        let version = push.to_string();
        ads.set(snapshot(&version, &[domain("d", 1_000_000 + push)]));
        eventually("calls go on", async || answered() > so_far + 20).await;
        ads.wait_for_ack(&version);
    }
    let answers = storm.end().await;
    assert_eq!(answers.error_count(), 0, "{:?}", answers.errors());
    assert_eq!(server.metric(LOADED), u64::from(PUSHES) + 1);
}

#[tokio::test]
async fn a_control_plane_may_be_behind_a_unix_socket() {
    let ads = Ads::start();
    ads.set(snapshot("1", &[domain("a", 1)]));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("xds.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let to = ads.address;
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(to).unwrap();
        let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || io::copy(&mut from, &mut to));
        let (mut from, mut to) = (far, near);
        // It ends with the test.
        let _ = io::copy(&mut from, &mut to);
    });
    let server = of(&format!("unix://{}", path.display())).start();
    ads.wait_for_ack("1");
    assert_eq!(passing(&server, "a", "x").await, 1);
}

#[tokio::test]
async fn a_control_plane_that_fell_silent_is_called_anew() {
    let ads = Ads::start();
    ads.set(snapshot("1", &[domain("a", 1)]));
    let proxy = Proxy::to(ads.address.to_string());
    let server = of(&proxy.address.to_string())
        .args(["--xds-keepalive", "200ms"])
        .start();
    let call = ads.wait_for_ack("1").call;
    proxy.forget();
    ads.set(snapshot("2", &[domain("a", 2)]));
    assert!(ads.wait_for_ack("2").call > call);
    assert_eq!(passing(&server, "a", "x").await, 2);
    let log = server.log().with(" is away: ");
    assert!(log.contains("it did not answer a ping"), "{log}");
}

/// A server that gets its rules over TLS, with mounted files.
pub(crate) fn with_tls(ads: &Ads, secret: &Secret) -> Builder {
    let [certificate, key, ca] = certificates::paths(secret);
    builder(ads)
        .args(["--xds-tls", "--xds-tls-cert", &certificate])
        .args(["--xds-tls-key", &key, "--xds-tls-ca", &ca])
}

#[tokio::test]
async fn certificates_of_either_side_change_between_connections() {
    let ca = Authority::rsa("envoy-gateway");
    let [ours, theirs] = [(); 2].map(|()| ca.issue_rsa(&["*.envoy-gateway-system", "localhost"]));
    let mut client = certificates::mount(&ours, &ca);
    let mut control = certificates::mount(&theirs, &ca);
    let ads = Ads::with_tls(&control);
    ads.set(snapshot("1", &[domain("a", 1)]));
    let server = with_tls(&ads, &client).start();
    ads.wait_for_ack("1");
    // Everything is new, the authority too: a side with an old file would fail.
    let ca = Authority::rsa("envoy-gateway");
    let [ours, theirs] = [(); 2].map(|()| ca.issue_rsa(&["*.envoy-gateway-system", "localhost"]));
    control.update(&certificates::files(&theirs, &ca));
    ads.set(snapshot("2", &[domain("a", 2)]));
    ads.wait_for_ack("2");
    ads.hang_up();
    server.log().with("is not signed by a trusted authority; ");
    client.update(&certificates::files(&ours, &ca));
    ads.set(snapshot("3", &[domain("a", 3)]));
    ads.wait_for_ack("3");
    assert_eq!(passing(&server, "a", "x").await, 3);
}

#[test]
fn what_cannot_be_used_ends_the_start_with_its_name() {
    let ca = Authority::new("ours");
    let secret = certificates::mount(&ca.issue("localhost"), &ca);
    let at = |name: &str| secret.at(name);
    let check = |args: &[&str], expected: &str| {
        let (status, text) = of("localhost:1").args(args.iter().copied()).fail();
        assert_eq!(status.code(), Some(1), "{text}");
        assert!(text.contains(expected), "{expected} in {text}");
    };
    let missing = ["--xds-tls", "--xds-tls-ca", "none.crt"];
    check(&missing, "none.crt: cannot be read");
    let key = at("tls.key");
    let none = format!("{key}: contains no certificate in PEM");
    check(&["--xds-tls", "--xds-tls-ca", &key], &none);
    check(&["--xds-tls", "--xds-tls-key", &key], "need each other");
    check(&["--xds-tls", "--xds-tls-san", "a b"], "`a b` cannot be");
    for bad in ["x:y,a b:c", "x:y,secret", "x:y,a:b:c"] {
        check(&["--xds-headers", bad], "item 2 is not NAME:VALUE");
    }
    let expected = "`ftp://x` is not an address; write host:port";
    check(&["--xds-server", "ftp://x"], expected);
}
