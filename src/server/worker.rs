//! The workers: each a thread with a runtime of its own, which serves its share of the connections.

use std::{
    convert::Infallible,
    hash::{BuildHasher as _, RandomState},
    io,
    sync::Arc,
    thread,
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    net::{TcpStream, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either::{self, Left, Right};

use super::{
    authority::{Mended, Notes},
    ports::{Detached, GrpcListener, Stream},
    runtime,
    tls::Tls,
};
use crate::{
    grpc::unary::{Arrivals, Door, Method},
    settings::{Bounds, Listen},
    store::redis::Batchers,
};

/// A connection that has not said a word in this time is closed.
const FIRST_WORD: Duration = Duration::from_secs(60);

/// Accepted connections that may wait for a worker.
const HANDOVER: usize = 128;

/// What may wait in a stream for a client that does not read, beside the reply itself.
const MAX_SEND_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    Draining,
}

/// Waits for the call to drain.
async fn draining(phases: &mut watch::Receiver<Phase>) {
    // The house is never gone before its workers.
    let _ = phases.wait_for(|phase| *phase == Phase::Draining).await;
}

/// A connection on its way to a worker, with its place among all.
pub(super) struct Arrival {
    stream: Detached,
    place: OwnedSemaphorePermit,
}

/// Accepts connections and deals them out in turn. An Envoy opens one for each of its threads, so
/// leaving the choice to the kernel could put all of them on one core.
pub(super) async fn accept(
    listener: GrpcListener,
    doors: Vec<mpsc::Sender<Arrival>>,
    places: Arc<Semaphore>,
) {
    for door in doors.iter().cycle() {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let Ok(stream) = listener.accept_next().await.detach() else {
            continue;
        };
        // A worker that is gone ends the process anyway.
        let _ = door.send(Arrival { stream, place }).await;
    }
}

#[derive(Default)]
pub(super) struct Workers {
    doors: Vec<mpsc::Sender<Arrival>>,
    /// Each ends with its worker.
    ends: JoinSet<()>,
}

impl Workers {
    pub(super) fn start<M: Method>(&mut self, worker: Worker<M>) -> io::Result<()> {
        let (door, arrivals) = mpsc::channel(HANDOVER);
        let (alive, mut end) = mpsc::channel::<Infallible>(1);
        let name = format!("worker-{}", self.doors.len());
        thread::Builder::new().name(name).spawn(move || {
            // Dropped on every way out, a panic included.
            let _alive = alive;
            match runtime() {
                Ok(runtime) => runtime.block_on(worker.run(arrivals)),
                Err(error) => tracing::error!(%error, "a worker has no runtime"),
            }
        })?;
        self.doors.push(door);
        self.ends.spawn(async move {
            end.recv().await;
        });
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.doors.len()
    }

    pub(super) fn doors(&mut self) -> Vec<mpsc::Sender<Arrival>> {
        std::mem::take(&mut self.doors)
    }

    pub(super) async fn first_end(&mut self) {
        self.ends.join_next().await;
    }

    pub(super) async fn all_end(&mut self) {
        while self.ends.join_next().await.is_some() {}
    }
}

/// What one worker serves.
pub(super) struct Worker<M> {
    pub(super) serving: Serving<M>,
    pub(super) batchers: Vec<Batchers>,
}

impl<M: Method> Worker<M> {
    /// Serves the connections that arrive, until all are gone after the call to drain.
    async fn run(self, mut arrivals: mpsc::Receiver<Arrival>) {
        let mut batchers = JoinSet::new();
        for of_one_store in self.batchers {
            batchers.spawn(of_one_store.run());
        }
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                arrival = arrivals.recv() => match arrival {
                    Some(Arrival { stream, place }) => {
                        let served = self.serving.clone().connection(stream);
                        connections.spawn(async move {
                            served.await;
                            drop(place);
                        });
                    }
                    // The door is closed.
                    None => break,
                },
                Some(_) = connections.join_next() => {}
            }
        }
        while connections.join_next().await.is_some() {}
    }
}

