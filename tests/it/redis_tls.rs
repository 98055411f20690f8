//! TLS between tollgate and a real Redis.

use std::{cell::Cell, fs, path::Path};

use tempfile::TempDir;

use crate::support::{
    ask::{self, ask, connect, is_ok},
    certificates::{Authority, Pair, self_signed},
    free_port,
    redis::Redis,
    tollgate::{self, Tollgate},
    wait_until,
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [1/year]}]";

/// Certificates in files: `ca`, `cert` and `key` for a server of this name.
fn certificates(name: &str) -> (Authority, TempDir) {
    let authority = Authority::new("Redis");
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("ca"), &authority.certificate).unwrap();
    write(&authority.issue(name), folder.path(), "cert", "key");
    (authority, folder)
}

fn write(pair: &Pair, folder: &Path, certificate: &str, key: &str) {
    fs::write(folder.join(certificate), &pair.certificate).unwrap();
    fs::write(folder.join(key), &pair.key).unwrap();
}

/// Whether tollgate with the variables `env` can count in `redis`. Paths are relative to `folder`.
async fn counts(redis: &Redis, folder: &Path, env: &[(&str, &str)]) -> bool {
    let mut builder = tollgate::with_rules(RULES)
        .env("REDIS_SOCKET_TYPE", "tcp")
        .env("REDIS_URL", &format!("localhost:{}", redis.tls_port()))
        .env("TOLLGATE_REDIS_TIMEOUT", "10s");
    for (name, value) in env {
        let file = folder.join(value);
        let file = file.exists().then(|| file.to_str().unwrap().to_owned());
        builder = builder.env(name, file.as_deref().unwrap_or(value));
    }
    let server = builder.start();
    let mut client = connect(server.grpc).await;
    let first = ask(&mut client, "d", &[("k", "v")]).await;
    if first.is_err() {
        return false;
    }
    assert!(is_ok(&first));
    assert!(!is_ok(&ask(&mut client, "d", &[("k", "v")]).await));
    redis.cli(&["flushall"]);
    true
}

const ON: (&str, &str) = ("REDIS_TLS", "true");
const CA: (&str, &str) = ("REDIS_TLS_CACERT", "ca");
const ANY_HOST: (&str, &str) = ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true");

#[tokio::test]
async fn redis_is_trusted_by_exactly_the_configured_authority() {
    let ((_, folder), (_, foreign)) = (certificates("localhost"), certificates("localhost"));
    let redis = Redis::with_tls(folder.path(), false);
    let foreign = foreign.path().join("ca");
    let foreign = ("REDIS_TLS_CACERT", foreign.to_str().unwrap());
    for (env, expected) in [
        (&[ON, CA][..], true),
        (&[ON, foreign], false),
        (&[ON], false),
        // That would not be TLS.
        (&[CA], false),
    ] {
        let is_counted = counts(&redis, folder.path(), env).await;
        assert_eq!(is_counted, expected, "{env:?}");
    }
}

#[tokio::test]
async fn redis_is_shown_a_certificate_if_there_is_one() {
    let (authority, folder) = certificates("localhost");
    let own = authority.issue("tollgate");
    write(&own, folder.path(), "own-cert", "own-key");
    let redis = Redis::with_tls(folder.path(), true);
    assert!(!counts(&redis, folder.path(), &[ON, CA]).await);
    let certificate = ("REDIS_TLS_CLIENT_CERT", "own-cert");
    let key = ("REDIS_TLS_CLIENT_KEY", "own-key");
    assert!(counts(&redis, folder.path(), &[ON, CA, certificate, key]).await);
}

#[test]
fn a_file_that_is_not_there_ends_the_start_by_its_name() {
    for (name, file) in [
        ("REDIS_TLS_CACERT", "/gone/ca.pem"),
        ("TOLLGATE_REDIS_AUTH_FILE", "/gone/secret"),
    ] {
        let (status, said) = tollgate::with_rules(RULES)
            .env("REDIS_URL", "localhost:1")
            .env("REDIS_TLS", "true")
            .env(name, file)
            .fail();
        assert_eq!(status.code(), Some(1));
        assert!(said.contains(&format!("{file} cannot be read")), "{said}");
    }
}

