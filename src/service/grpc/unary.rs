//! Calls with one message in each direction, directly on hyper: a router, layers and boxed bodies would cost a third
//! of a decision.

use self::encoding::too_large;

mod encoding;

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    fmt,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use hyper::{
    HeaderMap, Method as HttpMethod, Request, Response, StatusCode,
    body::{Body, Frame, Incoming},
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
    rt::Executor,
};
use hyper_util::{rt::TokioExecutor, service::TowerToHyperService};
use prost::bytes::{BufMut as _, Bytes, BytesMut};
use tonic::{Status, service::Routes};

use encoding::Encoding;

use super::timeout;
use crate::{
    observe::metrics::CutOff,
    service::budget::{Account, BudgetExhausted, CALL_BYTES, ReplyBytes, Reservation},
};

/// Length of a message's prefix: a flag and the length (gRPC over HTTP2, "Length-Prefixed-Message").
const PREFIX_BYTES: usize = 5;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const OK: HeaderValue = HeaderValue::from_static("0");
const UNIMPLEMENTED: HeaderValue = HeaderValue::from_static("12");

/// How long a caller may take to end its stream after its message. Most end it with the message; the others are
/// answered after this time.
const END_OF_STREAM: Duration = Duration::from_millis(10);

/// Memory of a call that waits for its message, besides the message.
const WAITING_BYTES: usize = 2 << 10;

/// Memory of a call to another service.
const OTHER_BYTES: usize = 4 << 10;

/// Bound on the bytes that a client may send in one call to another service.
const MAX_OTHER_BYTES: usize = 64 << 10;

/// Bound on the part of a path that an error repeats.
const MAX_PATH_CHARS: usize = 200;

/// A method of a service.
pub trait UnaryMethod: Send + Sync + 'static {
    /// `/package.Service/UnaryMethod`.
    const PATH: &'static str;

    /// Data of a call from its arrival.
    type CallStart: Send;

    /// Called when a call arrives, whose caller waits for `timeout` at most.
    fn note(&self, headers: &HeaderMap, timeout: Option<Duration>) -> Self::CallStart;

    /// Called when the message of a call arrives later than the call itself.
    fn message_came(&self, start: &mut Self::CallStart);

    /// Answers `message` like [`Self::call`], or returns `None` if the answer has to wait or needs a future of its
    /// own.
    fn call_at_once(
        &self,
        start: &Self::CallStart,
        message: &Bytes,
    ) -> Option<Result<Bytes, Status>>;

    /// Answers `message` with a message made by [`framed`].
    fn call(
        &self,
        start: Self::CallStart,
        message: Bytes,
    ) -> impl Future<Output = Result<Bytes, Status>> + Send;
}

/// Frames a message of `length` bytes, which `write` writes.
///
/// # Panics
///
/// If `write` needs more room than `length`.
pub fn framed(length: usize, write: impl FnOnce(&mut &mut [u8])) -> Bytes {
    REPLIES.with_borrow_mut(|frame| {
        // Zeroed first, so that each field is written without a check for room.
        frame.resize(PREFIX_BYTES + length, 0);
        let mut room = &mut frame[1..];
        room.put_u32(u32::try_from(length).expect("a reply is shorter than 4 GB"));
        write(&mut room);
        debug_assert!(room.is_empty());
        frame.split().freeze()
    })
}

/// Many replies share one allocation, which is reused when all of them are sent. A single reply that its caller does
/// not read can keep this many bytes of it alive.
const REPLIES_BYTES: usize = 2048;

thread_local! {
    /// The buffer for the replies of one worker.
    static REPLIES: RefCell<BytesMut> = RefCell::new(BytesMut::with_capacity(REPLIES_BYTES));
}

