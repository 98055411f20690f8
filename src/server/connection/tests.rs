use std::{
    convert::Infallible,
    task::{Context, Poll, ready},
};

use hyper::HeaderMap;
use prost::bytes::Bytes;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};
use tonic::{
    Code, Request, Response, Status, Streaming,
    body::Body,
    client,
    codegen::{
        Service, http,
        tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream},
    },
    server::{Grpc, NamedService, StreamingService},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::*;
use crate::{
    core::limit::NearRatio,
    observe::metrics::Metrics,
    server::workers::{Arrival, Worker},
    service::answered_leases::ConnectionLeases,
};

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

/// A method that panics at one message, and answers no other.
struct NoMethod;

/// The message at which it panics.
const PANIC: &[u8] = b"panic";

impl UnaryMethod for NoMethod {
    const PATH: &'static str = "/tests.No/Method";

    type CallStart = ();

    fn note(&self, _: &HeaderMap, _: Option<Duration>, _: &Arc<ConnectionLeases>) {}

    fn message_came(&self, (): &mut ()) {}

    async fn call(&self, (): (), message: Bytes) -> Result<Bytes, Status> {
        assert!(!message.ends_with(PANIC), "a test wants it");
        Err(Status::unimplemented("it answers nothing"))
    }
}

/// Sends the messages of a call back. After their end it polls once more, as a service is free to do.
struct Replies(Streaming<Vec<u8>>);

impl Stream for Replies {
    type Item = Result<Vec<u8>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match ready!(Pin::new(&mut self.0).poll_next(context)) {
            None => Pin::new(&mut self.0).poll_next(context),
            message => Poll::Ready(message),
        }
    }
}

/// A service with one method, which sends each message back for as long as the call stays open.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "tests.Echo";
}

impl StreamingService<Vec<u8>> for Echo {
    type Response = Vec<u8>;
    type ResponseStream = Replies;
    type Future = std::future::Ready<Result<Response<Replies>, Status>>;

    fn call(&mut self, request: Request<Streaming<Vec<u8>>>) -> Self::Future {
        std::future::ready(Ok(Response::new(Replies(request.into_inner()))))
    }
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<Vec<u8>, Vec<u8>>::default());
            Ok(grpc.streaming(service, request).await)
        })
    }
}

/// Most bytes of a message.
const MESSAGE_BYTES: usize = 4 << 10;

/// A server with one connection, on which a call is open.
struct OpenStream {
    metrics: Arc<Metrics>,
    phase: watch::Sender<Phase>,
    connection: JoinHandle<()>,
    requests: mpsc::Sender<Vec<u8>>,
    replies: Streaming<Vec<u8>>,
}

impl OpenStream {
    /// Clients may make the server hold `max_bytes`.
    async fn new(max_bytes: usize) -> Self {
        let (server, metrics, phase) = server(max_bytes);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connection = tokio::task::spawn_local(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let account = server.account();
            let stream = PortStream::Tcp(stream.into_std().unwrap());
            server.connection(stream, Instant::now(), account).await;
        });
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = client::Grpc::new(endpoint.connect().await.unwrap());
        client.ready().await.unwrap();
        let (requests, received) = mpsc::channel(1);
        let path = http::uri::PathAndQuery::from_static("/tests.Echo/Echo");
        let received = Request::new(ReceiverStream::new(received));
        let replies = open(&mut client, received, path).await;
        Self {
            metrics,
            phase,
            connection,
            requests,
            replies,
        }
    }

    async fn send(&self, bytes: usize) {
        self.requests.send(vec![7; bytes]).await.unwrap();
    }

    async fn reply(&mut self) -> Option<Result<Vec<u8>, Status>> {
        self.replies.next().await
    }

    fn held(&self) -> u64 {
        self.metrics
            .held
            .bytes
            .load(std::sync::atomic::Ordering::Relaxed)
    }
}

fn server(
    max_bytes: usize,
) -> (
    ConnectionServer<NoMethod>,
    Arc<Metrics>,
    watch::Sender<Phase>,
) {
    let metrics = Arc::new(Metrics::new(NearRatio::default(), 0));
    let (phase, phases) = watch::channel(Phase::Serving);
    let shared = ConnectionParts {
        tls: None,
        authority_log: AuthorityLog::new(metrics.clone()),
        bound: HeldBound::new(max_bytes, metrics.clone()),
        phases,
    };
    let options = ConnectionOptions::new(&Settings::from_environment());
    let mut server = ConnectionServer::new(Arc::new(NoMethod), Routes::new(Echo), options, shared);
    server.dispatcher.others.bounds = |_| CallBounds {
        bytes: MESSAGE_BYTES,
        stays_open: true,
    };
    (server, metrics, phase)
}

async fn open(
    client: &mut client::Grpc<Channel>,
    requests: Request<ReceiverStream<Vec<u8>>>,
    path: http::uri::PathAndQuery,
) -> Streaming<Vec<u8>> {
    let codec = ProstCodec::<Vec<u8>, Vec<u8>>::default();
    let opened = client.streaming(requests, path, codec).await;
    opened.unwrap().into_inner()
}

/// Runs a test whose server is a task of its own thread, as in a worker.
fn on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