/// Calls are answered, and health says that the counters are at this port.
async fn check_counts_at(server: &Tollgate, port: &str) {
    ask::answered(server.grpc, "d", &[("k", "v")]).await;
    let page = server.page("/healthcheck?verbose");
    let node = format!("redis 127.0.0.1:{port}: ok");
    assert!(page.contains(&node), "{page}");
}

/// A cluster of one node announces its address, which the certificate must match too.
#[tokio::test]
async fn the_nodes_of_a_cluster_are_spoken_to_over_tls() {
    let (_, folder) = certificates("127.0.0.1");
    let options = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let cluster = Redis::with_tls_and(folder.path(), &options);
    cluster.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("the cluster serves", || {
        let info = cluster.cli(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok")
    });
    let url = format!("rediss://127.0.0.1:{}", cluster.tls_port());
    let server = tollgate::with_rules(RULES)
        .args(["--redis-url", &url, "--redis-timeout", "1s"])
        .args(["--redis-type", "cluster"])
        .args(["--redis-tls-ca", folder.path().join("ca").to_str().unwrap()])
        .start();
    check_counts_at(&server, cluster.tls_port()).await;
}

/// A sentinel with a plain and a TLS port, which knows the server `by-plain` by its plain port and `by-tls` by its TLS
/// port; returned with its TLS port.
fn sentinel_of_both(folder: &Path, master: &Redis) -> (Redis, u16) {
    let file = |name: &str| folder.join(name).display().to_string();
    let [cert, key, ca] = ["cert", "key", "ca"].map(file);
    let (plain, tls) = (master.port(), master.tls_port());
    let tls_port = Cell::new(0);
    let sentinel = Redis::with_made("redis-server", |own| {
        tls_port.set(free_port());
        let (dir, tls_port) = (own.display(), tls_port.get());
        let text = format!(
            "bind 127.0.0.1\ndir {dir}\ntls-port {tls_port}\ntls-cert-file {cert}\ntls-key-file {key}\n\
             tls-ca-cert-file {ca}\ntls-auth-clients no\n\
             sentinel monitor by-plain 127.0.0.1 {plain} 1\nsentinel monitor by-tls 127.0.0.1 {tls} 1\n",
        );
        let path = own.join("sentinel.conf");
        fs::write(&path, text).unwrap();
        vec![path.to_str().unwrap().to_owned(), "--sentinel".to_owned()]
    });
    (sentinel, tls_port.get())
}

#[tokio::test]
async fn sentinels_and_their_servers_may_differ_in_tls() {
    let (_, folder) = certificates("127.0.0.1");
    let folder = folder.path();
    let master = Redis::with_tls_and(folder, &[]);
    let (sentinel, tls) = sentinel_of_both(folder, &master);
    let ca = folder.join("ca").display().to_string();
    let start = |url: &str, variables: &[(&str, &str)]| {
        let mut builder = tollgate::with_rules(RULES)
            .args(["--redis-url", url, "--redis-timeout", "1s"])
            .args(["--redis-tls-ca", &ca]);
        for (name, value) in variables {
            builder = builder.env(name, value);
        }
        builder.start()
    };
    let plain = sentinel.port();
    let own = |value| ("TOLLGATE_REDIS_SENTINEL_TLS", value);
    let of_type = ("REDIS_TYPE", "SENTINEL");
    let at = |scheme, port, name| format!("{scheme}+sentinel://127.0.0.1:{port}/{name}");
    for (url, variables) in [
        (at("rediss", plain, "by-tls"), &[own("false")][..]),
        (at("redis", plain, "by-tls"), &[ON, own("false")]),
        (
            format!("by-tls,127.0.0.1:{plain}"),
            &[ON, of_type, own("false")],
        ),
        (at("redis", tls, "by-plain"), &[own("true")]),
        (format!("by-plain,127.0.0.1:{tls}"), &[of_type, own("true")]),
        // Without a setting of their own they are as their servers.
        (at("rediss", tls, "by-tls"), &[]),
    ] {
        let port = match url.contains("by-tls") {
            true => master.tls_port().to_owned(),
            false => master.port().to_string(),
        };
        check_counts_at(&start(&url, variables), &port).await;
    }
    // The sentinels of the second Redis too.
    let second = format!("by-tls,127.0.0.1:{plain}");
    let server = tollgate::with_rules("{domain: d, descriptors: [{key: k, rate_limits: [9/s]}]}")
        .args(["--redis-url", &master.url(), "--redis-timeout", "1s"])
        .args(["--redis-tls-ca", &ca])
        .env("REDIS_PERSECOND", "true")
        .env("REDIS_PERSECOND_TYPE", "SENTINEL")
        .env("REDIS_PERSECOND_TLS", "true")
        .env("REDIS_PERSECOND_URL", &second)
        .env("TOLLGATE_REDIS_SENTINEL_TLS", "false")
        .start();
    ask::answered(server.grpc, "d", &[("k", "v")]).await;
    // The certificate is valid for the address and not for the name.
    let by_name = format!("rediss+sentinel://localhost:{tls}/by-tls");
    let server = start(&by_name, &[]);
    wait_until("the sentinel is not believed", || {
        let page = server.page("/healthcheck?verbose");
        page.contains("redis sentinels: ") && page.contains("ertificate")
    });
    let server = start(&by_name, &[ANY_HOST]);
    ask::answered(server.grpc, "d", &[("k", "v")]).await;
}

/// The files `cert`, `key` and `ca`, of which the last is the first.
pub(crate) fn own_authority(pair: &Pair) -> TempDir {
    let folder = TempDir::new().unwrap();
    write(pair, folder.path(), "cert", "key");
    fs::write(folder.path().join("ca"), &pair.certificate).unwrap();
    folder
}

/// Of an authority, and its own authority if it is in the file of authorities; the last one names no host at all.
#[tokio::test]
async fn a_certificate_has_to_be_valid_and_to_name_the_host_unless_any_host_will_do() {
    let (_, elsewhere) = certificates("elsewhere.example");
    let own = |names: &[&str], is_expired| own_authority(&self_signed(names, is_expired));
    for (folder, expected) in [
        (elsewhere, [false, true]),
        (own(&["localhost"], false), [true, true]),
        (own(&["elsewhere.example"], false), [false, true]),
        (own(&["localhost"], true), [false, false]),
        (own(&[], false), [false, true]),
    ] {
        let redis = Redis::with_tls(folder.path(), false);
        let is_counted = counts(&redis, folder.path(), &[ON, CA]).await;
        let with_any_host = counts(&redis, folder.path(), &[ON, CA, ANY_HOST]).await;
        assert_eq!([is_counted, with_any_host], expected);
    }
}

/// Health says `words` about the certificate of a server with the files of `folder`.
#[track_caller]
fn check_certificate(folder: &Path, words: &str) {
    let redis = Redis::with_tls(folder, false);
    let url = format!("rediss://localhost:{}", redis.tls_port());
    let server = tollgate::with_rules(RULES)
        .args(["--redis-url", &url])
        .args(["--redis-tls-ca", folder.join("ca").to_str().unwrap()])
        .start();
    wait_until(words, || {
        server.page("/healthcheck?verbose").contains(words)
    });
}

#[test]
fn a_certificate_that_is_not_accepted_is_described_in_words() {
    let (authority, folder) = certificates("elsewhere.example");
    let folder = folder.path();
    check_certificate(folder, "for another host; see --redis-tls-any-host");
    write(&authority.issue_expired("localhost"), folder, "cert", "key");
    check_certificate(folder, "it has expired");
    let below = authority.issue_authority("localhost");
    write(&below, folder, "cert", "key");
    let words = "only if the file of trusted authorities contains that very certificate";
    check_certificate(folder, words);
    write(&authority.issue("localhost"), folder, "cert", "key");
    fs::write(folder.join("ca"), Authority::new("Another").certificate).unwrap();
    let words = "not signed by a trusted authority; see --redis-tls-ca";
    check_certificate(folder, words);
}
