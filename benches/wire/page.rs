//! The debug port beside decisions: an open page, and the time of its answers while a client sends new values.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};

use crate::{
    Options,
    cases::{self, Keys, Shape},
    latency::Latencies,
    load::Callers,
    processes::Process,
};

/// Time between looks of the page at the numbers.
const SNAPSHOTS: Duration = Duration::from_secs(1);

/// Looks at the numbers for each one at the top talkers.
const SNAPSHOTS_PER_TOP: usize = 5;

/// A client that does as a browser does with the page open: it reads `/snapshot`, and `/top` now and then. Stops on
/// drop.
#[derive(Debug)]
pub struct OpenPage {
    ends: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl OpenPage {
    /// Opens the page of the debug port at `debug`.
    pub fn at(debug: SocketAddr) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = ends.clone();
        let reader = thread::spawn(move || {
            for nth in 0.. {
                let path = match nth % (SNAPSHOTS_PER_TOP + 1) {
                    0 => "/top",
                    _ => "/snapshot",
                };
                // The server may be gone before the page is.
                let _ = ask(debug, "GET", path, "");
                // In short steps, so that it stops soon.
                for _ in 0..10 {
                    if is_over.load(Relaxed) {
                        return;
                    }
                    thread::sleep(SNAPSHOTS / 10);
                }
            }
        });
        Self {
            ends,
            reader: Some(reader),
        }
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        if let Some(reader) = self.reader.take() {
            // It has nothing to report.
            let _ = reader.join();
        }
    }
}

fn request(debug: SocketAddr, method: &str, path: &str, body: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(debug)?;
    stream.set_nodelay(true)?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

/// Reads the whole answer; returns its length in bytes.
fn ask(debug: SocketAddr, method: &str, path: &str, body: &str) -> anyhow::Result<usize> {
    let mut answer = Vec::new();
    request(debug, method, path, body)?.read_to_end(&mut answer)?;
    ensure!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{method} {path}: {}",
        String::from_utf8_lossy(&answer)
    );
    Ok(answer.len())
}

const DESCRIPTOR: &str = r#"{"domain":"bench","descriptors":[{"entries":[
    {"key":"tenant","value":"t0"},{"key":"user","value":"00000007"}]}]}"#;

/// The requests of the page and of the commands for operators.
const QUESTIONS: [(&str, &str, &str); 7] = [
    ("GET", "/", ""),
    ("GET", "/rules", ""),
    ("GET", "/snapshot", ""),
    ("GET", "/top", ""),
    ("POST", "/explain", DESCRIPTOR),
    ("POST", "/counters/get", DESCRIPTOR),
    ("GET", "/metrics", ""),
];

/// Prints the times of answers of the debug port while clients send a million new values a minute, and of decisions
/// with and without them.
pub fn print(options: &Options) -> anyhow::Result<()> {
    /// Time between two questions: each is asked once a second, which is more than an operator does.
    const PAUSE: Duration = Duration::from_millis(125);
    /// Two connections then make more than 17,000 calls a second, a million a minute: a sleep takes some 55 µs longer.
    const REST: Duration = Duration::from_micros(15);
    let turn = Duration::from_secs_f64(options.seconds.max(10.0));
    let rules = cases::rules("[5/minute]");
    let arguments = [format!("--workers={}", options.workers)];
    let server = Process::tollgate(
        Path::new(env!("CARGO_BIN_EXE_tollgate")),
        &rules,
        &arguments,
    )?;
    let debug = server.debug.context("it has a debug port")?;
    let shape = Shape {
        streams: 2,
        connections: 2,
        keys: Keys::Spread(100_000_000),
        hits: 0,
        rest: REST,
        ..Shape::default()
    };
    let mut times = vec![Latencies::default(); QUESTIONS.len()];
    let mut bytes = [0; QUESTIONS.len()];
    let mut decisions = [Latencies::default(), Latencies::default()];
    let mut per_minute = 0.0;
    for round in 0..options.repeats {
        for is_watched in [false, true] {
            let page = is_watched.then(|| OpenPage::at(debug));
            let callers = Callers::start(server.address, shape, false, None)?;
            callers.warm_up();
            callers.measure();
            let began = Instant::now();
            let before = callers.done();
            for nth in round.. {
                if began.elapsed() > turn {
                    break;
                }
                thread::sleep(PAUSE);
                if is_watched {
                    let index = nth % QUESTIONS.len();
                    let (method, path, body) = QUESTIONS[index];
                    let asked = Instant::now();
                    bytes[index] = ask(debug, method, path, body)?;
                    times[index].record(u64::try_from(asked.elapsed().as_nanos())?);
                }
            }
            per_minute = (callers.done() - before) as f64 / began.elapsed().as_secs_f64() * 60.0;
            let answers = callers.stop()?;
            decisions[usize::from(is_watched)].absorb(&answers.latencies);
            drop(page);
        }
    }
    println!("{:.1} million new values a minute", per_minute / 1e6);
    println!("{:<34} {:>9} {:>9} {:>9}", "", "p50 µs", "p99 µs", "bytes");
    for (((method, path, _), times), bytes) in QUESTIONS.iter().zip(&times).zip(bytes) {
        let [p50, p99] = [0.5, 0.99].map(|share| times.quantile_micros(share));
        let question = format!("{method} {path}");
        println!("{question:<34} {p50:>9.0} {p99:>9.0} {bytes:>9}");
    }
    for (name, times) in [
        "decisions, debug port unused",
        "decisions, debug port in use",
    ]
    .iter()
    .zip(&decisions)
    {
        let [p50, p99] = [0.5, 0.99].map(|share| times.quantile_micros(share));
        println!("{name:<34} {p50:>9.1} {p99:>9.1}");
    }
    Ok(())
}
