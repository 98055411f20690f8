//! Load that continues during a fault, and the observations of its callers.
//!
//! The server shares its cores with the callers, so they are cheap: each connection is a thread that writes at once
//! all due requests, in frames made beforehand, and reads all available data.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use ::tollgate::{SHOULD_RATE_LIMIT, proto::envoy::service::ratelimit::v3::RateLimitResponse};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
};
use prost::Message as _;
use tokio::sync::oneshot;

use super::{
    PATIENCE,
    ask::{self, descriptor, request},
};

/// The benchmark's writer of frames and reader of headers.
#[path = "../../../benches/wire/frames.rs"]
mod frames;
#[path = "../../../benches/wire/hpack.rs"]
mod hpack;

use frames::{
    ACK, DATA, END_HEADERS, END_STREAM, FRAME_HEADER, GOAWAY, HEADERS, PING, RESET, SETTINGS,
    frame, hello,
};

pub const STREAMS: usize = 64;

/// Connections of all callers together, unless there are more servers.
const CONNECTIONS: usize = 4;

/// Time between two requests of a caller: the storm measures how long answers take, and not how many a busy machine
/// can give.
pub const PERIOD: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    pub took: Duration,
    pub what: What,
    pub is_degraded: bool,
}

impl Seen {
    fn lacked_store(&self) -> bool {
        self.is_degraded || matches!(self.what, What::Error(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Ok,
    OverLimit,
    Error(&'static str),
}

/// 64 callers on four connections, distributed over the servers. Each sends at fixed times, which are spread evenly
/// among the callers. A caller that still waits for an answer at such a time skips it, and [`Answers::quantile`]
/// corrects for that.
#[derive(Debug)]
pub struct Storm {
    over: Arc<AtomicBool>,
    seen: oneshot::Receiver<Vec<Seen>>,
}

impl Storm {
    /// Starts callers that each use one of `values`, in turn. Returns once all are connected.
    pub fn start(servers: &[SocketAddr], values: &[&str]) -> Self {
        Self::with_timeout(servers, values, PERIOD, None)
    }

    pub fn with_timeout(
        servers: &[SocketAddr],
        values: &[&str],
        period: Duration,
        timeout: Option<&str>,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let count = CONNECTIONS.max(servers.len());
        let begins = Instant::now();
        let lines = (0..count).map(|number| {
            let own = (number..STREAMS).step_by(count);
            let callers = own.map(|caller| {
                let offset = period * u32::try_from(caller).unwrap() / 64;
                Caller::new(values[caller % values.len()], timeout, begins + offset)
            });
            let server = servers[number % servers.len()];
            let mut line = Line::connect(server, callers.collect()).expect("the server accepts");
            let over = over.clone();
            thread::spawn(move || line.run(period, &over).expect("the server answers"))
        });
        let lines: Vec<_> = lines.collect();
        let (answer, seen) = oneshot::channel();
        thread::spawn(move || {
            // A thread that panicked has printed why; then no answers are sent.
            let seen: Result<Vec<_>, _> = lines.into_iter().map(thread::JoinHandle::join).collect();
            seen.map(|seen| answer.send(seen.concat()))
        });
        Self { over, seen }
    }

    pub async fn end(self) -> Answers {
        self.over.store(true, Relaxed);
        let mut seen = self.seen.await.expect("all connections stood");
        seen.sort_by_key(|seen| seen.at);
        Answers(seen)
    }
}

#[derive(Debug)]
struct Caller {
    /// The bytes of a call, except for the number of its stream.
    frames: Vec<u8>,
    due: Instant,
    is_waiting: bool,
}

impl Caller {
    /// A caller for `value`. Headers are written out each time, without the dynamic table.
    fn new(value: &str, timeout: Option<&str>, due: Instant) -> Self {
        // POST and http are in the static table.
        let mut head = vec![0x83, 0x86];
        let headers = [
            (":authority", "chaos"),
            (":path", SHOULD_RATE_LIMIT),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        let timeout = timeout.map(|timeout| ("grpc-timeout", timeout));
        for (name, value) in headers.into_iter().chain(timeout) {
            head.push(0);
            for text in [name, value] {
                head.push(u8::try_from(text.len()).unwrap());
                head.extend(text.bytes());
            }
        }
        let message = request("d", vec![descriptor(&[("k", value)])]).encode_to_vec();
        let mut body = vec![0];
        body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend(message);
        let mut frames = Vec::new();
        frame(&mut frames, HEADERS, END_HEADERS, &head);
        frame(&mut frames, DATA, END_STREAM, &body);
        Self {
            frames,
            due,
            is_waiting: false,
        }
    }
}

#[derive(Debug)]
struct Line {
    socket: TcpStream,
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    headers: hpack::Decoder,
    callers: Vec<Caller>,
    calls: HashMap<u32, Call>,
    next_stream: u32,
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Call {
    caller: usize,
    at: Instant,
    body: Vec<u8>,
    status: Option<Vec<u8>>,
    message: Vec<u8>,
}

impl Line {
    fn connect(server: SocketAddr, callers: Vec<Caller>) -> io::Result<Self> {
        let mut socket = TcpStream::connect(server)?;
        socket.set_nodelay(true)?;
        socket.write_all(&hello())?;
        Ok(Self {
            socket,
            inbound: Vec::new(),
            outbound: Vec::new(),
            headers: hpack::Decoder::default(),
            callers,
            calls: HashMap::new(),
            next_stream: 1,
            seen: Vec::new(),
        })
    }

    fn run(&mut self, period: Duration, over: &AtomicBool) -> io::Result<Vec<Seen>> {
        let mut heard = Instant::now();
        loop {
            let is_over = over.load(Relaxed);
            if is_over && self.calls.is_empty() {
                return Ok(std::mem::take(&mut self.seen));
            }
            if !is_over {
                self.ask(period);
            }
            self.socket.write_all(&self.outbound)?;
            self.outbound.clear();
            let idle = self.callers.iter().filter(|caller| !caller.is_waiting);
            let next = idle.map(|caller| caller.due).min();
            let pause = next.map_or(period, |due| due.saturating_duration_since(Instant::now()));
            if self.is_readable(if is_over { period } else { pause })? {
                self.read()?;
                heard = Instant::now();
            } else if !self.calls.is_empty() && heard.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    fn ask(&mut self, period: Duration) {
        let now = Instant::now();
        for (number, caller) in self.callers.iter_mut().enumerate() {
            if caller.is_waiting || caller.due > now {
                continue;
            }
            while caller.due <= now {
                caller.due += period;
            }
            caller.is_waiting = true;
            let stream = self.next_stream;
            self.next_stream += 2;
            let mut rest = caller.frames.as_slice();
            while !rest.is_empty() {
                let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
                let (one, others) = rest.split_at(FRAME_HEADER + length);
                self.outbound.extend(&one[..5]);
                self.outbound.extend(stream.to_be_bytes());
                self.outbound.extend(&one[FRAME_HEADER..]);
                rest = others;
            }
            let call = Call {
                caller: number,
                at: now,
                body: Vec::new(),
                status: None,
                message: Vec::new(),
            };
            self.calls.insert(stream, call);
        }
    }

    fn is_readable(&self, pause: Duration) -> io::Result<bool> {
        let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut polled, Some(pause.into()), None) {
            Ok(count) => Ok(count > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        let count = self.socket.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let now = Instant::now();
        self.inbound.extend(&buffer[..count]);
        let inbound = std::mem::take(&mut self.inbound);
        let mut rest = inbound.as_slice();
        while let Some((head, others)) = rest.split_at_checked(FRAME_HEADER) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some((payload, others)) = others.split_at_checked(length) else {
                break;
            };
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            self.frame(head[3], head[4], stream, payload, now);
            rest = others;
        }
        self.inbound = rest.to_vec();
        Ok(())
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8], now: Instant) {
        match kind {
            HEADERS => {
                assert_ne!(flags & END_HEADERS, 0, "headers in several frames");
                let call = self.calls.get_mut(&stream).expect("a reply to a call");
                let see = |name: &[u8], value: &[u8]| match name {
                    b"grpc-status" => call.status = Some(value.to_vec()),
                    b"grpc-message" => call.message = value.to_vec(),
                    _ => {}
                };
                let read = self.headers.read(payload, see);
                read.expect("headers are readable");
            }
            DATA => {
                let call = self.calls.get_mut(&stream).expect("a reply to a call");
                call.body.extend(payload);
            }
            SETTINGS if flags & ACK == 0 => frame(&mut self.outbound, SETTINGS, ACK, &[]),
            PING if flags & ACK == 0 => frame(&mut self.outbound, PING, ACK, payload),
            RESET | GOAWAY => panic!("the server gave up: {payload:?}"),
            _ => {}
        }
        if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
            let call = self.calls.remove(&stream).expect("a reply to a call");
            self.callers[call.caller].is_waiting = false;
            self.seen.push(call.seen(now));
        }
    }
}

impl Call {
    fn seen(self, now: Instant) -> Seen {
        let (what, is_degraded) = match self.status.as_deref() {
            Some(b"0") => {
                // After a flag and the length.
                let reply = RateLimitResponse::decode(&self.body[5..]).expect("a reply");
                let is_degraded = ask::is_degraded(&reply);
                match ask::is_ok(&Ok(reply)) {
                    true => (What::Ok, is_degraded),
                    false => (What::OverLimit, is_degraded),
                }
            }
            Some(_) => {
                let message = String::from_utf8_lossy(&self.message).replace("%20", " ");
                let known = TEXTS.into_iter().find(|text| *text == message);
                (What::Error(known.unwrap_or("another error")), false)
            }
            None => panic!("a reply without a status"),
        };
        Seen {
            at: self.at,
            took: now - self.at,
            what,
            is_degraded,
        }
    }
}

/// The texts of all errors that a caller may see.
const TEXTS: [&str; 5] = [
    TIMEOUT,
    "the counter store is not reachable",
    "the counter store refused a command",
    "too many requests are waiting for the counter store",
    "no rate limit configuration loaded",
];
pub const TIMEOUT: &str = "the counter store did not answer in time";

#[derive(Debug)]
pub struct Answers(pub Vec<Seen>);

impl Answers {
    pub fn count(&self, what: What) -> usize {
        self.0.iter().filter(|seen| seen.what == what).count()
    }

    pub fn ok(&self) -> usize {
        self.count(What::Ok)
    }

    pub fn degraded(&self) -> Self {
        let degraded = self.0.iter().filter(|seen| seen.is_degraded);
        Self(degraded.cloned().collect())
    }

    pub fn lacks(&self) -> usize {
        self.0.iter().filter(|seen| seen.lacked_store()).count()
    }

    pub fn errors(&self) -> BTreeMap<&'static str, usize> {
        let mut errors = BTreeMap::new();
        for seen in &self.0 {
            if let What::Error(text) = seen.what {
                *errors.entry(text).or_default() += 1;
            }
        }
        errors
    }

    pub fn error_count(&self) -> usize {
        self.errors().values().sum()
    }

    pub fn longest(&self) -> Duration {
        let took = self.0.iter().map(|seen| seen.took);
        took.max().unwrap_or_default()
    }

    pub fn between(&self, from: Instant, to: Instant) -> Self {
        let within = self.0.iter().filter(|seen| (from..to).contains(&seen.at));
        Self(within.cloned().collect())
    }

    /// The time within which `share` of the answers came, for example 0.99. Requests that were skipped, because the
    /// caller still waited at their time, count as if sent: each waits from its time on. Otherwise the slowest
    /// answers would be underrepresented.
    pub fn quantile(&self, share: f64, period: Duration) -> Duration {
        let mut times = Vec::with_capacity(self.0.len());
        for seen in &self.0 {
            let mut took = seen.took;
            times.push(took);
            while took > period && !period.is_zero() {
                took -= period;
                times.push(took);
            }
        }
        times.sort_unstable();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place among some thousand answers"
        )]
        let at = (times.len() as f64 * share) as usize;
        let at = at.min(times.len().saturating_sub(1));
        times.get(at).copied().unwrap_or_default()
    }

    pub fn first_lack(&self, moment: Instant) -> Option<Instant> {
        let lacking = self.0.iter().filter(|seen| seen.lacked_store());
        let ended = lacking.map(|seen| seen.at + seen.took);
        ended.filter(|ended| *ended >= moment).min()
    }

    pub fn under_way(&self, from: Instant, to: Instant) -> Self {
        let is_under_way = |seen: &&Seen| seen.at < to && seen.at + seen.took >= from;
        Self(self.0.iter().filter(is_under_way).cloned().collect())
    }

    /// Time from `moment` until the store made a decision again; `None` if it made none.
    pub fn recovery(&self, moment: Instant) -> Option<Duration> {
        let is_decision = |seen: &&Seen| !seen.lacked_store();
        let after = self.0.iter().filter(|seen| seen.at >= moment);
        let answered = after.filter(is_decision).map(|seen| seen.at + seen.took);
        Some(answered.min()? - moment)
    }

    /// Time from `moment` until the last error or answer without the store after it.
    pub fn last_lack_after(&self, moment: Instant) -> Option<Duration> {
        let after = self.0.iter().filter(|seen| seen.at >= moment);
        let lacking = after.filter(|seen| seen.lacked_store());
        let ended = lacking.map(|seen| seen.at + seen.took);
        Some(ended.max()? - moment)
    }
}
