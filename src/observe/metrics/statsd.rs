//! Sends statistics to a statsd or DogStatsD collector, as lines of text.
//!
//! A collector that is slow, down or unknown to the resolver delays nothing: the sink retries, and the log reports
//! the failure once. Lines that do not fit the queue are not lost, because the totals stay and a later flush sends
//! the whole difference.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    convert::Infallible,
    fmt::Write as _,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::Interest,
    net::{TcpStream, UdpSocket, lookup_host},
    sync::Notify,
    time::{Interval, MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    mogrifier::{Mogrified, Mogrifier, mogrify},
    sample::{Sample, SampleKind, SampleValue, TimerValues, breaks_line},
};

/// Destination, format and interval.
#[derive(Clone, Debug)]
pub struct Options {
    pub host: String,
    pub port: u16,
    pub transport: Transport,
    pub dialect: Dialect,
    /// EXTRA_TAGS, added to every line.
    pub extra_tags: Vec<(String, String)>,
    pub flush_interval: Duration,
}

/// STATSD_PROTOCOL. DogStatsD agents listen on UDP only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

/// The syntax of tags.
#[derive(Clone, Debug)]
pub enum Dialect {
    /// Within the name: `name.__tag=value:1|c`.
    Statsd,
    /// After the value, `name:1|c|#tag:value`; the rules rewrite the name first.
    DogStatsd(Vec<Mogrifier>),
}

/// Bound on lines queued for a slow or absent collector, as in the reference. Metrics beyond it keep counting and
/// become lines once the queue is empty.
pub const MAX_QUEUED_BYTES: usize = 4 << 20;

/// Size that fits one Ethernet frame with the headers of IPv6, UDP and a tunnel; statsd clients agree on it.
pub const MAX_DATAGRAM_BYTES: usize = 1432;

/// Wait before the next attempt to connect, as in the reference.
const RECONNECT: Duration = Duration::from_secs(3);

/// A resolver or a collector that takes longer than this counts as down.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Counts of lines that could not be sent at once.
#[derive(Debug, Default)]
pub struct SinkStats {
    /// Lines that no collector received, as far as we know: cut in two when a connection broke, in a refused
    /// datagram, or longer than a datagram.
    pub lost_lines: AtomicU64,
    /// Metrics that found the queue full and waited until it was empty; none is lost.
    pub deferred: AtomicU64,
}

/// Sends statistics to one collector. [`Sink::run`] does the work.
#[derive(Debug)]
pub struct Sink {
    options: Options,
    stats: Arc<SinkStats>,
    reconnect: Duration,
}

impl Sink {
    pub fn new(options: Options) -> Self {
        Self {
            options,
            stats: Arc::default(),
            reconnect: RECONNECT,
        }
    }

    pub fn stats(&self) -> Arc<SinkStats> {
        self.stats.clone()
    }

    /// Sends a snapshot every flush interval until dropped. Dropping loses the counts since the last flush and the
    /// queue.
    pub async fn run(self, snapshot: impl Fn() -> Vec<Sample>) -> Infallible {
        let flusher = Flusher::new(&self.options.dialect, &self.options.extra_tags);
        match self.options.transport {
            Transport::Tcp => self.run_tcp(flusher, snapshot).await,
            Transport::Udp => self.run_udp(flusher, snapshot).await,
        }
    }

    async fn run_tcp(self, mut flusher: Flusher, snapshot: impl Fn() -> Vec<Sample>) -> Infallible {
        let queue = LineQueue::default();
        let mut ticks = ticks(self.options.flush_interval);
        let fill = async {
            loop {
                ticks.tick().await;
                let samples = snapshot();
                while !self.fill(&queue, &mut flusher, &samples) {
                    queue.emptied().await;
                }
            }
        };
        let drain = async {
            let mut link = CollectorState::new(&self.options);
            loop {
                let error = match self.connect().await {
                    Ok(stream) => {
                        link.report(None);
                        let error = queue.send(&stream).await;
                        if queue.drop_rest_of_line() {
                            self.stats.lost_lines.fetch_add(1, Relaxed);
                        }
                        error
                    }
                    Err(error) => error,
                };
                link.report(Some(&error));
                sleep(self.reconnect).await;
            }
        };
        tokio::select! {
            never = fill => never,
            never = drain => never,
        }
    }

    /// Queues new lines; returns whether all of them fit.
    fn fill(&self, queue: &LineQueue, flusher: &mut Flusher, samples: &[Sample]) -> bool {
        let mut deferred = 0;
        flusher.flush(samples, |lines| {
            let has_room = queue.push(lines);
            deferred += u64::from(!has_room);
            has_room
        });
        self.stats.deferred.fetch_add(deferred, Relaxed);
        deferred == 0
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let target = (self.options.host.as_str(), self.options.port);
        timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await?
    }