thread_local! {
    /// When the connection polled on this thread read its first frame.
    static ARRIVED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The arrival time of the call passed to [`UnaryMethod::note`]. All frames read by one poll of a connection share one
/// reading of the clock.
pub fn arrived() -> Instant {
    ARRIVED.get().unwrap_or_else(|| {
        let now = Instant::now();
        ARRIVED.set(Some(now));
        now
    })
}

/// Polls a connection whose calls go to a [`Dispatcher`].
#[derive(Debug)]
pub struct TimedConnection<C>(pub C);

impl<C: Future + Unpin> Future for TimedConnection<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        ARRIVED.set(None);
        TURN.set(TURN_BYTES);
        let polled = Pin::new(&mut self.0).poll(context);
        TURN.set(usize::MAX);
        finish_answered();
        polled
    }
}

/// How many bytes a connection may read until its calls and other connections run. HTTP/2 reads everything that has
/// arrived, and allocates memory for each call, also for calls that the client resets at once.
const TURN_BYTES: usize = 16 << 10;

thread_local! {
    /// How many bytes the connection that this thread polls may still read.
    static TURN: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Whether the connection that this thread polls has read all that it may before others run. It is then woken for
/// its next poll.
pub fn is_turn_over(context: &Context<'_>) -> bool {
    let is_over = TURN.get() == 0;
    if is_over {
        context.waker().wake_by_ref();
    }
    is_over
}

/// Records that the connection that this thread polls has read `bytes`.
pub fn count_read(bytes: usize) {
    TURN.set(TURN.get().saturating_sub(bytes));
}

/// Runs the futures that hyper makes of calls. Answered calls need no task: they finish after the poll of their
/// connection that found them, and the connection then writes all replies at once.
#[derive(Clone, Copy, Debug)]
pub struct Calls;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        if IS_ANSWERED.take() {
            ANSWERED.with_borrow_mut(|answered| answered.push(Box::pin(call)));
        } else {
            TokioExecutor::new().execute(call);
        }
    }
}

thread_local! {
    /// Whether the call that hyper is about to make a future of is answered.
    static IS_ANSWERED: Cell<bool> = const { Cell::new(false) };
    /// Answered calls of the connection that this thread polls.
    static ANSWERED: RefCell<Vec<Pin<Box<dyn Future<Output = ()> + Send>>>> = const { RefCell::new(Vec::new()) };
}

/// Passes the replies to HTTP/2. A call whose client grants no window for its reply continues in a task.
fn finish_answered() {
    let mut answered = ANSWERED.take();
    for mut call in answered.drain(..) {
        // Its task polls it again, with a waker.
        let mut once = Context::from_waker(Waker::noop());
        if call.as_mut().poll(&mut once).is_pending() {
            TokioExecutor::new().execute(call);
        }
    }
    ANSWERED.set(answered);
}

/// Counts the running decisions of one connection: each holds a clone.
#[derive(Clone, Debug, Default)]
pub struct InFlight(pub(super) Arc<()>);

