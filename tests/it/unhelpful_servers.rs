//! Servers that are full, closed to this client, moved or of another kind, and proxies that know only some commands.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::TcpStream,
    time::Duration,
};

use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::support::{
    ask::{Client, ask, connect, is_ok, request, send, token, with_hits},
    certificates::self_signed,
    chaos::fill,
    cluster::Cluster,
    envoy::Envoy,
    eventually, finish,
    nutcracker::Nutcracker,
    proxy::{Fault, Proxy},
    redis::Redis,
    sentinel::{MASTER, Watched, sentinel},
    tollgate::{self, Builder, Tollgate},
    wait_until,
};

/// Windows that need no script, and limits that do.
const RULES: &str = "\
domain: d
descriptors:
  - {key: window, rate_limits: [1000/day]}
  - {key: bucket, rate_limits: [{requests_per_unit: 1000, unit: day, algorithm: token_bucket}]}
  - {key: both, count: admitted, rate_limits: [100/hour, 1000/day]}
";

/// Far below the thousands that a connection for each failure makes.
const FEW: usize = 40;

async fn passes(client: &mut Client, key: &str) -> bool {
    let reply = ask(client, "d", &[(key, "v")]).await;
    reply.is_ok() && is_ok(&reply)
}

fn health(server: &Tollgate) -> String {
    server.page("/healthcheck?verbose")
}

fn lines(server: &Tollgate, text: &str) -> usize {
    server.log().text().matches(text).count()
}

/// A server that refuses clients through a proxy that counts their connections.
async fn check_refused(redis: Redis, words: &str, repair: impl FnOnce(&Redis)) {
    let proxy = Proxy::to(redis.address());
    let server = tollgate::with_rules(RULES)
        .redis_at(&proxy.url(), "100ms")
        .start();
    let mut client = connect(server.grpc).await;
    wait_until("the node is lost", || health(&server).contains(words));
    assert!(
        server.log().text().contains(words),
        "{}",
        server.log().text()
    );
    let before = proxy.connections();
    for _ in 0..200 {
        assert!(!passes(&mut client, "window").await);
    }
    let made = proxy.connections() - before;
    assert!(made < FEW, "{made} connections");
    repair(&redis);
    eventually("decisions again", async || {
        passes(&mut client, "window").await
    })
    .await;
    assert!(lines(&server, "Redis is lost") <= 2);
}

/// A server, and the connections that leave no room for another one.
fn full_server() -> (Redis, Vec<TcpStream>) {
    let redis = Redis::with(&["--maxclients", "6"]);
    let idle = fill(&redis);
    (redis, idle)
}

#[tokio::test]
async fn a_full_server_is_lost_with_its_own_words_and_asked_seldom() {
    let (redis, idle) = full_server();
    check_refused(redis, "ERR max number of clients reached", |_| drop(idle)).await;
}

#[tokio::test]
async fn a_path_that_forgets_idle_connections_fails_no_decision() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    proxy.set(Fault {
        forgets_after: Some(Duration::from_secs(3)),
        ..Fault::default()
    });
    let server = tollgate::with_rules(RULES)
        .args(["--workers", "2"])
        .redis_at(&proxy.url(), "100ms")
        .start();
    let mut clients = [connect(server.grpc).await, connect(server.grpc).await];
    for client in &mut clients {
        assert!(passes(client, "window").await);
    }
    // Longer than the path remembers; the questions on idle connections are what is waited for.
    let pings = || redis.calls("ping");
    let before = pings();
    // Two workers and the probe ask once a second each.
    wait_until("more than four seconds are over", || pings() > before + 14);
    for client in &mut clients {
        assert!(passes(client, "window").await);
    }
}

/// How many commands the servers ran that count. EXPIRE is sent again after some time, so its number depends on the
/// speed of the machine.
fn commands(servers: &[Redis]) -> BTreeMap<&'static str, u64> {
    let sum = |name| (name, servers.iter().map(|redis| redis.calls(name)).sum());
    ["incr", "incrby"].map(sum).into()
}

