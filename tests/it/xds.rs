//! Rules that a control plane pushes: a valid push is taken into use completely and acknowledged, an invalid one
//! changes nothing and is refused with every reason.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
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
use tokio::task::JoinSet;
use tonic::Status;

use crate::support::{
    ads::{Ads, snapshot},
    ask::{ask, connect, is_ok},
    certificates::{Authority, Pair, Secret},
    eventually, http,
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

/// How many of three requests pass.
pub(crate) async fn passing(server: &Tollgate, domain: &str, value: &str) -> usize {
    let mut client = connect(server.grpc).await;
    let mut passing = 0;
    for _ in 0..3 {
        passing += usize::from(is_ok(&ask(&mut client, domain, &[("k", value)]).await));
    }
    passing
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
    let server = builder(&ads)
        .args(["--xds-node-id", "n", "--xds-node-metadata", "x=y,z=1=2,no"])
        .env(
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "x-tenant:blue,Authorization:secret",
        )
        .start();
    let first = ads.next();
    assert_eq!(first.request.type_url, TYPE_URL);
    assert_eq!(first.request.resource_names, [""; 0]);
    assert_eq!(
        (&*first.request.version_info, &*first.request.response_nonce),
        ("", "")
    );
    assert_eq!(first.headers.get("x-tenant").unwrap(), "blue");
    assert_eq!(first.headers.get("authorization").unwrap(), "secret");
    let node = first.request.node.unwrap();
    assert_eq!(node.id, "n");
    let mut metadata: Vec<_> = node.metadata.unwrap().fields.into_iter().collect();
    metadata.sort_by(|(a, _), (b, _)| a.cmp(b));
    let metadata: Vec<_> = metadata
        .iter()
        .map(|(key, value)| match &value.kind {
            Some(Kind::StringValue(value)) => (key.as_str(), value.as_str()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(metadata, [("x", "y"), ("z", "1=2")]);
    let ack = ads.next();
    assert_eq!(ack.request.version_info, "one");
    assert_eq!(ack.request.response_nonce, "nonce-1");
    assert_eq!(ack.refusal(), None);
    assert_eq!(passing(&server, "a", "x").await, 1);
    assert_eq!(passing(&server, "b", "x").await, 2);
    let mut shown: Vec<_> = rlconfig(&server).lines().map(str::to_owned).collect();
    shown.sort();
    let line = |path: &str, requests: u32| {
        format!(
            "{path}: unit=YEAR requests_per_unit={requests}, shadow_mode: false, quota_mode: false"
        )
    };
    assert_eq!(shown, [line("a.k", 1), line("b.k", 2)]);

    // Each push is the complete set of rules.
    ads.set(snapshot("two", &[domain("b", 3)]));
    ads.wait_for_ack("two");
    assert_eq!(rlconfig(&server).trim_end(), line("b.k", 3));
    assert_eq!(passing(&server, "a", "x").await, 3);
    assert_eq!(
        passing(&server, "b", "x").await,
        0,
        "what was counted stays counted"
    );
    assert_eq!((server.metric(LOADED), server.metric(REFUSED)), (2, 0));
    assert!(!server.log().text().contains("secret"));
}

#[tokio::test]
async fn without_a_good_push_grpc_is_not_served_and_health_is_bad() {
    let ads = Ads::start();
    // No other process listens at this address, so none takes a port before the server does.
    const HOST: &str = "127.7.7.7";
    let probes = [(); 3].map(|()| TcpListener::bind((HOST, 0)).unwrap());
    let [grpc, http, debug] = probes.map(|probe| probe.local_addr().unwrap());
    let builder = to(tollgate::bare(), &ads.address.to_string())
        .args(["serve", "--log-format", "json"])
        .args(["--grpc-host", HOST, "--grpc-port", &grpc.port().to_string()])
        .args(["--host", HOST, "--port", &http.port().to_string()])
        .args([
            "--debug-host",
            HOST,
            "--debug-port",
            &debug.port().to_string(),
        ]);
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
    let mut child = tollgate::program()
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .env("CONFIG_GRPC_XDS_SERVER_URL", ads.address.to_string())
        .args(["serve", "--port", "0", "--debug-port", "0"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    ads.next();
    let pid = Pid::from_raw(child.id().cast_signed());
    kill(pid, Signal::SIGTERM).unwrap();
    let mut status = None;
    wait_until("it has ended", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0));
}

#[tokio::test]
async fn who_must_not_wait_serves_without_rules_until_there_are_some() {
    let ads = Ads::start();
    let server = builder(&ads).args(["--start-without-rules"]).start();
    assert_eq!(http::get(server.http, "/healthcheck").status, 200);
    let mut client = connect(server.grpc).await;
    let error = ask(&mut client, "d", &[("k", "x")]).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable);
    assert_eq!(error.message(), "no rate limit configuration loaded");
    ads.set(snapshot("1", &[domain("d", 1)]));
    ads.wait_for_ack("1");
    assert_eq!(passing(&server, "d", "x").await, 1);
}

#[tokio::test]
async fn health_can_wait_for_a_domain() {
    let ads = Ads::start();
    let server = builder(&ads)
        .args(["--start-without-rules", "--healthy-with-rules-only"])
        .start();
    let health = || http::get(server.http, "/healthcheck").status;
    assert_eq!(health(), 500);
    ads.set(snapshot("1", &[domain("d", 1)]));
    wait_until("health is good", || health() == 200);
    ads.set(snapshot("2", &[]));
    wait_until("health is bad", || health() == 500);
}

#[tokio::test]
async fn a_bad_push_is_refused_with_every_error_and_changes_nothing() {
    let ads = Ads::start();
    ads.set(snapshot("good", &[domain("a", 1)]));
    let server = builder(&ads).start();
    ads.wait_for_ack("good");
    assert_eq!(passing(&server, "a", "x").await, 1);
    let before = rlconfig(&server);
    ads.set(snapshot(
        "bad",
        &[
            domain("a", 3),
            bad("c"),
            bad("b"),
            RateLimitConfig::default(),
        ],
    ));
    let seen = ads.wait_for_refusal();
    assert_eq!(seen.request.version_info, "good");
    assert_eq!(seen.request.response_nonce, "nonce-2");
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
    assert_eq!(
        passing(&server, "a", "x").await,
        0,
        "the counter is as it was"
    );
    // The next push is judged independent of the refused one.
    ads.set(snapshot("better", &[domain("a", 2)]));
    ads.wait_for_ack("better");
    assert_eq!(passing(&server, "a", "x").await, 0, "three were counted");
    assert_eq!(passing(&server, "a", "y").await, 2);
}

#[tokio::test]
async fn whatever_comes_the_call_goes_on() {
    let ads = Ads::start();
    ads.set(snapshot("good", &[domain("a", 1)]));
    let server = builder(&ads).start();
    let call = ads.wait_for_ack("good").call;
    let with = |type_url: &str, value: &[u8]| DiscoveryResponse {
        resources: vec![Any {
            type_url: type_url.to_owned(),
            value: value.to_owned(),
        }],
        ..snapshot("bad", &[])
    };
    let of_another_type = DiscoveryResponse {
        type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(),
        ..snapshot("bad", &[domain("a", 3)])
    };
    for (number, (response, expected)) in [
        (
            with(TYPE_URL, b"\xff\xff\xff"),
            "(resource 1): is not a readable RateLimitConfig",
        ),
        (
            with(TYPE_URL, &[0x0a; 1000]),
            "(resource 1): is not a readable RateLimitConfig",
        ),
        (with("", b""), "(resource 1): is a resource of type ''"),
        (
            with("\n\u{1b}[31m", b""),
            "(resource 1): is a resource of type '??[31m'",
        ),
        (
            with(TYPE_URL, b""),
            "(resource 1): config file cannot have empty domain",
        ),
        (
            of_another_type,
            "(push): is a resource of type 'type.googleapis.com/envoy.config.cluster",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        ads.set(response);
        let seen = ads.find(|seen| {
            seen.refusal()
                .is_some_and(|text| text.starts_with(expected))
        });
        assert_eq!(
            (seen.call, &*seen.request.version_info),
            (call, "good"),
            "{number}"
        );
        let good = format!("good-{number}");
        ads.set(snapshot(&good, &[domain("a", 1)]));
        ads.wait_for_ack(&good);
        // Otherwise the test's control plane would take this version for the last good one.
        ads.set(snapshot("good", &[domain("a", 1)]));
        ads.wait_for_ack("good");
    }
    assert_eq!(passing(&server, "a", "x").await, 1);
}

#[tokio::test]
async fn a_push_that_is_too_large_is_told_and_a_smaller_one_heals() {
    let ads = Ads::start();
    ads.set(snapshot("good", &[domain("a", 1)]));
    let server = builder(&ads)
        .args(["--xds-max-message-bytes", "10000"])
        .start();
    ads.wait_for_ack("good");
    let large: Vec<_> = (0..1000)
        .map(|number| domain(&format!("d{number}"), 1))
        .collect();
    ads.set(snapshot("large", &large));
    wait_until("the log says what to do", || {
        let log = server.log().text();
        log.contains("message length too large") && log.contains("--xds-max-message-bytes")
    });
    let seen = ads.next();
    assert_eq!(seen.request.version_info, "good", "in a new call");
    assert!(server.metric(REFUSED) > 0);
    assert_eq!(passing(&server, "a", "x").await, 1);
    ads.set(snapshot("small", &[domain("a", 2)]));
    ads.wait_for_ack("small");
    assert_eq!(passing(&server, "a", "y").await, 2);
}

#[tokio::test]
async fn what_was_refused_is_not_acknowledged_after_a_reconnect() {
    let ads = Ads::start();
    ads.set(snapshot("good", &[domain("a", 1)]));
    let server = builder(&ads).start();
    ads.wait_for_ack("good");
    ads.set(snapshot("bad", &[bad("a")]));
    let refused = ads.wait_for_refusal();
    ads.hang_up();
    let first = ads.find(|seen| seen.call > refused.call);
    assert_eq!(first.request.version_info, "good");
    assert_eq!(first.request.response_nonce, "");
    assert_eq!(first.refusal(), None);
    assert!(first.request.node.is_some());
    assert_eq!(passing(&server, "a", "x").await, 1);
}

/// go-control-plane answers a refusal with the refused push, at once.
#[tokio::test]
async fn a_refused_push_that_comes_again_and_again_is_answered_ever_more_slowly() {
    let ads = Ads::start();
    ads.set(snapshot("good", &[domain("a", 1)]));
    let server = builder(&ads).start();
    ads.wait_for_ack("good");
    ads.set(snapshot("bad", &[bad("a")]));
    let first = ads.wait_for_refusal();
    for _ in 0..2 {
        ads.wait_for_refusal();
    }
    let last = ads.wait_for_refusal();
    let took = last.at - first.at;
    // The waits are at least 100, 200 and 400 ms.
    assert!(took >= Duration::from_millis(700), "{took:?}");
    assert_eq!(server.metric(REFUSED), 1);
    let reported = server
        .log()
        .text()
        .matches("invalid rate limit unit")
        .count();
    assert_eq!(reported, 1, "once, however often it comes");
    ads.set(snapshot("better", &[domain("a", 2)]));
    ads.wait_for_ack("better");
}

/// Away for long enough to reach the longest wait between two attempts.
#[tokio::test]
async fn a_control_plane_that_comes_back_is_found_soon() {
    let ads = Ads::start();
    ads.set(snapshot("1", &[domain("a", 1)]));
    let server = builder(&ads).env("LOG_LEVEL", "debug").start();
    ads.wait_for_ack("1");
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

#[tokio::test]
async fn a_short_break_is_healed_at_once() {
    let ads = Ads::start();
    ads.set(snapshot("1", &[domain("a", 1)]));
    let _server = builder(&ads).start();
    let call = ads.wait_for_ack("1").call;
    let cut = Instant::now();
    ads.hang_up();
    let next = ads.find(|seen| seen.call > call);
    let took = next.at - cut;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Envoy Gateway counts its versions from 1 in each process: after a restart an old version number stands for other
/// rules, and a control plane that gets this number from the client sends nothing.
#[tokio::test]
async fn a_restarted_control_plane_that_counts_from_one_again_is_not_believed() {
    let ads = Ads::start();
    ads.set(snapshot("1", &[domain("a", 1)]));
    let server = builder(&ads).start();
    ads.wait_for_ack("1");
    ads.leave();
    ads.set(snapshot("1", &[domain("a", 2)]));
    ads.come_back();
    let first = ads.next();
    assert_eq!(
        (&*first.request.version_info, &*first.request.response_nonce),
        ("1", "")
    );
    let again = ads.next();
    assert_eq!(
        (&*again.request.version_info, &*again.request.response_nonce),
        ("", "")
    );
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
            let expected = "(push): a push without rules is refused";
            assert!(
                refused.refusal().unwrap().starts_with(expected),
                "{refused:?}"
            );
            assert_eq!(passing(&server, "a", "x").await, 1);
        } else {
            ads.wait_for_ack("2");
            assert_eq!(passing(&server, "a", "x").await, 3);
        }
    }
}

#[tokio::test]
async fn two_resources_of_one_domain_are_merged_only_if_told_so() {
    let other = RateLimitConfig {
        name: "other".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            key: "l".to_owned(),
            ..domain("a", 1).descriptors.remove(0)
        }],
        ..domain("a", 1)
    };
    let both = snapshot("1", &[domain("a", 1), other]);
    let ads = Ads::start();
    ads.set(both.clone());
    let _server = builder(&ads).args(["--start-without-rules"]).start();
    let refused = ads.wait_for_refusal();
    let expected = "other: duplicate domain 'a' in config file, already defined in a";
    assert!(
        refused.refusal().unwrap().starts_with(expected),
        "{refused:?}"
    );
    let ads = Ads::start();
    ads.set(both);
    let server = builder(&ads).args(["--merge-domains"]).start();
    ads.wait_for_ack("1");
    assert_eq!(rlconfig(&server).lines().count(), 2);
}

/// Clients continue while the rules change repeatedly; no call fails, and one version of the rules decides each.
#[tokio::test]
async fn rules_change_under_load_and_no_call_fails() {
    const PUSHES: usize = 20;
    let rules = |requests: u32| [domain("a", requests), domain("b", requests)];
    let ads = Ads::start();
    ads.set(snapshot("0", &rules(1_000_000)));
    let server = builder(&ads).start();
    ads.wait_for_ack("0");
    let is_over = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let (is_over, answered) = (is_over.clone(), answered.clone());
        let mut client = connect(server.grpc).await;
        clients.spawn(async move {
            while !is_over.load(Relaxed) {
                let value = number.to_string();
                let reply = ask(&mut client, "a", &[("k", &value)]).await;
                let limit = reply.unwrap().statuses[0].current_limit.clone();
                assert!(limit.expect("a limit").requests_per_unit >= 1_000_000);
                answered.fetch_add(1, Relaxed);
            }
        });
    }
    for push in 1..=PUSHES {
        let so_far = answered.load(Relaxed);
        let version = push.to_string();
        ads.set(snapshot(
            &version,
            &rules(1_000_000 + u32::try_from(push).unwrap()),
        ));
        eventually("the push is in use and calls go on", async || {
            answered.load(Relaxed) > so_far + 20
        })
        .await;
        ads.wait_for_ack(&version);
    }
    is_over.store(true, Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.expect("no call of this client failed");
    }
    assert_eq!(server.metric(LOADED), PUSHES as u64 + 1);
}

/// A proxy to `to` whose connections can fall silent without closing, as when a host vanishes.
struct Wire {
    address: SocketAddr,
    /// The number of connections that no longer carry data.
    silent: Arc<AtomicUsize>,
}

impl Wire {
    fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let silent = Arc::new(AtomicUsize::new(0));
        let wire = Self {
            address,
            silent: silent.clone(),
        };
        std::thread::spawn(move || {
            for (number, near) in listener.incoming().map_while(Result::ok).enumerate() {
                let far = TcpStream::connect(to).unwrap();
                for (mut from, mut to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far, near),
                ] {
                    let silent = silent.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            if number >= silent.load(Relaxed) {
                                // The reader may be gone.
                                let _ = to.write_all(&bytes[..count]);
                            }
                        }
                    });
                }
            }
        });
        wire
    }
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
    let wire = Wire::to(ads.address);
    let server = of(&wire.address.to_string())
        .args(["--xds-keepalive", "200ms"])
        .start();
    let call = ads.wait_for_ack("1").call;
    wire.silent.store(1, Relaxed);
    ads.set(snapshot("2", &[domain("a", 2)]));
    assert!(ads.wait_for_ack("2").call > call);
    assert_eq!(passing(&server, "a", "x").await, 2);
    let log = server.log().with(" is away: ");
    assert!(log.contains("it did not answer a ping"), "{log}");
}

