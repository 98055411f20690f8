//! Serves one gRPC connection, from its first byte to its GOAWAY.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpStream, UnixStream},
    sync::watch,
    time::Instant,
};
use tokio_util::either::Either::{self, Left, Right};
use tonic::service::Routes;

use super::{
    authority::{AuthorityLog, AuthorityRewriter},
    poll_timer::PollTimer,
    ports::{Detached, PortStream},
    tls::CurrentTls,
};
use crate::{
    foundation::random,
    net::tls::listener::TlsSession,
    service::{
        grpc::unary::{
            CallBounds, Calls, Dispatcher, InFlight, MAX_HEADER_BYTES, OtherServices, Phase,
            TimedConnection, UnaryMethod, draining,
        },
        held_bytes::{Account, HeldBound},
    },
    settings::{bounds::Bounds, serve::Settings},
};

/// How long a connection without a running decision may take to close: to receive the GOAWAY, to confirm it, and to
/// read the last replies.
const GOODBYE: Duration = Duration::from_secs(1);

/// Data that may wait in a stream for a client that does not read, besides the reply itself.
const MAX_SEND_BYTES: usize = 64 << 10;

/// Bytes that a client may send on one stream, and on its whole connection, before the server has read any.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// How long the answer to a ping may take at most before the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Most calls of one connection that may be cancelled before the server has handled them; more close it. The server
/// reads 16 kB at a time, so the calls of an Envoy that reaches its timeout stay far below.
const MAX_PENDING_RESETS: usize = 256;

/// Most calls of one connection that may be refused for breaking the rules of HTTP/2; more close it.
const MAX_BAD_STREAMS: usize = 1024;

/// The transport of a connection. A single type, so that the program contains one server, which the compiler can
/// optimise well.
type AnyStream = Either<TcpStream, Either<UnixStream, Box<TlsSession>>>;

/// Serves connections with one method, and with other services beside it.
pub(super) struct ConnectionServer<M> {
    dispatcher: Dispatcher<M>,
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
    /// How long a connection is silent before it is asked whether its peer is still there; `None` means for ever.
    keepalive: Option<Duration>,
    /// Longest time until the first call of a connection.
    first_call: Duration,
    /// Longest age of a connection; zero means no limit.
    pub(super) max_age: Duration,
    /// How long its calls may then take.
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
            // Above this bound the library answers without a gRPC status; up to it the service answers.
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
            // gRPC clients do not read it.
            .auto_date_header(false);
        builder
    }
}

impl<M> Clone for ConnectionServer<M> {
    fn clone(&self) -> Self {
        Self {
            dispatcher: self.dispatcher.clone(),
            options: self.options,
            shared: self.shared.clone(),
        }
    }
}

impl<M: UnaryMethod> ConnectionServer<M> {
    /// Serves `method` directly, and all other paths by `others`.
    pub(super) fn new(
        method: Arc<M>,
        others: Routes,
        options: ConnectionOptions,
        shared: ConnectionParts,
    ) -> Self {
        let bounds = options.bounds;
        Self {
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

    /// Serves one connection, which was accepted `at` this time, to its end. An error affects only this connection.
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

    /// Waits for the first byte of HTTP/2. Before it there is nothing to shut down, so nothing here may delay
    /// draining.
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
        let connection = self.options.http2().serve_connection(
            TokioIo::new(AuthorityRewriter::new(
                stream,
                self.shared.authority_log,
                account.clone(),
            )),
            service_fn(serve),
        );
        let mut connection = std::pin::pin!(connection);
        let too_old = Instant::now() + jittered(self.options.max_age);
        // One timer for both, because a connection checks it at every wake-up.
        let mut end = std::pin::pin!(tokio::time::sleep_until(deadline.min(too_old)));
        let is_old = loop {
            tokio::select! {
                ended = TimedConnection(connection.as_mut()) => return ended,
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
    let tenth = age / 10;
    random::between(age - tenth, age + tenth)
}

#[cfg(test)]
mod tests;