/// Many calls at the same time, and the commands that each way to Redis needed for them.
#[tokio::test]
async fn windows_behind_nutcracker_are_exact_and_need_as_many_commands_as_directly() {
    const CALLS: u64 = 2_000;
    const VALUES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    const WINDOWS: &str = "\
domain: d
descriptors:
  - {key: two, rate_limits: [100/day, 1000000/100years]}
";
    let (behind, alone) = ([Redis::start(), Redis::start()], [Redis::start()]);
    let proxy = Nutcracker::before(&[&behind[0], &behind[1]]);
    let mut ran = Vec::new();
    for (url, servers) in [(proxy.url(), &behind[..]), (alone[0].url(), &alone[..])] {
        let server = tollgate::with_rules(WINDOWS)
            .redis_at(&url, "10s")
            .args(["--local-cache-bytes", "0"])
            .start();
        let client = connect(server.grpc).await;
        eventually("decisions", async || {
            passes(&mut client.clone(), "none").await
        })
        .await;
        let mut calls = JoinSet::new();
        // One call at a time for each value, so that no two share a command.
        for value in VALUES {
            let mut client = client.clone();
            calls.spawn(async move {
                let mut admitted = 0;
                for _ in 0..CALLS / 8 {
                    let reply = ask(&mut client, "d", &[("two", value)]).await;
                    admitted += u64::from(is_ok(&reply));
                }
                admitted
            });
        }
        let admitted: u64 = calls.join_all().await.iter().sum();
        assert_eq!(admitted, 100 * 8, "{url}");
        let counts = servers.iter().flat_map(|redis| {
            let keys = redis.keys().into_iter();
            keys.map(|key| redis.number(&["GET", &key]))
        });
        let counts: Vec<_> = counts.collect();
        let each = i64::try_from(CALLS).unwrap() / 8;
        assert_eq!(counts, [each; 16], "{url}");
        ran.push(commands(servers));
    }
    assert_eq!(ran[0], ran[1]);
}

/// Envoy's own proxy for Redis knows no SCRIPT.
#[tokio::test]
async fn envoy_before_two_servers_counts_windows_and_runs_scripts() {
    let both = [Redis::start(), Redis::start()];
    let endpoints: String = both
        .iter()
        .map(|redis| {
            let port = redis.port();
            format!(
                "        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}\n"
            )
        })
        .collect();
    let bootstrap = format!(
        "\
admin:
  address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
static_resources:
  listeners:
  - name: redis
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: redis
          settings: {{ op_timeout: 5s }}
          prefix_routes: {{ catch_all_route: {{ cluster: servers }} }}
  clusters:
  - name: servers
    type: STATIC
    lb_policy: MAGLEV
    load_assignment:
      cluster_name: servers
      endpoints:
      - lb_endpoints:
{endpoints}"
    );
    let envoy = Envoy::start(|| bootstrap.clone());
    let url = format!("redis://{}", envoy.listener("redis"));
    let server = tollgate::with_rules(RULES).redis_at(&url, "5s").start();
    let mut client = connect(server.grpc).await;
    for key in ["window", "bucket"] {
        eventually("decisions", async || passes(&mut client, key).await).await;
    }
    let before: i64 = held(&both);
    for _ in 0..99 {
        assert!(passes(&mut client, "window").await);
    }
    assert_eq!(held(&both) - before, 99);
    assert!(
        lines(&server, "Redis is lost") <= 2,
        "{}",
        server.log().text()
    );
}

/// The sum of all windows.
fn held(servers: &[Redis]) -> i64 {
    let counts = servers.iter().flat_map(|redis| {
        let keys = redis.keys().into_iter();
        keys.map(|key| redis.cli_if_there(&["GET", &key]).unwrap_or_default())
    });
    counts
        .filter_map(|count| count.trim().parse::<i64>().ok())
        .sum()
}

