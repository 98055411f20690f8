//! Callers: each connection is a thread that reads all available data, counts the replies, and writes as many new
//! calls at once. Two system calls handle a whole batch, and a call is a copy of a template, so callers need far less
//! processor time than the server under test.

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use prost::Message as _;
use tollgate::{
    SHOULD_RATE_LIMIT,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
};

use crate::{
    cases::{Keys, Shape},
    cores::{self, Cores},
    frames::{
        ACK, DATA, END_HEADERS, END_STREAM, FIRST_WINDOW, FRAME_HEADER, GOAWAY, HEADERS, PING,
        RESET, SETTINGS, WINDOW, WINDOW_UPDATE, frame, hello,
    },
    hpack,
    latency::Latencies,
};

/// Longest time for a reply.
const PATIENCE: Duration = Duration::from_secs(10);

const PADDED: u8 = 8;

/// Length of the value that makes keys distinct.
const DIGITS: usize = 8;

/// Phases of the callers; the phase before these is the warm-up.
const MEASURED: u8 = 1;
const STOP: u8 = 2;

/// Running callers. They call until [`stop`](Self::stop).
#[derive(Debug)]
pub struct Callers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<anyhow::Result<Answers>>>,
}

#[derive(Debug, Default)]
struct Shared {
    phase: AtomicU8,
    /// Connections that have used every key once.
    warmed: AtomicUsize,
    done: AtomicU64,
}

/// Answers received during the measurement.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    pub latencies: Latencies,
    pub counts: Counts,
}

/// Numbers of answers by kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub ok: u64,
    pub over_limit: u64,
}

impl Counts {
    pub fn all(self) -> u64 {
        self.ok + self.over_limit
    }

    fn absorb(&mut self, other: Self) {
        self.ok += other.ok;
        self.over_limit += other.over_limit;
    }
}

