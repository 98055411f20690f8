//! Servers for comparison, in this program so that all are compiled alike.

use std::{
    cell::Cell,
    convert::Infallible,
    future::{Ready, ready},
    io::{self, Write as _},
    net::{SocketAddr, TcpListener},
    pin::Pin,
    thread,
};

use anyhow::{Context as _, bail};
use bb8_redis::{RedisConnectionManager, bb8::Pool, redis};
use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::bytes::{Buf as _, BufMut as _, Bytes};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net, runtime,
    sync::mpsc,
    task::JoinSet,
};
use tollgate::{
    Decision, DecisionCode, DecisionStatus, fast_path,
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
        rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
    },
};
use tonic::{
    Request, Response, Status,
    codec::{self, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{Grpc, UnaryService},
    transport::Server,
};

/// Serves as `name` until killed. The first line on standard error is its address.
pub fn serve(name: &str, workers: usize, redis: Option<SocketAddr>) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(io::stderr(), "{}", listener.local_addr()?)?;
    match (name, redis) {
        ("floor", None) => floor(listener, workers, Floor),
        ("floor", Some(redis)) => floor(listener, workers, FloorAndPing(redis)),
        ("stock", _) => stock(listener, workers, |_| Ok(Stock)),
        ("naive", Some(redis)) => stock(listener, workers, |runtime| {
            let manager = RedisConnectionManager::new(format!("redis://{redis}"))?;
            // The reference's default.
            let pool = Pool::builder().max_size(10).build(manager);
            Ok(Naive(runtime.block_on(pool)?))
        }),
        _ => bail!("there is no rival called {name}"),
    }
}

/// The floor: a service of tonic that reads a request and always answers OK, directly on hyper, with one runtime per
/// core and with tollgate's reading and writing of messages.
fn floor<S>(listener: TcpListener, workers: usize, service: S) -> anyhow::Result<()>
where
    S: UnaryService<Bytes, Response = Message, Future: Send> + Copy + Send + Sync + 'static,
{
    let mut doors = Vec::new();
    for number in 0..workers {
        let (door, mut arrivals) = mpsc::unbounded_channel();
        doors.push(door);
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let worker = thread::Builder::new().name(format!("worker-{number}"));
        worker.spawn(move || {
            runtime.block_on(async move {
                let mut connections = JoinSet::new();
                while let Some(stream) = arrivals.recv().await {
                    connections.spawn(connection(stream, service));
                }
            });
        })?;
    }
    for (door, stream) in doors.iter().cycle().zip(listener.incoming()) {
        let stream = stream?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        door.send(stream)?;
    }
    bail!("there are no more connections")
}

async fn connection<S>(stream: std::net::TcpStream, service: S) -> anyhow::Result<()>
where
    S: UnaryService<Bytes, Response = Message, Future: Send> + Copy + Send + Sync + 'static,
{
    let stream = TokioIo::new(net::TcpStream::from_std(stream)?);
    // Boxed as in tonic's own services, because it would be moved several times.
    let answer = |request| {
        Box::pin(async move {
            let reply = Grpc::new(Codec).unary(service, request).await;
            Ok::<_, Infallible>(reply)
        })
    };
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .serve_connection(stream, service_fn(answer))
        .await?;
    Ok(())
}

#[derive(Clone, Copy)]
struct Floor;

impl UnaryService<Bytes> for Floor {
    type Response = Message;
    type Future = Ready<Result<Response<Message>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(reply(&request))
    }
}

fn reply(request: &Request<Bytes>) -> Result<Response<Message>, Status> {
    ok(request.get_ref(), |decision| Response::new(decision.into()))
}

/// Like the floor, with one PING per call, one at a time: no server that calls Redis for each request can be faster.
#[derive(Clone, Copy)]
struct FloorAndPing(SocketAddr);

thread_local! {
    /// The connection of each worker: a task woken by another thread would wait for both.
    static TO_REDIS: Cell<Option<net::TcpStream>> = const { Cell::new(None) };
}

impl UnaryService<Bytes> for FloorAndPing {
    type Response = Message;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Message>, Status>> + Send>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let redis = self.0;
        Box::pin(async move {
            ping(redis).await?;
            reply(&request)
        })
    }
}

async fn ping(redis: SocketAddr) -> io::Result<()> {
    let mut stream = match TO_REDIS.take() {
        Some(stream) => stream,
        None => {
            let stream = net::TcpStream::connect(redis).await?;
            stream.set_nodelay(true)?;
            stream
        }
    };
    stream.write_all(b"PING\r\n").await?;
    stream.read_exact(&mut [0; b"+PONG\r\n".len()]).await?;
    TO_REDIS.set(Some(stream));
    Ok(())
}

/// An encoded reply.
struct Message(Vec<u8>);

impl From<&Decision> for Message {
    fn from(decision: &Decision) -> Self {
        Self(fast_path::reply(decision))
    }
}

struct Codec;

impl codec::Codec for Codec {
    type Encode = Message;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Codec {
    type Item = Message;
    type Error = Status;

    fn encode(&mut self, message: Message, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message.0);
        Ok(())
    }
}

impl Decoder for Codec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// tonic in the style of its examples.
fn stock<S: RateLimitService>(
    listener: TcpListener,
    workers: usize,
    service: impl FnOnce(&runtime::Runtime) -> anyhow::Result<S>,
) -> anyhow::Result<()> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()?;
    let service = RateLimitServiceServer::new(service(&runtime)?);
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = net::TcpListener::from_std(listener)?;
        let incoming =
            tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming)
            .await
            .context("the stock server ended")
    })
}

/// Passes the decision to `tell` by reference, because it is too large to move.
fn ok<R>(message: &[u8], tell: impl FnOnce(&Decision) -> R) -> Result<R, Status> {
    if fast_path::read(message).is_none() {
        return Err(Status::invalid_argument(
            "only plain requests are known here",
        ));
    }
    let mut decision = Decision::default();
    decision.statuses.push(DecisionStatus {
        code: DecisionCode::Ok,
        binding: None,
        remaining: 0,
        retry_secs: Some(0),
    });
    Ok(tell(&decision))
}

/// Answers OK to everything.
struct Stock;

#[tonic::async_trait]
impl RateLimitService for Stock {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![DescriptorStatus {
                code: Code::Ok.into(),
                ..DescriptorStatus::default()
            }],
            ..RateLimitResponse::default()
        }))
    }
}

/// Two periods, counted with one connection from the pool and one pipeline per request.
struct Naive(Pool<RedisConnectionManager>);

/// The periods in seconds.
const PERIODS: [u64; 2] = [86_400, 604_800];

#[tonic::async_trait]
impl RateLimitService for Naive {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let mut pipeline = redis::pipe();
        for descriptor in &request.descriptors {
            for period in PERIODS {
                let mut key = format!("{}_{period}", request.domain).into_bytes();
                for entry in &descriptor.entries {
                    key.extend_from_slice(&entry.value);
                }
                pipeline.incr(&key, 1).expire(&key, period.cast_signed());
            }
        }
        let unavailable = |error: &dyn std::error::Error| Status::unavailable(error.to_string());
        let mut connection = self.0.get().await.map_err(|error| unavailable(&error))?;
        let replies: Vec<i64> = pipeline
            .query_async(&mut *connection)
            .await
            .map_err(|error| unavailable(&error))?;
        let is_counted = replies.iter().all(|&count| count > 0);
        let code = if is_counted { Code::Ok } else { Code::Unknown };
        Ok(Response::new(RateLimitResponse {
            overall_code: code.into(),
            ..RateLimitResponse::default()
        }))
    }
}