/// A proxy may end connections where Redis replies with an error.
#[tokio::test]
async fn a_server_that_ends_connections_for_scripts_counts_windows_and_is_asked_for_scripts_seldom()
{
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    proxy.set(Fault {
        ends_on: &["EVAL", "EVALSHA", "SCRIPT"],
        ..Fault::default()
    });
    let server = tollgate::with_rules(RULES)
        .redis_at(&proxy.url(), "10s")
        .start();
    let mut client = connect(server.grpc).await;
    eventually("windows", async || passes(&mut client, "window").await).await;
    // The first connections that end may have another reason.
    eventually("the reason is known", async || {
        assert!(!passes(&mut client, "bucket").await);
        lines(&server, "Redis ends connections for EVAL") == 1
    })
    .await;
    let before = proxy.connections();
    let mut windows = 0;
    for _ in 0..200 {
        assert!(!passes(&mut client, "bucket").await);
        // One that shares a connection with a script may fail.
        windows += i32::from(passes(&mut client, "window").await);
    }
    assert!(windows > 180, "{windows} of 200");
    let made = proxy.connections() - before;
    assert!(made < FEW, "{made} connections");
    let log = server.log().text();
    assert!(log.lines().count() < FEW, "{log}");
    proxy.heal();
    eventually("scripts", async || passes(&mut client, "bucket").await).await;
}

#[tokio::test]
async fn a_server_that_ends_each_connection_says_so_and_is_found_again() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    proxy.set(Fault {
        ends_on: &["PING"],
        ..Fault::default()
    });
    let server = tollgate::with_rules(RULES)
        .redis_at(&proxy.url(), "100ms")
        .start();
    let mut client = connect(server.grpc).await;
    wait_until("health says so", || {
        health(&server).contains("ends each connection")
    });
    for _ in 0..50 {
        assert!(!passes(&mut client, "window").await);
    }
    assert!(lines(&server, "Redis is lost") <= 2);
    proxy.heal();
    eventually("decisions again", async || {
        passes(&mut client, "window").await
    })
    .await;
}

#[tokio::test]
async fn a_user_without_script_load_counts_by_every_algorithm() {
    let redis = Redis::start();
    redis.cli(&[
        "ACL", "SETUSER", "gate", "on", ">pw", "~*", "+@all", "-script",
    ]);
    let url = redis.url().replace("redis://", "redis://gate:pw@");
    let server = tollgate::with_rules(RULES).redis_at(&url, "100ms").start();
    let mut client = connect(server.grpc).await;
    for key in ["window", "bucket", "both"] {
        eventually("decisions", async || passes(&mut client, key).await).await;
    }
}

#[tokio::test]
async fn a_command_that_is_forbidden_fails_its_rules_alone_and_is_named() {
    let redis = Redis::start();
    redis.cli(&[
        "ACL", "SETUSER", "gate", "on", ">pw", "~*", "+@all", "-eval", "-evalsha",
    ]);
    let url = redis.url().replace("redis://", "redis://gate:pw@");
    let server = tollgate::with_rules(RULES).redis_at(&url, "100ms").start();
    let mut client = connect(server.grpc).await;
    eventually("decisions", async || passes(&mut client, "window").await).await;
    for _ in 0..20 {
        assert!(!passes(&mut client, "bucket").await);
        assert!(passes(&mut client, "window").await);
    }
    let log = server.log().text();
    assert!(log.contains("NOPERM"), "{log}");
    assert!(log.contains("EVAL"), "{log}");
    assert_eq!(lines(&server, "Redis refuses commands"), 1, "{log}");
}

