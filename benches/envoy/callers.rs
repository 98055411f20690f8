//! Callers: they send HTTP/1.1 requests to Envoy over connections that stay open. Each caller is a thread that writes
//! on every connection that is due and reads all available data, so that callers need far less processor time than
//! Envoy.

use std::{
    collections::VecDeque,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
};

use crate::{PATIENCE, latency::Latencies};

/// Interval at which callers check whether to stop.
const GLANCE: Duration = Duration::from_millis(100);

/// Phases of the callers.
const WARM_UP: u8 = 0;
const MEASURED: u8 = 1;
const STOP: u8 = 2;

/// The load of the callers.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub connections: usize,
    /// Requests a second at fixed times; `None` means that each connection sends again as soon as it has its answer.
    pub rate: Option<f64>,
    /// Number of values of the limited header.
    pub keys: u32,
}

/// Running callers. They call until [`stop`](Self::stop).
#[derive(Debug)]
pub struct Callers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<anyhow::Result<Answers>>>,
}

#[derive(Debug, Default)]
struct Shared {
    phase: AtomicU8,
    done: AtomicU64,
}

/// The answers received.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Of the measurement only.
    pub latencies: Latencies,
    /// All answers, including those before the measurement.
    pub count: u64,
}

impl Callers {
    /// Opens the connections and begins to call.
    ///
    /// # Errors
    ///
    /// If Envoy does not accept a connection.
    pub fn start(envoy: SocketAddr, load: Load) -> anyhow::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, Into::into);
        let count = load.connections.min(cores);
        let mut callers = Vec::new();
        for index in 0..count {
            let connections = (index..load.connections)
                .step_by(count)
                .map(|_| Connection::open(envoy))
                .collect::<anyhow::Result<Vec<_>>>()?;
            callers.push(Caller {
                idle: (0..connections.len()).collect(),
                connections,
                schedule: None,
                key: index as u64 * u64::from(load.keys) / count as u64,
                keys: load.keys.into(),
            });
        }
        let shared = Arc::new(Shared::default());
        let begin = Instant::now();
        let threads = callers.into_iter().enumerate().map(|(index, mut caller)| {
            // The callers take turns.
            caller.schedule = load.rate.map(|rate| Schedule {
                begin: begin + Duration::from_secs_f64(index as f64 / rate),
                interval_secs: count as f64 / rate,
                sent: 0,
            });
            let shared = shared.clone();
            thread::spawn(move || caller.run(&shared))
        });
        Ok(Self {
            threads: threads.collect(),
            shared,
        })
    }

    /// Starts the measurement.
    pub fn measure(&self) {
        self.shared.phase.store(MEASURED, Relaxed);
    }

    /// Answers so far.
    pub fn done(&self) -> u64 {
        self.shared.done.load(Relaxed)
    }

    /// Sends nothing more, waits for the running answers and returns the totals.
    ///
    /// # Errors
    ///
    /// If an answer was not the upstream's.
    pub fn stop(self) -> anyhow::Result<Answers> {
        self.shared.phase.store(STOP, Relaxed);
        let mut all = Answers::default();
        for thread in self.threads {
            let Ok(answers) = thread.join() else {
                bail!("a caller panicked");
            };
            let answers = answers?;
            all.latencies.absorb(&answers.latencies);
            all.count += answers.count;
        }
        Ok(all)
    }
}

/// The times at which one caller sends.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    begin: Instant,
    interval_secs: f64,
    sent: u64,
}

impl Schedule {
    /// The time of the next request.
    fn next(&self) -> Instant {
        self.begin + Duration::from_secs_f64(self.sent as f64 * self.interval_secs)
    }
}

#[derive(Debug)]
struct Caller {
    connections: Vec<Connection>,
    /// Indices of connections without a running request. The one that has been idle longest is next, so that all
    /// workers of Envoy are used.
    idle: VecDeque<usize>,
    schedule: Option<Schedule>,
    key: u64,
    keys: u64,
}