    async fn run_udp(self, mut flusher: Flusher, snapshot: impl Fn() -> Vec<Sample>) -> Infallible {
        let mut link = CollectorState::new(&self.options);
        let mut ticks = ticks(self.options.flush_interval);
        let mut socket = None;
        loop {
            ticks.tick().await;
            // The name is resolved every time: collectors move, and datagrams report no failure.
            let target = match self.resolve().await {
                Ok(target) => target,
                Err(error) => {
                    link.report(Some(&error));
                    continue;
                }
            };
            let connected = match socket.take() {
                Some((to, connected)) if to == target => connected,
                _ => match connect_udp(target).await {
                    Ok(connected) => connected,
                    Err(error) => {
                        link.report(Some(&error));
                        continue;
                    }
                },
            };
            let mut datagrams = Datagrams::default();
            flusher.flush(&snapshot(), |lines| {
                datagrams.push(lines);
                true
            });
            let mut lost = datagrams.overlong;
            let mut failure = None;
            for datagram in datagrams.full {
                if let Err(error) = send_datagram(&connected, &datagram).await {
                    lost += datagram.lines().count() as u64;
                    failure = Some(error);
                }
            }
            self.stats.lost_lines.fetch_add(lost, Relaxed);
            link.report(failure.as_ref());
            socket = Some((target, connected));
        }
    }

    async fn resolve(&self) -> io::Result<SocketAddr> {
        let target = (self.options.host.as_str(), self.options.port);
        let mut found = timeout(CONNECT_TIMEOUT, lookup_host(target)).await??;
        found
            .next()
            .ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
    }
}