/// Redis says only in the rest of its error that a script ran a command which its user may not run.
#[tokio::test]
async fn a_command_that_is_forbidden_inside_of_a_script_is_reported_in_redis_own_words() {
    let redis = Redis::start();
    redis.cli(&[
        "ACL", "SETUSER", "gate", "on", ">pw", "~*", "+@all", "-time",
    ]);
    let url = redis.url().replace("redis://", "redis://gate:pw@");
    let server = tollgate::with_rules(RULES).redis_at(&url, "10s").start();
    let mut client = connect(server.grpc).await;
    eventually("decisions", async || passes(&mut client, "window").await).await;
    assert!(!passes(&mut client, "bucket").await);
    let log = server.log().with("Redis refuses commands");
    assert!(
        log.contains("The user executing the script can't run this command"),
        "{log}"
    );
    // Rules that need other commands go on, so nothing is said of all of them.
    let log = server.log().with("the counter store refuses commands");
    assert!(log.contains("all others are counted"), "{log}");
    assert!(!log.contains("answer `error`"), "{log}");
    assert!(passes(&mut client, "window").await);
}

/// Health and the log say `words` of a server that is asked with these variables, and no decision is made.
#[track_caller]
fn check_said(variables: &[(&str, &str)], words: &str) {
    let mut builder = tollgate::with_rules(RULES);
    for (name, value) in variables {
        builder = builder.env(name, value);
    }
    let server = builder.start();
    wait_until(words, || health(&server).contains(words));
    wait_until("the log has the words too", || {
        server.log().text().contains(words)
    });
    let page = health(&server);
    assert!(!page.contains("WRONGPASS"), "{page}");
}

#[tokio::test]
async fn a_server_of_another_kind_is_named() {
    let redis = Redis::start();
    let sentinel = sentinel(&redis.port().to_string(), None, None);
    let (plain, watcher) = (redis.address(), sentinel.address());
    let is_sentinel = "is a sentinel, not a Redis";
    check_said(
        &[("REDIS_URL", &watcher), ("REDIS_SOCKET_TYPE", "tcp")],
        is_sentinel,
    );
    check_said(
        &[("REDIS_URL", &watcher), ("REDIS_TYPE", "CLUSTER")],
        is_sentinel,
    );
    // Without REDIS_TYPE.
    check_said(
        &[("REDIS_URL", &format!("mymaster,{watcher}"))],
        "REDIS_TYPE=SENTINEL",
    );
    check_said(
        &[
            ("REDIS_URL", &plain),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", &watcher),
        ],
        is_sentinel,
    );
    let url = format!("redis+sentinel://{plain}/mymaster");
    check_said(&[("REDIS_URL", &url)], "ERR unknown command");
    check_said(&[("REDIS_URL", &url)], "it knows no SENTINEL command");
    let other = Redis::start();
    let two = format!("{plain},{}", other.address());
    for (url, kind) in [(&plain, "CLUSTER"), (&two, "")] {
        let mut variables = vec![("REDIS_URL", &**url)];
        variables.extend((!kind.is_empty()).then_some(("REDIS_TYPE", kind)));
        check_said(&variables, "ERR This instance has cluster support disabled");
        check_said(&variables, "no node of a cluster");
    }
}

#[tokio::test]
async fn a_password_for_a_server_that_has_none_is_not_a_wrong_one() {
    let redis = Redis::start();
    let url = redis.url().replace("://", "://:sesame@");
    check_said(&[("REDIS_URL", &url)], "without any password configured");
}

#[tokio::test]
async fn a_full_server_says_so_to_a_client_with_a_password_too() {
    let (redis, idle) = full_server();
    let url = redis.url().replace("://", "://:sesame@");
    check_said(&[("REDIS_URL", &url)], "ERR max number of clients reached");
    drop(idle);
}

