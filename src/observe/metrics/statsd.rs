//! Sends statistics to a statsd or DogStatsD collector, as lines of text.
//!
//! At each flush the differences to what was sent before are written in batches. A collector that is slow, down or
//! unknown to the resolver delays nothing and takes no memory: what could not be sent stays in the totals, and a later
//! flush sends the whole difference. Only a batch that was on its way when a connection broke is lost, and counted.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    fmt::Write as _,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpStream, UdpSocket},
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    foundation::{
        histogram::TimerValues,
        log_throttle::LogThrottle,
        metric_name::breaks_line,
        sample::{Sample, SampleKind, SampleValue, SampleWriter},
    },
    net::connect::resolve,
    observe::metrics::mogrifier::{Mogrified, Mogrifier, mogrify},
};

#[cfg(test)]
mod tests;

/// Least wait before the next attempt after a failure, as in the reference.
const RETRY: Duration = Duration::from_secs(3);

/// A resolver or collector that takes longer for one step counts as down.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes that are written at a time, or slightly more.
const BATCH_BYTES: usize = 16 << 10;

/// A size that fits into one Ethernet frame with the headers of IPv6, UDP and a tunnel. Other statsd clients use it
/// too.
const DATAGRAM_BYTES: usize = 1432;

/// The destination, format and interval of a sink.
#[derive(Clone, Debug)]
pub(crate) struct Options {
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
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// The syntax of tags.
#[derive(Clone, Debug)]
pub(crate) enum Dialect {
    /// Within the name: `name.__tag=value:1|c`.
    Statsd,
    /// After the value, `name:1|c|#tag:value`; the rules rewrite the name first.
    DogStatsd(Vec<Mogrifier>),
}

/// Counts over all sinks.
#[derive(Debug, Default)]
pub struct SinkStats {
    /// Lines that probably no collector received: they were on their way when a connection broke, were in a refused
    /// datagram, or were longer than a datagram.
    lost_lines: AtomicU64,
}

impl SinkStats {
    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        list.total("tollgate.statsd_lost_lines_total", &self.lost_lines);
    }

    fn lose(&self, lines: &str) {
        self.lost_lines
            .fetch_add(lines.lines().count() as u64, Relaxed);
    }
}

/// Sends statistics to one collector. [`Sink::run`] does the work.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    options: Options,
    stats: Arc<SinkStats>,
    retry: Duration,
}

/// An open socket to a collector.
enum StatsdSocket {
    Tcp(TcpStream),
    Udp(SocketAddr, UdpSocket),
}

impl Sink {
    /// A sink that counts in `stats`.
    pub(crate) fn new(options: Options, stats: Arc<SinkStats>) -> Self {
        Self {
            options,
            stats,
            retry: RETRY,
        }
    }

    /// Remembers what was sent: nothing yet.
    pub(crate) fn flusher(&self) -> Flusher {
        Flusher::new(&self.options.dialect, &self.options.extra_tags)
    }

