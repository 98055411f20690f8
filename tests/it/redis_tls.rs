//! TLS between tollgate and a real Redis.

use std::{cell::Cell, fs, path::Path};

use tempfile::TempDir;

use crate::support::{
    ask::{Client, ask, connect, is_ok},
    certificates::{Authority, Pair},
    eventually, free_port,
    redis::Redis,
    tollgate, wait_until,
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

/// Waits for a decision.
async fn works(client: &Client) {
    eventually("calls are answered", async || {
        ask(&mut client.clone(), "d", &[("k", "v")]).await.is_ok()
    })
    .await;
}
