//! Servers that are full, closed to this client, moved or of another kind, and proxies that know only some commands.

use std::{collections::BTreeSet, net::TcpStream, time::Duration};

use tokio::task::JoinSet;

use crate::redis_tls::own_authority;
use crate::support::{
    ask::{self, Client, ask, connect, is_ok, request, send, token, with_hits},
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

async fn passes_at_last(client: &mut Client, key: &str) {
    eventually(key, async || passes(client, key).await).await;
}

/// A server that counts at `url`, and a client.
async fn counting(url: &str, timeout: &str) -> (Tollgate, Client) {
    let server = tollgate::with_rules(RULES).redis_at(url, timeout).start();
    let client = connect(server.grpc).await;
    (server, client)
}

/// A server behind `proxy`, which counts the connections: it refuses clients until `repair`, with these words.
async fn check_refused(proxy: &Proxy, words: &str, repair: impl FnOnce()) {
    let (server, mut client) = counting(&proxy.url(), "100ms").await;
    wait_until("the node is lost", || health(&server).contains(words));
    server.log().with(words);
    let before = proxy.connections();
    for _ in 0..200 {
        assert!(!passes(&mut client, "window").await);
    }
    let made = proxy.connections() - before;
    assert!(made < FEW, "{made} connections");
    repair();
    passes_at_last(&mut client, "window").await;
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
    let proxy = Proxy::to(redis.address());
    check_refused(&proxy, "ERR max number of clients reached", || drop(idle)).await;
}

#[tokio::test]
async fn a_server_that_denies_this_client_is_lost_with_its_own_words() {
    let redis = Redis::start();
    redis.cli(&["ACL", "SETUSER", "default", "-ping"]);
    let repair = || drop(redis.cli(&["ACL", "SETUSER", "default", "+ping"]));
    check_refused(&Proxy::to(redis.address()), "NOPERM", repair).await;
}

/// The address leads to another server from now on, and connections to the former one stay open.
#[tokio::test]
async fn an_address_that_moves_is_followed_when_the_former_server_becomes_a_replica() {
    let (old, new) = (Redis::start(), Redis::start());
    let proxy = Proxy::to(old.address());
    let (_server, mut client) = counting(&proxy.url(), "100ms").await;
    passes_at_last(&mut client, "window").await;
    proxy.move_to(new.address());
    old.cli(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    let before = proxy.connections();
    passes_at_last(&mut client, "window").await;
    assert!(!new.keys().is_empty());
    let made = proxy.connections() - before;
    assert!(made < FEW, "{made} connections");
}

#[tokio::test]
async fn a_server_that_ends_each_connection_says_so_and_is_found_again() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    proxy.set(Fault {
        ends_on: &["PING"],
        ..Fault::default()
    });
    check_refused(&proxy, "ends each connection", || proxy.heal()).await;
}

#[tokio::test]
async fn a_path_that_forgets_idle_connections_fails_no_decision() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    proxy.set(Fault {
        forgets_after: Some(Duration::from_secs(3)),
        ..Fault::default()
    });
    let (server, first) = counting(&proxy.url(), "100ms").await;
    // One for each worker.
    let mut clients = [first, connect(server.grpc).await];
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
fn commands(servers: &[Redis]) -> [u64; 2] {
    ["incr", "incrby"].map(|name| servers.iter().map(|redis| redis.calls(name)).sum())
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
        let client = ask::answered(server.grpc, "d", &[("none", "v")]).await;
        let mut calls = JoinSet::new();
        // One call at a time for each value, so that no two share a command.
        for value in VALUES {
            let mut client = client.clone();
            calls.spawn(async move {
                let calls = usize::try_from(CALLS / 8).unwrap();
                ask::passing(&mut client, "d", &[("two", value)], calls).await
            });
        }
        let admitted: usize = calls.join_all().await.iter().sum();
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
    let endpoints = both.each_ref().map(|redis| {
        let port = redis.port();
        format!("{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}")
    });
    let bootstrap = REDIS_PROXY.replace("$ENDPOINTS", &endpoints.join(", "));
    let envoy = Envoy::start(|| bootstrap.clone());
    let url = format!("redis://{}", envoy.listener("redis"));
    let (server, mut client) = counting(&url, "5s").await;
    for key in ["window", "bucket"] {
        passes_at_last(&mut client, key).await;
    }
    let before: i64 = held(&both);
    for _ in 0..99 {
        assert!(passes(&mut client, "window").await);
    }
    assert_eq!(held(&both) - before, 99);
    let log = server.log().text();
    assert!(log.matches("Redis is lost").count() <= 2, "{log}");
}

const REDIS_PROXY: &str = r#"
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }
static_resources:
  listeners:
  - name: redis
    address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: redis
          settings: { op_timeout: 5s }
          prefix_routes: { catch_all_route: { cluster: servers } }
  clusters:
  - name: servers
    type: STATIC
    lb_policy: MAGLEV
    load_assignment: { cluster_name: servers, endpoints: [{ lb_endpoints: [$ENDPOINTS] }] }
