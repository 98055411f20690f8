//! TLS between tollgate and a real Redis.

use std::{cell::Cell, fs, path::Path, process::Command};

use tempfile::TempDir;

use crate::support::{
    ask::{Client, ask, connect, is_ok},
    certificates::{Authority, Pair, self_signed},
    eventually, free_port,
    redis::Redis,
    tollgate, tool, wait_until,
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
        let value = if file.exists() {
            file.to_str().unwrap()
        } else {
            value
        };
        builder = builder.env(name, value);
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

#[tokio::test]
async fn redis_is_trusted_by_exactly_the_configured_authority() {
    let (_, folder) = certificates("localhost");
    let (_, foreign) = certificates("localhost");
    let redis = Redis::with_tls(folder.path(), false);
    let folder = folder.path();
    let ca = ("REDIS_TLS_CACERT", "ca");
    assert!(counts(&redis, folder, &[("REDIS_TLS", "true"), ca]).await);
    let foreign_ca = foreign.path().join("ca");
    let foreign_ca = ("REDIS_TLS_CACERT", foreign_ca.to_str().unwrap());
    assert!(!counts(&redis, folder, &[("REDIS_TLS", "true"), foreign_ca]).await);
    assert!(!counts(&redis, folder, &[("REDIS_TLS", "true")]).await);
    assert!(
        !counts(&redis, folder, &[ca]).await,
        "that would not be TLS"
    );
}

#[tokio::test]
async fn the_host_s_name_is_checked_unless_told_otherwise() {
    let (_, folder) = certificates("elsewhere.example");
    let redis = Redis::with_tls(folder.path(), false);
    let tls = [("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "ca")];
    assert!(!counts(&redis, folder.path(), &tls).await);
    let any_host = ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true");
    assert!(counts(&redis, folder.path(), &[tls[0], tls[1], any_host]).await);
}

#[tokio::test]
async fn redis_is_shown_a_certificate_if_there_is_one() {
    let (authority, folder) = certificates("localhost");
    write(
        &authority.issue("tollgate"),
        folder.path(),
        "own-cert",
        "own-key",
    );
    let redis = Redis::with_tls(folder.path(), true);
    let tls = [("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "ca")];
    assert!(!counts(&redis, folder.path(), &tls).await);
    let own = [
        ("REDIS_TLS_CLIENT_CERT", "own-cert"),
        ("REDIS_TLS_CLIENT_KEY", "own-key"),
    ];
    assert!(counts(&redis, folder.path(), &[tls[0], tls[1], own[0], own[1]]).await);
}

#[test]
fn a_file_that_is_not_there_ends_the_start_by_its_name() {
    let (status, said) = tollgate::with_rules(RULES)
        .env("REDIS_URL", "localhost:1")
        .env("REDIS_TLS", "true")
        .env("REDIS_TLS_CACERT", "/gone/ca.pem")
        .fail();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("/gone/ca.pem cannot be read"), "{said}");
}

/// A cluster of one node announces its address, which the certificate must match too.
#[tokio::test]
async fn the_nodes_of_a_cluster_are_spoken_to_over_tls() {
    let (_, folder) = certificates("127.0.0.1");
    let cluster = Redis::with_tls_and(
        folder.path(),
        &["--cluster-enabled", "yes", "--tls-cluster", "yes"],
    );
    cluster.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("the cluster serves", || {
        cluster
            .cli(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    });
    let ca = folder.path().join("ca");
    let start = |url: String| {
        tollgate::with_rules(RULES)
            .args(["--redis-url", &url, "--redis-timeout", "1s"])
            .args(["--redis-type", "cluster"])
            .args(["--redis-tls-ca", ca.to_str().unwrap()])
            .start()
    };
    let server = start(format!("rediss://127.0.0.1:{}", cluster.tls_port()));
    works(&connect(server.grpc).await).await;
    let page = server.page("/healthcheck?verbose");
    let node = format!("redis 127.0.0.1:{}: ok", cluster.tls_port());
    assert!(page.contains(&node), "{page}");
}

/// The sentinel uses TLS like the master, with a certificate of one authority.
#[tokio::test]
async fn sentinels_and_their_master_are_spoken_to_over_tls() {
    let (_, folder) = certificates("127.0.0.1");
    let folder = folder.path();
    let master = Redis::with_tls_and(folder, &["--tls-replication", "yes"]);
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let tls_port = Cell::new(0);
    let sentinel = Redis::with_made("redis-server", |own| {
        tls_port.set(free_port());
        let text = format!(
            "bind 127.0.0.1\ndir {}\ntls-port {}\ntls-cert-file {}\ntls-key-file {}\n\
             tls-ca-cert-file {}\ntls-auth-clients no\ntls-replication yes\n\
             sentinel monitor mymaster 127.0.0.1 {} 1\n",
            own.display(),
            tls_port.get(),
            file("cert"),
            file("key"),
            file("ca"),
            master.tls_port(),
        );
        let path = own.join("sentinel.conf");
        fs::write(&path, text).unwrap();
        vec![path.to_str().unwrap().to_owned(), "--sentinel".to_owned()]
    });
    let start = |host: &str, any_host: &str| {
        let url = format!("rediss+sentinel://{host}:{}/mymaster", tls_port.get());
        tollgate::with_rules(RULES)
            .args(["--redis-url", &url, "--redis-timeout", "1s"])
            .args(["--redis-tls-ca", &file("ca")])
            .args(["--redis-tls-any-host", any_host])
            .start()
    };
    let server = start("127.0.0.1", "false");
    works(&connect(server.grpc).await).await;
    assert!(!master.keys().is_empty());
    assert!(!sentinel.cli(&["INFO", "server"]).is_empty());
    // The certificate is valid for the address and not for the name.
    let server = start("localhost", "false");
    wait_until("the sentinel is not believed", || {
        let page = server.page("/healthcheck?verbose");
        page.contains("redis sentinels: ") && page.contains("ertificate")
    });
    works(&connect(start("localhost", "true").grpc).await).await;
}

/// A sentinel with a plain and a TLS port, which knows the server `by-plain` by its plain port and `by-tls` by its TLS
/// port; returned with its TLS port.
fn sentinel_of_both(folder: &Path, master: &Redis) -> (Redis, u16) {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let tls_port = Cell::new(0);
    let sentinel = Redis::with_made("redis-server", |own| {
        tls_port.set(free_port());
        let text = format!(
            "bind 127.0.0.1\ndir {}\ntls-port {}\ntls-cert-file {}\ntls-key-file {}\n\
             tls-ca-cert-file {}\ntls-auth-clients no\n\
             sentinel monitor by-plain 127.0.0.1 {} 1\n\
             sentinel monitor by-tls 127.0.0.1 {} 1\n",
            own.display(),
            tls_port.get(),
            file("cert"),
            file("key"),
            file("ca"),
            master.port(),
            master.tls_port(),
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
    let (sentinel, tls_port) = sentinel_of_both(folder, &master);
    let ca = folder.join("ca").to_str().unwrap().to_owned();
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
    let tls = ("REDIS_TLS", "true");
    let of_type = ("REDIS_TYPE", "SENTINEL");
    for (url, variables) in [
        (
            format!("rediss+sentinel://127.0.0.1:{plain}/by-tls"),
            vec![own("false")],
        ),
        (
            format!("redis+sentinel://127.0.0.1:{plain}/by-tls"),
            vec![tls, own("false")],
        ),
        (
            format!("by-tls,127.0.0.1:{plain}"),
            vec![tls, of_type, own("false")],
        ),
        (
            format!("redis+sentinel://127.0.0.1:{tls_port}/by-plain"),
            vec![own("true")],
        ),
        (
            format!("by-plain,127.0.0.1:{tls_port}"),
            vec![of_type, own("true")],
        ),
        // Without a setting of their own they are as their servers.
        (
            format!("rediss+sentinel://127.0.0.1:{tls_port}/by-tls"),
            vec![],
        ),
        (
            format!("redis+sentinel://127.0.0.1:{plain}/by-plain"),
            vec![],
        ),
    ] {
        let server = start(&url, &variables);
        works(&connect(server.grpc).await).await;
        let wanted = if url.contains("by-tls") {
            master.tls_port().to_owned()
        } else {
            master.port().to_string()
        };
        let page = server.page("/healthcheck?verbose");
        let node = format!("redis 127.0.0.1:{wanted}: ok");
        assert!(page.contains(&node), "{url} {variables:?}: {page}");
    }
    // The sentinels of the second Redis too.
    let server =
        tollgate::with_rules("domain: d\ndescriptors: [{key: k, rate_limits: [9/second]}]")
            .args(["--redis-url", &master.url(), "--redis-timeout", "1s"])
            .args(["--redis-tls-ca", &ca])
            .env("REDIS_PERSECOND", "true")
            .env("REDIS_PERSECOND_TYPE", "SENTINEL")
            .env("REDIS_PERSECOND_TLS", "true")
            .env("REDIS_PERSECOND_URL", &format!("by-tls,127.0.0.1:{plain}"))
            .env("TOLLGATE_REDIS_SENTINEL_TLS", "false")
            .start();
    works(&connect(server.grpc).await).await;
    for (url, words) in [
        (
            format!("rediss+sentinel://127.0.0.1:{plain}/by-tls"),
            "does this port speak TLS?",
        ),
        (
            format!("redis+sentinel://127.0.0.1:{tls_port}/by-plain"),
            "does this port want TLS?",
        ),
    ] {
        let server = start(&url, &[]);
        wait_until(words, || {
            server.page("/healthcheck?verbose").contains(words)
        });
    }
}

/// The files `cert`, `key` and `ca`, of which the last is the first.
fn own_authority(pair: &Pair) -> TempDir {
    let folder = TempDir::new().unwrap();
    write(pair, folder.path(), "cert", "key");
    fs::write(folder.path().join("ca"), &pair.certificate).unwrap();
    folder
}

const ANY_HOST: (&str, &str) = ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true");
const WITH_CA: [(&str, &str); 2] = [("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "ca")];

#[tokio::test]
async fn a_certificate_that_is_its_own_authority_is_accepted_if_it_is_in_the_file_of_authorities() {
    let folder = TempDir::new().unwrap();
    let openssl = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost \
                   -addext subjectAltName=DNS:localhost -keyout key -out cert";
    let output = Command::new(tool("openssl"))
        .args(openssl.split_whitespace())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::copy(folder.path().join("cert"), folder.path().join("ca")).unwrap();
    let redis = Redis::with_tls(folder.path(), false);
    assert!(counts(&redis, folder.path(), &WITH_CA).await);
    let foreign = own_authority(&self_signed(&["localhost"], false));
    assert!(!counts(&redis, foreign.path(), &WITH_CA).await);
    assert!(!counts(&redis, folder.path(), &[("REDIS_TLS", "true")]).await);
}

#[tokio::test]
async fn such_a_certificate_has_to_be_valid_and_to_name_the_host_unless_any_host_will_do() {
    // The last one names no host at all.
    for (names, is_expired, with_any_host) in [
        (&["elsewhere.example"][..], false, true),
        (&["localhost"], true, false),
        (&[], false, true),
    ] {
        let folder = own_authority(&self_signed(names, is_expired));
        let redis = Redis::with_tls(folder.path(), false);
        assert!(!counts(&redis, folder.path(), &WITH_CA).await, "{names:?}");
        let any_host = [WITH_CA[0], WITH_CA[1], ANY_HOST];
        let is_counted = counts(&redis, folder.path(), &any_host).await;
        assert_eq!(is_counted, with_any_host, "{names:?}");
    }
}

/// Health says `words` about the certificate of a server with the files of `folder`.
#[track_caller]
fn check_certificate(folder: &Path, words: &str) {
    let redis = Redis::with_tls(folder, false);
    let server = tollgate::with_rules(RULES)
        .args([
            "--redis-url",
            &format!("rediss://localhost:{}", redis.tls_port()),
        ])
        .args(["--redis-tls-ca", folder.join("ca").to_str().unwrap()])
        .start();
    wait_until(words, || {
        server.page("/healthcheck?verbose").contains(words)
    });
}

#[test]
fn a_certificate_that_is_not_accepted_is_described_in_words() {
    let (authority, folder) = certificates("elsewhere.example");
    check_certificate(folder.path(), "for another host; see --redis-tls-any-host");
    write(
        &authority.issue_expired("localhost"),
        folder.path(),
        "cert",
        "key",
    );
    check_certificate(folder.path(), "it has expired");
    write(
        &authority.issue_authority("localhost"),
        folder.path(),
        "cert",
        "key",
    );
    check_certificate(
        folder.path(),
        "only if the file of trusted authorities contains that very certificate",
    );
    write(&authority.issue("localhost"), folder.path(), "cert", "key");
    fs::write(
        folder.path().join("ca"),
        Authority::new("Another").certificate,
    )
    .unwrap();
    check_certificate(
        folder.path(),
        "not signed by a trusted authority; see --redis-tls-ca",
    );
}

/// Waits for a decision.
async fn works(client: &Client) {
    eventually("calls are answered", async || {
        ask(&mut client.clone(), "d", &[("k", "v")]).await.is_ok()
    })
    .await;
}
