//! Attacks by way of Redis, the control plane, a resolver and a collector, each on a server of its own.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ::tollgate::rls_conf::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::it::support::{
    ads::{Ads, snapshot},
    ask::{ask, connect},
    redis::Redis,
    tollgate::{Builder, Tollgate, builder, with_rules},
};

pub struct Effect {
    pub text: String,
    pub is_harmless: bool,
}

/// In the order of the review, with their effects before there was a defence.
const DOORS: &str = "\
a Redis that answers a count with 5,592,000 values | peak 566 MB, 1.3 s CPU, the call answered after 12 to 16 s
a cluster whose CLUSTER SLOTS names 4,000 servers, for 10 s | peak 433 MB, 6.2 s CPU, 857 kB of log
a control plane pushes 10,000 good and 3,000 bad sets of rules, as fast as it can | 13,698 lines, 6.1 MB of log in 12 s
a resolver that does not answer, for 10 s | a thread for each attempt to connect
a collector of spans that does not answer, at the end | 6 s after `--drain-delay`";

#[rustfmt::skip]
const ATTACKS: [fn() -> Effect; 5] = [
    endless_count, cluster_of_thousands, flood_of_pushes, silent_resolver, silent_collector,
];

/// The name, the effect before, and the attack.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, fn() -> Effect)> {
    DOORS.lines().zip(ATTACKS).map(|(line, attack)| {
        let (name, before) = line.split_once(" | ").expect("two cells");
        (name, before, attack)
    })
}

fn with_limit() -> Builder {
    with_rules("domain: d\ndescriptors: [{key: k, rate_limits: [7/year]}]\n")
}

/// How long an attack goes on that has no end of its own, and an effect is waited for.
const TEN_SECONDS: Duration = Duration::from_secs(10);

/// Below the 256 Mi in `deploy/`.
const MOST_MEMORY: u64 = 160 << 20;

const MOST_LOG: usize = 200 << 10;

/// Of all threads so far, to 10 ms.
fn processor_time(server: &Tollgate) -> Duration {
    const TICK_MILLIS: u64 = 10;
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.process_id())).unwrap();
    // proc(5): 14 and 15, of which 3 is the first behind the name.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * TICK_MILLIS)
}

/// Memory, processor time since `before`, and log of a server.
fn costs(server: &Tollgate, before: Duration) -> Effect {
    let (peak, log) = (server.peak_bytes(), server.log().text().len());
    let cpu = (processor_time(server) - before).as_secs_f64();
    Effect {
        text: format!(
            "peak {} MB, {cpu:.1} s CPU, {:.1} kB of log",
            peak.div_ceil(1 << 20),
            log as f64 / 1000.0
        ),
        is_harmless: peak < MOST_MEMORY && log < MOST_LOG,
    }
}

/// Passes all data between a client and a Redis, but answers itself to commands with `word`.
fn liar(redis: &Redis, word: &'static [u8], answer: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (redis, answer) = (redis.address(), Arc::<[u8]>::from(answer));
    // It ends with the program.
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (redis, answer) = (redis.clone(), answer.clone());
            thread::spawn(move || lie(client, &redis, word, &answer));
        }
    });
    address
}

