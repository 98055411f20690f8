//! Attacks on the ports: each runs against a server of its own, while its effects on other clients are measured.

use std::{
    any::Any,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ::tollgate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use nix::sys::signal::Signal;
use prost::Message as _;

use super::flood;
use crate::it::support::{
    PATIENCE,
    ask::{descriptor, request},
    frames::{DATA, Frames, SETTINGS, beginnings, data, frame, headers, streams},
    hoard::{
        Hoarder, MESSAGE, calls_without_end, framed, made_up_names, many_descriptors, slow_bodies,
        unread_replies, who_does_not_read,
    },
    http, json,
    tollgate::{self, Tollgate},
    wait_until,
};

const RULES: &str = "
domain: d
descriptors:
  - { key: k, rate_limits: [1000000000/10000years] }
  - { key: named, detailed_metric: true, rate_limits: [1000000000/10000years] }
  - { key: two, rate_limits: [1000/day, 100000/week] }
";

/// The memory that the manifests in `deploy/` allow.
const BOUND: u64 = 256 << 20;

/// In the order of the review: a short name, the name, and the effect before there was a defence.
const ATTACKS: &str = "\
beginnings | 9,000 connections that begin and do not call | 8 to 38 kB each, held for a day
begun | 9,000 calls without a message, a connection each | 23 kB each
unfinished | 1,050 unfinished requests to the HTTP port | no health for 32 s
unread pages | 1,050 clients of the HTTP port that do not read | no health as long as they stay
endless | 976 calls of 250 kB without an end | 256 MB, held
slow | 976 slow bodies of 250 kB at /json | 256 MB
unread | 10,240 replies that are not read | 480 MB
metadata | 800 replies with metadata that are not read | 13 MB each for messages of 4 MB
json | large requests in JSON, all the time | health 4.1 s, new connections 0.9 s
periods | 200,000 periods of one descriptor | calls of others 99 ms
files | 300 connections where 256 files may be open | no health, no new connection
names | 10,000 made-up names of 490 bytes, scraped | 255 MB, health 0.5 s
small | small calls, 10,240 replies unread | 19 MB
all | 976 calls of 250 kB without an end, 976 slow bodies at /json, 10,240 unread replies, 10,000 names of 490 bytes \
scraped, all at once | more than 1 GB
full | full counters, 9,000 calls without a message, 900 unread pages, 900 clients that do not read, 600 slow bodies \
and 5,000 rules more, with the bounds of a container of 256 MiB | 375 MB without the rules, 286 MB with nothing but \
two loads of them";

pub const COLUMNS: &str =
    "attack | before | health, ms | connections, ms | calls, ms | memory, MB | drain, s";

pub type Kept = Box<dyn Any>;

fn keep<T: 'static>(all: impl IntoIterator<Item = T>) -> Kept {
    Box::new(Vec::from_iter(all))
}

pub struct Attack {
    which: &'static str,
    pub name: &'static str,
    pub before: &'static str,
}

pub fn all() -> impl Iterator<Item = Attack> {
    ATTACKS.lines().map(|line| {
        let cells: Vec<_> = line.split(" | ").collect();
        let [which, name, before] = cells[..].try_into().expect("three cells");
        Attack {
            which,
            name,
            before,
        }
    })
}

#[derive(Debug)]
pub struct Outcome {
    /// The longest time of a health probe, and of a new connection with its first call.
    health: Duration,
    connecting: Duration,
    /// The 99th percentile of calls on an older connection, while the attackers are at work.
    calls: Duration,
    resident_bytes: u64,
    drain: Duration,
    failures: usize,
}

impl Outcome {
    /// Cells of the table.
    pub fn cells(&self) -> String {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let (health, connecting) = (millis(self.health), millis(self.connecting));
        let (calls, drain) = (millis(self.calls), self.drain.as_secs_f64());
        let megabytes = self.resident_bytes.div_ceil(1 << 20);
        format!("{health:.0} | {connecting:.0} | {calls:.1} | {megabytes} | {drain:.1}")
    }

    /// Other clients get answers, and memory stays below the limit of the manifests.
    pub fn violations(&self) -> Vec<String> {
        let is_bad = self.failures > 0 || self.resident_bytes > BOUND;
        Vec::from_iter(is_bad.then(|| format!("{self:?}")))
    }
}

impl Attack {
    pub fn run(&self) -> Outcome {
        let builder = tollgate::with_rules(RULES);
        let mut server = match self.which {
            "metadata" => builder.args(["--dynamic-metadata"]).start(),
            "files" => builder.with_files(256, 256).start(),
            "full" => builder.args(flood::FULL_ARGS.split(' ')).start(),
            _ => builder.start(),
        };
        let others = Others::of(&server);
        let kept = carry_out(self.which, &server);
        let carried_out = Instant::now();
        others.go_on();
        let noticed = others.end(carried_out);
        let resident_bytes = server.peak_bytes();
        let begun = Instant::now();
        server.signal(Signal::SIGTERM);
        assert!(server.wait().success(), "{}", server.log().text());
        let drain = begun.elapsed();
        drop(kept);
        Outcome {
            resident_bytes,
            drain,
            ..noticed
        }
    }
}