#[tokio::test]
async fn a_control_plane_that_refuses_calls_is_asked_again_after_the_set_interval() {
    let ads = Ads::start();
    ads.refuse_calls(Some(Status::permission_denied("not you")));
    let server = builder(&ads)
        .args(["--start-without-rules"])
        .env("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "200ms")
        .start();
    server
        .log()
        .with("it refuses the call with PermissionDenied: not you");
    ads.refuse_calls(None);
    ads.set(snapshot("1", &[domain("a", 1)]));
    ads.wait_for_ack("1");
}

pub(crate) fn mounted<'a>(pair: &'a Pair, ca: &'a Authority) -> [(&'static str, &'a str); 3] {
    [
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.key),
        ("ca.crt", &ca.certificate),
    ]
}

/// A server that gets its rules over TLS, with mounted files.
pub(crate) fn with_tls(ads: &Ads, secret: &Secret) -> Builder {
    let [certificate, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| secret.at(name));
    builder(ads)
        .args(["--xds-tls", "--xds-tls-cert", &certificate])
        .args(["--xds-tls-key", &key, "--xds-tls-ca", &ca])
}

#[tokio::test]
async fn certificates_of_either_side_change_between_connections() {
    let ca = Authority::rsa("envoy-gateway");
    let [ours, theirs] = [(); 2].map(|()| ca.issue_rsa(&["*.envoy-gateway-system", "localhost"]));
    let mut client = Secret::mount(&mounted(&ours, &ca));
    let mut control = Secret::mount(&mounted(&theirs, &ca));
    let ads = Ads::with_tls(&control);
    ads.set(snapshot("1", &[domain("a", 1)]));
    let server = with_tls(&ads, &client).start();
    ads.wait_for_ack("1");
    // Everything is new, the authority too: a side with an old file would fail.
    let ca = Authority::rsa("envoy-gateway");
    let [ours, theirs] = [(); 2].map(|()| ca.issue_rsa(&["*.envoy-gateway-system", "localhost"]));
    control.update(&mounted(&theirs, &ca));
    ads.set(snapshot("2", &[domain("a", 2)]));
    ads.wait_for_ack("2");
    ads.hang_up();
    server.log().with("is not signed by a trusted authority; ");
    client.update(&mounted(&ours, &ca));
    ads.set(snapshot("3", &[domain("a", 3)]));
    ads.wait_for_ack("3");
    assert_eq!(passing(&server, "a", "x").await, 3);
}