impl Callers {
    /// Opens the connections, each on the core that `cores` chooses. If `is_new`, each uses every key once before it
    /// counts as warm.
    ///
    /// # Errors
    ///
    /// If the server does not accept a connection.
    pub fn start(
        server: SocketAddr,
        shape: Shape,
        is_new: bool,
        cores: Option<&Cores>,
    ) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let streams = shape.streams / shape.connections;
        let mut threads = Vec::new();
        for index in 0..shape.connections {
            // One after the other, so that the worker of each is known.
            // A slow caller would take too long for them.
            let keys = Source::new(shape.keys, index, is_new && shape.rest.is_zero());
            let mut caller = Caller::connect(server, &shape, streams, keys)?;
            caller.rest = shape.rest;
            let core = cores.map(Cores::next);
            let shared = shared.clone();
            threads.push(thread::spawn(move || {
                if let Some(core) = core {
                    cores::bind_here(core)?;
                }
                caller.run(&shared)
            }));
        }
        Ok(Self { shared, threads })
    }

    /// Waits until all connections are warm.
    pub fn warm_up(&self) {
        // The join reports why a thread has ended.
        let is_lost = || self.threads.iter().any(JoinHandle::is_finished);
        while self.shared.warmed.load(Relaxed) < self.threads.len() && !is_lost() {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts the measurement.
    pub fn measure(&self) {
        self.shared.phase.store(MEASURED, Relaxed);
    }

    /// Answers so far, including the warm-up.
    pub fn done(&self) -> u64 {
        self.shared.done.load(Relaxed)
    }

    /// Ends the calls and returns their results.
    ///
    /// # Errors
    ///
    /// If an answer was not a decision.
    pub fn stop(self) -> anyhow::Result<Answers> {
        self.shared.phase.store(STOP, Relaxed);
        let mut all = Answers::default();
        for thread in self.threads {
            let Ok(answers) = thread.join() else {
                bail!("a caller panicked");
            };
            let answers = answers?;
            all.latencies.absorb(&answers.latencies);
            all.counts.absorb(answers.counts);
        }
        Ok(all)
    }
}

/// Opens connections that send only the preface.
pub fn idle(server: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let shape = Shape::default();
    let keys = || Source::new(shape.keys, 0, false);
    (0..count)
        .map(|_| {
            let mut caller = Caller::connect(server, &shape, 1, keys())?;
            caller.once()?;
            Ok(caller.socket)
        })
        .collect()
}

/// Makes one call on a separate connection.
pub fn once(server: SocketAddr) -> anyhow::Result<()> {
    idle(server, 1).map(drop)
}

/// The source of keys.
#[derive(Debug)]
struct Source {
    keys: Keys,
    /// Keys of the first pass that have not been used yet.
    unseen: u32,
    random: u64,
}

impl Source {
    fn new(keys: Keys, index: usize, is_new: bool) -> Self {
        Self {
            keys,
            unseen: if is_new { keys.count() } else { 0 },
            random: 0x9e37_79b9_7f4a_7c15 ^ (index as u64 + 1) << 17,
        }
    }

    fn next(&mut self) -> u32 {
        if let Some(unseen) = self.unseen.checked_sub(1) {
            self.unseen = unseen;
            return unseen;
        }
        // Xorshift: cheap, and good enough to spread keys.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.keys.pick(self.random)
    }
}

/// One connection.
#[derive(Debug)]
struct Caller {
    socket: TcpStream,
    inbound: Inbound,
    outbound: Vec<u8>,
    headers: hpack::Decoder,
    template: Template,
    keys: Source,
    streams: usize,
    rest: Duration,
    /// Running calls, from `oldest` on; `None` for a call that ended out of order.
    calls: VecDeque<Option<Call>>,
    oldest: u32,
    under_way: usize,
    /// The send window, and the bytes received since the last update.
    window: i64,
    received: u32,
}

/// A running call.
#[derive(Clone, Copy, Debug)]
struct Call {
    began: Instant,
    /// The first bytes of the reply, which contain the overall code.
    reply: [u8; 8],
    length: usize,
    has_status: bool,
}

/// The bytes of a call; only the stream and the key change between calls.
#[derive(Debug)]
struct Template {
    /// The first call of a connection writes its headers out.
    first: Vec<u8>,
    later: Vec<u8>,
    /// Positions of the keys, counted from the end.
    keys: Vec<usize>,
    /// Bytes that count against the window.
    message: usize,
}

impl Template {
    fn new(descriptors: usize, hits: u64) -> Self {
        let digit = b'~';
        let entry = |key: &str, value: &[u8]| Entry {
            key: key.as_bytes().to_vec().into(),
            value: value.to_vec().into(),
        };
        let descriptor = |index: usize| RateLimitDescriptor {
            entries: vec![
                entry("tenant", format!("t{index}").as_bytes()),
                entry("user", &[digit; DIGITS]),
            ],
            hits_addend: (hits > 0).then_some(hits),
            ..RateLimitDescriptor::default()
        };
        let request = RateLimitRequest {
            domain: "bench".to_owned(),
            descriptors: (0..descriptors).map(descriptor).collect(),
            ..RateLimitRequest::default()
        };
        let mut message = vec![0];
        message.extend(
            u32::try_from(request.encoded_len())
                .unwrap_or(0)
                .to_be_bytes(),
        );
        message.extend(request.encode_to_vec());

        // POST and http are in the static table. Literal fields get an index in the server's dynamic table: the last
        // field the smallest, 0xbe.
        let mut spelled = vec![0x83, 0x86];
        let fields: [(&[u8], &[u8]); 4] = [
            (b":authority", b"bench"),
            (b":path", SHOULD_RATE_LIMIT.as_bytes()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ];
        for (name, value) in fields {
            spelled.push(0x40);
            for text in [name, value] {
                spelled.push(u8::try_from(text.len()).unwrap_or(0x7f));
                spelled.extend(text);
            }
        }
        let numbered = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
        let call = |block: &[u8]| {
            let mut call = Vec::new();
            frame(&mut call, HEADERS, END_HEADERS, block);
            frame(&mut call, DATA, END_STREAM, &message);
            call
        };
        let keys = message
            .windows(DIGITS)
            .enumerate()
            .filter(|(_, bytes)| bytes.iter().all(|&byte| byte == digit))
            .map(|(at, _)| message.len() - at);
        Self {
            keys: keys.collect(),
            first: call(&spelled),
            later: call(&numbered),
            message: message.len(),
        }
    }

    fn write(&self, stream: u32, mut key: u32, outbound: &mut Vec<u8>) {
        let template = if stream == 1 {
            &self.first
        } else {
            &self.later
        };
        let start = outbound.len();
        outbound.extend_from_slice(template);
        let end = outbound.len();
        let data = end - self.message - FRAME_HEADER;
        for at in [start, data] {
            outbound[at + 5..at + 9].copy_from_slice(&stream.to_be_bytes());
        }
        let mut digits = [b'0'; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit = b"0123456789"[(key % 10) as usize];
            key /= 10;
        }
        for at in &self.keys {
            outbound[end - at..end - at + DIGITS].copy_from_slice(&digits);
        }
    }
}

impl Caller {
    fn connect(
        server: SocketAddr,
        shape: &Shape,
        streams: usize,
        keys: Source,
    ) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(server).context("the server accepts no connection")?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            socket,
            inbound: Inbound::default(),
            outbound: hello(),
            headers: hpack::Decoder::default(),
            template: Template::new(shape.descriptors, shape.hits),
            keys,
            streams,
            rest: Duration::ZERO,
            calls: VecDeque::new(),
            oldest: 1,
            under_way: 0,
            window: FIRST_WINDOW.into(),
            received: 0,
        })
    }

    fn run(&mut self, shared: &Shared) -> anyhow::Result<Answers> {
        let mut all = Answers::default();
        let mut is_warm = false;
        loop {
            let phase = shared.phase.load(Relaxed);
            if phase == STOP {
                return Ok(all);
            }
            let mut batch = Counts::default();
            if phase == MEASURED {
                self.exchange(&mut batch, Some(&mut all.latencies))?;
                all.counts.absorb(batch);
            } else {
                self.exchange(&mut batch, None)?;
            }
            shared.done.fetch_add(batch.all(), Relaxed);
            if batch.all() > 0 && !self.rest.is_zero() {
                thread::sleep(self.rest);
            }
            if !is_warm && self.keys.unseen == 0 {
                is_warm = true;
                shared.warmed.fetch_add(1, Relaxed);
            }
        }
    }

    /// Makes one call.
    fn once(&mut self) -> anyhow::Result<()> {
        let mut batch = Counts::default();
        while batch.all() == 0 {
            self.exchange(&mut batch, None)?;
            self.streams = 0;
        }
        Ok(())
    }

    /// Writes pending bytes, and reads available ones.
    fn exchange(
        &mut self,
        batch: &mut Counts,
        latencies: Option<&mut Latencies>,
    ) -> anyhow::Result<()> {
        let now = Instant::now();
        while self.under_way < self.streams && self.window >= self.template.message as i64 {
            let stream = self.oldest + 2 * u32::try_from(self.calls.len())?;
            self.template
                .write(stream, self.keys.next(), &mut self.outbound);
            self.window -= self.template.message as i64;
            self.under_way += 1;
            self.calls.push_back(Some(Call {
                began: now,
                reply: [0; 8],
                length: 0,
                has_status: false,
            }));
        }
        self.socket.write_all(&self.outbound)?;
        self.outbound.clear();
        self.inbound
            .fill(&mut self.socket)
            .context("the server does not answer")?;
        self.take_in(batch, latencies)
    }

    fn take_in(
        &mut self,
        batch: &mut Counts,
        mut latencies: Option<&mut Latencies>,
    ) -> anyhow::Result<()> {
        let now = Instant::now();
        let mut inbound = std::mem::take(&mut self.inbound);
        while let Some((header, payload)) = inbound.next() {
            if let Some(call) = self.frame(header, payload)? {
                if call.is_over()? {
                    batch.over_limit += 1;
                } else {
                    batch.ok += 1;
                }
                if let Some(latencies) = &mut latencies {
                    let nanos = now.duration_since(call.began).as_nanos();
                    latencies.record(u64::try_from(nanos)?);
                }
            }
        }
        self.inbound = inbound;
        Ok(())
    }

    /// Handles a frame; returns the call that it ends.
    fn frame(&mut self, header: Header, payload: &[u8]) -> anyhow::Result<Option<Call>> {
        match header.kind {
            HEADERS | DATA => {
                ensure!(header.flags & PADDED == 0, "a reply is padded");
                return self.part(header, payload);
            }
            SETTINGS if header.flags & ACK == 0 => {
                for setting in payload.chunks_exact(6) {
                    // The template relies on the default table size.
                    let is_small = setting[..2] == [0, 1] && setting[2..] < [0, 0, 16, 0][..];
                    ensure!(!is_small, "the server wants a smaller table of headers");
                }
                frame(&mut self.outbound, SETTINGS, ACK, &[]);
            }
            PING if header.flags & ACK == 0 => frame(&mut self.outbound, PING, ACK, payload),
            WINDOW_UPDATE if header.stream == 0 => {
                let bytes: [u8; 4] = payload.try_into().context("a broken WINDOW_UPDATE")?;
                self.window += i64::from(u32::from_be_bytes(bytes));
            }
            RESET => bail!("the server gave up a call: {payload:?}"),
            GOAWAY => bail!("the server closes the connection: {payload:?}"),
            _ => {}
        }
        Ok(None)
    }

    /// Handles a part of a reply.
    fn part(&mut self, header: Header, payload: &[u8]) -> anyhow::Result<Option<Call>> {
        let place = header.stream.wrapping_sub(self.oldest) as usize / 2;
        let call = self.calls.get_mut(place).and_then(Option::as_mut);
        let call = call.context("a reply to no call")?;
        if header.kind == DATA {
            self.received += header.length;
            for &byte in payload {
                let Some(place) = call.reply.get_mut(call.length) else {
                    break;
                };
                *place = byte;
                call.length += 1;
            }
        } else {
            ensure!(header.flags & END_HEADERS != 0, "headers in several frames");
            let mut failure = None;
            self.headers.read(payload, |name, value| match name {
                b":status" if value != b"200" => {
                    failure = Some(format!("HTTP {}", String::from_utf8_lossy(value)));
                }
                b"grpc-status" if value == b"0" => call.has_status = true,
                b"grpc-status" => {
                    failure = Some(format!("gRPC status {}", String::from_utf8_lossy(value)));
                }
                b"grpc-message" => {
                    failure = failure
                        .take()
                        .map(|text| format!("{text}: {}", String::from_utf8_lossy(value)));
                }
                _ => {}
            })?;
            if let Some(failure) = failure {
                bail!("instead of a decision came {failure}");
            }
        }
        if self.received > WINDOW / 2 {
            let more = self.received.to_be_bytes();
            frame(&mut self.outbound, WINDOW_UPDATE, 0, &more);
            self.received = 0;
        }
        if header.flags & END_STREAM == 0 {
            return Ok(None);
        }
        self.under_way -= 1;
        let ended = self.calls[place].take();
        while let Some(None) = self.calls.front() {
            self.calls.pop_front();
            self.oldest += 2;
        }
        Ok(ended)
    }
}

