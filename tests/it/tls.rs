//! TLS on the gRPC port: verified clients, and certificates that change. `envoy` has changes under load.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    process::{Command, Stdio},
};

use tokio_rustls::rustls::version::{TLS12, TLS13};

use crate::support::{
    PATIENCE, Process, ask,
    certificates::{self, Authority, Pair, Secret, der, self_signed},
    eventually,
    tollgate::{self, Builder},
    tool,
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

/// A server with a certificate of `ca`, and its files.
fn builder(ca: &Authority) -> (Builder, Secret) {
    let secret = certificates::mount(&ca.issue(WILDCARD), ca);
    let builder = certificates::serving(tollgate::with_rules(RULES), &secret);
    (builder, secret)
}

/// [`builder`], for clients of the same authority with this name.
fn builder_for_clients(ca: &Authority, name: &str) -> (Builder, Secret) {
    let (builder, secret) = builder(ca);
    let builder = builder.args(["--grpc-client-ca", &secret.at("ca.crt")]);
    (builder.args(["--grpc-client-san", name]), secret)
}

#[tokio::test]
async fn both_versions_are_spoken_limits_hold_and_without_tls_nothing_is_answered() {
    let ca = Authority::new("ours");
    let (builder, _secret) = builder(&ca);
    let server = builder.start();
    for (version, key) in [(&TLS12, "2"), (&TLS13, "3")] {
        let tls = ca.client(version, None);
        let (mut client, _) = tls.connect(server.grpc, NAME).await.unwrap();
        let passing = ask::passing(&mut client, "shop", &[("few", key)], 3).await;
        assert_eq!(passing, 2, "{version:?}");
    }
    let mut client = ask::connect(server.grpc).await;
    let reply = ask::ask(&mut client, "shop", &[("many", "x")]).await;
    assert!(reply.is_err(), "{reply:?}");
}

/// The metric of handshakes that failed for `reason`.
fn failed(reason: &str) -> String {
    format!("tollgate_tls_handshakes_failed_total{{reason=\"{reason}\"}}")
}

/// A handshake that is refused is counted by its reason, and logged with the address.
#[tokio::test]
async fn a_client_is_let_in_by_its_authority_and_its_name() {
    let [ours, theirs] = ["ours", "theirs"].map(Authority::new);
    let name = "envoy.mesh.example";
    let (builder, _secret) = builder_for_clients(&ours, name);
    let server = builder.start();
    for (client, reason) in [
        (Some(ours.issue(name)), ""),
        (Some(ours.issue("*.mesh.example")), ""),
        (None, "no_certificate"),
        (Some(theirs.issue(name)), "unknown_ca"),
        (Some(self_signed(&[name], false)), "authority_certificate"),
        (Some(ours.issue_expired(name)), "expired"),
        (Some(ours.issue("other.mesh.example")), "wrong_name"),
    ] {
        for (version, total) in [(&TLS12, 1), (&TLS13, 2)] {
            let tls = ours.client(version, client.as_ref());
            let is_let_in = match tls.connect(server.grpc, NAME).await {
                Ok((mut client, _)) => {
                    let reply = ask::ask(&mut client, "shop", &[("many", "x")]).await;
                    reply.is_ok()
                }
                Err(_) => false,
            };
            assert_eq!(is_let_in, reason.is_empty(), "{client:?} {version:?}");
            if !is_let_in {
                eventually(reason, async || server.metric(&failed(reason)) == total).await;
            }
        }
        if !reason.is_empty() {
            let log = server.log().with(&format!("\"reason\":\"{reason}\""));
            let lines = log.lines().filter(|line| line.contains(reason));
            let lines = lines.filter(|line| line.contains("\"peer\":\"127.0.0.1:"));
            // The second one of a minute is only counted.
            assert_eq!(lines.count(), 1, "{log}");
            assert!(!log.contains("\"level\":\"error\""), "{log}");
        }
    }
    let tls = theirs.client(&TLS13, None);
    assert!(tls.connect(server.grpc, NAME).await.is_err());
    let refused = "the client refused the certificate of this server";
    server.log().with(refused);
    assert_eq!(server.metric(&failed("refused_by_client")), 1);
    let mut plain = TcpStream::connect(server.grpc).unwrap();
    plain
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    server.log().with("the client does not speak TLS");
    assert_eq!(server.metric(&failed("not_tls")), 1);
    assert_eq!(server.metric(&failed("other")), 0);
}

/// A probe that only opens a connection is no client. A client that completes the handshake, and then stays silent, is
/// closed too.
#[tokio::test]
async fn a_handshake_that_never_ends_is_counted_and_one_that_never_begins_is_not() {
    let (builder, _secret) = builder(&Authority::new("ours"));
    let server = builder.start();
    let probe = TcpStream::connect(server.grpc).unwrap();
    probe.shutdown(Shutdown::Both).unwrap();
    let _silent = TcpStream::connect(server.grpc).unwrap();
    let mut slow = TcpStream::connect(server.grpc).unwrap();
    // The first byte of a handshake.
    slow.write_all(&[0x16]).unwrap();
    let mut openssl = Command::new(tool("openssl"));
    openssl.args(["s_client", "-quiet", "-alpn", "h2", "-ign_eof", "-connect"]);
    openssl.arg(server.grpc.to_string()).stdout(Stdio::null());
    let mut quiet = Process::start(openssl.stderr(Stdio::null()));
    eventually("the slow one is given up", async || {
        server.metric(&failed("timeout")) == 1
    })
    .await;
    eventually("the quiet one is closed", async || quiet.has_ended()).await;
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    let end = slow.read_to_end(&mut Vec::new());
    let end = end.map_err(|error| error.kind());
    assert!(
        matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset)),
        "{end:?}"
    );
    assert_eq!(server.metric(&failed("other")), 0);
    assert_eq!(server.metric(&failed("timeout")), 1);
}