#[tokio::test]
async fn the_name_of_the_control_plane_is_verified_and_can_be_another_one() {
    let ca = Authority::new("ours");
    let secret = Secret::mount(&mounted(&ca.issue("envoy-gateway"), &ca));
    let ads = Ads::with_tls(&secret);
    ads.set(snapshot("1", &[domain("a", 1)]));
    let server = with_tls(&ads, &secret)
        .args(["--start-without-rules"])
        .start();
    server.log().with("its certificate is for another host; ");
    let _server = with_tls(&ads, &secret)
        .env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway")
        .start();
    ads.wait_for_ack("1");
}

#[test]
fn what_cannot_be_used_ends_the_start_with_its_name() {
    let ca = Authority::new("ours");
    let secret = Secret::mount(&mounted(&ca.issue("localhost"), &ca));
    let at = |name: &str| secret.at(name);
    let check = |args: &[&str], expected: &str| {
        let (status, text) = of("localhost:1").args(args.iter().copied()).fail();
        assert_eq!(status.code(), Some(1), "{text}");
        assert!(text.contains(expected), "{expected} in {text}");
    };
    check(
        &["--xds-tls", "--xds-tls-ca", "none.crt"],
        "none.crt: cannot be read",
    );
    let key = at("tls.key");
    check(
        &["--xds-tls", "--xds-tls-ca", &key],
        &format!("{key}: contains no certificate in PEM"),
    );
    check(&["--xds-tls", "--xds-tls-key", &key], "need each other");
    check(&["--xds-tls", "--xds-tls-san", "a b"], "`a b` cannot be");
    for bad in ["x:y,a b:c", "x:y,secret", "x:y,a:b:c"] {
        check(&["--xds-headers", bad], "item 2 is not NAME:VALUE");
    }
    check(
        &["--xds-server", "ftp://x"],
        "`ftp://x` is not an address; write host:port",
    );
}