impl Call {
    /// Whether the reply says OVER_LIMIT.
    fn is_over(&self) -> anyhow::Result<bool> {
        ensure!(self.has_status, "a reply without a status");
        // After gRPC's five bytes, field 1, a varint, is the overall code.
        match self.reply[..self.length] {
            [0, _, _, _, _, 0x08, 1, ..] => Ok(false),
            [0, _, _, _, _, 0x08, 2, ..] => Ok(true),
            ref other => bail!("a reply that is no decision: {other:?}"),
        }
    }
}

/// Bytes that were read but not handled yet.
#[derive(Debug, Default)]
struct Inbound {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    length: u32,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Inbound {
    /// Reads once, with room for the largest frame after the remaining bytes.
    fn fill(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        const ROOM: usize = 64 << 10;
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.bytes.len() < self.end + ROOM {
            self.bytes.resize(self.end + ROOM, 0);
        }
        match socket.read(&mut self.bytes[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }

    /// The next frame, if it is complete.
    fn next(&mut self) -> Option<(Header, &[u8])> {
        let bytes = &self.bytes[self.start..self.end];
        let (head, rest) = bytes.split_at_checked(FRAME_HEADER)?;
        let header = Header {
            length: u32::from_be_bytes([0, head[0], head[1], head[2]]),
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & WINDOW,
        };
        let payload = rest.get(..header.length as usize)?;
        self.start += FRAME_HEADER + payload.len();
        Some((header, payload))
    }
}