#[test]
fn the_bound_of_an_open_call_is_one_of_each_message() {
    on_one_thread(async {
        let mut stream = OpenStream::new(1 << 20).await;
        // Far more than a short call may send.
        for _ in 0..100 {
            stream.send(4_000).await;
            assert_eq!(stream.reply().await.unwrap().unwrap().len(), 4_000);
        }
        stream.send(MESSAGE_BYTES + 1).await;
        let error = stream.reply().await.unwrap().unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    });
}

#[test]
fn a_client_that_does_not_read_holds_no_more_than_the_windows_of_its_stream() {
    on_one_thread(async {
        const MESSAGES: usize = 5_000;
        // A connection that holds more is closed.
        let mut stream = OpenStream::new(1 << 20).await;
        let requests = stream.requests.clone();
        let flood = tokio::task::spawn_local(async move {
            for _ in 0..MESSAGES {
                requests.send(vec![7; 4_000]).await.unwrap();
            }
        });
        let mut most = 0;
        // All tasks of the thread have their turns meanwhile.
        for _ in 0..20_000 {
            tokio::task::yield_now().await;
            most = most.max(stream.held());
        }
        assert!(
            !flood.is_finished(),
            "all was taken, and the client had not read"
        );
        for _ in 0..MESSAGES {
            assert_eq!(stream.reply().await.unwrap().unwrap().len(), 4_000);
            most = most.max(stream.held());
        }
        flood.await.unwrap();
        assert!(most <= 512 << 10, "{most}");
    });
}

#[test]
fn a_drain_ends_the_requests_of_an_open_call_and_waits_for_its_replies() {
    on_one_thread(async {
        let mut stream = OpenStream::new(1 << 20).await;
        stream.send(10).await;
        assert_eq!(stream.reply().await.unwrap().unwrap().len(), 10);
        stream.phase.send_replace(Phase::Draining);
        // The call ends well, and with it the connection.
        assert!(stream.reply().await.is_none());
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.connection).await;
        ended.expect("the call is over").unwrap();
    });
}

#[test]
fn an_open_call_that_is_reset_keeps_nothing() {
    on_one_thread(async {
        let mut stream = OpenStream::new(1 << 20).await;
        stream.send(4_000).await;
        assert!(stream.reply().await.unwrap().is_ok());
        let OpenStream {
            phase,
            connection,
            requests,
            replies,
            ..
        } = stream;
        drop((replies, requests));
        // Nothing that a drain would wait for is running any more.
        phase.send_replace(Phase::Draining);
        let ended = tokio::time::timeout(Duration::from_secs(60), connection).await;
        ended.expect("the call is over").unwrap();
    });
}

#[test]
fn the_store_of_a_worker_ends_when_a_drain_begins_and_while_its_tasks_run() {
    on_one_thread(async {
        let (server, ..) = server(1 << 20);
        let (end, ended) = tokio::sync::oneshot::channel();
        let (ask, asked) = tokio::sync::oneshot::channel();
        let worker = Worker {
            server,
            // This stands for the batchers of a store, without which nothing is given back.
            of_store: vec![Box::pin(async move {
                asked.await.unwrap();
                end.send(()).unwrap();
                std::future::pending().await
            })],
            at_drain: vec![Box::pin(async move {
                ask.send(()).unwrap();
                ended.await.unwrap();
            })],
            at_end: Vec::new(),
        };
        let (accepted, incoming) = mpsc::channel(1);
        drop(accepted);
        worker.run(incoming).await;
    });
}

/// The status of a call on a connection of its own to a worker.
async fn status(client: &mut client::Grpc<Channel>, message: &[u8]) -> Status {
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(NoMethod::PATH);
    let codec = ProstCodec::<Vec<u8>, Vec<u8>>::default();
    let answer = client.unary(Request::new(message.to_vec()), path, codec);
    answer.await.unwrap_err()
}

#[test]
fn a_panic_of_one_connection_ends_that_connection_only() {
    on_one_thread(async {
        let (server, _, _serving) = server(1 << 20);
        let worker = Worker {
            server,
            of_store: Vec::new(),
            at_drain: Vec::new(),
            at_end: Vec::new(),
        };
        let (accepted, incoming) = mpsc::channel(2);
        tokio::task::spawn_local(worker.run(incoming));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::task::spawn_local(async move {
            let places = Arc::new(Semaphore::new(2));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let stream = PortStream::Tcp(stream.into_std().unwrap());
                let permit = places.clone().acquire_owned().await.unwrap();
                let at = Instant::now();
                let arrival = Arrival { stream, at, permit };
                assert!(accepted.send(arrival).await.is_ok());
            }
        });
        let endpoint = Endpoint::from_shared(endpoint).unwrap();
        let mut one = client::Grpc::new(endpoint.connect().await.unwrap());
        let mut other = client::Grpc::new(endpoint.connect().await.unwrap());
        for client in [&mut one, &mut other] {
            assert_eq!(status(client, b"").await.code(), Code::Unimplemented);
        }
        assert_ne!(status(&mut one, PANIC).await.code(), Code::Unimplemented);
        assert_eq!(status(&mut other, b"").await.code(), Code::Unimplemented);
    });
}
