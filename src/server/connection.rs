//! Serves one gRPC connection, from its first byte to its GOAWAY.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use hyper::{
    rt::{Sleep, Timer},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpStream, UnixStream},
    sync::watch,
    time::Instant,
};
use tokio_util::either::Either::{self, Left, Right};
use tonic::service::Routes;

use crate::{
    foundation::random,
    net::tls::listener::TlsSession,
    server::{
        authority::{AuthorityLog, AuthorityRewriter},
        ports::{Detached, PortStream},
        tls::CurrentTls,
    },
    service::{
        answered_leases::WorkerLeases,
        grpc::unary::{
            CallBounds, Calls, Dispatcher, InFlight, MAX_HEADER_BYTES, OtherServices, Phase,
            TimedConnection, UnaryMethod, arrived, draining,
        },
        held_bytes::{Account, HeldBound},
    },
    settings::{listen::Bounds, serve::Settings},
};

#[cfg(test)]
mod tests;

/// How long a connection without a running decision can take to close: the client has to receive the GOAWAY, confirm
/// it, and read the last replies.
const GOODBYE: Duration = Duration::from_secs(1);

/// Data that can wait in a stream for a client that does not read, in addition to the reply itself.
const MAX_SEND_BYTES: usize = 64 << 10;

/// Bytes that a client may send on one stream, or on its whole connection, before the server has read any.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// Longest time that the answer to a ping can take before the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Most calls of one connection that can be cancelled before the server has handled them; more close the connection.
/// The server reads 16 kB at a time, so an Envoy whose calls time out stays far below this.
const MAX_PENDING_RESETS: usize = 256;

/// Most calls of one connection that can be refused for breaking the rules of HTTP/2; more close the connection.
const MAX_BAD_STREAMS: usize = 1024;

/// The transport of a connection. It is a single type, so that the program contains one server, which the compiler can
/// optimise well.
type AnyStream = Either<TcpStream, Either<UnixStream, Box<TlsSession>>>;

/// Serves connections with one method directly, and with other services.
pub(super) struct ConnectionServer<M> {
    dispatcher: Dispatcher<M>,
    leases: WorkerLeases,
    options: ConnectionOptions,
    shared: ConnectionParts,
}

/// The parts that connections of all workers share.
#[derive(Clone)]
pub(super) struct ConnectionParts {
    /// For TCP connections only; a Unix socket has no TLS.
    pub(super) tls: Option<CurrentTls>,
    pub(super) authority_log: Arc<AuthorityLog>,
    pub(super) bound: Arc<HeldBound>,
    pub(super) phases: watch::Receiver<Phase>,
}

/// Bounds of a connection, in size and time.
#[derive(Clone, Copy)]
pub(super) struct ConnectionOptions {
    bounds: Bounds,
    /// How long a connection can be silent before its peer is pinged; `None` means for ever.
    keepalive: Option<Duration>,
    /// Longest time until the first call of a connection.
    first_call: Duration,
    /// Longest age of a connection; zero means no limit.
    pub(super) max_age: Duration,
    /// How long the calls of a connection that is too old can still take.
    grace: Duration,
}

impl ConnectionOptions {
    /// The bounds that the settings choose.
    pub(super) fn new(settings: &Settings) -> Self {
        let listen = &settings.listen;
        let keepalive = listen.keepalive_interval;
        Self {
            bounds: settings.bounds,
            keepalive: (!keepalive.is_zero()).then_some(keepalive),
            first_call: listen.first_call_timeout,
            max_age: listen.max_connection_age,
            grace: listen.max_connection_age_grace,
        }
    }

    /// The HTTP/2 side of a connection with these options.
    fn http2(&self) -> http2::Builder<Calls> {
        let mut builder = http2::Builder::new(Calls);
        builder
            .timer(PollTimer)
            .max_concurrent_streams(self.bounds.max_streams)
            // Above this bound the library answers, without a gRPC status. Up to it the service answers.
            .max_header_list_size(2 * MAX_HEADER_BYTES)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_BAD_STREAMS)
            .max_send_buf_size(MAX_SEND_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(self.keepalive)
            .keep_alive_timeout(
                self.keepalive
                    .map_or(PING_TIMEOUT, |every| every.min(PING_TIMEOUT)),
            )
            // gRPC clients do not read the date.
            .auto_date_header(false);
        builder
    }
}

impl<M> Clone for ConnectionServer<M> {
    fn clone(&self) -> Self {
        Self {
            dispatcher: self.dispatcher.clone(),
            leases: self.leases.clone(),
            options: self.options,
            shared: self.shared.clone(),
        }
    }
}