impl InFlight {
    pub fn is_none(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// For a call whose message has not arrived: it counts as running only once it upgrades this.
    fn begins_later(&self) -> Weak<()> {
        Arc::downgrade(&self.0)
    }
}

/// Serves one method directly, and all other paths through `others`.
#[derive(Debug)]
pub struct Dispatcher<M> {
    pub method: Arc<M>,
    pub max_message_bytes: usize,
    /// Longest time until a message has arrived.
    pub message_timeout: Duration,
    /// As HTTP/2 counts them: each header adds 32 to the lengths of its name and its value.
    pub max_header_bytes: u32,
    pub others: Routes,
}

impl<M> Clone for Dispatcher<M> {
    fn clone(&self) -> Self {
        Self {
            method: self.method.clone(),
            max_message_bytes: self.max_message_bytes,
            message_timeout: self.message_timeout,
            max_header_bytes: self.max_header_bytes,
            others: self.others.clone(),
        }
    }
}

impl<M: UnaryMethod> Dispatcher<M> {
    /// Answers one call. Failures are answers too.
    ///
    /// A message that has already arrived is answered before this returns, if possible: then no future stores it, and
    /// consecutive calls find the same data in the caches.
    pub fn call(
        &self,
        request: Request<Incoming>,
        account: &Arc<Account>,
        in_flight: &InFlight,
    ) -> CallFuture {
        let refused = |response: Response<Reply>| {
            account.hold_until_flushed(CALL_BYTES);
            CallFuture::Waiting(Box::pin(async move { Ok(response) }))
        };
        let CheckedHeaders {
            encoding,
            timeout,
            header_bytes,
        } = match check(&request, self.max_header_bytes) {
            Ok(checked) => checked,
            Err(response) => return refused(*response),
        };
        let path = request.uri().path_and_query();
        if path.is_none_or(|path| path.as_str() != M::PATH) {
            return match Reservation::try_new(account, OTHER_BYTES + header_bytes) {
                Ok(held) => {
                    CallFuture::Waiting(Box::pin(other(self.others.clone(), request, held)))
                }
                Err(full) => refused(refusal(&no_room(account, full))),
            };
        }
        let mut start = self.method.note(request.headers(), timeout);
        let mut body = request.into_body();
        let max_bytes = self.max_message_bytes;
        let receive = receive(&mut body, max_bytes, encoding);
        let method = &self.method;
        match receive {
            ReceivedBody::All(message) => match method.call_at_once(&start, &message) {
                Some(answer) => {
                    IS_ANSWERED.set(true);
                    CallFuture::Answered(Some((answer, account.clone())))
                }
                None => {
                    let (method, in_flight) = (method.clone(), in_flight.clone());
                    let held = Reservation::new(account, CALL_BYTES + message.len());
                    CallFuture::Waiting(Box::pin(async move {
                        let _is_in_flight = in_flight;
                        Ok(response(method.call(start, message).await, held))
                    }))
                }
            },
            ReceivedBody::Part(first) => {
                let (method, in_flight) = (method.clone(), in_flight.begins_later());
                let mut held = match Reservation::try_new(account, WAITING_BYTES) {
                    Ok(held) => held,
                    Err(full) => return refused(refusal(&no_room(account, full))),
                };
                let timeout = self.message_timeout;
                CallFuture::Waiting(Box::pin(async move {
                    let message = message(first, &mut body, max_bytes, encoding, &mut held);
                    let message = tokio::time::timeout(timeout, message).await;
                    let message = message.unwrap_or_else(|_| Err(late(held.account(), timeout)));
                    let answer = match message {
                        Ok(message) => {
                            let _is_in_flight = in_flight.upgrade();
                            method.message_came(&mut start);
                            match method.call_at_once(&start, &message) {
                                Some(answer) => answer,
                                None => method.call(start, message).await,
                            }
                        }
                        Err(status) => Err(status),
                    };
                    Ok(response(answer, held))
                }))
            }
        }
    }
}

/// A call with one message in each direction. It is small, because it is moved several times before its first poll.
pub enum CallFuture {
    /// `None` after the answer was taken.
    Answered(Option<(Result<Bytes, Status>, Arc<Account>)>),
    Waiting(Pin<Box<dyn Future<Output = Result<Response<Reply>, Infallible>> + Send>>),
}

impl fmt::Debug for CallFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answered(_) => "Answered",
            Self::Waiting(_) => "Waiting",
        })
    }
}

impl Future for CallFuture {
    type Output = Result<Response<Reply>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Answered(answer) => {
                let (answer, account) = answer.take().expect("a future that is over is not polled");
                Poll::Ready(Ok(response(answer, Reservation::nothing(account))))
            }
            Self::Waiting(reply) => reply.as_mut().poll(context),
        }
    }
}

/// The response to a call, which charges the reply instead of what the call `held`.
fn response(answer: Result<Bytes, Status>, mut held: Reservation) -> Response<Reply> {
    match answer {
        Ok(message) => {
            held.resize(CALL_BYTES + message.len());
            let mut response = Response::new(Reply::Message(ReplyBytes::new(message, held)));
            response.headers_mut().insert(CONTENT_TYPE, GRPC);
            response
        }
        Err(status) => {
            held.account().hold_until_flushed(CALL_BYTES);
            refusal(&status)
        }
    }
}