"#;

/// The sum of all windows.
fn held(servers: &[Redis]) -> i64 {
    let counts = servers.iter().flat_map(|redis| {
        let keys = redis.keys().into_iter();
        keys.filter_map(|key| {
            redis
                .cli_if_there(&["GET", &key])?
                .trim()
                .parse::<i64>()
                .ok()
        })
    });
    counts.sum()
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
    let (server, mut client) = counting(&proxy.url(), "10s").await;
    passes_at_last(&mut client, "window").await;
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
    passes_at_last(&mut client, "bucket").await;
}

/// A server with only this user, and one that counts there as this user.
async fn as_user(user: &str, login: &str) -> (Redis, Tollgate, Client) {
    let redis = Redis::start();
    set(&words(&format!("ACL SETUSER {user}")), &redis);
    set(&words("ACL SETUSER default off"), &redis);
    let url = redis.url().replace("://", &format!("://{login}@"));
    let (server, mut client) = counting(&url, "10s").await;
    passes_at_last(&mut client, "window").await;
    (redis, server, client)
}

async fn with_rights(rights: &str) -> (Redis, Tollgate, Client) {
    as_user(&format!("gate on >pw ~* +@all {rights}"), "gate:pw").await
}

#[tokio::test]
async fn a_user_of_an_address_counts_although_it_needs_no_password() {
    as_user("free on nopass ~* +@all", "free").await;
}

#[tokio::test]
async fn a_user_without_script_load_counts_by_every_algorithm() {
    let (_redis, _server, mut client) = with_rights("-script").await;
    passes_at_last(&mut client, "bucket").await;
    passes_at_last(&mut client, "both").await;
}

/// Redis says only in the rest of its error that a script ran a command which its user may not run.
#[tokio::test]
async fn a_command_that_is_forbidden_fails_its_rules_alone_and_is_named_in_redis_own_words() {
    const IN_SCRIPT: &str = "The user executing the script can't run this command";
    for (rights, words) in [
        ("-eval -evalsha", ["NOPERM", "EVAL"]),
        // Rules that need other commands go on, so nothing is said of all of them.
        ("-time", [IN_SCRIPT, "all others are counted"]),
    ] {
        let (_redis, server, mut client) = with_rights(rights).await;
        for _ in 0..20 {
            assert!(!passes(&mut client, "bucket").await);
            assert!(passes(&mut client, "window").await);
        }
        let log = words.map(|words| server.log().with(words)).concat();
        let is_of_all = log.contains("answer `error`");
        assert!(rights != "-time" || !is_of_all, "{log}");
        assert_eq!(lines(&server, "Redis refuses commands"), 1, "{log}");
    }
}