async fn connect_udp(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if target.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// Sends a datagram. It also returns an error about an earlier datagram, but only after sending this one.
async fn send_datagram(socket: &UdpSocket, datagram: &str) -> io::Result<()> {
    match socket.send(datagram.as_bytes()).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            socket.send(datagram.as_bytes()).await?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

fn ticks(every: Duration) -> Interval {
    // A zero interval would panic.
    let mut ticks = interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Logs when a collector becomes reachable or unreachable, not that it still is.
struct CollectorState {
    target: String,
    is_up: Option<bool>,
}

impl CollectorState {
    fn new(options: &Options) -> Self {
        Self {
            target: format!("{}:{}", options.host, options.port),
            is_up: None,
        }
    }

    fn report(&mut self, failure: Option<&io::Error>) {
        let was_up = self.is_up.replace(failure.is_none());
        match failure {
            None if was_up != Some(true) => {
                tracing::info!(target = %self.target, "statsd collector reached");
            }
            Some(error) if was_up != Some(false) => {
                tracing::warn!(target = %self.target, %error, "statsd collector not reached");
            }
            _ => {}
        }
    }
}

/// Lines waiting for a stream.
#[derive(Debug, Default)]
struct LineQueue {
    bytes: Mutex<QueuedBytes>,
    has_more: Notify,
    is_empty: Notify,
}

#[derive(Debug, Default)]
struct QueuedBytes {
    waiting: VecDeque<u8>,
    /// Whether the first line has been sent partly.
    is_in_line: bool,
}

impl LineQueue {
    fn lock(&self) -> MutexGuard<'_, QueuedBytes> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues all of the lines or none; returns whether they fit.
    fn push(&self, lines: &str) -> bool {
        let mut bytes = self.lock();
        if bytes.waiting.len() + lines.len() > MAX_QUEUED_BYTES {
            return false;
        }
        bytes.waiting.extend(lines.as_bytes());
        self.has_more.notify_one();
        true
    }

    async fn emptied(&self) {
        while !self.lock().waiting.is_empty() {
            self.is_empty.notified().await;
        }
    }

    /// Sends until the stream breaks; returns the error.
    async fn send(&self, stream: &TcpStream) -> io::Error {
        loop {
            match self.send_some(stream).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return error,
            }
        }
    }

    async fn send_some(&self, stream: &TcpStream) -> io::Result<()> {
        let is_idle = self.lock().waiting.is_empty();
        let interest = if is_idle {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        let ready = tokio::select! {
            ready = stream.ready(interest) => ready?,
            () = self.has_more.notified(), if is_idle => return Ok(()),
        };
        // Collectors send nothing; reading detects a closed connection before a flush is lost.
        if ready.is_readable() {
            match stream.try_read(&mut [0; 256]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if ready.is_writable() {
            let mut bytes = self.lock();
            let sent = stream.try_write(bytes.waiting.as_slices().0)?;
            bytes.forget(sent);
            if bytes.waiting.is_empty() {
                self.is_empty.notify_one();
            }
        }
        Ok(())
    }

    /// Drops the rest of a partly sent line, because a new connection would make it a line of its own. Returns
    /// whether there was one.
    fn drop_rest_of_line(&self) -> bool {
        let mut bytes = self.lock();
        let was_in_line = bytes.is_in_line;
        if was_in_line {
            let rest = bytes.waiting.iter().position(|&byte| byte == b'\n');
            let rest = rest.map_or(bytes.waiting.len(), |end| end + 1);
            bytes.forget(rest);
            if bytes.waiting.is_empty() {
                self.is_empty.notify_one();
            }
        }
        was_in_line
    }
}

impl QueuedBytes {
    fn forget(&mut self, count: usize) {
        if let Some(last) = self.waiting.drain(..count).next_back() {
            self.is_in_line = last != b'\n';
        }
        // Returns the memory after an outage.
        if self.waiting.is_empty() {
            self.waiting.shrink_to(MAX_DATAGRAM_BYTES);
        }
    }
}

/// Whole lines, packed into as few datagrams as possible.
#[derive(Debug, Default)]
struct Datagrams {
    full: Vec<String>,
    /// Lines that are longer than a datagram.
    overlong: u64,
}

impl Datagrams {
    fn push(&mut self, lines: &str) {
        for line in lines.split_inclusive('\n') {
            match self.full.last_mut() {
                _ if line.len() > MAX_DATAGRAM_BYTES => self.overlong += 1,
                Some(last) if last.len() + line.len() <= MAX_DATAGRAM_BYTES => last.push_str(line),
                _ => self.full.push(line.to_owned()),
            }
        }
    }
}

/// Turns snapshots into lines with the changes since the last snapshot.
#[derive(Debug)]
pub struct Flusher {
    dialect: Dialect,
    /// Sorted, as in the reference's lines.
    extra_tags: BTreeMap<String, String>,
    known: HashMap<String, SentMetric>,
    round: u64,
}

/// A metric of the last snapshot.
#[derive(Debug)]
struct SentMetric {
    /// Number of the last snapshot that contained it.
    round: u64,
    value: SampleValue,
    /// The value as last sent.
    sent: SampleValue,
    /// Text of a line before `:`, and after the type.
    name: Box<str>,
    tags: Box<str>,
}

impl Flusher {
    pub fn new(dialect: &Dialect, extra_tags: &[(String, String)]) -> Self {
        Self {
            dialect: dialect.clone(),
            extra_tags: extra_tags.iter().cloned().collect(),
            known: HashMap::new(),
            round: 0,
        }
    }

    /// Offers changes to `take`: all lines of one metric at a time, in no order. Metrics that `take` refuses are
    /// offered again by a later flush.
    ///
    /// Counters and timers of equal names are added up. A name that is missing from a snapshot is forgotten; if it
    /// returns it starts from zero.
    pub fn flush(&mut self, samples: &[Sample], mut take: impl FnMut(&str) -> bool) {
        self.round += 1;
        for sample in samples {
            self.learn(sample);
        }
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
        let mut lines = String::new();
        for known in self.known.values_mut() {
            lines.clear();
            known.write(&mut lines);
            if !lines.is_empty() && take(&lines) {
                known.sent = known.value.clone();
            }
        }
    }

    fn learn(&mut self, sample: &Sample) {
        let round = self.round;
        let Some(known) = self.known.get_mut(&sample.name) else {
            let (name, tags) = self.form(&sample.name);
            let known = SentMetric {
                round,
                value: sample.value.clone(),
                sent: nothing(sample.value.kind()),
                name,
                tags,
            };
            self.known.insert(sample.name.clone(), known);
            return;
        };
        let is_second = std::mem::replace(&mut known.round, round) == round;
        match (&mut known.value, &sample.value) {
            (SampleValue::Counter(total), SampleValue::Counter(more)) if is_second => {
                *total += more
            }
            (SampleValue::Timer(values), SampleValue::Timer(more)) if is_second => values.add(more),
            (value, sampled) => *value = sampled.clone(),
        }
        if known.sent.kind() != known.value.kind() {
            known.sent = nothing(known.value.kind());
        }
    }

    /// A name in the collector's dialect: the texts before `:` and after the type.
    fn form(&self, name: &str) -> (Box<str>, Box<str>) {
        match &self.dialect {
            Dialect::Statsd => {
                let mut name = clean(name, breaks_line);
                for (key, value) in &self.extra_tags {
                    let (key, value) = (clean(key, breaks_line), clean(value, breaks_line));
                    let _ = write!(name, ".__{key}={value}");
                }
                (name.into(), Box::default())
            }
            Dialect::DogStatsd(rules) => {
                let (name, own) = split_tags(name);
                let Mogrified { name, tags: found } =
                    mogrify(rules, &name).unwrap_or_else(|| Mogrified {
                        name,
                        tags: Vec::new(),
                    });
                let mut tags = self.extra_tags.clone();
                tags.extend(own);
                tags.extend(found);
                let mut text = String::new();
                for (key, value) in &tags {
                    let separator = if text.is_empty() { "|#" } else { "," };
                    let key = clean(key, |found| found == ',' || breaks_line(found));
                    // The first colon ends the key; later ones belong to the value.
                    let value = clean(value, |found| {
                        found == ',' || found != ':' && breaks_line(found)
                    });
                    let _ = write!(text, "{separator}{key}:{value}");
                }
                (clean(&name, breaks_line).into(), text.into())
            }
        }
    }
}

fn clean(text: &str, is_unfit: impl Fn(char) -> bool) -> String {
    text.chars()
        .map(|found| if is_unfit(found) { '_' } else { found })
        .collect()
}

/// Extracts the tags from a name of the form `name.__tag=value`.
fn split_tags(name: &str) -> (String, Vec<(String, String)>) {
    let mut parts = name.split(".__");
    let mut bare = parts.next().unwrap_or_default().to_owned();
    let mut tags = Vec::new();
    for part in parts {
        match part.split_once('=') {
            Some((key, value)) if !key.is_empty() => tags.push((key.to_owned(), value.to_owned())),
            _ => {
                bare.push_str(".__");
                bare.push_str(part);
            }
        }
    }
    (bare, tags)
}

fn nothing(kind: SampleKind) -> SampleValue {
    match kind {
        SampleKind::Counter => SampleValue::Counter(0),
        SampleKind::Gauge => SampleValue::Gauge(0),
        SampleKind::Timer => SampleValue::Timer(Box::default()),
    }
}

impl SentMetric {
    /// Writes the part of the value that has not been sent.
    fn write(&self, lines: &mut String) {
        let Self { name, tags, .. } = self;
        match (&self.value, &self.sent) {
            (SampleValue::Counter(total), SampleValue::Counter(sent)) => {
                // A total that shrank has been reset.
                let delta = total.checked_sub(*sent).unwrap_or(*total);
                if delta > 0 {
                    let _ = writeln!(lines, "{name}:{delta}|c{tags}");
                }
            }
            (SampleValue::Gauge(now), _) => {
                let _ = writeln!(lines, "{name}:{now}|g{tags}");
            }
            (SampleValue::Timer(values), SampleValue::Timer(sent)) => {
                write_timer(lines, name, &values.since(sent), tags);
            }
            (SampleValue::Counter(_) | SampleValue::Timer(_), _) => {
                unreachable!("what was sent is of the value's kind")
            }
        }
    }
}

/// Writes a line for every bucket that contains durations: the bucket's middle, with the sample rate that makes it
/// stand for all of them.
///
/// The reference sends every duration on a line of its own. Collectors that apply the rate, as all the usual ones do,
/// get an equal count and sum and nearly equal percentiles; one mean per flush would look like a single call of
/// average length. Values are fractions of milliseconds, which the protocol allows and fast replies need.
fn write_timer(lines: &mut String, name: &str, values: &TimerValues, tags: &str) {
    let middles: f64 = values
        .middles()
        .map(|(middle, count)| middle * count as f64)
        .sum();
    // All values are scaled by one factor, so that the sum is exact; so is a single value.
    let stretch = values.sum_micros() as f64 / middles;
    for (middle, count) in values.middles() {
        let millis = middle * stretch / 1_000.0;
        // To the nanosecond: further digits are noise.
        let millis = (millis * 1e6).round() / 1e6;
        let _ = write!(lines, "{name}:{millis}|ms");
        if count > 1 {
            let _ = write!(lines, "|@{}", rate(count));
        }
        lines.push_str(tags);
        lines.push('\n');
    }
}

/// The sample rate of a line that stands for `count` durations. Never above 1 / `count`: a collector that divides and
/// truncates would count one less.
fn rate(count: u64) -> f64 {
    let rate = 1.0 / count as f64;
    if 1.0 / rate < count as f64 {
        rate.next_down()
    } else {
        rate
    }
}

#[cfg(test)]
mod tests;
