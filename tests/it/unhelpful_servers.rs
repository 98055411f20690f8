//! Servers that are full, closed to this client, moved or of another kind, and proxies that know only some commands.

use std::{
    fs,
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use crate::support::{
    Process,
    ask::{Client, ask, connect, is_ok},
    eventually, free_port,
    proxy::{Fault, Proxy},
    redis::Redis,
    tollgate::{self, Tollgate},
    tool, wait_until,
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

#[tokio::test]
async fn a_full_server_is_lost_with_its_own_words_and_asked_seldom() {
    let redis = Redis::with(&["--maxclients", "6"]);
    let mut idle: Vec<TcpStream> = Vec::new();
    wait_until("the server is full", || {
        let stream = TcpStream::connect(redis.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let mut first = [0];
        let is_refused = std::io::Read::read(&mut &stream, &mut first).is_ok_and(|read| read == 1);
        idle.push(stream);
        is_refused
    });
    check_refused(redis, "ERR max number of clients reached", |_| drop(idle)).await;
}

#[tokio::test]
async fn a_server_that_denies_this_client_is_lost_with_its_own_words() {
    let redis = Redis::start();
    redis.cli(&["ACL", "SETUSER", "default", "-ping"]);
    check_refused(redis, "NOPERM", |redis| {
        redis.cli(&["ACL", "SETUSER", "default", "+ping"]);
    })
    .await;
}

/// The address leads to another server from now on, and connections to the former one stay open.
#[tokio::test]
async fn an_address_that_moves_is_followed_when_the_former_server_becomes_a_replica() {
    let (old, new) = (Redis::start(), Redis::start());
    let proxy = Proxy::to(old.address());
    let server = tollgate::with_rules(RULES)
        .redis_at(&proxy.url(), "100ms")
        .start();
    let mut client = connect(server.grpc).await;
    assert!(passes(&mut client, "window").await);
    proxy.move_to(new.address());
    let port = new.port().to_string();
    old.cli(&["REPLICAOF", "127.0.0.1", &port]);
    let before = proxy.connections();
    eventually("decisions again", async || {
        passes(&mut client, "window").await
    })
    .await;
    assert!(!new.keys().is_empty());
    let made = proxy.connections() - before;
    assert!(made < FEW, "{made} connections");
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
    let pings = || {
        let stats = redis.cli(&["INFO", "commandstats"]);
        let calls = stats.split_once("cmdstat_ping:calls=");
        let calls = calls.and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
        calls.unwrap_or(0_u64)
    };
    let before = pings();
    // Two workers and the probe ask once a second each.
    wait_until("more than four seconds are over", || pings() > before + 14);
    for client in &mut clients {
        assert!(passes(client, "window").await);
    }
}

fn nutcracker(servers: &[&Redis]) -> (Process, TempDir, u16) {
    let folder = TempDir::new().unwrap();
    let (port, stats) = (free_port(), free_port());
    let servers: String = servers
        .iter()
        .map(|redis| format!("  - {}:1\n", redis.address()))
        .collect();
    let config = folder.path().join("nutcracker.yml");
    let text = format!("pool:\n listen: 127.0.0.1:{port}\n redis: true\n servers:\n{servers}");
    fs::write(&config, text).unwrap();
    let process = Process::start(
        Command::new(tool("nutcracker"))
            .arg("--conf-file")
            .arg(&config)
            .args(["--stats-port", &stats.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    wait_until("nutcracker listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    (process, folder, port)
}

#[tokio::test]
async fn nutcracker_before_two_servers_counts_windows_and_runs_scripts() {
    let both = [Redis::start(), Redis::start()];
    let (_proxy, _folder, port) = nutcracker(&[&both[0], &both[1]]);
    let server = tollgate::with_rules(RULES)
        .redis_at(&format!("redis://127.0.0.1:{port}"), "100ms")
        .start();
    let mut client = connect(server.grpc).await;
    for key in ["window", "bucket"] {
        eventually("decisions", async || passes(&mut client, key).await).await;
    }
    for _ in 0..99 {
        assert!(passes(&mut client, "window").await);
    }
    let held: i64 = both
        .iter()
        .flat_map(|redis| {
            let keys = redis.keys().into_iter();
            keys.map(|key| redis.cli_if_there(&["GET", &key]).unwrap_or_default())
        })
        .filter_map(|count| count.trim().parse::<i64>().ok())
        .sum();
    assert_eq!(held, 100);
    assert!(
        lines(&server, "Redis is lost") <= 2,
        "{}",
        server.log().text()
    );
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

/// The commands that docs/redis.md names for a user of Redis.
fn documented_commands() -> Vec<String> {
    let page = include_str!("../../docs/redis.md");
    let (_, section) = page
        .split_once("## What the user of Redis may run")
        .expect("the page has the section");
    let (section, _) = section.split_once("\n## ").expect("others follow");
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let texts = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    texts
        .filter(|text| text.starts_with(|letter: char| letter.is_ascii_uppercase()))
        .map(|text| format!("+{}", text.to_lowercase().replace(' ', "|")))
        .collect()
}

#[tokio::test]
async fn a_user_with_the_documented_commands_counts_by_every_algorithm() {
    const ALL: &str = "\
domain: d
descriptors:
  - {key: fixed, rate_limits: [9/day, 90/year]}
  - {key: calendar, rate_limits: [{requests_per_unit: 9, unit: day, calendar: true, time_zone: UTC}]}
  - {key: first_hit, rate_limits: [{requests_per_unit: 9, unit: day, window: first_hit}]}
  - {key: sliding_window, rate_limits: [{requests_per_unit: 9, unit: day, algorithm: sliding_window}]}
  - {key: sliding_log, rate_limits: [{requests_per_unit: 9, unit: day, algorithm: sliding_log}]}
  - {key: token_bucket, rate_limits: [{requests_per_unit: 9, unit: day, algorithm: token_bucket}]}
  - {key: admitted, count: admitted, rate_limits: [9/day, 90/year]}
";
    let redis = Redis::start();
    let user = ["ACL", "SETUSER", "gate", "on", ">pw", "~*", "-@all"];
    let commands = documented_commands();
    let commands = commands
        .iter()
        .map(String::as_str)
        // Those of sentinels are not known to other servers.
        .filter(|command| !command.starts_with("+sentinel"));
    redis.cli(&user.into_iter().chain(commands).collect::<Vec<_>>());
    let url = redis.url().replace("redis://", "redis://gate:pw@");
    let server = tollgate::with_rules(ALL).redis_at(&url, "100ms").start();
    let mut client = connect(server.grpc).await;
    for key in [
        "fixed",
        "calendar",
        "first_hit",
        "sliding_window",
        "sliding_log",
        "token_bucket",
        "admitted",
    ] {
        eventually(key, async || passes(&mut client, key).await).await;
        let mut admitted = 1;
        while passes(&mut client, key).await {
            admitted += 1;
        }
        assert_eq!(admitted, 9, "{key}");
    }
    let list = crate::support::http::get(server.debug, "/counters?domain=d").body;
    assert!(list.contains("sliding_log"), "{list}");
    assert_eq!(
        lines(&server, "Redis refuses"),
        0,
        "{}",
        server.log().text()
    );
}