#[tokio::test]
async fn tls_on_one_side_only_is_named() {
    let folder = TempDir::new().unwrap();
    let pair = self_signed(&["127.0.0.1"], false);
    for (name, text) in [
        ("ca", &pair.certificate),
        ("cert", &pair.certificate),
        ("key", &pair.key),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let redis = Redis::with_tls_and(folder.path(), &[]);
    let (plain, secure) = (redis.address(), format!("127.0.0.1:{}", redis.tls_port()));
    for (schemes, address, words) in [
        (
            ["rediss", "rediss+sentinel", "rediss+cluster"],
            &plain,
            "does this port speak TLS?",
        ),
        (
            ["redis", "redis+sentinel", "redis+cluster"],
            &secure,
            "does this port want TLS?",
        ),
    ] {
        for scheme in schemes {
            let master = if scheme.ends_with("sentinel") {
                "/mymaster"
            } else {
                ""
            };
            check_said(
                &[("REDIS_URL", &format!("{scheme}://{address}{master}"))],
                words,
            );
        }
        check_said(
            &[
                ("REDIS_URL", &plain),
                ("REDIS_PERSECOND", "true"),
                (
                    "REDIS_PERSECOND_URL",
                    &format!("{}://{address}", schemes[0]),
                ),
            ],
            words,
        );
    }
}

#[tokio::test]
async fn a_user_of_an_address_counts_although_it_needs_no_password() {
    let redis = Redis::start();
    redis.cli(&["ACL", "SETUSER", "free", "on", "nopass", "~*", "+@all"]);
    redis.cli(&["ACL", "SETUSER", "default", "off"]);
    let url = redis.url().replace("://", "://free@");
    let server = tollgate::with_rules(RULES).redis_at(&url, "100ms").start();
    let mut client = connect(server.grpc).await;
    eventually("decisions", async || passes(&mut client, "window").await).await;
}

/// The lines of docs/run/redis.md for users of Redis, as words.
fn documented_lines() -> Vec<Vec<String>> {
    let page = include_str!("../../docs/run/redis.md");
    let lines = page.lines().filter(|line| line.starts_with("ACL SETUSER "));
    let words = lines.map(|line| {
        line.replace("PASSWORD", "open")
            .split(' ')
            .map(str::to_owned)
            .collect()
    });
    words.collect()
}

/// Those for tollgate: for each server, and for a sentinel.
pub(crate) fn documented_users() -> [Vec<String>; 2] {
    let mut users = documented_lines();
    users.truncate(2);
    users.try_into().expect("two lines")
}

pub(crate) fn set(user: &[String], redis: &Redis) {
    redis.cli(&user.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The commands that `redis` refused to users.
fn refused(redis: &Redis) -> String {
    redis.cli(&["ACL", "LOG"]).trim().to_owned()
}

/// All algorithms count, leases end, and all commands for counters work at a server that `builder` starts; no server
/// refuses a command.
pub(crate) async fn check_user(builder: Builder, servers: &[&Redis]) {
    const ALL: &str = "\
domain: d
on_store_loss: local
descriptors:
  - {key: fixed, rate_limits: [9/day, 90/year]}
  - {key: calendar, rate_limits: [{requests_per_unit: 9, unit: day, calendar: true, time_zone: UTC}]}
  - {key: first_hit, rate_limits: [{requests_per_unit: 9, unit: day, window: first_hit}]}
  - {key: sliding_window, rate_limits: [{requests_per_unit: 9, unit: day, algorithm: sliding_window}]}
  - {key: sliding_log, rate_limits: [{requests_per_unit: 9, unit: day, algorithm: sliding_log}]}
  - {key: token_bucket, rate_limits: [{requests_per_unit: 9, unit: day, algorithm: token_bucket}]}
  - {key: admitted, count: admitted, rate_limits: [9/day, 90/year]}
  - {key: leased, accuracy: exact-leased, rate_limits: [9/day, 90/year]}
  - {key: slots, rate_limits: [{algorithm: concurrency, requests_per_unit: 1, ttl: 1h}]}
  - {key: budget, reserve: {estimate: 90}, rate_limits: [100/day, 1000/year]}
  - {key: tokens, reserve: {estimate: 90}, rate_limits: [{requests_per_unit: 100, unit: day, algorithm: token_bucket}]}
";
    const KEYS: [&str; 8] = [
        "fixed",
        "calendar",
        "first_hit",
        "sliding_window",
        "sliding_log",
        "token_bucket",
        "admitted",
        "leased",
    ];
    let server = builder
        .file("rules.yaml", ALL)
        .env("TOLLGATE_REPLICAS", "0")
        .env("TOLLGATE_REDIS_TIMEOUT", "10s")
        .start();
    let mut client = connect(server.grpc).await;
    wait_until("Redis is well", || {
        health(&server)
            .lines()
            .any(|line| line.starts_with("redis ") && line.ends_with(": ok"))
    });
    let counters = |args: &[&str]| {
        let mut command = tollgate::program();
        let server = format!("http://{}", server.debug);
        command
            .arg("counters")
            .args(args)
            .args(["--server", &server]);
        let output = finish(&mut command);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for key in KEYS {
        eventually(key, async || passes(&mut client, key).await).await;
        let mut admitted = 1;
        while passes(&mut client, key).await {
            admitted += 1;
        }
        assert_eq!(admitted, 9, "{key}");
        let one = format!("{key}=v");
        counters(&["get", "--domain", "d", "-d", &one]);
        counters(&["reset", "--domain", "d", "-d", &one]);
        assert!(passes(&mut client, key).await, "{key}: after a reset");
    }
    for key in ["slots", "budget", "tokens"] {
        let one = format!("{key}=v");
        for _ in 0..2 {
            let reply = ask(&mut client, "d", &[(key, "v")]).await.unwrap();
            assert!(!passes(&mut client, key).await, "{key}: another one");
            // A cost of 0, which frees slots as well.
            let token = token(&reply).unwrap();
            let end = with_hits(&[(key, "v"), ("tollgate.reservation", &token)], 0);
            send(&mut client, request("d", vec![end])).await.unwrap();
        }
        assert!(passes(&mut client, key).await, "{key}: after the ends");
        counters(&["get", "--domain", "d", "-d", &one]);
        counters(&["reset", "--domain", "d", "-d", &one]);
        assert!(passes(&mut client, key).await, "{key}: after a reset");
    }
    assert_eq!(
        lines(&server, "Redis refuses"),
        0,
        "{}",
        server.log().text()
    );
    for redis in servers {
        assert_eq!(refused(redis), "");
    }
}

#[tokio::test]
async fn the_documented_users_may_run_all_that_their_topology_needs() {
    let [of_server, of_sentinel] = documented_users();
    let both = [Redis::start(), Redis::start()];
    both.iter().for_each(|redis| set(&of_server, redis));
    let url = |redis: &Redis| redis.url().replace("://", "://tollgate:open@");
    let builder = tollgate::with_rules(RULES)
        .env("REDIS_URL", &format!("{}/1", url(&both[0])))
        .env("REDIS_PERSECOND", "true")
        .env("REDIS_PERSECOND_URL", &url(&both[1]));
    check_user(builder, &[&both[0], &both[1]]).await;

    let watched = Watched::start();
    watched
        .servers
        .iter()
        .for_each(|redis| set(&of_server, redis));
    watched
        .sentinels
        .iter()
        .for_each(|redis| set(&of_sentinel, redis));
    let builder = tollgate::with_rules(RULES)
        .env("REDIS_URL", &watched.url())
        .env("REDIS_AUTH", "tollgate:open")
        .env("REDIS_SENTINEL_AUTH", "watcher:open");
    let all: Vec<_> = watched.servers.iter().chain(&watched.sentinels).collect();
    check_user(builder, &all).await;

    let cluster = Cluster::start(0);
    cluster
        .nodes
        .iter()
        .for_each(|redis| set(&of_server, redis));
    let builder = tollgate::with_rules(RULES).env(
        "REDIS_URL",
        &cluster.url().replace("://", "://tollgate:open@"),
    );
    check_user(builder, &cluster.nodes.iter().collect::<Vec<_>>()).await;
}

/// Sets `users` on servers, and lets replicas and sentinels log in as theirs; `default` is gone in the end.
fn without_default(servers: &[Redis], users: &[&[String]]) {
    for redis in servers {
        users.iter().for_each(|user| set(user, redis));
        redis.cli(&["CONFIG", "SET", "masteruser", "replica"]);
        redis.cli(&["CONFIG", "SET", "masterauth", "open"]);
    }
    let last = documented_lines().pop().unwrap();
    let is_linked = |redis: &Redis| {
        redis
            .cli(&["INFO", "replication"])
            .contains("master_link_status:up")
    };
    let (replicas, masters): (Vec<_>, Vec<_>) = servers.iter().partition(|redis| is_linked(redis));
    masters.iter().for_each(|redis| set(&last, redis));
    for redis in replicas {
        redis.cli(&["CLIENT", "KILL", "TYPE", "master"]);
        wait_until("the replica logs in", || is_linked(redis));
        set(&last, redis);
    }
    for redis in servers {
        assert!(redis.cli(&["PING"]).contains("NOAUTH"));
    }
}

#[tokio::test]
async fn failovers_work_with_the_documented_users_and_without_default() {
    let [of_server, _] = documented_users();
    let [replica, sentinel, _] = &documented_lines()[2..] else {
        panic!("three lines more");
    };
    let mut watched = Watched::start();
    for redis in &watched.sentinels {
        for (name, value) in [("auth-user", "sentinel"), ("auth-pass", "open")] {
            redis.cli(&["SENTINEL", "SET", MASTER, name, value]);
        }
    }
    without_default(&watched.servers, &[&of_server, replica, sentinel]);
    let server = tollgate::with_rules(RULES)
        .env("REDIS_URL", &watched.url())
        .env("REDIS_AUTH", "tollgate:open")
        .start();
    let mut client = connect(server.grpc).await;
    eventually("decisions", async || passes(&mut client, "bucket").await).await;
    let master = watched.master();
    watched.servers[master].kill();
    wait_until("the replica is the master", || watched.master() != master);
    eventually("decisions again", async || {
        passes(&mut client, "bucket").await
    })
    .await;

    let mut cluster = Cluster::start(1);
    // tollgate itself lists no keys.
    let lister = "ACL SETUSER lister on >open ~* -@all +scan".split(' ');
    let lister: Vec<_> = lister.map(str::to_owned).collect();
    without_default(&cluster.nodes, &[&of_server, replica, &lister]);
    let url = cluster.url().replace("://", "://tollgate:open@");
    let server = tollgate::with_rules(RULES).env("REDIS_URL", &url).start();
    let mut client = connect(server.grpc).await;
    eventually("decisions", async || passes(&mut client, "bucket").await).await;
    let has_key = |redis: &Redis| {
        !redis
            .cli(&[
                "--no-auth-warning",
                "--user",
                "lister",
                "--pass",
                "open",
                "--scan",
            ])
            .trim()
            .is_empty()
    };
    let owner = cluster.nodes[..3].iter().position(has_key).unwrap();
    cluster.nodes[owner].kill();
    eventually("its decisions fail", async || {
        !passes(&mut client, "bucket").await
    })
    .await;
    eventually("decisions again", async || {
        passes(&mut client, "bucket").await
    })
    .await;
}

/// No call of a test needs every command of the script.
#[test]
fn the_documented_user_may_run_each_command_of_the_script() {
    let script = include_str!("../../src/store/redis/batch/step.lua");
    let calls = script.split("redis.call('").skip(1);
    let used: BTreeSet<_> = calls
        .map(|call| format!("+{}", call.split('\'').next().unwrap().to_lowercase()))
        .collect();
    let [user, _] = documented_users();
    let missing: Vec<_> = used.iter().filter(|word| !user.contains(word)).collect();
    assert!(used.len() > 10 && missing.is_empty(), "{missing:?}");
}
