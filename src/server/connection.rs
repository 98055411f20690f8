//! Serves one gRPC connection, from its first byte to its GOAWAY.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use hyper::{
    Request, Response, body::Incoming, rt::Executor, server::conn::http2, service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpStream, UnixStream},
    sync::watch,
    task::JoinSet,
};
use tokio_util::either::Either::{self, Left, Right};
use tonic::service::Routes;

use crate::{
    foundation::{lock::lock, random},
    net::tls::listener::TlsSession,
    server::{
        accept::HANDSHAKE,
        authority::{AuthorityLog, AuthorityRewriter},
        ports::{Detached, PortStream},
        tls::CurrentTls,
    },
    service::{
        answered_leases::WorkerLeases,
        grpc::{
            CallConnection, SHOULD_RATE_LIMIT, Service,
            body::{ReplyBody, RequestBody},
            respond,
        },
        held::OpenConnection,
    },
    settings::listen::Listen,
    store::any::AnyStore,
};

/// How long a connection without a running decision can take to close: the client has to receive the GOAWAY, confirm
/// it, and read the last replies.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long a connection can be silent before its peer is pinged, and how long the answer may take. Paths that forget
/// idle connections do so after minutes.
const KEEPALIVE: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a call of another service may stay open, as those of reflection do.
const OTHER_CALLS: Duration = Duration::from_secs(86_400);

/// Most concurrent calls on one connection. An Envoy with more opens another connection.
pub(super) const MAX_STREAMS: u32 = 128;

/// Largest header list of a call in bytes, as HTTP/2 counts them: each header adds 32 to the lengths of its name and
/// its value. Envoy accepts headers of 60 KiB.
const MAX_HEADER_BYTES: u32 = 64 << 10;

/// Data that waits in a stream for a client that does not read, in addition to the reply itself.
const MAX_SEND_BYTES: usize = 8 << 10;

/// Most calls of one connection that can be cancelled before they are begun; more close the connection. An Envoy whose
/// calls time out cancels all that wait, so that a paused process meets many at once.
const MAX_PENDING_RESETS: usize = 1024;

/// Bytes that a client may send on one stream, or on its whole connection, before the server has read any.
const WINDOW_BYTES: u32 = 256 << 10;

/// Waits until a drain begins.
async fn drain(drains: &mut watch::Receiver<bool>) {
    // The sender outlives the workers.
    let _ = drains.wait_for(|drains| *drains).await;
}

/// The transport of a connection.
type AnyStream = Either<TcpStream, Either<UnixStream, Box<TlsSession>>>;

/// Serves the connections of one worker.
#[derive(Clone)]
pub(super) struct ConnectionServer {
    service: Arc<Service<AnyStore>>,
    others: Routes,
    leases: WorkerLeases,
    /// Longest age of a connection; zero means no limit.
    max_age: Duration,
    /// How long the calls of a connection that is too old can still take.
    grace: Duration,
    shared: ConnectionParts,
}

/// The parts that connections of all workers share.
#[derive(Clone)]
pub(super) struct ConnectionParts {
    /// For TCP connections only; a Unix socket has no TLS.
    pub(super) tls: Option<CurrentTls>,
    pub(super) authority_log: Arc<AuthorityLog>,
    /// Whether a drain has begun.
    pub(super) drains: watch::Receiver<bool>,
}

impl ConnectionServer {
    /// Serves all paths but that of `service` with `others`.
    pub(super) fn new(
        service: Service<AnyStore>,
        others: Routes,
        listen: &Listen,
        shared: ConnectionParts,
    ) -> Self {
        let service = Arc::new(service);
        Self {
            leases: WorkerLeases::new(service.clone()),
            service,
            others: others.prepare(),
            max_age: listen.max_connection_age,
            grace: listen.max_connection_age_grace,
            shared,
        }
    }

    /// Serves one connection until it ends. An error affects only this connection.
    pub(super) async fn connection(self, stream: Detached, open: Arc<OpenConnection>) {
        let served = tokio::select! {
            served = self.serve_all(stream, &open) => served,
            () = open.closed.cancelled() => return,
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection ended badly");
        }
    }

    async fn serve_all(mut self, stream: Detached, open: &Arc<OpenConnection>) -> io::Result<()> {
        match self.handshake(stream, open).await? {
            Some(stream) => self.serve(stream, open).await.map_err(io::Error::other),
            None => Ok(()),
        }
    }

