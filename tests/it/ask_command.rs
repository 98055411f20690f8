//! `tollgate ask`: its exit codes, leases, and servers that do not answer.

use std::{net::TcpListener, path::Path};

use crate::cli::{run, run_in, url};
use crate::support::{
    certificates::{Authority, Secret, self_signed},
    free_port,
    http::post_json,
    redis::Redis,
    tollgate::{self, Tollgate},
};

const RULES: &str = "
domain: d
descriptors:
  - key: few
    rate_limits: [{ name: yearly, unit: year, requests_per_unit: 2 }, 100/3y]
";

// --- decisions -----------------------------------------------------------------------------------

#[test]
fn the_exit_code_is_the_decision() {
    let server = tollgate::with_rules(RULES).start();
    let url = url(server.grpc);
    let ask = |more: &str| run(&format!("ask --server {url} --domain d -d few=x {more}")).0;
    assert_eq!([ask(""), ask("")], [Some(0); 2]);
    assert_eq!(ask(""), Some(3));
    assert_eq!(ask("--json"), Some(3));
    assert_eq!(ask("--any-decision"), Some(0));
    assert_eq!(ask("--domain e"), Some(2), "twice");
    assert_eq!(ask("--no-such-flag"), Some(2));
}

#[test]
fn a_decision_without_the_store_and_headers_for_the_client_are_shown() {
    let rules = "
domain: d
on_store_loss: allow
descriptors:
  - key: k
    rate_limit: { unit: day, requests_per_unit: 7 }
";
    let redis = format!("redis://127.0.0.1:{}", free_port());
    let builder = tollgate::with_rules(rules).redis_by_default(&redis);
    let server = builder.args(["--response-headers"]).start();
    let (code, said) = run(&format!(
        "ask --server {} --domain d -d k=v",
        url(server.grpc)
    ));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("OK, degraded: true"), "{said}");
    assert!(said.contains("\n  header RateLimit-Limit: 7"), "{said}");
    assert!(said.contains("\n  header RateLimit-Reset: "), "{said}");
}

// --- leases --------------------------------------------------------------------------------------

const LEASES: &str = "
domain: d
descriptors:
  - key: kept
    reserve: { estimate: 200, missing: estimate }
    rate_limits: [1000/year, 5000/2y]
  - key: zero
    reserve: { estimate: 200, missing: zero }
    rate_limits: [1000/year]
  - key: tokens
    reserve: { estimate: 200 }
    rate_limits: [{ algorithm: token_bucket, unit: year, requests_per_unit: 1000 }]
  - key: slots
    rate_limits: [{ algorithm: concurrency, requests_per_unit: 3, ttl: 1h }]
  - key: few
    rate_limits: [5/year]
";

/// The hits that the first counter of a key holds.
#[track_caller]
fn held(server: &Tollgate, key: &str) -> u64 {
    let body = format!(
        r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"{key}","value":"x"}}]}}]}}"#
    );
    let reply = post_json(server.debug, "/counters/get", &body).unwrap();
    let reply: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    let hits = reply["descriptors"][0]["counters"][0]["hits"].as_u64();
    hits.unwrap_or_else(|| panic!("{reply}"))
}

/// No stream follows, so nothing else would end what the call holds.
#[test]
fn what_the_call_leases_is_given_back_at_once_unless_it_is_to_be_kept() {
    let redis = Redis::start();
    let memory = tollgate::with_rules(LEASES);
    for builder in [memory, tollgate::with_rules(LEASES).redis(&redis)] {
        let server = builder.start();
        let url = url(server.grpc);
        let ask = |what: &str| {
            let (code, said) = run(&format!("ask --server {url} --domain d {what}"));
            assert_eq!(code, Some(0), "{said}");
            said
        };
        let lease = |what: &str| {
            let said = ask(&format!("{what} --json"));
            let said: serde_json::Value = serde_json::from_str(&said).unwrap();
            said["lease"].clone()
        };
        let hits = "it reserved 200 hits, and gave them back at once";
        let slots = "it took slots, and gave them back at once";
        for (key, line) in [
            ("kept", hits),
            ("zero", hits),
            ("tokens", hits),
            ("slots", slots),
        ] {
            let descriptor = format!("-d {key}=x");
            for _ in 0..6 {
                let said = ask(&descriptor);
                assert!(said.contains(line), "{said}");
                // A bucket may keep a token of each, for the clocks of replicas.
                assert!(held(&server, key) <= 6, "{key}");
            }
            assert_eq!(lease(&descriptor), "given_back");
        }
        assert_eq!([held(&server, "kept"), held(&server, "slots")], [0; 2]);
        let said = ask("-d kept=x -d zero=x -d few=x --hits 5");
        assert!(said.contains("it reserved 10 hits, and gave"), "{said}");
        let held_now = ["kept", "zero", "few"].map(|key| held(&server, key));
        assert_eq!(held_now, [0, 0, 5]);
        let said = ask("-d slots=x --keep");
        assert!(said.contains("it took slots, and keeps them"), "{said}");
        assert_eq!(lease("-d kept=x --keep"), "kept");
        assert_eq!([held(&server, "slots"), held(&server, "kept")], [1, 200]);
        // Nothing was leased.
        let said = ask("-d few=x --any-decision --json");
        assert!(!said.contains("lease"), "{said}");
    }
}

