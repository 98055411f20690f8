//! tollgate on a Redis with sentinels.

use crate::support::{
    ask::{self, Client},
    eventually,
    redis::Redis,
    sentinel::{MASTER, Watched},
    storm::Storm,
    tollgate::{self, Builder, Tollgate},
    wait_until,
};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limits: [1000000/10000years]}
  - {key: k, value: few, rate_limits: [100/10000years]}
";

async fn works(client: &Client) {
    ask::is_answered(client, "d", &[("k", "v")]).await;
}

/// Of 300 calls as many pass as the limit allows.
async fn check_exact(client: &mut Client) {
    let admitted = ask::passing(client, "d", &[("k", "few")], 300).await;
    assert_eq!(admitted, 100);
}

async fn start(watched: &Watched) -> (Tollgate, Client) {
    let server = tollgate::with_rules(RULES).redis_at(&watched.url(), "1s");
    let server = server.start();
    let client = ask::answered(server.grpc, "d", &[("k", "v")]).await;
    (server, client)
}

async fn check_counts(builder: Builder) {
    let server = builder.args(["--log-level", "trace"]).start();
    ask::answered(server.grpc, "d", &[("k", "v")]).await;
    let log = server.log().text();
    assert!(!log.contains("sesame"), "{log}");
}

/// Both ways to configure it, and a separate password for each kind of server.
#[tokio::test]
async fn the_reference_s_variables_and_our_address_mean_the_same() {
    let watched = Watched::with_passwords(Some("data-sesame"), Some("watch-sesame"));
    let url = format!("{MASTER},{}", watched.addresses());
    let of_the_reference = tollgate::with_rules(RULES)
        .env("REDIS_TYPE", "SENTINEL")
        .env("REDIS_SOCKET_TYPE", "tcp")
        .env("REDIS_URL", &url)
        .env("REDIS_AUTH", "data-sesame")
        .env("REDIS_SENTINEL_AUTH", "watch-sesame");
    check_counts(of_the_reference).await;
    let own = watched.url().replace("://", "://:data-sesame@");
    let ours = ["--redis-url", &own, "--redis-sentinel-auth", "watch-sesame"];
    check_counts(tollgate::with_rules(RULES).args(ours)).await;
    let rules = "{domain: d, descriptors: [{key: k, rate_limits: [1000000/1000000s]}]}";
    let per_second = tollgate::with_rules(rules)
        .env("REDIS_URL", "127.0.0.1:1")
        .env("REDIS_PERSECOND", "true")
        .env("REDIS_PERSECOND_TYPE", "sentinel")
        .env("REDIS_PERSECOND_SOCKET_TYPE", "tcp")
        .env("REDIS_PERSECOND_URL", &url)
        .env("REDIS_PERSECOND_AUTH", "data-sesame")
        .env("REDIS_PERSECOND_SENTINEL_AUTH", "watch-sesame");
    check_counts(per_second).await;
}

/// A server that changes its role breaks connections, including that of redis-cli.
fn has_role(server: &Redis, role: &str) -> bool {
    let info = server.cli_if_there(&["INFO", "replication"]);
    info.is_some_and(|info| info.contains(&format!("role:{role}")))
}

/// Counters are on the master that the sentinels name, and counting continues on the new one, exactly.
#[tokio::test]
async fn after_a_failover_the_new_master_counts() {
    let mut watched = Watched::start();
    let (server, mut client) = start(&watched).await;
    assert!(!watched.servers[0].keys().is_empty());
    let master = format!("redis {}: ok", watched.servers[0].address());
    let page = server.page("/healthcheck?verbose");
    assert!(page.contains(&master), "{page}");
    let storm = Storm::start(&[server.grpc], &["a", "b", "c"]);
    eventually("the load is there", async || {
        server.metric("tollgate_redis_pipelines_total") > 100
    })
    .await;
    watched.servers[0].kill();
    let is_promoted = || watched.master() == 1 && has_role(&watched.servers[1], "master");
    wait_until("there is a new master", is_promoted);
    works(&client).await;
    let answers = storm.end().await;
    assert!(answers.ok() > 0, "{:?}", answers.errors());
    check_exact(&mut client).await;
    // The old master comes back as a master, and no call counts there.
    watched.servers[0].restart();
    works(&client).await;
    assert_eq!(watched.servers[0].number(&["DBSIZE"]), 0);
    // The command that the sentinels would send after some quiet seconds.
    let port = watched.servers[1].port().to_string();
    watched.servers[0].cli(&["REPLICAOF", "127.0.0.1", &port]);
    wait_until("it became a replica", || {
        has_role(&watched.servers[0], "slave")
    });
    works(&client).await;
    assert_eq!(watched.master(), 1);
}

/// No server died: the sentinels were ordered to change the master. The old one answers READONLY.
#[tokio::test]
async fn a_failover_that_somebody_asked_for_is_followed_too() {
    let watched = Watched::start();
    let (server, mut client) = start(&watched).await;
    let storm = Storm::start(&[server.grpc], &["a", "b", "c"]);
    watched.sentinels[0].cli(&["SENTINEL", "FAILOVER", MASTER]);
    wait_until("there is a new master", || watched.master() == 1);
    wait_until("the old one is a replica", || {
        has_role(&watched.servers[0], "slave")
    });
    works(&client).await;
    storm.end().await;
    check_exact(&mut client).await;
}
