//! The workers: each is a thread with its own runtime and serves its share of the connections.

use std::{
    convert::Infallible,
    hash::{BuildHasher as _, RandomState},
    io,
    pin::Pin,
    sync::Arc,
    thread,
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpStream, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either::{self, Left, Right};

use super::{
    authority::{AuthorityLog, AuthorityRewriter},
    ports::{Detached, GrpcListener, PortStream},
    runtime::runtime,
    tls::CurrentTls,
};
use crate::{
    service::{
        budget::{Account, Budget},
        grpc::unary::{Calls, Dispatcher, InFlight, TimedConnection, UnaryMethod},
    },
    settings::{bounds::Bounds, listen::Listen},
    store::redis::batchers::Batchers,
};

/// How long a connection without a running decision may take to close: to receive the GOAWAY, to confirm it, and to
/// read the last replies.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long an accepted connection waits for a place before another is closed for it.
const PERMIT_WAIT: Duration = Duration::from_millis(50);

/// Accepted connections that may wait for a worker.
const HANDOVER: usize = 128;

/// Data that may wait in a stream for a client that does not read, besides the reply itself.
const MAX_SEND_BYTES: usize = 64 << 10;

/// Bytes that a client may send on one stream, and on its whole connection, before the server has read any.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    Draining,
}

/// Waits until draining begins.
async fn draining(phases: &mut watch::Receiver<Phase>) {
    // The sender outlives the workers.
    let _ = phases.wait_for(|phase| *phase == Phase::Draining).await;
}

/// An accepted connection on its way to a worker, with its place.
pub(super) struct Arrival {
    stream: Detached,
    at: Instant,
    permit: OwnedSemaphorePermit,
}

/// Accepts connections and distributes them to the workers in turn. When all places are taken, the oldest connection
/// that has not made a call is closed for a new one. An Envoy opens one connection for each of its threads; if the
/// kernel chose the worker, all of them could end up on one core.
pub(super) async fn accept(
    listener: GrpcListener,
    senders: Vec<mpsc::Sender<Arrival>>,
    max_connections: Arc<Semaphore>,
    budget: Arc<Budget>,
) {
    for dispatcher in senders.iter().cycle() {
        let arrived = listener.accept_next().await;
        let permit = loop {
            if max_connections.available_permits() == 0 {
                budget.make_connection_room();
            }
            // Repeated, because recent connections may still be on their way to their workers.
            let permit = tokio::time::timeout(PERMIT_WAIT, max_connections.clone().acquire_owned());
            match permit.await {
                Ok(Ok(permit)) => break permit,
                Ok(Err(_closed)) => return,
                Err(_elapsed) => {}
            }
        };
        let Ok(stream) = arrived.detach() else {
            continue;
        };
        let at = Instant::now();
        // The end of a worker ends the process anyway.
        let _ = dispatcher.send(Arrival { stream, at, permit }).await;
    }
}

#[derive(Default)]
pub(super) struct Workers {
    senders: Vec<mpsc::Sender<Arrival>>,
    /// Each ends with its worker.
    ends: JoinSet<()>,
}

impl Workers {
    pub(super) fn start<M: UnaryMethod>(&mut self, worker: Worker<M>) -> io::Result<()> {
        let (dispatcher, incoming) = mpsc::channel(HANDOVER);
        let (alive, mut end) = mpsc::channel::<Infallible>(1);
        let name = format!("worker-{}", self.senders.len());
        thread::Builder::new().name(name).spawn(move || {
            // Dropped on every exit, also after a panic.
            let _alive = alive;
            match runtime() {
                Ok(runtime) => runtime.block_on(worker.run(incoming)),
                Err(error) => tracing::error!(%error, "a worker has no runtime"),
            }
        })?;
        self.senders.push(dispatcher);
        self.ends.spawn(async move {
            end.recv().await;
        });
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.senders.len()
    }

    pub(super) fn senders(&mut self) -> Vec<mpsc::Sender<Arrival>> {
        std::mem::take(&mut self.senders)
    }

    pub(super) async fn first_end(&mut self) {
        self.ends.join_next().await;
    }

    pub(super) async fn all_end(&mut self) {
        while self.ends.join_next().await.is_some() {}
    }
}