// --- servers that do not answer ------------------------------------------------------------------

#[track_caller]
fn check_hint(args: &str, expected: &str) {
    let line = format!("ask --server {args} --domain d -d few=x");
    let (code, said, errors) = run_in(Path::new("."), &line);
    assert_eq!(code, Some(1), "{said}{errors}");
    assert_eq!(said, "");
    assert!(errors.contains(expected), "{args}: {errors}");
}

#[test]
fn a_server_without_an_answer_is_told_with_what_to_try() {
    let server = tollgate::with_rules(RULES).start();
    let none = format!("http://127.0.0.1:{}", free_port());
    check_hint(&none, "no server listens there; the gRPC port");
    let http = "the server speaks HTTP/1 at this port, not gRPC";
    check_hint(&url(server.http), http);
    let authority = Authority::new("ours");
    let secret = Secret::mount(&[("ca.crt", &authority.certificate)]);
    let ca = secret.at("ca.crt");
    let tls = format!("https://{} --ca {ca} --authority a.example", server.grpc);
    check_hint(&tls, "the server seems not to use TLS; try http://");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let args = format!("{} --timeout 50ms", url(silent.local_addr().unwrap()));
    check_hint(&args, "did not answer within --timeout");
}

#[test]
fn a_server_that_wants_tls_or_a_certificate_is_told_with_the_flags() {
    let ours = Authority::new("ours");
    let theirs = Authority::new("theirs");
    let pair = ours.issue("tollgate.example");
    let stranger = theirs.issue("stranger.example");
    let secret = Secret::mount(&[
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.key),
        ("ca.crt", &ours.certificate),
        ("other-ca.crt", &theirs.certificate),
        ("other.crt", &stranger.certificate),
        ("other.key", &stranger.key),
    ]);
    let [ca, other_ca] = ["ca.crt", "other-ca.crt"].map(|name| secret.at(name));
    let start = |secret: &Secret, more: &str| {
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| secret.at(name));
        let tls = format!("--grpc-tls --grpc-tls-cert {certificate} --grpc-tls-key {key} {more}");
        let builder = tollgate::with_rules(RULES);
        builder.args(tls.split_whitespace()).start()
    };
    let mutual = format!("--grpc-client-ca {ca}");
    let servers = ["", &mutual].map(|more| start(&secret, more));
    for server in &servers {
        let hint = "the server seems to expect TLS; try https://";
        check_hint(&url(server.grpc), hint);
    }
    let secured = |server: &Tollgate| format!("https://{}", server.grpc);
    let [open, closed] = servers.each_ref().map(secured);
    let named = format!("--authority tollgate.example --ca {ca}");
    let hint = "seems to want a client certificate; try --cert FILE and --key FILE";
    check_hint(&format!("{closed} {named}"), hint);
    let [certificate, key] = ["other.crt", "other.key"].map(|name| secret.at(name));
    let args = format!("{closed} {named} --cert {certificate} --key {key}");
    check_hint(&args, "seems to refuse the client certificate in --cert");
    // As `openssl req -x509` makes it.
    let own = self_signed(&["tollgate.example"], false);
    let own = Secret::mount(&[("tls.crt", &own.certificate), ("tls.key", &own.key)]);
    let self_signing = start(&own, "");
    let hint = "it is one of an authority (CA:TRUE), which a server may show only if the file of trusted authorities \
                contains that very certificate; trust that file, or make one of a server, as by openssl req -x509 \
                -addext basicConstraints=critical,CA:FALSE";
    check_hint(&format!("https://{} {named}", self_signing.grpc), hint);
    let args = format!("{open} --authority tollgate.example --ca {other_ca}");
    let hint = "the certificate of the server is not of the authority in --ca";
    check_hint(&args, hint);
    let args = format!("{open} --authority b.example --ca {ca}");
    let hint = "the certificate of the server is for another name; see --authority";
    check_hint(&args, hint);
}