fn lie(mut client: TcpStream, redis: &str, word: &[u8], answer: &[u8]) -> io::Result<()> {
    let mut server = TcpStream::connect(redis)?;
    let (mut replies, mut back) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || io::copy(&mut replies, &mut back));
    let mut commands = [0; 16 << 10];
    loop {
        let count = client.read(&mut commands)?;
        let commands = &commands[..count];
        if commands.windows(word.len()).any(|some| some == word) {
            client.write_all(answer)?;
        } else {
            server.write_all(commands)?;
        }
        if count == 0 {
            return server.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// A count of millions of values, while another call of the same worker needs no Redis.
fn endless_count() -> Effect {
    const VALUES: usize = 5_592_000;
    let head = format!("*{VALUES}\r\n").into_bytes();
    let answer = [head, b"+\r\n".repeat(VALUES)].concat();
    let redis = Redis::start();
    let address = liar(&redis, b"INCR", answer);
    let rules = "domain: d\ndescriptors: [{key: k, rate_limits: [7/year]}, {key: free, rate_limit: {unlimited: true}}]";
    let url = format!("redis://{address}");
    let builder = with_rules(rules).args(["--workers", "1", "--redis-url", &url]);
    let server = builder.start();
    let before = processor_time(&server);
    let took = Runtime::new().unwrap().block_on(async {
        let (mut lied_to, mut other) = (connect(server.grpc).await, connect(server.grpc).await);
        let begun = Instant::now();
        let lied_to = async {
            let _ = ask(&mut lied_to, "d", &[("k", "v")]).await;
            begun.elapsed()
        };
        let others = async {
            let mut longest = Duration::ZERO;
            for _ in 0..1_000 {
                let begun = Instant::now();
                let answered = ask(&mut other, "d", &[("free", "v")]).await;
                answered.expect("it needs no Redis");
                longest = longest.max(begun.elapsed());
            }
            longest
        };
        let (lied_to, longest) = tokio::join!(lied_to, others);
        (lied_to.as_millis(), longest.as_millis())
    });
    let costs = costs(&server, before);
    let (lied_to, others) = took;
    Effect {
        text: format!(
            "{}, the call answered after {lied_to} ms, others of its worker after {others} ms at most",
            costs.text
        ),
        ..costs
    }
}

/// A seed whose slots are owned by thousands of addresses that nothing listens on.
fn cluster_of_thousands() -> Effect {
    const SERVERS: usize = 4_000;
    let range = |number: usize| {
        let (first, last) = (4 * number, 4 * number + 3);
        let host = format!("127.1.{}.{}", number / 250, 1 + number % 250);
        format!(
            "*3\r\n:{first}\r\n:{last}\r\n*2\r\n${}\r\n{host}\r\n:1\r\n",
            host.len()
        )
    };
    let ranges: String = (0..SERVERS).map(range).collect();
    let redis = Redis::start();
    let answer = format!("*{SERVERS}\r\n{ranges}").into_bytes();
    let url = format!("redis://{}", liar(&redis, b"SLOTS", answer));
    let builder = with_limit().args(["--redis-type", "cluster", "--redis-url", &url]);
    let server = builder.start();
    let before = processor_time(&server);
    thread::sleep(TEN_SECONDS);
    costs(&server, before)
}

/// Each push comes when the one before has been answered.
fn flood_of_pushes() -> Effect {
    let ads = Ads::start();
    let config = |requests_per_unit, unit: RateLimitUnit| RateLimitConfig {
        name: "d".to_owned(),
        domain: "d".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            key: "k".to_owned(),
            rate_limit: Some(RateLimitPolicy {
                unit: unit.into(),
                requests_per_unit,
                ..RateLimitPolicy::default()
            }),
            ..RateLimitDescriptor::default()
        }],
        ..RateLimitConfig::default()
    };
    ads.set(snapshot("0", &[config(0, RateLimitUnit::Year)]));
    let url = format!("localhost:{}", ads.address.port());
    let builder = builder().env("CONFIG_TYPE", "GRPC_XDS_SOTW");
    let server = builder.env("CONFIG_GRPC_XDS_SERVER_URL", &url).start();
    ads.wait_for_ack("0");
    let before = processor_time(&server);
    for number in 1..=10_000 {
        let version = number.to_string();
        ads.set(snapshot(&version, &[config(number, RateLimitUnit::Year)]));
        ads.wait_for_ack(&version);
    }
    for number in 1..=3_000 {
        let bad = config(number, RateLimitUnit::Unknown);
        ads.send(0, snapshot(&format!("bad-{number}"), &[bad]));
        ads.find(|seen| seen.refusal().is_some());
    }
    let lines = server.log().text().lines().count();
    let costs = costs(&server, before);
    Effect {
        text: format!("{lines} lines; {}", costs.text),
        ..costs
    }
}

/// The C library reads the file of aliases first for a name without a dot, and waits for a writer if it is a pipe.
fn silent_resolver() -> Effect {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("aliases");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let server = with_limit()
        .env("HOSTALIASES", pipe.to_str().unwrap())
        .args(["--redis-url", "redis://nowhere:6379"])
        .start();
    thread::sleep(TEN_SECONDS);
    let tasks = format!("/proc/{}/task", server.process_id());
    let threads = fs::read_dir(tasks).unwrap().count();
    Effect {
        text: format!("{threads} threads"),
        is_harmless: threads < 30,
    }
}

/// The time from the signal to the end, while a client's connection stays.
fn silent_collector() -> Effect {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut server = with_limit()
        .env("TRACING_ENABLED", "true")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .start();
    let runtime = Runtime::new().unwrap();
    let _client = runtime.block_on(async {
        let mut client = connect(server.grpc).await;
        ask(&mut client, "d", &[("k", "v")]).await.unwrap();
        client
    });
    let begun = Instant::now();
    server.signal(Signal::SIGTERM);
    while server.try_wait().is_none() && begun.elapsed() < TEN_SECONDS {
        thread::sleep(Duration::from_millis(5));
    }
    let (took, is_over) = (begun.elapsed().as_secs_f64(), server.try_wait().is_some());
    Effect {
        text: format!("{took:.1} s after `--drain-delay`"),
        is_harmless: is_over,
    }
}