impl<M: UnaryMethod> ConnectionServer<M> {
    /// Serves `method` directly, and all other paths with `others`.
    pub(super) fn new(
        method: Arc<M>,
        others: Routes,
        options: ConnectionOptions,
        shared: ConnectionParts,
    ) -> Self {
        let bounds = options.bounds;
        Self {
            leases: method.leases(),
            dispatcher: Dispatcher {
                method,
                max_message_bytes: bounds.max_message_bytes,
                message_timeout: bounds.message_timeout,
                others: OtherServices {
                    routes: others.prepare(),
                    bounds: |_| CallBounds::SHORT,
                    phases: shared.phases.clone(),
                },
            },
            options,
            shared,
        }
    }

    /// The account of a new connection.
    pub(super) fn account(&self) -> Arc<Account> {
        self.shared.bound.account()
    }

    /// Serves one connection, which was accepted at `at`, until it ends. An error affects only this connection.
    pub(super) async fn connection(mut self, stream: Detached, at: Instant, account: Arc<Account>) {
        let deadline = at + self.options.first_call;
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

    /// Waits for the first byte of HTTP/2. Until then there is nothing to shut down, so nothing here may delay a drain.
    async fn first_word(
        &mut self,
        stream: Detached,
        deadline: Instant,
    ) -> io::Result<Option<AnyStream>> {
        let tls = self.shared.tls.clone();
        let first_word = async {
            Ok(Some(match stream.adopt()? {
                PortStream::Unix(stream) => {
                    stream.readable().await?;
                    Right(Left(stream))
                }
                PortStream::Tcp(stream) => {
                    stream.readable().await?;
                    match tls {
                        None => Left(stream),
                        Some(tls) => match tls.accept(stream, deadline).await? {
                            Some(session) => Right(Right(Box::new(session))),
                            None => return Ok(None),
                        },
                    }
                }
            }))
        };
        tokio::select! {
            begun = tokio::time::timeout_at(deadline, first_word) => begun?,
            () = draining(&mut self.shared.phases) => Ok(None),
        }
    }

    /// Serves HTTP/2. If there is no call until `deadline`, the connection closes.
    async fn serve(
        mut self,
        stream: AnyStream,
        account: &Arc<Account>,
        deadline: Instant,
    ) -> hyper::Result<()> {
        let dispatcher = self.dispatcher;
        let in_flight = InFlight::default();
        let leases = self.leases.of_connection();
        let serve = |request| {
            account.use_it();
            dispatcher.call(request, account, &leases, &in_flight)
        };
        let connection = self.options.http2().serve_connection(
            TokioIo::new(AuthorityRewriter::new(
                stream,
                self.shared.authority_log,
                account.clone(),
                leases.clone(),
            )),
            service_fn(serve),
        );
        let mut connection = std::pin::pin!(connection);
        let too_old = Instant::now() + jittered(self.options.max_age);
        // One timer for both, because a connection checks it at every wake-up.
        let mut end = std::pin::pin!(tokio::time::sleep_until(deadline.min(too_old)));
        let is_old = loop {
            tokio::select! {
                ended = TimedConnection(connection.as_mut()) => {
                    if ended.is_err() {
                        leases.broke();
                    }
                    return ended;
                }
                () = draining(&mut self.shared.phases) => break false,
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
                ended = tokio::time::timeout(self.options.grace, TimedConnection(connection.as_mut())) => {
                    return ended.unwrap_or(Ok(()));
                }
                () = draining(&mut self.shared.phases) => {}
            }
        }
        goodbye(connection, &in_flight).await
    }
}

/// Waits for a connection to end after its GOAWAY, as long as a decision runs on it and for a moment longer. A partial
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

/// Varies `age` by up to a tenth, so that connections that began together do not end together.
fn jittered(age: Duration) -> Duration {
    /// Stands for no limit: longer than any process lives, but short enough for a timer.
    const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
    if age.is_zero() || age > NEVER {
        return NEVER;
    }
    let tenth = age / 10;
    random::between(age - tenth, age + tenth)
}

/// A timer whose "now" is the time of the current poll of a connection.
///
/// For its keepalive, hyper asks for the time with every frame that it reads, which would be three readings of the
/// clock for each call. The time of the poll that found the frame is exact enough for that.
#[derive(Clone, Copy, Debug)]
struct PollTimer;

impl Timer for PollTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep(duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep_until(deadline)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: std::time::Instant) {
        TokioTimer::new().reset(sleep, new_deadline);
    }

    fn now(&self) -> std::time::Instant {
        arrived()
    }
}