/// Health and the log say all `words` of a server that is asked with these variables, and no decision is made.
#[track_caller]
fn check_said(variables: &[(&str, &str)], words: &[&str]) {
    let rules = tollgate::with_rules(RULES);
    let variables = variables.iter();
    let builder = variables.fold(rules, |builder, (name, value)| builder.env(name, value));
    let server = builder.start();
    for &words in words {
        wait_until(words, || health(&server).contains(words));
        server.log().with(words);
    }
    let page = health(&server);
    assert!(!page.contains("WRONGPASS"), "{page}");
}

#[test]
fn a_server_of_another_kind_is_named() {
    let (redis, other) = (Redis::start(), Redis::start());
    let sentinel = sentinel(&redis.port().to_string(), None, None);
    let (plain, watcher) = (redis.address(), sentinel.address());
    let is_sentinel = ["is a sentinel, not a Redis"];
    check_said(&[("REDIS_URL", &watcher)], &is_sentinel);
    let cluster = ("REDIS_TYPE", "CLUSTER");
    check_said(&[("REDIS_URL", &watcher), cluster], &is_sentinel);
    check_per_second(&plain, &watcher, is_sentinel[0]);
    // Without REDIS_TYPE.
    let url = format!("mymaster,{watcher}");
    check_said(&[("REDIS_URL", &url)], &["REDIS_TYPE=SENTINEL"]);
    let url = format!("redis+sentinel://{plain}/mymaster");
    let unknown = ["ERR unknown command", "it knows no SENTINEL command"];
    check_said(&[("REDIS_URL", &url)], &unknown);
    let disabled = "ERR This instance has cluster support disabled";
    let none = [disabled, "no node of a cluster"];
    check_said(&[("REDIS_URL", &plain), cluster], &none);
    let two = format!("{plain},{}", other.address());
    check_said(&[("REDIS_URL", &two)], &none);
}

#[track_caller]
fn check_per_second(url: &str, per_second: &str, words: &str) {
    let own = ("REDIS_PERSECOND_URL", per_second);
    let variables = [("REDIS_URL", url), ("REDIS_PERSECOND", "true"), own];
    check_said(&variables, &[words]);
}

#[test]
fn a_password_for_a_server_that_has_none_or_is_full_is_not_a_wrong_one() {
    let (redis, (full, idle)) = (Redis::start(), full_server());
    for (redis, words) in [
        (&redis, "without any password configured"),
        (&full, "ERR max number of clients reached"),
    ] {
        let url = redis.url().replace("://", "://:sesame@");
        check_said(&[("REDIS_URL", &url)], &[words]);
    }
    drop(idle);
}

#[test]
fn tls_on_one_side_only_is_named() {
    let folder = own_authority(&self_signed(&["127.0.0.1"], false));
    let redis = Redis::with_tls_and(folder.path(), &[]);
    let (plain, secure) = (redis.address(), format!("127.0.0.1:{}", redis.tls_port()));
    for (scheme, address, words) in [
        ("rediss", &plain, "does this port speak TLS?"),
        ("redis", &secure, "does this port want TLS?"),
    ] {
        for (kind, master) in [("", ""), ("+sentinel", "/mymaster"), ("+cluster", "")] {
            let url = format!("{scheme}{kind}://{address}{master}");
            check_said(&[("REDIS_URL", &url)], &[words]);
        }
        check_per_second(&plain, &format!("{scheme}://{address}"), words);
    }
}