/// Other clients, each in a thread: a probe, one that opens a connection for each call, and one that keeps its own.
struct Others {
    is_over: Arc<AtomicBool>,
    rounds: [Arc<AtomicUsize>; 3],
    threads: [JoinHandle<Vec<Asked>>; 3],
}

/// When one of them sent a request, and how long the answer took, if there was any.
type Asked = (Instant, Option<Duration>);

impl Others {
    fn of(server: &Tollgate) -> Self {
        let (http, grpc) = (server.http, server.grpc);
        let is_over = Arc::new(AtomicBool::new(false));
        let rounds = [(); 3].map(|()| Arc::<AtomicUsize>::default());
        let every = |which: usize, pause, mut ask: Box<dyn FnMut() -> bool + Send>| {
            let (is_over, rounds) = (is_over.clone(), rounds[which].clone());
            thread::spawn(move || {
                let mut took = Vec::new();
                while !is_over.load(Relaxed) {
                    let asked = Instant::now();
                    let is_answered = ask();
                    took.push((asked, is_answered.then(|| asked.elapsed())));
                    rounds.fetch_add(1, Relaxed);
                    thread::sleep(pause);
                }
                took
            })
        };
        let probe =
            move || http::try_get(http, "/healthcheck", &[]).is_ok_and(|reply| reply.status == 200);
        let comes = move || Caller::connect(grpc).is_some_and(|mut one| one.call().is_some());
        let mut caller = Caller::connect(grpc);
        let stays = move || {
            let is_answered = caller.as_mut().and_then(Caller::call).is_some();
            if !is_answered {
                caller = Caller::connect(grpc);
            }
            is_answered
        };
        let threads = [
            every(0, Duration::from_millis(20), Box::new(probe)),
            every(1, Duration::from_millis(20), Box::new(comes)),
            every(2, Duration::from_millis(2), Box::new(stays)),
        ];
        let others = Self {
            is_over,
            rounds,
            threads,
        };
        others.go_on();
        others
    }

    /// Waits until each client has sent several more requests, and the fastest one hundreds.
    fn go_on(&self) {
        let now = || self.rounds.each_ref().map(|rounds| rounds.load(Relaxed));
        let before = now();
        wait_until("others go on", || {
            let more = [20, 20, 300];
            let enough = before.iter().zip(more).map(|(before, more)| before + more);
            enough.zip(now()).all(|(enough, now)| now >= enough)
        });
    }

    /// Their share of an outcome. The attackers were at work until `carried_out`.
    fn end(self, carried_out: Instant) -> Outcome {
        self.is_over.store(true, Relaxed);
        let join = |thread: JoinHandle<_>| thread.join().expect("it only asks");
        let all: [Vec<Asked>; 3] = self.threads.map(join);
        let failures = all.iter().flatten().filter(|(_, took)| took.is_none());
        let failures = failures.count();
        let [health, connecting, mut calls] = all;
        calls.retain(|(at, _)| *at < carried_out);
        // The longest, or that of 99 %.
        let share = |all: Vec<Asked>, percent: usize| {
            let mut took: Vec<_> = all.into_iter().filter_map(|(_, took)| took).collect();
            took.sort();
            let at = (took.len() * percent / 100).min(took.len().saturating_sub(1));
            took.get(at).copied().unwrap_or(Duration::MAX)
        };
        Outcome {
            health: share(health, 100),
            connecting: share(connecting, 100),
            calls: share(calls, 99),
            failures,
            resident_bytes: 0,
            drain: Duration::ZERO,
        }
    }
}

struct Caller {
    frames: Frames,
    next: u32,
}

impl Caller {
    fn connect(address: SocketAddr) -> Option<Self> {
        // No panic if the connection fails: that is one of the results.
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(&beginnings()[4]).ok()?;
        let frames = Frames(stream);
        Some(Self { frames, next: 1 })
    }

    fn call(&mut self) -> Option<()> {
        let stream = self.next;
        self.next += 2;
        let call = [headers(stream), data(stream)].concat();
        self.frames.0.write_all(&call).ok()?;
        loop {
            let (kind, flags, from, _) = self.frames.try_read()?;
            match kind {
                SETTINGS if flags & 1 == 0 => {
                    let acknowledged = frame(SETTINGS, 1, 0, &[]);
                    self.frames.0.write_all(&acknowledged).ok()?;
                }
                DATA if from == stream => {
                    // Replies use up the window, which is enlarged here.
                    let more = frame(8, 0, 0, &1_000_u32.to_be_bytes());
                    return self.frames.0.write_all(&more).ok();
                }
                _ => {}
            }
        }
    }
}

