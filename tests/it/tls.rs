//! TLS on the gRPC port: verified clients, and certificates that change under load.

use std::{
    io::Write as _,
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::task::JoinSet;
use tokio_rustls::rustls::version::{TLS12, TLS13};

use crate::support::{
    ask::{self, is_ok},
    certificates::{Authority, Pair, Secret, der, self_signed},
    eventually, finish, tollgate,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: few
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: many
    rate_limit: { unit: year, requests_per_unit: 100000000 }
";

/// The name in the server's certificates.
const WILDCARD: &str = "*.limits.example";
const NAME: &str = "tollgate.limits.example";

/// A server with mounted files: `tls.crt` and `tls.key`.
fn builder(secret: &Secret) -> tollgate::Builder {
    tollgate::with_rules(RULES)
        .args(["--grpc-tls"])
        .args(["--grpc-tls-cert", &secret.at("tls.crt")])
        .args(["--grpc-tls-key", &secret.at("tls.key")])
}

fn mounted(pair: &Pair) -> [(&'static str, &str); 2] {
    [("tls.crt", &pair.certificate), ("tls.key", &pair.key)]
}

#[tokio::test]
async fn both_versions_are_spoken_and_limits_hold() {
    let authority = Authority::new("ours");
    let secret = Secret::mount(&mounted(&authority.issue(WILDCARD)));
    let server = builder(&secret).start();
    for (version, key) in [(&TLS12, "2"), (&TLS13, "3")] {
        let tls = authority.client(version, None);
        let (mut client, _) = tls.connect(server.grpc, NAME).await.unwrap();
        let mut replies = Vec::new();
        for _ in 0..3 {
            replies.push(is_ok(&ask::ask(&mut client, "shop", &[("few", key)]).await));
        }
        assert_eq!(replies, [true, true, false], "{version:?}");
    }
}

#[tokio::test]
async fn without_tls_nothing_is_answered() {
    let secret = Secret::mount(&mounted(&Authority::new("ours").issue(WILDCARD)));
    let server = builder(&secret).start();
    let mut client = ask::connect(server.grpc).await;
    let reply = ask::ask(&mut client, "shop", &[("many", "x")]).await;
    assert!(reply.is_err(), "{reply:?}");
}

#[tokio::test]
async fn a_client_is_let_in_by_its_authority_and_its_name() {
    let ours = Authority::new("ours");
    let theirs = Authority::new("theirs");
    let pair = ours.issue(WILDCARD);
    let mut files = mounted(&pair).to_vec();
    files.push(("ca.crt", &ours.certificate));
    let secret = Secret::mount(&files);
    let server = builder(&secret)
        .args(["--grpc-client-ca", &secret.at("ca.crt")])
        .args(["--grpc-client-san", "envoy.mesh.example"])
        .start();
    for (client, expected) in [
        (None, false),
        (Some(theirs.issue("envoy.mesh.example")), false),
        (Some(ours.issue("other.mesh.example")), false),
        (Some(ours.issue("envoy.mesh.example")), true),
        (Some(ours.issue("*.mesh.example")), true),
    ] {
        for version in [&TLS12, &TLS13] {
            let tls = ours.client(version, client.as_ref());
            let is_let_in = match tls.connect(server.grpc, NAME).await {
                Ok((mut client, _)) => ask::ask(&mut client, "shop", &[("many", "x")])
                    .await
                    .is_ok(),
                Err(_) => false,
            };
            assert_eq!(is_let_in, expected, "{client:?} {version:?}");
        }
    }
}

/// The metric of handshakes that failed for `reason`.
fn failed(reason: &str) -> String {
    format!("tollgate_tls_handshakes_failed_total{{reason=\"{reason}\"}}")
}

#[tokio::test]
async fn a_refused_handshake_is_counted_by_its_reason_and_logged_with_the_address() {
    let [ours, theirs] = ["ours", "theirs"].map(Authority::new);
    let pair = ours.issue(WILDCARD);
    let mut files = mounted(&pair).to_vec();
    files.push(("ca.crt", &ours.certificate));
    let secret = Secret::mount(&files);
    let server = builder(&secret)
        .args(["--grpc-client-ca", &secret.at("ca.crt")])
        .args(["--grpc-client-san", "envoy.mesh.example"])
        .start();
    let name = "envoy.mesh.example";
    for (client, reason) in [
        (None, "no_certificate"),
        (Some(theirs.issue(name)), "unknown_ca"),
        (Some(self_signed(&[name], false)), "authority_certificate"),
        (Some(ours.issue_expired(name)), "expired"),
        (Some(ours.issue("other.mesh.example")), "wrong_name"),
    ] {
        for (version, total) in [(&TLS12, 1), (&TLS13, 2)] {
            let tls = ours.client(version, client.as_ref());
            let _ = tls.connect(server.grpc, NAME).await;
            eventually(reason, async || server.metric(&failed(reason)) == total).await;
        }
        let log = server.log().with(&format!("\"reason\":\"{reason}\""));
        let is_it = |line: &&str| line.contains(reason) && line.contains("\"peer\":\"127.0.0.1:");
        // The second one of a minute is only counted.
        assert_eq!(log.lines().filter(is_it).count(), 1, "{log}");
        assert!(!log.contains("\"level\":\"error\""), "{log}");
    }
    let tls = theirs.client(&TLS13, None);
    assert!(tls.connect(server.grpc, NAME).await.is_err());
    server
        .log()
        .with("the client refused the certificate of this server");
    assert_eq!(server.metric(&failed("refused_by_client")), 1);
    let mut plain = TcpStream::connect(server.grpc).unwrap();
    plain
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    server.log().with("the client does not speak TLS");
    assert_eq!(server.metric(&failed("not_tls")), 1);
    assert_eq!(server.metric(&failed("other")), 0);
}

/// A probe that only opens a connection is no client.
#[tokio::test]
async fn a_handshake_that_never_ends_is_counted_and_one_that_never_begins_is_not() {
    let secret = Secret::mount(&mounted(&Authority::new("ours").issue(WILDCARD)));
    let server = builder(&secret).start();
    let probe = TcpStream::connect(server.grpc).unwrap();
    probe.shutdown(Shutdown::Both).unwrap();
    let silent = TcpStream::connect(server.grpc).unwrap();
    let mut slow = TcpStream::connect(server.grpc).unwrap();
    // The first byte of a handshake.
    slow.write_all(&[0x16]).unwrap();
    eventually("the slow one is given up", async || {
        server.metric(&failed("timeout")) == 1
    })
    .await;
    drop(silent);
    assert_eq!(server.metric(&failed("other")), 0);
    assert_eq!(server.metric(&failed("timeout")), 1);
}

#[test]
fn ask_names_the_rule_of_wildcards_that_it_refuses_a_server_by() {
    let ours = Authority::new("ours");
    let pair = ours.issue("*.mesh");
    let mut files = mounted(&pair).to_vec();
    files.push(("ca.crt", &ours.certificate));
    let secret = Secret::mount(&files);
    let server = builder(&secret).start();
    let url = format!("https://{}", server.grpc);
    let output = finish(tollgate::program().args(["ask", "--server", &url]).args([
        "--ca",
        &secret.at("ca.crt"),
        "--authority",
        "tollgate.mesh",
        "--domain",
        "shop",
        "-d",
        "few=x",
    ]));
    let error = String::from_utf8(output.stderr).unwrap();
    let expected = "a wildcard in a certificate must have at least two labels after the star";
    assert!(error.contains(expected), "{error}");
}

/// The authority of clients is reloaded too: clients of the old one are then refused.
#[tokio::test]
async fn another_authority_of_clients_holds_for_new_connections() {
    let ours = Authority::new("ours");
    let theirs = Authority::new("theirs");
    let pair = ours.issue(WILDCARD);
    let mut files = mounted(&pair).to_vec();
    files.push(("ca.crt", &ours.certificate));
    let mut secret = Secret::mount(&files);
    let server = builder(&secret)
        .args(["--grpc-client-ca", &secret.at("ca.crt")])
        .start();
    let [old, new] = [&ours, &theirs].map(|authority| authority.issue("envoy.mesh.example"));
    let is_let_in = async |pair: &Pair| {
        let tls = ours.client(&TLS12, Some(pair));
        tls.connect(server.grpc, NAME).await.is_ok()
    };
    assert!(is_let_in(&old).await && !is_let_in(&new).await);
    files[2].1 = &theirs.certificate;
    secret.update(&files);
    eventually("the new authority holds", async || is_let_in(&new).await).await;
    assert!(!is_let_in(&old).await);
}

/// Old and new clients continue while the certificate changes repeatedly; no call fails, and later connections see
/// the new certificate.
#[tokio::test]
async fn certificates_change_under_load_and_no_call_fails() {
    const ROTATIONS: usize = 5;
    let authority = Authority::new("ours");
    let mut secret = Secret::mount(&mounted(&authority.issue(WILDCARD)));
    let server = builder(&secret).start();
    let tls = authority.client(&TLS12, None);
    let is_over = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let version = if number % 2 == 0 { &TLS12 } else { &TLS13 };
        let comes_anew = number >= 4;
        let tls = authority.client(version, None);
        let (is_over, answered, address) = (is_over.clone(), answered.clone(), server.grpc);
        clients.spawn(async move {
            let (mut client, _) = tls.connect(address, NAME).await.unwrap();
            while !is_over.load(Relaxed) {
                if comes_anew {
                    (client, _) = tls.connect(address, NAME).await.unwrap();
                }
                assert!(is_ok(
                    &ask::ask(&mut client, "shop", &[("many", "x")]).await
                ));
                answered.fetch_add(1, Relaxed);
            }
        });
    }
    for _ in 0..ROTATIONS {
        let pair = authority.issue(WILDCARD);
        secret.update(&mounted(&pair));
        let new = der(&pair.certificate);
        eventually("new connections see the new certificate", async || {
            let (_, shown) = tls.connect(server.grpc, NAME).await.unwrap();
            shown == new
        })
        .await;
        let so_far = answered.load(Relaxed);
        eventually("calls go on", async || {
            answered.load(Relaxed) > so_far + 100
        })
        .await;
    }
    is_over.store(true, Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.expect("no call of this client failed");
    }
}

#[tokio::test]
async fn a_bad_pair_changes_nothing_and_the_log_names_the_file() {
    let authority = Authority::new("ours");
    let [good, other, last] = [(); 3].map(|()| authority.issue(WILDCARD));
    let mut secret = Secret::mount(&mounted(&good));
    let server = builder(&secret).start();
    let tls = authority.client(&TLS13, None);
    let shown = async || tls.connect(server.grpc, NAME).await.unwrap().1;
    let of_two = Pair {
        certificate: other.certificate.clone(),
        key: good.key.clone(),
    };
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| secret.at(name));
    secret.update(&mounted(&of_two));
    server.log().with(&format!(
        "{certificate} and {key}: certificate and key cannot be used together"
    ));
    assert_eq!(shown().await, der(&good.certificate));
    secret.update(&[("tls.crt", &other.certificate)]);
    server.log().with(&format!("{key}: cannot be read"));
    assert_eq!(shown().await, der(&good.certificate));
    secret.update(&mounted(&last));
    eventually("a good pair is taken", async || {
        shown().await == der(&last.certificate)
    })
    .await;
}

#[test]
fn what_cannot_be_used_ends_the_start_with_the_name_of_the_file() {
    let authority = Authority::new("ours");
    let [good, other] = [(); 2].map(|()| authority.issue(WILDCARD));
    let secret = Secret::mount(&[
        ("tls.crt", &good.certificate),
        ("tls.key", &good.key),
        ("other.key", &other.key),
        ("empty", "nothing\n"),
        ("broken", "-----BEGIN CERTIFICATE-----\nAAA\n"),
    ]);
    let at = |name: &str| secret.at(name);
    let check = |args: &[&str], expected: &str| {
        let builder = tollgate::with_rules(RULES);
        let (status, text) = builder.args(args.iter().copied()).fail();
        assert_eq!(status.code(), Some(1), "{text}");
        assert!(text.contains(expected), "{expected} in {text}");
    };
    let pair = |certificate: &str, key: &str, expected: &str| {
        let files = ["--grpc-tls-cert", &at(certificate), "--grpc-tls-key"];
        check(
            &[&["--grpc-tls"], &files[..], &[&at(key)]].concat(),
            expected,
        );
    };
    let is = |name: &str, what: &str| format!("{}: {what}", at(name));
    pair("none", "tls.key", &is("none", "cannot be read"));
    pair("tls.crt", "none", &is("none", "cannot be read"));
    pair(
        "empty",
        "tls.key",
        &is("empty", "contains no certificate in PEM"),
    );
    pair("tls.crt", "empty", &is("empty", "contains no key in PEM"));
    pair("broken", "tls.key", &is("broken", "not PEM"));
    let no_pair = is("other.key", "certificate and key cannot be used together");
    pair("tls.crt", "other.key", &no_pair);

    check(&["--grpc-tls"], "needs GRPC_SERVER_TLS_CERT");
    for flag in ["--grpc-tls-cert", "--grpc-tls-key"] {
        check(
            &[flag, &at("tls.crt")],
            "the port would have no TLS without GRPC_SERVER_USE_TLS",
        );
    }
    check(
        &["--grpc-client-ca", "x"],
        "verifies no client without GRPC_SERVER_USE_TLS",
    );
    check(
        &["--grpc-client-san", "x"],
        "verifies no client without GRPC_CLIENT_TLS_CACERT",
    );
}