/// A worker's method and the tasks of its stores.
pub(super) struct Worker<M> {
    pub(super) serving: Serving<M>,
    pub(super) batchers: Vec<Batchers>,
}

impl<M: UnaryMethod> Worker<M> {
    /// Serves arriving connections until all have closed after draining began.
    async fn run(self, mut incoming: mpsc::Receiver<Arrival>) {
        let mut batchers = JoinSet::new();
        for of_one_store in self.batchers {
            batchers.spawn(of_one_store.run());
        }
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                arrival = incoming.recv() => match arrival {
                    Some(Arrival { stream, at, permit }) => {
                        let account = self.serving.budget.account();
                        let served = self.serving.clone().connection(stream, at, account.clone());
                        account.served_by(connections.spawn(async move {
                            served.await;
                            drop(permit);
                        }));
                    }
                    // The dispatcher has stopped.
                    None => break,
                },
                Some(_) = connections.join_next() => {}
            }
        }
        while connections.join_next().await.is_some() {}
    }
}

/// The transport of a connection. A single type, so that the program contains one server, which the compiler can
/// optimise well.
type AnyStream = Either<TcpStream, Either<UnixStream, Box<TlsStream<TcpStream>>>>;

/// The settings of connections.
pub(super) struct Serving<M> {
    pub(super) dispatcher: Dispatcher<M>,
    /// For TCP connections only; a Unix socket has no TLS.
    pub(super) tls: Option<CurrentTls>,
    pub(super) bounds: Bounds,
    pub(super) authority_log: Arc<AuthorityLog>,
    pub(super) budget: Arc<Budget>,
    pub(super) keepalive: Keepalive,
    /// Longest time until the first call of a connection.
    pub(super) first_call: Duration,
    /// Longest age of a connection; zero means no limit.
    pub(super) max_age: Duration,
    /// How long its calls may then take.
    pub(super) grace: Duration,
    pub(super) phases: watch::Receiver<Phase>,
}

impl<M> Clone for Serving<M> {
    fn clone(&self) -> Self {
        Self {
            dispatcher: self.dispatcher.clone(),
            tls: self.tls.clone(),
            authority_log: self.authority_log.clone(),
            budget: self.budget.clone(),
            phases: self.phases.clone(),
            ..*self
        }
    }
}

/// Pings for silent connections, so that vanished peers do not occupy a place for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keepalive {
    /// `None` means never.
    interval: Option<Duration>,
    /// How long the answer may take.
    timeout: Duration,
}

impl Keepalive {
    pub(super) fn new(listen: &Listen) -> Self {
        let interval = listen.keepalive_interval;
        Self {
            interval: (!interval.is_zero()).then_some(interval),
            timeout: listen.keepalive_timeout,
        }
    }
}

impl<M: UnaryMethod> Serving<M> {
    /// Serves one connection, which was accepted `at` this time, to its end. An error affects only this connection.
    async fn connection(mut self, stream: Detached, at: Instant, account: Arc<Account>) {
        let deadline = at + self.first_call;
        let stream = match self.first_word(stream, deadline).await {
            Ok(Some(stream)) => stream,
            Ok(None) => return tracing::debug!("a connection ended before it had begun"),
            Err(error) => {
                return tracing::debug!(%error, "a connection failed before it had begun");
            }
        };
        if let Err(error) = self.serve(stream, &account, deadline).await {
            tracing::debug!(%error, "a connection ended badly");
        }
    }

    /// Waits for the first byte of HTTP/2. Before it there is nothing to shut down, so nothing here may delay
    /// draining.
    async fn first_word(
        &mut self,
        stream: Detached,
        deadline: Instant,
    ) -> io::Result<Option<AnyStream>> {
        let tls = self.tls.clone();
        let first_word = async {
            Ok(match stream.adopt()? {
                PortStream::Unix(stream) => {
                    stream.readable().await?;
                    Right(Left(stream))
                }
                PortStream::Tcp(stream) => {
                    stream.readable().await?;
                    match tls {
                        None => Left(stream),
                        Some(tls) => Right(Right(Box::new(tls.accept(stream).await?))),
                    }
                }
            })
        };
        tokio::select! {
            begun = tokio::time::timeout_at(deadline, first_word) => begun?.map(Some),
            () = draining(&mut self.phases) => Ok(None),
        }
    }

