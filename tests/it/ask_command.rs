//! `tollgate ask`: its exit codes, leases, and servers that do not answer.

use std::{net::TcpListener, process::Output};

use crate::support::{
    certificates::{Authority, Pair, Secret, self_signed},
    finish, free_port,
    http::post_json,
    redis::Redis,
    tollgate::{self, Tollgate, program},
};

const RULES: &str = "
domain: d
descriptors:
  - key: few
    rate_limits: [{ name: yearly, unit: year, requests_per_unit: 2 }, 100/3y]
";

/// Runs `ask` with these arguments; returns its exit code, its output and its errors.
#[track_caller]
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = finish(program().arg("ask").args(args));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn url(server: &Tollgate) -> String {
    format!("http://{}", server.grpc)
}

// --- decisions -----------------------------------------------------------------------------------

#[test]
fn the_exit_code_is_the_decision() {
    let server = tollgate::with_rules(RULES).start();
    let url = url(&server);
    let ask = |more: &[&str]| {
        let what = ["--server", &url, "--domain", "d", "-d", "few=x"];
        run(&[&what[..], more].concat()).0
    };
    assert_eq!([ask(&[]), ask(&[])], [Some(0); 2]);
    assert_eq!(ask(&[]), Some(3));
    assert_eq!(ask(&["--json"]), Some(3));
    assert_eq!(ask(&["--any-decision"]), Some(0));
    assert_eq!(ask(&["--domain", ""]), Some(2), "twice");
    assert_eq!(ask(&["--no-such-flag"]), Some(2));
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
    let server = tollgate::with_rules(rules)
        .args(["--redis-url", &redis, "--response-headers"])
        .start();
    let (code, said, errors) = run(&["--server", &url(&server), "--domain", "d", "-d", "k=v"]);
    assert_eq!(code, Some(0), "{errors}");
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
    for builder in [
        tollgate::with_rules(LEASES),
        tollgate::with_rules(LEASES).redis(&redis),
    ] {
        let server = builder.start();
        let url = url(&server);
        let ask = |descriptors: &[&str], more: &[&str]| {
            let mut args = vec!["--server", &url, "--domain", "d"];
            args.extend(descriptors.iter().flat_map(|one| ["-d", one]));
            args.extend(more);
            let (code, said, errors) = run(&args);
            assert_eq!(code, Some(0), "{said}{errors}");
            said
        };
        for (key, line) in [
            ("kept", "it reserved 200 hits, and gave them back at once"),
            ("zero", "it reserved 200 hits, and gave them back at once"),
            ("tokens", "it reserved 200 hits, and gave them back at once"),
            ("slots", "it took slots, and gave them back at once"),
        ] {
            let descriptor = format!("{key}=x");
            for _ in 0..6 {
                let said = ask(&[&descriptor], &[]);
                assert!(said.contains(line), "{said}");
                // A bucket may keep a token of each, for the clocks of replicas.
                assert!(held(&server, key) <= 6, "{key}");
            }
            let said = ask(&[&descriptor], &["--json"]);
            let said: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert_eq!(said["lease"], "given_back", "{said}");
        }
        assert_eq!([held(&server, "kept"), held(&server, "slots")], [0; 2]);
        let said = ask(&["kept=x", "zero=x", "few=x"], &["--hits", "5"]);
        assert!(said.contains("it reserved 10 hits, and gave"), "{said}");
        let held_now = ["kept", "zero", "few"].map(|key| held(&server, key));
        assert_eq!(held_now, [0, 0, 5]);
        let said = ask(&["slots=x"], &["--keep"]);
        assert!(said.contains("it took slots, and keeps them"), "{said}");
        let said = ask(&["kept=x"], &["--keep", "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["lease"], "kept", "{said}");
        assert_eq!([held(&server, "slots"), held(&server, "kept")], [1, 200]);
        // Nothing was leased.
        let said = ask(&["few=x"], &["--any-decision", "--json"]);
        assert!(!said.contains("lease"), "{said}");
    }
}

// --- servers that do not answer ------------------------------------------------------------------

#[track_caller]
fn check_hint(args: &[&str], expected: &str) {
    let (code, said, errors) = run(&[args, &["--domain", "d", "-d", "few=x"]].concat());
    assert_eq!(code, Some(1), "{said}{errors}");
    assert_eq!(said, "");
    assert!(errors.contains(expected), "{args:?}: {errors}");
}

#[test]
fn a_server_without_an_answer_is_told_with_what_to_try() {
    let server = tollgate::with_rules(RULES).start();
    let none = format!("http://127.0.0.1:{}", free_port());
    check_hint(
        &["--server", &none],
        "no server listens there; the gRPC port",
    );
    let http = format!("http://{}", server.http);
    check_hint(
        &["--server", &http],
        "the server speaks HTTP/1 at this port, not gRPC",
    );
    let authority = Authority::new("ours");
    let secret = Secret::mount(&[("ca.crt", &authority.certificate)]);
    let tls = url(&server).replace("http", "https");
    check_hint(
        &[
            "--server",
            &tls,
            "--ca",
            &secret.at("ca.crt"),
            "--authority",
            "a.example",
        ],
        "the server seems not to use TLS; try http://",
    );
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    check_hint(
        &["--server", &silent_url, "--timeout", "50ms"],
        "did not answer within --timeout",
    );
}

#[test]
fn a_server_that_wants_tls_or_a_certificate_is_told_with_the_flags() {
    let ours = Authority::new("ours");
    let theirs = Authority::new("theirs");
    let pair: Pair = ours.issue("tollgate.example");
    let stranger: Pair = theirs.issue("stranger.example");
    let secret = Secret::mount(&[
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.key),
        ("ca.crt", &ours.certificate),
        ("other-ca.crt", &theirs.certificate),
        ("other.crt", &stranger.certificate),
        ("other.key", &stranger.key),
    ]);
    let tls = |client_ca: bool| {
        let ca = secret.at("ca.crt");
        let builder = tollgate::with_rules(RULES)
            .args(["--grpc-tls", "--grpc-tls-cert", &secret.at("tls.crt")])
            .args(["--grpc-tls-key", &secret.at("tls.key")]);
        let flags = client_ca.then_some(["--grpc-client-ca", &ca]);
        builder.args(flags.into_iter().flatten()).start()
    };
    let (open, closed) = (tls(false), tls(true));
    for server in [&open, &closed] {
        check_hint(
            &["--server", &url(server)],
            "the server seems to expect TLS; try https://",
        );
    }
    let secured = |server: &Tollgate| url(server).replace("http", "https");
    let (open, closed) = (secured(&open), secured(&closed));
    let named = [
        "--authority",
        "tollgate.example",
        "--ca",
        &secret.at("ca.crt"),
    ];
    let at = |url| [&["--server", url], &named[..]].concat();
    check_hint(
        &at(&closed),
        "seems to want a client certificate; try --cert FILE and --key FILE",
    );
    let own = [
        "--cert",
        &secret.at("other.crt"),
        "--key",
        &secret.at("other.key"),
    ];
    check_hint(
        &[&at(&closed)[..], &own].concat(),
        "seems to refuse the client certificate in --cert",
    );
    // As `openssl req -x509` makes it.
    let own = self_signed(&["tollgate.example"], false);
    let own = Secret::mount(&[("tls.crt", &own.certificate), ("tls.key", &own.key)]);
    let self_signing = tollgate::with_rules(RULES)
        .args(["--grpc-tls", "--grpc-tls-cert", &own.at("tls.crt")])
        .args(["--grpc-tls-key", &own.at("tls.key")])
        .start();
    check_hint(
        &at(&secured(&self_signing)),
        "it is one of an authority (CA:TRUE), which a server may show only if the file of trusted authorities contains \
         that very certificate; trust that file, or make one of a server, as by openssl req -x509 -addext \
         basicConstraints=critical,CA:FALSE",
    );
    let other = secret.at("other-ca.crt");
    check_hint(
        &[
            "--server",
            &open,
            "--authority",
            "tollgate.example",
            "--ca",
            &other,
        ],
        "the certificate of the server is not of the authority in --ca",
    );
    check_hint(
        &[
            "--server",
            &open,
            "--authority",
            "b.example",
            "--ca",
            &secret.at("ca.crt"),
        ],
        "the certificate of the server is for another name; see --authority",
    );
}
