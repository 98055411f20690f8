//! Attacks on the ports: each runs against a server of its own, while its effects on other clients are measured.

use std::{
    any::Any,
    fmt,
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

use super::{
    PATIENCE,
    ask::{descriptor, request},
    frames::{
        DATA, Frames, PING, SETTINGS, beginnings, calls_to_reset, cancelled_calls, data,
        endless_headers, frame, headers, streams,
    },
    hoard::{
        Hoarder, calls_without_end, framed, made_up_names, many_descriptors, slow_bodies,
        unread_replies, who_does_not_read,
    },
    http, json,
    tollgate::{self, Tollgate},
    wait_until,
};

mod full;

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limits: [1000000000/10000years]
  - key: named
    detailed_metric: true
    rate_limits: [1000000000/10000years]
  - key: two
    rate_limits: [1000/day, 100000/week]
";

/// Size of the attack, in per cent of the one in the review.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub usize);

impl Size {
    pub fn of(self, full: usize) -> usize {
        (full * self.0).div_ceil(100)
    }
}

/// Values kept until the server gets its stop signal, such as connections.
type Kept = Box<dyn Any>;

#[derive(Clone, Copy)]
pub struct Attack {
    pub name: &'static str,
    /// Its effect before there was a defence.
    pub before: &'static str,
    args: &'static [&'static str],
    /// The limit of open files, if it is not the usual one.
    files: Option<u32>,
    carry_out: fn(&Tollgate, Size) -> Kept,
}

/// Effects on other clients.
#[derive(Debug)]
pub struct Outcome {
    /// The longest time of a health probe, and of a new connection with its first call.
    pub health: Duration,
    pub connecting: Duration,
    /// The 99th percentile of calls on an older connection: while the attackers are at work, and afterwards, while they
    /// keep all that they have.
    pub calls: Duration,
    pub calls_while_held: Duration,
    pub resident_bytes: u64,
    pub drain: Duration,
    /// Probes, connections and calls without any answer.
    pub failures: usize,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        write!(
            f,
            "{:.0} | {:.0} | {:.1} | {} | {:.1}",
            millis(self.health),
            millis(self.connecting),
            millis(self.calls),
            self.resident_bytes.div_ceil(1 << 20),
            self.drain.as_secs_f64()
        )
    }
}

impl Attack {
    const fn new(name: &'static str, carry_out: fn(&Tollgate, Size) -> Kept) -> Self {
        Self {
            name,
            before: "",
            args: &[],
            files: None,
            carry_out,
        }
    }

    const fn was(self, before: &'static str) -> Self {
        Self { before, ..self }
    }

    const fn with(self, args: &'static [&'static str]) -> Self {
        Self { args, ..self }
    }

    const fn with_files(self, files: u32) -> Self {
        Self {
            files: Some(files),
            ..self
        }
    }

    pub fn run(&self, size: Size) -> Outcome {
        let builder = tollgate::with_rules(RULES).args(self.args.iter().copied());
        let mut server = match self.files {
            None => builder.start(),
            Some(files) => builder.with_files(files, files).start(),
        };
        let others = Others::of(&server);
        let kept = (self.carry_out)(&server, size);
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

/// Other clients that send requests all the time, each in a thread: a probe, a client that opens a new connection
/// each time, and one that keeps its connection.
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
        let mut stays = Caller::connect(grpc);
        let threads = [
            every(0, Duration::from_millis(20), Box::new(probe)),
            every(
                1,
                Duration::from_millis(20),
                Box::new(move || {
                    Caller::connect(grpc).is_some_and(|mut caller| caller.call().is_some())
                }),
            ),
            every(
                2,
                Duration::from_millis(2),
                Box::new(move || {
                    let is_answered = stays.as_mut().and_then(Caller::call).is_some();
                    if !is_answered {
                        stays = Caller::connect(grpc);
                    }
                    is_answered
                }),
            ),
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
        let all = self
            .threads
            .map(|thread| thread.join().expect("it only asks"));
        let failures = all.iter().flatten().filter(|(_, took)| took.is_none());
        let failures = failures.count();
        let [health, connecting, calls] = all;
        let most = |all: Vec<Asked>| all.into_iter().filter_map(|(_, took)| took).max();
        let (while_held, calls): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|(at, _)| *at >= carried_out);
        let most_of = |some: Vec<Asked>| {
            let mut took: Vec<_> = some.into_iter().filter_map(|(_, took)| took).collect();
            took.sort();
            took.get(took.len() * 99 / 100).copied()
        };
        Outcome {
            health: most(health).unwrap_or(Duration::MAX),
            connecting: most(connecting).unwrap_or(Duration::MAX),
            calls: most_of(calls).unwrap_or(Duration::MAX),
            calls_while_held: most_of(while_held).unwrap_or(Duration::MAX),
            failures,
            resident_bytes: 0,
            drain: Duration::ZERO,
        }
    }
}