/// The lines of docs/run/redis.md for users of Redis, as words.
fn documented_lines() -> Vec<Vec<String>> {
    let page = include_str!("../../docs/run/redis.md").replace("PASSWORD", "open");
    let lines = page.lines().filter(|line| line.starts_with("ACL SETUSER "));
    lines.map(words).collect()
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
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
    const KEYS: &str =
        "fixed calendar first_hit sliding_window sliding_log token_bucket admitted leased";
    let server = builder
        .file("rules.yaml", ALL)
        .env("TOLLGATE_REPLICAS", "0")
        .env("TOLLGATE_REDIS_TIMEOUT", "10s")
        .start();
    let mut client = connect(server.grpc).await;
    wait_until("Redis is well", || {
        let page = health(&server);
        let mut lines = page.lines();
        lines.any(|line| line.starts_with("redis ") && line.ends_with(": ok"))
    });
    let address = format!("http://{}", server.debug);
    let counters = |what: &str, key: &str| {
        let mut command = tollgate::program();
        let one = format!("{key}=v");
        command.args(["counters", what, "--server", &address]);
        let output = finish(command.args(["--domain", "d", "-d", &one]));
        assert!(output.status.success(), "{what} {key}: {output:?}");
    };
    for key in KEYS.split(' ') {
        passes_at_last(&mut client, key).await;
        let mut admitted = 1;
        while passes(&mut client, key).await {
            admitted += 1;
        }
        assert_eq!(admitted, 9, "{key}");
    }
    for key in ["slots", "budget", "tokens"] {
        for _ in 0..2 {
            let reply = ask(&mut client, "d", &[(key, "v")]).await.unwrap();
            assert!(!passes(&mut client, key).await, "{key}: another one");
            // A cost of 0, which frees slots as well.
            let token = token(&reply).unwrap();
            let end = with_hits(&[(key, "v"), ("tollgate.reservation", &token)], 0);
            send(&mut client, request("d", vec![end])).await.unwrap();
        }
        assert!(passes(&mut client, key).await, "{key}: after the ends");
    }
    for key in KEYS.split(' ').chain(["slots", "budget", "tokens"]) {
        counters("get", key);
        counters("reset", key);
        assert!(passes(&mut client, key).await, "{key}: after a reset");
    }
    let log = server.log().text();
    assert!(!log.contains("Redis refuses"), "{log}");
    for redis in servers {
        assert_eq!(redis.cli(&["ACL", "LOG"]).trim(), "");
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
    let (servers, sentinels) = (&watched.servers, &watched.sentinels);
    servers.iter().for_each(|redis| set(&of_server, redis));
    sentinels.iter().for_each(|redis| set(&of_sentinel, redis));
    let builder = tollgate::with_rules(RULES)
        .env("REDIS_URL", &watched.url())
        .env("REDIS_AUTH", "tollgate:open")
        .env("REDIS_SENTINEL_AUTH", "watcher:open");
    let all: Vec<_> = servers.iter().chain(sentinels).collect();
    check_user(builder, &all).await;

    let cluster = Cluster::start(0);
    let url = cluster.url().replace("://", "://tollgate:open@");
    let nodes: Vec<_> = cluster.nodes.iter().collect();
    nodes.iter().for_each(|redis| set(&of_server, redis));
    let builder = tollgate::with_rules(RULES).env("REDIS_URL", &url);
    check_user(builder, &nodes).await;
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
        let info = redis.cli(&["INFO", "replication"]);
        info.contains("master_link_status:up")
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
    passes_at_last(&mut client, "bucket").await;
    let master = watched.master();
    watched.servers[master].kill();
    wait_until("the replica is the master", || watched.master() != master);
    passes_at_last(&mut client, "bucket").await;

    let mut cluster = Cluster::start(1);
    // tollgate itself lists no keys.
    let lister = words("ACL SETUSER lister on >open ~* -@all +scan");
    without_default(&cluster.nodes, &[&of_server, replica, &lister]);
    let url = cluster.url().replace("://", "://tollgate:open@");
    let server = tollgate::with_rules(RULES).env("REDIS_URL", &url).start();
    let mut client = connect(server.grpc).await;
    passes_at_last(&mut client, "bucket").await;
    let scan = "--no-auth-warning --user lister --pass open --scan";
    let scan: Vec<_> = scan.split(' ').collect();
    let has_key = |redis: &Redis| !redis.cli(&scan).trim().is_empty();
    let owner = cluster.nodes[..3].iter().position(has_key).unwrap();
    cluster.nodes[owner].kill();
    eventually("its decisions fail", async || {
        !passes(&mut client, "bucket").await
    })
    .await;
    passes_at_last(&mut client, "bucket").await;
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