/// What a connection comes in through. One type, so that there is one server in the program and the
/// compiler has reason to put it together well.
type AnyStream = Either<TcpStream, Either<UnixStream, Box<TlsStream<TcpStream>>>>;

/// How connections are served.
pub(super) struct Serving<M> {
    pub(super) door: Door<M>,
    /// For what comes in through a port; a Unix socket has none.
    pub(super) tls: Option<Tls>,
    pub(super) bounds: Bounds,
    pub(super) notes: Arc<Notes>,
    pub(super) keepalive: Keepalive,
    /// How old a connection may become; zero means any age.
    pub(super) max_age: Duration,
    /// How long its calls may then take.
    pub(super) grace: Duration,
    pub(super) phases: watch::Receiver<Phase>,
}

impl<M> Clone for Serving<M> {
    fn clone(&self) -> Self {
        Self {
            door: self.door.clone(),
            tls: self.tls.clone(),
            notes: self.notes.clone(),
            phases: self.phases.clone(),
            ..*self
        }
    }
}

/// When a connection on which nothing is heard is asked whether it still lives, so that peers that
/// vanished do not hold their place for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keepalive {
    /// Nothing for never.
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

impl<M: Method> Serving<M> {
    /// Serves one connection to its end; a failure is its own.
    async fn connection(mut self, stream: Detached) {
        let ended = match stream.adopt() {
            Ok(Stream::Tcp(stream)) if self.is_heard(stream.readable()).await => {
                match self.tls.clone() {
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => self.serve(Right(Right(Box::new(stream)))).await,
                        Err(error) => return tracing::debug!(%error, "a TLS handshake failed"),
                    },
                    None => self.serve(Left(stream)).await,
                }
            }
            Ok(Stream::Unix(stream)) if self.is_heard(stream.readable()).await => {
                self.serve(Right(Left(stream))).await
            }
            Ok(_) => return tracing::debug!("a connection that never said a word was closed"),
            Err(error) => return tracing::debug!(%error, "a connection was lost on arrival"),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended badly");
        }
    }

    /// Waits for the first byte. There is nothing to say goodbye to before that, so a silent
    /// connection must not hold up a drain.
    async fn is_heard(&mut self, readable: impl Future<Output = io::Result<()>>) -> bool {
        tokio::select! {
            heard = tokio::time::timeout(FIRST_WORD, readable) => matches!(heard, Ok(Ok(()))),
            () = draining(&mut self.phases) => false,
        }
    }

    async fn serve(mut self, stream: AnyStream) -> hyper::Result<()> {
        let door = self.door;
        let serve = |request| door.call(request);
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.bounds.max_streams)
            .max_header_list_size(self.bounds.max_header_bytes)
            .max_pending_accept_reset_streams(self.bounds.max_pending_resets)
            .max_local_error_reset_streams(self.bounds.max_bad_streams)
            .max_send_buf_size(MAX_SEND_BYTES)
            .keep_alive_interval(self.keepalive.interval)
            .keep_alive_timeout(self.keepalive.timeout)
            // No gRPC peer reads it.
            .auto_date_header(false)
            .serve_connection(
                TokioIo::new(Mended::new(stream, self.notes)),
                service_fn(serve),
            );
        let mut connection = std::pin::pin!(connection);
        // GOAWAY: calls under way are answered, new ones go elsewhere.
        tokio::select! {
            ended = Arrivals(connection.as_mut()) => ended,
            () = draining(&mut self.phases) => {
                connection.as_mut().graceful_shutdown();
                Arrivals(connection).await
            }
            () = tokio::time::sleep(jittered(self.max_age)) => {
                connection.as_mut().graceful_shutdown();
                // One that outlives its grace is cut off.
                tokio::time::timeout(self.grace, Arrivals(connection)).await.unwrap_or(Ok(()))
            }
        }
    }
}

/// `age`, give or take a tenth, so that connections that began together do not end together.
fn jittered(age: Duration) -> Duration {
    /// Zero means no end: longer than any process lives, short enough for a timer.
    const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
    if age.is_zero() || age > NEVER {
        return NEVER;
    }
    // A fresh hasher's seed is as random as this needs.
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
