//! Attacks of servers that tollgate calls, or of those on the way to them.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate::rls_conf::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};

use super::{
    super::{
        ads::{Ads, snapshot},
        ask::{ask, connect},
        attack::Size,
        redis::Redis,
        tollgate::{Tollgate, builder, with_rules},
    },
    Effect, costs, time_until, with_limit,
};

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

/// An error is the end of a connection.
fn lie(
    mut client: TcpStream,
    redis: &str,
    word: &'static [u8],
    answer: &[u8],
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(redis)?;
    let (mut replies, mut back) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || std::io::copy(&mut replies, &mut back));
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
pub(super) fn endless_count(size: Size) -> Effect {
    let values = size.of(5_592_000);
    let answer = [
        format!("*{values}\r\n").into_bytes(),
        b"+\r\n".repeat(values),
    ]
    .concat();
    let redis = Redis::start();
    let address = liar(&redis, b"INCR", answer);
    let rules = "domain: d\ndescriptors: [{key: k, rate_limits: [7/year]}, {key: free, rate_limit: {unlimited: true}}]";
    let server = with_rules(rules)
        .args([
            "--workers",
            "1",
            "--redis-url",
            &format!("redis://{address}"),
        ])
        .start();
    let before = server.processor_time();
    let took = Runtime::new().unwrap().block_on(async {
        let (mut lied_to, mut other) = (connect(server.grpc).await, connect(server.grpc).await);
        let begun = Instant::now();
        let lied_to = async {
            let _ = ask(&mut lied_to, "d", &[("k", "v")]).await;
            begun.elapsed()
        };
        let others = async {
            let mut longest = Duration::ZERO;
            for _ in 0..size.of(1_000) {
                let begun = Instant::now();
                let answered = ask(&mut other, "d", &[("free", "v")]).await;
                answered.expect("it needs no Redis");
                longest = longest.max(begun.elapsed());
            }
            longest
        };
        let (lied_to, longest) = tokio::join!(lied_to, others);
        [lied_to, longest].map(|time| time.as_millis())
    });
    let costs = costs(&server, before);
    let [lied_to, others] = took;
    Effect {
        text: format!(
            "{}, the call answered after {lied_to} ms, others of its worker after {others} ms at most",
            costs.text
        ),
        ..costs
    }
}

/// A seed whose slots are owned by thousands of addresses that nothing listens on.
pub(super) fn cluster_of_thousands(size: Size) -> Effect {
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
    let address = liar(
        &redis,
        b"SLOTS",
        format!("*{SERVERS}\r\n{ranges}").into_bytes(),
    );
    let server = with_limit()
        .args([
            "--redis-type",
            "cluster",
            "--redis-url",
            &format!("redis://{address}"),
        ])
        .start();
    let before = server.processor_time();
    pass(size);
    costs(&server, before)
}

/// Waits for ten seconds, or for a part of them: such an attack goes on without any event.
fn pass(size: Size) {
    thread::sleep(Duration::from_secs(10) * u32::try_from(size.0).unwrap() / 100);
}

/// Each push comes when the one before has been answered.
pub(super) fn flood_of_pushes(size: Size) -> Effect {
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
    let numbers = |count| 1..=u32::try_from(size.of(count)).unwrap();
    ads.set(snapshot("0", &[config(0, RateLimitUnit::Year)]));
    let server = builder()
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .env(
            "CONFIG_GRPC_XDS_SERVER_URL",
            &format!("localhost:{}", ads.address.port()),
        )
        .start();
    ads.wait_for_ack("0");
    let before = server.processor_time();
    for number in numbers(10_000) {
        let version = number.to_string();
        ads.set(snapshot(&version, &[config(number, RateLimitUnit::Year)]));
        ads.wait_for_ack(&version);
    }
    for number in numbers(3_000) {
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
pub(super) fn silent_resolver(size: Size) -> Effect {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("aliases");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let server = with_limit()
        .env("HOSTALIASES", pipe.to_str().unwrap())
        .args(["--redis-url", "redis://nowhere:6379"])
        .start();
    let threads = |server: &Tollgate| {
        let tasks = format!("/proc/{}/task", server.process_id());
        fs::read_dir(tasks).unwrap().count()
    };
    pass(size);
    let threads = threads(&server);
    Effect {
        text: format!("{threads} threads"),
        is_harmless: threads < 30,
    }
}

/// The time from the signal to the end, while a client's connection stays.
pub(super) fn silent_collector(_: Size) -> Effect {
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
    let is_over = time_until(|| server.try_wait().is_some()).is_some();
    Effect {
        text: format!(
            "{:.1} s after `--drain-delay`",
            begun.elapsed().as_secs_f64()
        ),
        is_harmless: is_over,
    }
}