fn carry_out(which: &str, server: &Tollgate) -> Kept {
    let (grpc, http) = (server.grpc, server.http);
    match which {
        "beginnings" => {
            let all = beginnings();
            keep(all.iter().flat_map(|begun| connections(grpc, 1_500, begun)))
        }
        "begun" => keep(calls_without_message(grpc)),
        "unfinished" => keep(connections(http, 1_050, b"GET /healthcheck HTTP/1.1\r\n")),
        "unread pages" => keep((0..1_050).map(|_| who_does_not_read(http))),
        "endless" => keep(endless_calls(grpc)),
        "slow" => keep(slow_bodies(http, 976)),
        "unread" => keep(unread_replies(
            grpc,
            80,
            128,
            &many_descriptors(1_000, b"v"),
        )),
        "metadata" => {
            let message = many_descriptors(4, &[0xff; 60_000]);
            keep(unread_replies(grpc, 4, 200, &message))
        }
        "json" => {
            let entries = vec!["{}"; 16_000].join(",");
            let body = format!(r#"{{"domain":"d","descriptors":[{{"entries":[{entries}]}}]}}"#);
            let ask = || {
                for _ in 0..60 {
                    json::send(http, "POST", "/json", body.as_bytes());
                }
            };
            thread::scope(|scope| {
                [(); 20]
                    .map(|()| scope.spawn(ask))
                    .map(|one| one.join().unwrap())
            });
            keep([()])
        }
        "periods" => {
            let of = |number| RateLimitOverride {
                requests_per_unit: 1,
                unit: 1,
                unit_multiplier: Some(number),
            };
            let messages = (0..200).map(|thousand| {
                let mut all = vec![descriptor(&[("k", "v")]); 1_000];
                for (one, number) in all.iter_mut().zip(1..) {
                    one.limit = Some(of(thousand * 1_000 + number));
                }
                request("d", all).encode_to_vec()
            });
            keep([answered(grpc, messages)])
        }
        "files" => keep(connections(grpc, 300, &beginnings()[4])),
        "names" => {
            let hoarder = answered(grpc, made_up_names(10_000, 490));
            for _ in 0..5 {
                assert_eq!(http::get(server.debug, "/metrics").status, 200);
            }
            keep([hoarder])
        }
        "small" => {
            let call = |stream| [headers(stream), data(stream)].concat();
            let calls: Vec<u8> = streams().take(1_024).flat_map(call).collect();
            keep((0..10).map(|_| {
                let mut client = Hoarder::connect(grpc, 0);
                client.write(&calls);
                client
            }))
        }
        "all" => {
            let hoarder = answered(grpc, made_up_names(10_000, 490));
            let message = many_descriptors(1_000, b"v");
            thread::scope(|scope| {
                let calls = scope.spawn(|| endless_calls(grpc));
                let bodies = scope.spawn(|| slow_bodies(http, 976));
                let replies = scope.spawn(|| unread_replies(grpc, 80, 128, &message));
                let mut scrape = TcpStream::connect(server.debug).unwrap();
                let asked = b"GET /metrics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
                scrape.write_all(asked).unwrap();
                scrape.set_read_timeout(Some(PATIENCE)).unwrap();
                scrape.read_to_end(&mut Vec::new()).unwrap();
                let (calls, bodies) = (calls.join().unwrap(), bodies.join().unwrap());
                Box::new((calls, bodies, replies.join().unwrap(), hoarder))
            })
        }
        "full" => flood::fill(server),
        other => unreachable!("{other} is in the table"),
    }
}

pub fn connections(address: SocketAddr, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.write_all(bytes).ok()?;
        Some(stream)
    };
    (0..count).map_while(connect).collect()
}

pub fn calls_without_message(grpc: SocketAddr) -> Vec<TcpStream> {
    let begun = [&beginnings()[4][..], &headers(1)].concat();
    connections(grpc, 9_000, &begun)
}

fn endless_calls(grpc: SocketAddr) -> Vec<Hoarder> {
    (0..8)
        .map(|_| calls_without_end(grpc, 122, MESSAGE))
        .collect()
}

fn answered(grpc: SocketAddr, messages: impl IntoIterator<Item = Vec<u8>>) -> Hoarder {
    let mut hoarder = Hoarder::connect(grpc, 1 << 30);
    let mut calls = 0;
    for message in messages {
        assert!(hoarder.call(&framed(&message), true));
        calls += 1;
    }
    while hoarder.ended < calls && hoarder.hear() {}
    hoarder
}
