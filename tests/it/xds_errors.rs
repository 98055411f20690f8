//! Reports on the control plane, in the log and as a metric: whether it is connected, why it is away, and why a push is
//! refused.

use std::net::TcpListener;

use tonic::Status;

use crate::{
    support::{
        ads::{Ads, SCHEME, snapshot},
        caches::Cache,
        certificates::{Authority, Pair, mount},
        tollgate::Tollgate,
        wait_until,
    },
    xds::{REFUSED, UP, bad, builder, domain, of, passing, with_tls},
};

const CONNECTED: &str = " is connected";

/// As Envoy Gateway without a policy, which sends not even a header.
#[test]
fn a_control_plane_without_rules_is_connected_and_its_end_is_called_so() {
    let ads = Ads::of(Cache::snapshot());
    let server = builder(&ads).args(["--start-without-rules"]).start();
    wait_until("the control plane is up", || server.metric(UP) == 1);
    ads.leave();
    let log = server.log().with(" is away: it closed the connection; ");
    assert_eq!(log.matches(CONNECTED).count(), 1, "{log}");
    wait_until("the control plane is down", || server.metric(UP) == 0);
    ads.come_back();
    wait_until("the control plane is up", || server.metric(UP) == 1);
    let log = server.log().with(" is connected again");
    assert_eq!(log.matches(CONNECTED).count(), 2, "{log}");
}

#[test]
fn a_control_plane_that_refuses_calls_is_never_connected_and_asked_again_after_the_set_interval() {
    let ads = Ads::start();
    ads.refuse_calls(Some(Status::permission_denied("not you")));
    let server = builder(&ads)
        .args(["--start-without-rules", "--log-level", "debug"])
        .env("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "200ms")
        .start();
    let refused = "is still away: it refuses the call with PermissionDenied: not you";
    server.log().with(refused);
    assert_eq!(server.metric(UP), 0);
    assert!(!server.log().text().contains(CONNECTED));
    ads.refuse_calls(None);
    ads.set(snapshot("1", &[domain("a", 1)]));
    ads.wait_for_ack("1");
}

/// As a process that is stopped: the kernel accepts connections for it.
#[test]
fn a_control_plane_that_never_speaks_is_away() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = of(&silent.local_addr().unwrap().to_string())
        .args(["--start-without-rules"])
        .start();
    server.log().with("is away: no connection within 10 s");
    assert_eq!(server.metric(UP), 0);
}

/// A server without rules whose log says `expected`.
#[track_caller]
fn check_away(server: &Tollgate, expected: &str) {
    server.log().with(&format!(" is away: {expected}"));
    assert_eq!(server.metric(UP), 0);
    assert!(!server.log().text().contains(CONNECTED));
}

#[test]
fn what_is_wrong_with_a_certificate_is_named_with_the_setting_and_the_reason() {
    let (ca, other) = (Authority::new("ours"), Authority::new("another"));
    let control = mount(&ca.issue("localhost"), &ca);
    let ads = Ads::with_tls(&control);
    let check = |pair: Pair, ca: &Authority, expected: &str| {
        let client = mount(&pair, ca);
        let server = with_tls(&ads, &client).args(["--start-without-rules"]);
        check_away(&server.start(), expected);
    };
    for (pair, reason) in [
        (other.issue("x"), "unknown CA"),
        (ca.issue_expired("x"), "certificate expired"),
    ] {
        let see = "see CONFIG_GRPC_XDS_CLIENT_TLS_CERT";
        let expected = format!("it refuses our certificate: {reason}; {see}");
        check(pair, &ca, &expected);
    }
    let unknown = "its certificate is not signed by a trusted authority; see CONFIG_GRPC_XDS_SERVER_TLS_CACERT";
    check(ca.issue("x"), &other, unknown);
    let server = builder(&ads)
        .args(["--xds-tls", "--xds-tls-ca", &control.at("ca.crt")])
        .args(["--start-without-rules"])
        .start();
    let required = "it requires a client certificate: set CONFIG_GRPC_XDS_CLIENT_TLS_CERT";
    check_away(&server, required);
    let control = mount(&ca.issue("envoy-gateway"), &ca);
    let ads = Ads::with_tls(&control);
    ads.set(snapshot("1", &[domain("a", 1)]));
    let server = with_tls(&ads, &control).args(["--start-without-rules"]);
    check_away(&server.start(), "its certificate is for another host; ");
    let san = "CONFIG_GRPC_XDS_SERVER_TLS_SAN";
    let _server = with_tls(&ads, &control).env(san, "envoy-gateway").start();
    ads.wait_for_ack("1");
    let control = mount(&ca.issue("*.internal"), &ca);
    let ads = Ads::with_tls(&control);
    let server = with_tls(&ads, &control)
        .env(san, "gw.internal")
        .args(["--start-without-rules"])
        .start();
    let rule = "a wildcard must have at least two labels after the star; see CONFIG_GRPC_XDS_SERVER_TLS_SAN";
    server.log().with(rule);
}

#[test]
fn the_status_of_a_control_plane_that_ends_the_call_is_in_the_log() {
    let ads = Ads::of(Cache::snapshot());
    ads.fill(&[domain("a", 1)]);
    let server = builder(&ads).start();
    ads.wait_for_ack("1");
    ads.fill(&[bad("a")]);
    // Until the third refusal waits.
    for _ in 0..2 {
        ads.wait_for_refusal();
    }
    ads.end_calls(&Status::unavailable("dropped by the test"));
    let expected = " is away: Unavailable: dropped by the test; ";
    server.log().with(expected);
}

#[tokio::test]
async fn however_many_errors_a_push_has_it_is_one_line_of_the_log_and_a_short_refusal() {
    const ERRORS: usize = 2000;
    let ads = Ads::of(Cache::snapshot());
    ads.fill(&[domain("a", 1)]);
    let server = builder(&ads).start();
    ads.wait_for_ack("1");
    let mut push = bad("a");
    let rule = push.descriptors.remove(0);
    push.descriptors = vec![rule; ERRORS];
    for (number, rule) in push.descriptors.iter_mut().enumerate() {
        rule.key = format!("key-{number}");
    }
    ads.fill(&[push]);
    let seen = ads.wait_for_refusal();
    let refusal = seen.refusal().unwrap();
    assert!(refusal.len() < 20_000, "{} bytes", refusal.len());
    assert!(refusal.lines().count() > 100, "{refusal}");
    assert!(refusal.ends_with(" more"), "{refusal}");
    let log = server.log().with("the push is refused for 2000 errors");
    let lines = log.lines();
    let lines = lines.filter(|line| line.contains("invalid rate limit unit"));
    assert_eq!(lines.count(), 1, "{log}");
    assert!(log.contains("; and 1990 more"), "{log}");
    assert_eq!(server.metric(REFUSED), 1);
    assert_eq!(passing(&server, "a", "x").await, 1);
}

#[test]
fn the_scheme_of_the_call_is_that_of_the_connection() {
    let ca = Authority::new("ours");
    let secret = mount(&ca.issue("localhost"), &ca);
    for (ads, scheme) in [(Ads::with_tls(&secret), "https"), (Ads::start(), "http")] {
        let server = match scheme {
            "https" => with_tls(&ads, &secret),
            _ => builder(&ads),
        };
        let _server = server.args(["--start-without-rules"]).start();
        assert_eq!(ads.next().headers.get(SCHEME).unwrap(), scheme);
    }
}