/// The authority of clients is reloaded too: clients of the old one are then refused.
#[tokio::test]
async fn another_authority_of_clients_holds_for_new_connections() {
    let [ours, theirs] = ["ours", "theirs"].map(Authority::new);
    let name = "envoy.mesh.example";
    let (builder, mut secret) = builder_for_clients(&ours, name);
    let server = builder.start();
    let [old, new] = [&ours, &theirs].map(|authority| authority.issue(name));
    let is_let_in = async |pair: &Pair| {
        let tls = ours.client(&TLS12, Some(pair));
        tls.connect(server.grpc, NAME).await.is_ok()
    };
    assert!(is_let_in(&old).await && !is_let_in(&new).await);
    secret.update(&certificates::files(&ours.issue(WILDCARD), &theirs));
    eventually("the new authority holds", async || is_let_in(&new).await).await;
    assert!(!is_let_in(&old).await);
}

const NO_PAIR: &str = "certificate and key cannot be used together";

#[tokio::test]
async fn a_bad_pair_changes_nothing_and_the_log_names_the_file() {
    let authority = Authority::new("ours");
    let (builder, mut secret) = builder(&authority);
    let server = builder.start();
    let tls = authority.client(&TLS13, None);
    let shown = async || tls.connect(server.grpc, NAME).await.unwrap().1;
    let (good, good_key) = (
        shown().await,
        fs::read_to_string(secret.at("tls.key")).unwrap(),
    );
    let [other, last] = [(); 2].map(|()| authority.issue(WILDCARD));
    let of_two = Pair {
        certificate: other.certificate.clone(),
        key: good_key,
    };
    let [certificate, key, _] = certificates::paths(&secret);
    secret.update(&certificates::files(&of_two, &authority));
    let reason = format!("{certificate} and {key}: {NO_PAIR}");
    server.log().with(&reason);
    assert_eq!(shown().await, good);
    secret.update(&[("tls.crt", &other.certificate)]);
    server.log().with(&format!("{key}: cannot be read"));
    assert_eq!(shown().await, good);
    secret.update(&certificates::files(&last, &authority));
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
    let tls = "--grpc-tls";
    let (certificate, key) = ("--grpc-tls-cert", "--grpc-tls-key");
    let no_certificate = "contains no certificate in PEM";
    for (pair, file, what) in [
        (["none", "tls.key"], "none", "cannot be read"),
        (["tls.crt", "none"], "none", "cannot be read"),
        (["empty", "tls.key"], "empty", no_certificate),
        (["tls.crt", "empty"], "empty", "contains no key in PEM"),
        (["broken", "tls.key"], "broken", "not PEM"),
        (["tls.crt", "other.key"], "other.key", NO_PAIR),
    ] {
        let files = pair.map(at);
        let args = [tls, certificate, &files[0], key, &files[1]];
        check(&args, &format!("{}: {what}", at(file)));
    }
    let file = at("tls.crt");
    let useless = "the port would have no TLS without GRPC_SERVER_USE_TLS";
    check(&[tls], "needs GRPC_SERVER_TLS_CERT");
    check(&[certificate, &file], useless);
    check(&[key, &file], useless);
    let no_tls = "verifies no client without GRPC_SERVER_USE_TLS";
    check(&["--grpc-client-ca", "x"], no_tls);
    let no_ca = "verifies no client without GRPC_CLIENT_TLS_CACERT";
    check(&["--grpc-client-san", "x"], no_ca);
}