    /// Serves HTTP/2. Without a call until `deadline` the connection closes.
    async fn serve(
        mut self,
        stream: AnyStream,
        account: &Arc<Account>,
        deadline: Instant,
    ) -> hyper::Result<()> {
        let dispatcher = self.dispatcher;
        let in_flight = InFlight::default();
        let serve = |request| {
            account.use_it();
            dispatcher.call(request, account, &in_flight)
        };
        let connection = hyper::server::conn::http2::Builder::new(Calls)
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.bounds.max_streams)
            // Above this bound the library answers without a gRPC status; up to it the service answers.
            .max_header_list_size(self.bounds.max_header_bytes.saturating_mul(2))
            .max_pending_accept_reset_streams(self.bounds.max_pending_resets)
            .max_local_error_reset_streams(self.bounds.max_bad_streams)
            .max_send_buf_size(MAX_SEND_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(self.keepalive.interval)
            .keep_alive_timeout(self.keepalive.timeout)
            // gRPC clients do not read it.
            .auto_date_header(false)
            .serve_connection(
                TokioIo::new(AuthorityRewriter::new(
                    stream,
                    self.authority_log,
                    account.clone(),
                )),
                service_fn(serve),
            );
        let mut connection = std::pin::pin!(connection);
        let too_old = Instant::now() + jittered(self.max_age);
        // One timer for both, because a connection checks it at every wake-up.
        let mut end = std::pin::pin!(tokio::time::sleep_until(deadline.min(too_old)));
        let is_old = loop {
            tokio::select! {
                ended = TimedConnection(connection.as_mut()) => return ended,
                () = draining(&mut self.phases) => break false,
                () = end.as_mut() => {
                    if !account.is_used() {
                        break false;
                    }
                    if end.deadline() == too_old {
                        break true;
                    }
                    end.as_mut().reset(too_old);
                }
            }
        };
        // GOAWAY: running calls are answered, new ones go elsewhere.
        connection.as_mut().graceful_shutdown();
        if is_old {
            tokio::select! {
                // A connection that outlives its grace is closed.
                ended = tokio::time::timeout(self.grace, TimedConnection(connection.as_mut())) => {
                    return ended.unwrap_or(Ok(()));
                }
                () = draining(&mut self.phases) => {}
            }
        }
        goodbye(connection, &in_flight).await
    }
}

/// Waits for the end of a connection after its GOAWAY, while a decision runs on it and for a moment longer. A partial
/// handshake, a partial message, an unread reply or a health watch delays nothing.
async fn goodbye(
    mut connection: Pin<&mut impl Future<Output = hyper::Result<()>>>,
    in_flight: &InFlight,
) -> hyper::Result<()> {
    loop {
        let ended = tokio::time::timeout(GOODBYE, TimedConnection(connection.as_mut())).await;
        if let Ok(ended) = ended {
            return ended;
        }
        if in_flight.is_none() {
            return Ok(());
        }
    }
}

/// `age`, varied by up to a tenth, so that connections that began together do not end together.
fn jittered(age: Duration) -> Duration {
    /// Stands for no end: longer than any process lives, short enough for a timer.
    const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
    if age.is_zero() || age > NEVER {
        return NEVER;
    }
    // The seed of a fresh hasher is random enough for this.
    let random = RandomState::new().hash_one(()) % 2001;
    age / 10_000 * u32::try_from(9_000 + random).unwrap_or(10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_a_tenth_at_most_and_none_is_for_ever() {
        let age = Duration::from_secs(1000);
        let ages: Vec<_> = (0..1000).map(|_| jittered(age).as_secs()).collect();
        assert!(
            ages.iter().all(|age| (900..=1100).contains(age)),
            "{ages:?}"
        );
        assert!(ages.iter().any(|age| *age < 950), "{ages:?}");
        assert!(ages.iter().any(|age| *age > 1050), "{ages:?}");
        let century = Duration::from_secs(99 * 365 * 86_400);
        assert!(jittered(Duration::ZERO) > century);
        assert!(jittered(Duration::MAX) > century);
    }
}