    /// Sends what `each` passes on every flush interval until dropped. Dropping loses the counts since the last flush;
    /// with the same `flusher`, a later call sends nothing twice.
    pub(crate) async fn run(
        &self,
        flusher: &mut Flusher,
        each: impl Fn(&mut dyn FnMut(&Sample<'_>)),
    ) -> Infallible {
        let target = format!("{}:{}", self.options.host, self.options.port);
        let throttle = LogThrottle::new();
        // Whether the log says that the collector is away; unset before the first flush.
        let mut is_away = None;
        let mut connection = None;
        // A zero interval would panic.
        let mut ticks = interval(self.options.flush_interval.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let sent = match self.connect(connection.take()).await {
                Ok(mut connected) => {
                    flusher.learn(&each);
                    let sent = self.send(&mut connected, flusher).await;
                    connection = Some(connected);
                    sent
                }
                Err(error) => Err(error),
            };
            match sent {
                Ok(()) => {
                    if is_away != Some(false) {
                        tracing::info!(%target, "statsd collector reached");
                        is_away = Some(false);
                    }
                }
                Err(error) => {
                    if is_away != Some(true) && throttle.may_log() {
                        tracing::warn!(%target, %error, "statsd collector not reached");
                        is_away = Some(true);
                    }
                    if let Some(StatsdSocket::Tcp(_)) = connection {
                        connection = None;
                    }
                    sleep(self.retry).await;
                }
            }
        }
    }

    /// An open connection: the `last` one if it still is.
    async fn connect(&self, last: Option<StatsdSocket>) -> io::Result<StatsdSocket> {
        let last = match last {
            Some(StatsdSocket::Tcp(stream)) if is_open(&stream) => {
                return Ok(StatsdSocket::Tcp(stream));
            }
            last => last,
        };
        let connect = async {
            // The name is resolved for every flush over UDP: collectors move, and datagrams report no failure.
            let found = resolve(&self.options.host, self.options.port).await?;
            if self.options.transport == Transport::Tcp {
                return Ok(StatsdSocket::Tcp(TcpStream::connect(&*found).await?));
            }
            let first = found.first().copied();
            let target = first.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
            match last {
                Some(StatsdSocket::Udp(to, socket)) if to == target => {
                    Ok(StatsdSocket::Udp(to, socket))
                }
                _ => Ok(StatsdSocket::Udp(target, udp_socket(target).await?)),
            }
        };
        timeout(STEP_TIMEOUT, connect).await?
    }

    /// Sends the differences that `flusher` knows. After an error, those of later batches are still to be sent.
    async fn send(&self, connection: &mut StatsdSocket, flusher: &mut Flusher) -> io::Result<()> {
        let mut batch = String::new();
        for known in flusher.known.values_mut() {
            known.write(&mut batch);
            known.sent = known.value.clone();
            if batch.len() >= BATCH_BYTES {
                self.send_batch(connection, &batch).await?;
                batch.clear();
            }
        }
        self.send_batch(connection, &batch).await
    }

    /// Sends lines. Those that were lost are counted.
    async fn send_batch(&self, connection: &mut StatsdSocket, batch: &str) -> io::Result<()> {
        match connection {
            StatsdSocket::Tcp(stream) => {
                let written = timeout(STEP_TIMEOUT, stream.write_all(batch.as_bytes())).await;
                written
                    .unwrap_or_else(|elapsed| Err(elapsed.into()))
                    .inspect_err(|_| self.stats.lose(batch))
            }
            StatsdSocket::Udp(_, socket) => {
                let mut sent = Ok(());
                for datagram in datagrams(batch) {
                    if datagram.len() > DATAGRAM_BYTES {
                        self.stats.lose(&datagram);
                    } else if let Err(error) = send_datagram(socket, &datagram).await {
                        self.stats.lose(&datagram);
                        sent = Err(error);
                    }
                }
                sent
            }
        }
    }
}

/// Whether the collector has not closed the connection. Collectors send nothing; reading notices an end before lines
/// are lost in it.
fn is_open(stream: &TcpStream) -> bool {
    match stream.try_read(&mut [0; 256]) {
        Ok(count) => count > 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Whole lines, packed into as few datagrams as possible. A line that is longer than one is alone.
fn datagrams(lines: &str) -> Vec<String> {
    let mut datagrams = Vec::<String>::new();
    for line in lines.split_inclusive('\n') {
        match datagrams.last_mut() {
            Some(last) if last.len() + line.len() <= DATAGRAM_BYTES => last.push_str(line),
            _ => datagrams.push(line.to_owned()),
        }
    }
    datagrams
}

/// A socket that sends to `target`.
async fn udp_socket(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match target.is_ipv4() {
        true => (Ipv4Addr::UNSPECIFIED, 0).into(),
        false => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// Sends a datagram. An error about an earlier datagram is returned too, but only after this one is sent.
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

/// The newest values, and those that were sent.
#[derive(Debug)]
pub(crate) struct Flusher {
    dialect: Dialect,
    /// Sorted, as in the reference's lines.
    extra_tags: BTreeMap<String, String>,
    /// By their names in statsd.
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
    /// The text of a line before `:`; `tags` is the text after the type.
    name: Box<str>,
    tags: Box<str>,
}

impl Flusher {
    /// A flusher whose first flush sends everything.
    fn new(dialect: &Dialect, extra_tags: &[(String, String)]) -> Self {
        Self {
            dialect: dialect.clone(),
            extra_tags: extra_tags.iter().cloned().collect(),
            known: HashMap::new(),
            round: 0,
        }
    }

    /// Takes a snapshot.
    ///
    /// Counters and timers of equal names are added up. A name that is missing from a snapshot is forgotten, and starts
    /// from zero if it returns.
    fn learn(&mut self, each: impl Fn(&mut dyn FnMut(&Sample<'_>))) {
        self.round += 1;
        each(&mut |sample| self.learn_one(sample));
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
    }

    fn learn_one(&mut self, sample: &Sample<'_>) {
        let round = self.round;
        let name = sample.statsd_name();
        let Some(known) = self.known.get_mut(&name) else {
            let (text, tags) = form(&self.dialect, &self.extra_tags, &name);
            let known = SentMetric {
                round,
                value: sample.value.clone(),
                sent: nothing(sample.value.kind()),
                name: text,
                tags,
            };
            self.known.insert(name, known);
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
}

fn nothing(kind: SampleKind) -> SampleValue {
    match kind {
        SampleKind::Counter => SampleValue::Counter(0),
        SampleKind::Gauge => SampleValue::Gauge(0),
        SampleKind::Timer => SampleValue::Timer(Box::default()),
    }
}

impl SentMetric {
    /// Writes the part of the value that has not been sent yet.
    fn write(&self, lines: &mut String) {
        let Self { name, tags, .. } = self;
        match (&self.value, &self.sent) {
            (SampleValue::Counter(total), SampleValue::Counter(sent)) => {
                // A total that shrank was reset.
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

/// A name in the collector's dialect: the texts before `:` and after the type.
fn form(
    dialect: &Dialect,
    extra_tags: &BTreeMap<String, String>,
    name: &str,
) -> (Box<str>, Box<str>) {
    match dialect {
        Dialect::Statsd => {
            let mut name = clean(name, breaks_line);
            for (key, value) in extra_tags {
                let (key, value) = (clean(key, breaks_line), clean(value, breaks_line));
                let _ = write!(name, ".__{key}={value}");
            }
            (name.into(), Box::default())
        }
        Dialect::DogStatsd(rules) => {
            let Mogrified { name, tags: found } =
                mogrify(rules, name).unwrap_or_else(|| Mogrified {
                    name: name.to_owned(),
                    tags: Vec::new(),
                });
            let mut tags = extra_tags.clone();
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

fn clean(text: &str, is_unfit: impl Fn(char) -> bool) -> String {
    text.chars()
        .map(|found| if is_unfit(found) { '_' } else { found })
        .collect()
}

/// Writes one line for each bucket that contains durations: the middle of the bucket, with a sample rate that makes the
/// line stand for all of them.
///
/// The reference sends every duration on a line of its own. Collectors that apply the rate, as all the usual ones do,
/// arrive at an equal count and sum and nearly equal percentiles. A single mean per flush would look like one call of
/// average length. Values are fractions of milliseconds, which the protocol allows and fast replies need.
fn write_timer(lines: &mut String, name: &str, values: &TimerValues, tags: &str) {
    let middles: f64 = values
        .middles()
        .map(|(middle, count)| middle * count as f64)
        .sum();
    // Scaling all values by one factor makes the sum exact, and also a single value.
    let stretch = values.sum_micros() as f64 / middles;
    for (middle, count) in values.middles() {
        let millis = middle * stretch / 1_000.0;
        // Rounded to the nanosecond, because further digits are noise.
        let millis = (millis * 1e6).round() / 1e6;
        let _ = write!(lines, "{name}:{millis}|ms");
        if count > 1 {
            let _ = write!(lines, "|@{}", rate(count));
        }
        lines.push_str(tags);
        lines.push('\n');
    }
}

/// The sample rate of a line that stands for `count` durations. It is never above 1 / `count`, because a collector that
/// divides and truncates would then count one too few.
fn rate(count: u64) -> f64 {
    let rate = 1.0 / count as f64;
    if 1.0 / rate < count as f64 {
        rate.next_down()
    } else {
        rate
    }
}
