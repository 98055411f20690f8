//! Servers that answer, but not with counts, and a proxy that passes only some commands.

use std::{io::Read as _, net::TcpStream};

use super::{super::nutcracker::Nutcracker, *};

/// Connections that leave a server with `maxclients` no room for another one.
pub fn fill(redis: &Redis) -> Vec<TcpStream> {
    let mut idle: Vec<TcpStream> = Vec::new();
    wait_until("the server is full", || {
        let stream = TcpStream::connect(redis.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let mut first = [0];
        // It says so by itself, and nothing to a client for which it has room.
        let is_refused = (&stream).read(&mut first).is_ok_and(|read| read == 1);
        idle.push(stream);
        is_refused
    });
    idle
}

pub(super) async fn too_many_clients(plan: Plan) -> Outcome {
    let redis = Redis::with(&["--maxclients", "16"]);
    let proxy = Proxy::to(redis.address());
    let server = start(&plan, &proxy.url(), &[]);
    let lasts = plan.lasts;
    let mut course = Course::begin(CLIENTS, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken();
    // Other clients take the places of tollgate.
    proxy.set(CUTS);
    let idle = fill(&redis);
    proxy.heal();
    tokio::time::sleep(lasts).await;
    drop(idle);
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

pub(super) async fn denied(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let server = start(&plan, &redis.url(), &[]);
    let lasts = plan.lasts;
    let mut course = Course::begin(DENIED, plan, &[&server], &|| counted_in(&redis)).await;
    let change = |sign: &str| {
        let commands = ["ping", "incr", "incrby", "get"].map(|name| format!("{sign}{name}"));
        let user = ["ACL", "SETUSER", "default"].into_iter();
        let words: Vec<_> = user.chain(commands.iter().map(String::as_str)).collect();
        redis.cli(&words);
    };
    course.broken();
    change("-");
    // A server that answers is asked for its health once a second only.
    eventually("the loss is known", async || {
        server.log().text().contains("Redis is lost")
    })
    .await;
    tokio::time::sleep(lasts).await;
    change("+");
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

/// The former master stays reachable over the connections that stand.
pub(super) async fn address_moved(plan: Plan) -> Outcome {
    let (old, new) = (Redis::start(), Redis::start());
    let follow = |redis: &Redis, master: &Redis| {
        redis.cli(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    };
    follow(&new, &old);
    eventually("the replica follows", async || {
        new.cli(&["INFO", "replication"])
            .contains("master_link_status:up")
    })
    .await;
    let proxy = Proxy::to(old.address());
    let server = start(&plan, &proxy.url(), &[]);
    let mut course = Course::begin(MOVED, plan, &[&server], &|| counted_in(&old)).await;
    course.broken();
    // As at a planned switch: no write is lost between the two.
    old.cli(&["CLIENT", "PAUSE", "1000", "WRITE"]);
    let offset = |redis: &Redis, name: &str| {
        let info = redis.cli(&["INFO", "replication"]);
        let mut lines = info.lines();
        let offset = lines.find_map(|line| line.trim().strip_prefix(name)?.parse::<u64>().ok());
        offset.expect("it is replicated")
    };
    wait_until("the replica has every write", || {
        offset(&new, "slave_repl_offset:") == offset(&old, "master_repl_offset:")
    });
    new.cli(&["REPLICAOF", "NO", "ONE"]);
    proxy.move_to(new.address());
    follow(&old, &new);
    old.cli(&["CLIENT", "UNPAUSE"]);
    course.mended();
    course.end(&|| counted_in(&new)).await
}

pub(super) async fn twemproxy_killed(plan: Plan) -> Outcome {
    let both = [Redis::start(), Redis::start()];
    let mut proxy = Nutcracker::before(&[&both[0], &both[1]]);
    let server = start(&plan, &proxy.url(), &[]);
    let lasts = plan.lasts;
    let counted = || both.iter().map(counted_in).sum();
    let mut course = Course::begin(TWEMPROXY, plan, &[&server], &counted).await;
    course.broken();
    proxy.kill();
    tokio::time::sleep(lasts).await;
    proxy.restart();
    course.mended();
    course.end(&counted).await
}