impl Caller {
    fn run(&mut self, shared: &Shared) -> anyhow::Result<Answers> {
        let mut answers = Answers::default();
        let mut heard = Instant::now();
        loop {
            let phase = shared.phase.load(Relaxed);
            if phase != STOP {
                self.send()?;
            } else if self.idle.len() == self.connections.len() {
                self.give_up(&mut answers.latencies);
                return Ok(answers);
            }
            let readable = self.wait(phase)?;
            let now = Instant::now();
            if !readable.is_empty() || self.idle.len() == self.connections.len() {
                heard = now;
            }
            ensure!(now - heard < PATIENCE, "Envoy does not answer");
            let mut count = 0;
            for place in readable {
                if let Some(began) = self.connections[place].read()? {
                    self.idle.push_back(place);
                    count += 1;
                    if phase != WARM_UP {
                        record(&mut answers.latencies, now - began);
                    }
                }
            }
            answers.count += count;
            shared.done.fetch_add(count, Relaxed);
        }
    }

    /// Sends requests that are due, as long as a connection is free.
    fn send(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        while let Some(&place) = self.idle.front() {
            let began = match &mut self.schedule {
                None => now,
                Some(schedule) if schedule.next() <= now => {
                    let due = schedule.next();
                    schedule.sent += 1;
                    due
                }
                Some(_) => break,
            };
            self.idle.pop_front();
            self.key = (self.key + 1) % self.keys;
            self.connections[place].send(self.key, began)?;
        }
        Ok(())
    }

    /// Counts each due request that found no free connection with its waiting time so far: leaving it out would make
    /// slow answers look rare.
    fn give_up(&mut self, latencies: &mut Latencies) {
        let now = Instant::now();
        if let Some(schedule) = &mut self.schedule {
            while schedule.next() < now {
                record(latencies, now - schedule.next());
                schedule.sent += 1;
            }
        }
    }

    /// Waits until an answer arrives or a request is due; returns the connections with answers.
    fn wait(&self, phase: u8) -> anyhow::Result<Vec<usize>> {
        let pause = match &self.schedule {
            Some(schedule) if phase != STOP && !self.idle.is_empty() => {
                let due = schedule.next();
                due.saturating_duration_since(Instant::now()).min(GLANCE)
            }
            _ => GLANCE,
        };
        let waiting = self.connections.iter().enumerate();
        let waiting = waiting.filter(|(_, connection)| connection.began.is_some());
        let (places, mut polled): (Vec<_>, Vec<_>) = waiting
            .map(|(place, connection)| {
                let socket = connection.socket.as_fd();
                (place, PollFd::new(socket, PollFlags::POLLIN))
            })
            .unzip();
        match ppoll(&mut polled, Some(pause.into()), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let answered = |poll: &PollFd<'_>| poll.any().unwrap_or(true);
        let readable = places.into_iter().zip(&polled);
        Ok(readable
            .filter(|(_, poll)| answered(poll))
            .map(|(place, _)| place)
            .collect())
    }
}

fn record(latencies: &mut Latencies, time: Duration) {
    latencies.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// A connection with at most one running request.
#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    /// When the running request was sent, or was due.
    began: Option<Instant>,
    inbound: Vec<u8>,
}

impl Connection {
    fn open(envoy: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(envoy).context("Envoy accepts no connection")?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            began: None,
            inbound: Vec::new(),
        })
    }

    fn send(&mut self, key: u64, began: Instant) -> anyhow::Result<()> {
        let request = format!("GET / HTTP/1.1\r\nhost: bench\r\nx-user: u{key}\r\n\r\n");
        self.socket.write_all(request.as_bytes())?;
        self.began = Some(began);
        Ok(())
    }

    /// Reads available data; returns the request's start if its answer is now complete.
    fn read(&mut self) -> anyhow::Result<Option<Instant>> {
        let mut bytes = [0; 4 << 10];
        let count = self.socket.read(&mut bytes)?;
        ensure!(count > 0, "Envoy closed a connection");
        self.inbound.extend_from_slice(&bytes[..count]);
        if !is_whole(&self.inbound)? {
            return Ok(None);
        }
        self.inbound.clear();
        Ok(self.began.take())
    }
}

/// Whether an answer is complete.
///
/// # Errors
///
/// If it is not the upstream's answer.
fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(end) = answer.windows(END.len()).position(|bytes| bytes == END) else {
        return Ok(false);
    };
    let head = std::str::from_utf8(&answer[..end]).context("headers that are no text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    ensure!(status == "HTTP/1.1 200 OK", "Envoy answered: {status}");
    let length = lines
        .find_map(|line| line.strip_prefix("content-length: "))
        .context("an answer without a length")?;
    let whole = end + END.len() + length.parse::<usize>()?;
    ensure!(answer.len() <= whole, "an answer that is too long");
    Ok(answer.len() == whole)
}