fn no_room(account: &Account, _: BudgetExhausted) -> Status {
    account.budget().note(CutOff::MESSAGE_NO_ROOM);
    Status::resource_exhausted("too much is on its way in")
}

fn late(account: &Account, timeout: Duration) -> Status {
    account.budget().note(CutOff::MESSAGE_LATE);
    Status::deadline_exceeded(format!("the message did not come within {timeout:?}"))
}

/// How much of the request body has arrived when the call begins.
enum ReceivedBody {
    /// The only message, completely.
    All(Bytes),
    /// The first data of the body, if any has arrived.
    Part(Option<FirstData>),
}

type FirstData = Result<Option<Bytes>, Status>;

fn receive(body: &mut Incoming, max_bytes: usize, encoding: Encoding) -> ReceivedBody {
    // No waker: a caller that waits for more polls again.
    let mut unread = Context::from_waker(Waker::noop());
    match poll_data(body, &mut unread) {
        Poll::Ready(Ok(Some(bytes))) => {
            let end = end_of_message(&bytes, max_bytes, encoding);
            let is_all = matches!(end, Ok(Some(end)) if end == bytes.len());
            if is_all && bytes[0] == PLAIN && body.is_end_stream() {
                ReceivedBody::All(bytes.slice(PREFIX_BYTES..))
            } else {
                ReceivedBody::Part(Some(Ok(Some(bytes))))
            }
        }
        Poll::Ready(first) => ReceivedBody::Part(Some(first)),
        Poll::Pending => ReceivedBody::Part(None),
    }
}

async fn other(
    others: Routes,
    request: Request<Incoming>,
    held: Reservation,
) -> Result<Response<Reply>, Infallible> {
    let account = held.account().clone();
    let request = request.map(|body| LimitedBody {
        body,
        held: Reservation::new(&account, 0),
        left: MAX_OTHER_BYTES,
    });
    let path: String = request.uri().path().chars().take(MAX_PATH_CHARS).collect();
    let others = TowerToHyperService::new(others);
    let reply = hyper::service::Service::call(&others, request).await?;
    let headers = reply.headers();
    let is_unknown = headers.get(GRPC_STATUS) == Some(&UNIMPLEMENTED);
    if is_unknown && !headers.contains_key(GRPC_MESSAGE) {
        account.hold_until_flushed(CALL_BYTES);
        return Ok(refusal(&Status::unimplemented(format!(
            "unknown method {path}"
        ))));
    }
    Ok(reply.map(|body| Reply::Other(body, held)))
}