    /// Waits for the end of the TLS handshake, if there is one. `None` if it failed, or if a drain begins meanwhile.
    async fn handshake(
        &mut self,
        stream: Detached,
        open: &OpenConnection,
    ) -> io::Result<Option<AnyStream>> {
        let (stream, tls) = match (stream.adopt()?, self.shared.tls.clone()) {
            (PortStream::Unix(stream), _) => return Ok(Some(Right(Left(stream)))),
            (PortStream::Tcp(stream), None) => return Ok(Some(Left(stream))),
            (PortStream::Tcp(stream), Some(tls)) => (stream, tls),
        };
        let handshake = async {
            // A probe that only connects is no failed handshake.
            stream.readable().await?;
            tls.accept(stream, (open.opened + HANDSHAKE).into()).await
        };
        let session = tokio::select! {
            session = handshake => session?,
            () = drain(&mut self.shared.drains) => None,
        };
        Ok(session.map(|session| Right(Right(Box::new(session)))))
    }

    /// Serves HTTP/2.
    async fn serve(mut self, stream: AnyStream, open: &Arc<OpenConnection>) -> hyper::Result<()> {
        let leases = self.leases.of_connection();
        let running = Arc::default();
        let connection = CallConnection {
            open: open.clone(),
            leases: leases.clone(),
            running: Arc::downgrade(&running),
        };
        let (service, others) = (self.service, TowerToHyperService::new(self.others));
        let answer = |request| {
            connection.open.called();
            // Boxed, because it would be moved several times.
            Box::pin(answer_call(
                service.clone(),
                others.clone(),
                connection.clone(),
                request,
            ))
        };
        let stream = AuthorityRewriter::new(stream, self.shared.authority_log, leases.clone());
        // They end with the connection: HTTP/2 does not wake those that wait for their messages.
        let calls = Arc::<Calls>::default();
        let http2 = http2(CallStarter(Arc::downgrade(&calls)));
        let served = http2.serve_connection(TokioIo::new(stream), service_fn(answer));
        let mut served = std::pin::pin!(served);
        let is_old = tokio::select! {
            ended = served.as_mut() => {
                if ended.is_err() {
                    leases.broke();
                }
                return ended;
            }
            () = drain(&mut self.shared.drains) => false,
            () = tokio::time::sleep(jittered(self.max_age)) => true,
        };
        // GOAWAY: running calls are answered, new ones go elsewhere.
        served.as_mut().graceful_shutdown();
        if is_old {
            tokio::select! {
                // A connection that outlives its grace is closed.
                ended = tokio::time::timeout(self.grace, served.as_mut()) => {
                    return ended.unwrap_or(Ok(()));
                }
                () = drain(&mut self.shared.drains) => {}
            }
        }
        goodbye(served, &running).await
    }
}

async fn answer_call(
    service: Arc<Service<AnyStore>>,
    others: TowerToHyperService<Routes>,
    connection: CallConnection,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    if request.uri().path() == SHOULD_RATE_LIMIT {
        return Ok(respond(service, connection, request).await);
    }
    let open = connection.open;
    let request = RequestBody::of(request, &open, OTHER_CALLS);
    let response = hyper::service::Service::call(&others, request).await?;
    Ok(ReplyBody::of(response, open))
}

/// The calls of a connection.
type Calls = Mutex<JoinSet<()>>;

/// Starts calls. Each of them has a copy, so the connection owns them.
#[derive(Clone)]
struct CallStarter(Weak<Calls>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for CallStarter {
    fn execute(&self, call: F) {
        if let Some(calls) = self.0.upgrade() {
            let mut calls = lock(&calls);
            while calls.try_join_next().is_some() {}
            calls.spawn(call);
        }
    }
}

/// The HTTP/2 side of a connection.
fn http2(calls: CallStarter) -> http2::Builder<CallStarter> {
    let mut builder = http2::Builder::new(calls);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_send_buf_size(MAX_SEND_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(PING_TIMEOUT)
        // gRPC clients do not read the date.
        .auto_date_header(false);
    builder
}

/// Waits for a connection to end after its GOAWAY, as long as a decision runs on it and for a moment longer. A partial
/// message, an unread reply or a health watch delays nothing.
async fn goodbye(
    mut served: Pin<&mut impl Future<Output = hyper::Result<()>>>,
    running: &Arc<()>,
) -> hyper::Result<()> {
    loop {
        let ended = tokio::time::timeout(GOODBYE, served.as_mut()).await;
        if let Ok(ended) = ended {
            return ended;
        }
        if Arc::strong_count(running) == 1 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_a_tenth_at_most_and_none_is_for_ever() {
        let age = Duration::from_secs(1000);
        let ages: Vec<_> = (0..1000).map(|_| jittered(age).as_secs()).collect();
        let is_near = |age: &u64| (900..=1100).contains(age);
        assert!(ages.iter().all(is_near), "{ages:?}");
        assert!(ages.iter().any(|age| *age < 950), "{ages:?}");
        assert!(ages.iter().any(|age| *age > 1050), "{ages:?}");
        let century = Duration::from_secs(99 * 365 * 86_400);
        assert!(jittered(Duration::ZERO) > century);
        assert!(jittered(Duration::MAX) > century);
    }
}