/// Makes calls one after the other.
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

fn connections(address: SocketAddr, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.write_all(bytes).ok()?;
        Some(stream)
    };
    (0..count).map_while(connect).collect()
}

/// Writes `piece` repeatedly, and reads nothing.
fn flood(address: SocketAddr, times: usize, piece: &[u8]) -> Frames {
    let mut client = Frames::connect(address);
    let long = Some(Duration::from_secs(1));
    client.0.set_write_timeout(long).unwrap();
    for _ in 0..times {
        // The socket is full, or the server has closed the connection.
        if client.0.write_all(piece).is_err() {
            break;
        }
    }
    client
}

/// Almost the largest message that is let in.
const MESSAGE: usize = 250_000;

/// Calls without an end on several connections, because each has few streams.
fn endless_calls(address: SocketAddr, size: Size) -> Vec<Hoarder> {
    let calls = |_| calls_without_end(address, size.of(122), MESSAGE);
    (0..8).map(calls).collect()
}

/// All attacks, in the order of the review.
pub fn all() -> Vec<Attack> {
    vec![
        Attack::new(
            "9,000 connections that begin and do not call",
            |server, size| {
                let each = size.of(1_500);
                let all = beginnings();
                let all = all
                    .iter()
                    .map(|bytes| connections(server.grpc, each, bytes));
                Box::new(all.collect::<Vec<_>>())
            },
        )
        .was("8 to 38 kB each, held for a day"),
        Attack::new(
            "9,000 calls without a message, a connection each",
            |server, size| {
                let begun = [&beginnings()[4][..], &headers(1)].concat();
                Box::new(connections(server.grpc, size.of(9_000), &begun))
            },
        )
        .was("23 kB each"),
        Attack::new("1,050 unfinished requests to the HTTP port", |server, _| {
            let begun = b"GET /healthcheck HTTP/1.1\r\n";
            Box::new(connections(server.http, 1_050, begun))
        })
        .was("no health for 32 s"),
        Attack::new(
            "1,050 clients of the HTTP port that do not read",
            |server, _| {
                let all = (0..1_050).map(|_| who_does_not_read(server.http));
                Box::new(all.collect::<Vec<_>>())
            },
        )
        .was("no health as long as they stay"),
        Attack::new("976 calls of 250 kB without an end", |server, size| {
            Box::new(endless_calls(server.grpc, size))
        })
        .was("256 MB, held"),
        Attack::new("976 slow bodies of 250 kB at /json", |server, size| {
            Box::new(slow_bodies(server.http, size.of(976), MESSAGE))
        })
        .was("256 MB"),
        Attack::new("10,240 replies that are not read", |server, size| {
            let message = many_descriptors(1_000, b"v");
            Box::new(unread_replies(server.grpc, 80, size.of(128), &message))
        })
        .was("480 MB"),
        Attack::new(
            "800 replies with metadata that are not read",
            |server, size| {
                let message = many_descriptors(4, &[0xff; 60_000]);
                Box::new(unread_replies(server.grpc, 4, size.of(200), &message))
            },
        )
        .with(&["--dynamic-metadata"])
        .was("13 MB each for messages of 4 MB"),
        Attack::new("large requests in JSON, all the time", |server, size| {
            let entries = vec!["{}"; 16_000].join(",");
            let body = format!(r#"{{"domain":"d","descriptors":[{{"entries":[{entries}]}}]}}"#);
            let ask = || {
                for _ in 0..size.of(60) {
                    json::send(server.http, "POST", "/json", body.as_bytes());
                }
            };
            thread::scope(|scope| {
                let all = [(); 20].map(|()| scope.spawn(ask));
                all.into_iter().for_each(|one| one.join().unwrap());
            });
            Box::new(())
        })
        .was("health 4.1 s, new connections 0.9 s"),
        Attack::new("200,000 periods of one descriptor", |server, size| {
            let mut hoarder = Hoarder::connect(server.grpc, 1 << 30);
            for thousand in 0..u32::try_from(size.of(200)).unwrap() {
                let descriptors = (1..=1_000).map(|number| {
                    let mut one = descriptor(&[("k", "v")]);
                    one.limit = Some(RateLimitOverride {
                        requests_per_unit: 1,
                        unit: 1,
                        unit_multiplier: Some(thousand * 1_000 + number),
                    });
                    one
                });
                let message = request("d", descriptors.collect()).encode_to_vec();
                assert!(hoarder.call(&framed(&message), true));
            }
            while hoarder.open() > 0 && hoarder.hear() {}
            Box::new(hoarder)
        })
        .was("calls of others 99 ms"),
        Attack::new(
            "300 connections where 256 files may be open",
            |server, _| Box::new(connections(server.grpc, 300, &beginnings()[4])),
        )
        .with_files(256)
        .was("no health, no new connection"),
        Attack::new(
            "10,000 made-up names of 490 bytes, scraped",
            |server, size| {
                let mut hoarder = Hoarder::connect(server.grpc, 1 << 30);
                for message in made_up_names(size.of(10_000), 490) {
                    assert!(hoarder.call(&framed(&message), true));
                }
                while hoarder.open() > 0 && hoarder.hear() {}
                for _ in 0..5 {
                    assert_eq!(http::get(server.debug, "/metrics").status, 200);
                }
                Box::new(hoarder)
            },
        )
        .was("255 MB, health 0.5 s"),
        Attack::new("rapid reset (CVE-2023-44487)", |server, size| {
            let calls = cancelled_calls(3_000);
            let all = (0..size.of(200)).map(|_| flood(server.grpc, 1, &calls));
            Box::new(all.collect::<Vec<_>>())
        })
        .was("17 MB, calls of others 13 ms"),
        Attack::new("MadeYouReset (CVE-2025-8671)", |server, size| {
            let calls = calls_to_reset(3_000, frame(8, 0, 1, &[0; 4]));
            let all = (0..size.of(200)).map(|_| flood(server.grpc, 1, &calls));
            Box::new(all.collect::<Vec<_>>())
        })
        .was("calls of others 0.6 ms"),
        Attack::new("headers that never end (CVE-2024-2758)", |server, size| {
            let [first, further] = endless_headers();
            let flood = |_| {
                let mut client = flood(server.grpc, 1, &first);
                while client.0.write_all(&further).is_ok() {}
                client
            };
            Box::new((0..size.of(200)).map(flood).collect::<Vec<_>>())
        })
        .was("1 MB more"),
        Attack::new(
            "PING and SETTINGS, unread (CVE-2019-9512, -9515)",
            |server, size| {
                let floods = [frame(SETTINGS, 0, 0, &[]), frame(PING, 0, 0, &[7; 8])];
                let all =
                    floods.map(|piece| flood(server.grpc, size.of(100), &piece.repeat(10_000)));
                Box::new(all)
            },
        )
        .was("calls of others 14 ms"),
        Attack::new("small calls, 10,240 replies unread", |server, size| {
            let calls: Vec<u8> = streams()
                .take(1_024)
                .flat_map(|stream| [headers(stream), data(stream)].concat())
                .collect();
            let connect = |_| {
                let mut client = Hoarder::connect(server.grpc, 0);
                client.write(&calls);
                client
            };
            Box::new((0..size.of(10)).map(connect).collect::<Vec<_>>())
        })
        .was("19 MB"),
        Attack::new(ALL_AT_ONCE, |server, size| {
            let grpc = server.grpc;
            let http = server.http;
            let mut hoarder = Hoarder::connect(grpc, 1 << 30);
            for message in made_up_names(size.of(10_000), 490) {
                assert!(hoarder.call(&framed(&message), true));
            }
            let message = many_descriptors(1_000, b"v");
            thread::scope(|scope| {
                let calls = scope.spawn(|| endless_calls(grpc, size));
                let bodies = scope.spawn(|| slow_bodies(http, size.of(976), MESSAGE));
                let replies = scope.spawn(|| unread_replies(grpc, 80, size.of(128), &message));
                let mut scrape = TcpStream::connect(server.debug).unwrap();
                scrape
                    .write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
                    .unwrap();
                scrape.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut page = Vec::new();
                scrape.read_to_end(&mut page).unwrap();
                Box::new((
                    calls.join().unwrap(),
                    bodies.join().unwrap(),
                    replies.join().unwrap(),
                    hoarder,
                ))
            })
        })
        .was("more than 1 GB"),
        Attack::new(FULL, full::carry_out)
            .with(full::ARGS)
            .was("375 MB without the rules, 286 MB with nothing but two loads of them"),
    ]
}

const FULL: &str = "full counters, 9,000 calls without a message, 900 unread pages, 900 clients that do not read, 600 \
    slow bodies and 5,000 rules more, with the bounds of a container of 256 MiB";

pub const ALL_AT_ONCE: &str = "976 calls of 250 kB without an end, 976 slow bodies at /json, 10,240 unread replies, \
    10,000 names of 490 bytes scraped, all at once";