/// The body of a call to another service.
struct LimitedBody {
    body: Incoming,
    held: Reservation,
    /// Bytes that may still follow.
    left: usize,
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame.map_err(|_| Status::cancelled("the request was cut off"));
        Poll::Ready(Some(frame.and_then(|frame| {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let Some(left) = this.left.checked_sub(bytes) else {
                return Err(too_large(bytes, this.left));
            };
            this.left = left;
            let held = this.held.add(bytes);
            held.map_err(|full| no_room(this.held.account(), full))?;
            Ok(frame)
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The encoding of a valid call, and the size of its headers.
struct CheckedHeaders {
    encoding: Encoding,
    timeout: Option<Duration>,
    header_bytes: usize,
}

/// Refuses requests that are not gRPC calls, as grpc-go does, and determines the encoding of messages.
fn check<B>(
    request: &Request<B>,
    max_header_bytes: u32,
) -> Result<CheckedHeaders, Box<Response<Reply>>> {
    let refuse = |http, status: Status| {
        let mut response = refusal(&status);
        *response.status_mut() = http;
        Err(Box::new(response))
    };
    if request.method() != HttpMethod::POST {
        let status = Status::internal(format!("a call is a POST and no {}", request.method()));
        return refuse(StatusCode::METHOD_NOT_ALLOWED, status);
    }
    let (mut is_grpc, mut encoding, mut timeout, mut bytes) = (false, None, None, 0);
    // Callers send a handful of headers: a linear search takes a third of the time of a hash lookup.
    for (name, value) in request.headers() {
        const OF_EACH: usize = 32;
        let name = name.as_str();
        bytes += OF_EACH + name.len() + value.len();
        match name {
            "content-type" => is_grpc |= is_grpc_type(value.as_bytes()),
            "grpc-encoding" => encoding = Some(value),
            "grpc-timeout" => timeout = timeout::parse(value.as_bytes()),
            _ => {}
        }
    }
    if bytes > max_header_bytes as usize {
        let status = Status::resource_exhausted(format!(
            "headers too large: {bytes} bytes, the limit is: {max_header_bytes} bytes"
        ));
        return refuse(StatusCode::OK, status);
    }
    if !is_grpc {
        let status = Status::invalid_argument("the content type is not application/grpc");
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, status);
    }
    let encoding = match encoding {
        None => Some(Encoding::Identity),
        Some(name) => Encoding::named(name.as_bytes()),
    };
    let checked = |encoding| CheckedHeaders {
        encoding,
        timeout,
        header_bytes: bytes,
    };
    encoding.map(checked).ok_or_else(|| {
        let text = format!("messages are compressed by one of: {}", encoding::ALL);
        let mut response = refusal(&Status::unimplemented(text));
        let all = HeaderValue::from_static(encoding::ALL);
        response.headers_mut().insert(GRPC_ACCEPT_ENCODING, all);
        Box::new(response)
    })
}

/// Matches `application/grpc`, also followed by a message format or parameters.
fn is_grpc_type(value: &[u8]) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    if value == TYPE {
        return true;
    }
    match value.split_at_checked(TYPE.len()) {
        Some((start, rest)) => {
            start.eq_ignore_ascii_case(TYPE) && matches!(rest.first(), None | Some(b'+' | b';'))
        }
        None => false,
    }
}

fn refusal(status: &Status) -> Response<Reply> {
    status.clone().into_http::<()>().map(|()| Reply::Nothing)
}

/// The first message of `body`, after its first data, `first`. Waits briefly for the end of the stream.
async fn message(
    first: Option<FirstData>,
    body: &mut Incoming,
    max_bytes: usize,
    encoding: Encoding,
    held: &mut Reservation,
) -> Result<Bytes, Status> {
    let first = match first {
        Some(first) => first,
        None => data(body).await,
    };
    let Some(bytes) = first? else {
        return Err(Status::internal("Missing request message."));
    };
    let (bytes, end) = match end_of_message(&bytes, max_bytes, encoding)? {
        Some(end) if end <= bytes.len() => (bytes, end),
        _ => Box::pin(gather(bytes, max_bytes, encoding, body, held)).await?,
    };
    if !body.is_end_stream() {
        // Hyper resets a stream that is answered before its end, and not all clients report that reset correctly.
        let ended = tokio::time::timeout(END_OF_STREAM, Box::pin(end_of_stream(body)));
        ended.await.unwrap_or(Ok(()))?;
    }
    let message = bytes.slice(PREFIX_BYTES..end);
    if bytes[0] == PLAIN {
        return Ok(message);
    }
    let message = encoding.inflate(&message, max_bytes)?;
    held.add(message.len())
        .map_err(|full| no_room(held.account(), full))?;
    Ok(message)
}

async fn end_of_stream(body: &mut Incoming) -> Result<(), Status> {
    while !body.is_end_stream() && data(body).await?.is_some() {}
    Ok(())
}

/// The flag of an uncompressed message.
const PLAIN: u8 = 0;

const COMPRESSED: u8 = 1;

/// The end of the first message, if it is known.
fn end_of_message(
    bytes: &[u8],
    max_bytes: usize,
    encoding: Encoding,
) -> Result<Option<usize>, Status> {
    let [flag, length @ ..] = bytes else {
        return Ok(None);
    };
    match *flag {
        PLAIN => {}
        COMPRESSED if encoding != Encoding::Identity => {}
        COMPRESSED => return Err(Status::internal("a compressed message without an encoding")),
        flag => {
            return Err(Status::internal(format!(
                "invalid compression flag: {flag} (valid flags are 0 and 1)"
            )));
        }
    }
    let Some(length) = length.first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length > max_bytes {
        return Err(too_large(length, max_bytes));
    }
    Ok(Some(PREFIX_BYTES + length))
}

/// Reads until the message is complete; returns its end.
async fn gather(
    bytes: Bytes,
    max_bytes: usize,
    encoding: Encoding,
    body: &mut Incoming,
    held: &mut Reservation,
) -> Result<(Bytes, usize), Status> {
    let mut gathered = BytesMut::from(bytes);
    let mut known = 0;
    loop {
        let grown = gathered.capacity().saturating_sub(known);
        known += grown;
        held.add(grown)
            .map_err(|full| no_room(held.account(), full))?;
        match end_of_message(&gathered, max_bytes, encoding)? {
            Some(end) if end <= gathered.len() => return Ok((gathered.freeze(), end)),
            _ => {}
        }
        let Some(more) = data(body).await? else {
            return Err(Status::internal("Unexpected EOF decoding stream."));
        };
        gathered.extend_from_slice(&more);
    }
}

/// The next bytes of `body`, never empty; `None` at the end.
async fn data(body: &mut Incoming) -> Result<Option<Bytes>, Status> {
    poll_fn(|context| poll_data(body, context)).await
}

fn poll_data(body: &mut Incoming, context: &mut Context<'_>) -> Poll<FirstData> {
    loop {
        match ready!(Pin::new(&mut *body).poll_frame(context)) {
            None => return Poll::Ready(Ok(None)),
            // Trailers of a request are ignored.
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if !data.is_empty() => return Poll::Ready(Ok(Some(data))),
                _ => {}
            },
            Some(Err(_)) => {
                return Poll::Ready(Err(Status::cancelled("the request was cut off")));
            }
        }
    }
}

/// The body of a reply.
#[derive(Debug)]
pub enum Reply {
    /// A message; trailers follow.
    Message(ReplyBytes),
    Trailers,
    Nothing,
    Other(tonic::body::Body, Reservation),
}

impl Body for Reply {
    type Data = ReplyBytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ReplyBytes>, Status>>> {
        let frame = match &mut *self {
            Self::Message(_) => {
                let Self::Message(message) = mem::replace(&mut *self, Self::Trailers) else {
                    unreachable!("it was just looked at");
                };
                Frame::data(message)
            }
            Self::Trailers => {
                *self = Self::Nothing;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, OK);
                Frame::trailers(trailers)
            }
            Self::Nothing => return Poll::Ready(None),
            Self::Other(body, held) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                let sent = |bytes: Bytes| {
                    let held = Reservation::new(held.account(), bytes.len());
                    ReplyBytes::new(bytes, held)
                };
                return Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(sent))));
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(_) | Self::Trailers => false,
            Self::Nothing => true,
            Self::Other(body, _) => body.is_end_stream(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_ends_where_its_prefix_says() {
        let end = |bytes: &[u8], max| end_of_message(bytes, max, Encoding::Identity).unwrap();
        assert_eq!(end(&[], 10), None);
        assert_eq!(end(&[0, 0, 0, 0], 10), None);
        assert_eq!(end(&[0, 0, 0, 0, 7], 10), Some(12));
        assert_eq!(end(&framed(0, |_| ()), 0), Some(5));
    }

    #[test]
    fn what_cannot_be_read_is_refused_at_its_first_byte() {
        let code = |bytes| {
            end_of_message(bytes, 10, Encoding::Identity)
                .unwrap_err()
                .code()
        };
        assert_eq!(code(&[1]), tonic::Code::Internal);
        assert_eq!(code(&[9]), tonic::Code::Internal);
        assert_eq!(code(&[0, 0, 0, 0, 11]), tonic::Code::ResourceExhausted);
        assert!(end_of_message(&[1], 10, Encoding::Gzip).is_ok());
    }
}
