//! Sends statistics to a statsd or DogStatsD collector, as lines of text.
//!
//! A collector that is slow, down or unknown to the resolver delays nothing: the sink retries, and the log reports the
//! failure once. If lines do not fit into the queue nothing is lost, because the totals remain and a later flush sends
//! the whole difference.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    net::TcpStream,
    time::{Interval, MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    foundation::sample::{Sample, SampleWriter},
    net::connect::resolve,
    observe::metrics::statsd::{
        flusher::CollectorState,
        queue::{Datagrams, connect_udp, send_datagram},
    },
};

mod flusher;
mod queue;
#[cfg(test)]
mod tests;

pub(crate) use crate::observe::metrics::statsd::flusher::{Dialect, Options, Transport};
pub(crate) use flusher::Flusher;

use queue::LineQueue;

/// Wait before the next attempt to connect, as in the reference.
const RECONNECT: Duration = Duration::from_secs(3);

/// A resolver or collector that takes longer counts as down.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Counts, over all sinks, of lines that were lost or had to wait.
#[derive(Debug, Default)]
pub struct SinkStats {
    /// Lines that probably no collector received: they were cut when a connection broke, were in a refused datagram, or
    /// were longer than a datagram.
    pub lost_lines: AtomicU64,
    /// Metrics that found the queue full and waited until it was empty. None of these is lost.
    pub deferred: AtomicU64,
}

impl SinkStats {
    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        for (name, count) in [
            ("lost_lines", &self.lost_lines),
            ("deferred", &self.deferred),
        ] {
            list.counter(format!("tollgate.statsd_{name}_total"), count.load(Relaxed));
        }
    }
}

/// Sends statistics to one collector. [`Sink::run`] does the work.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    options: Options,
    stats: Arc<SinkStats>,
    reconnect: Duration,
}

impl Sink {
    /// A sink that counts in `stats`.
    pub(crate) fn new(options: Options, stats: Arc<SinkStats>) -> Self {
        Self {
            options,
            stats,
            reconnect: RECONNECT,
        }
    }

    /// Remembers the lines that were sent: none yet.
    pub(crate) fn flusher(&self) -> Flusher {
        Flusher::new(&self.options.dialect, &self.options.extra_tags)
    }

    /// Sends a snapshot every flush interval until dropped. Dropping loses the counts since the last flush and the
    /// queue; with the same `flusher`, a later call sends nothing twice.
    pub(crate) async fn run(
        &self,
        flusher: &mut Flusher,
        snapshot: impl Fn() -> Vec<Sample>,
    ) -> Infallible {
        match self.options.transport {
            Transport::Tcp => self.run_tcp(flusher, snapshot).await,
            Transport::Udp => self.run_udp(flusher, snapshot).await,
        }
    }

    async fn run_tcp(
        &self,
        flusher: &mut Flusher,
        snapshot: impl Fn() -> Vec<Sample>,
    ) -> Infallible {
        let queue = LineQueue::default();
        let mut ticks = ticks(self.options.flush_interval);
        let fill = async {
            loop {
                ticks.tick().await;
                let samples = snapshot();
                while !self.fill(&queue, flusher, &samples) {
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

    /// Queues new lines, and returns whether all of them fit.
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
        let connect = async {
            let found = resolve(&self.options.host, self.options.port).await?;
            TcpStream::connect(&*found).await
        };
        timeout(CONNECT_TIMEOUT, connect).await?
    }

    async fn run_udp(
        &self,
        flusher: &mut Flusher,
        snapshot: impl Fn() -> Vec<Sample>,
    ) -> Infallible {
        let mut link = CollectorState::new(&self.options);
        let mut ticks = ticks(self.options.flush_interval);
        let mut socket = None;
        loop {
            ticks.tick().await;
            // The name is resolved for every flush: collectors move, and datagrams report no failure.
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
        let found = resolve(&self.options.host, self.options.port);
        let found = timeout(CONNECT_TIMEOUT, found).await??;
        let first = found.first().copied();
        first.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
    }
}

fn ticks(every: Duration) -> Interval {
    // A zero interval would panic.
    let mut ticks = interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
