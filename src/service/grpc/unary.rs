//! Calls with one message in each direction, directly on hyper: a router, layers and boxed bodies would cost a third
//! of a decision.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{HeaderMap, Request, Response, body::Incoming};
use prost::bytes::Bytes;
use tonic::Status;

use crate::service::{
    answered_leases::{ConnectionLeases, WorkerLeases},
    held_bytes::{Account, CALL_BYTES, HeldBytes},
};

mod connection;
mod encoding;
mod headers;
mod message;
mod other;
mod refusal;
mod reply;

pub(crate) use connection::{
    Calls, InFlight, Phase, TimedConnection, arrived, count_read, draining, is_turn_over,
};
pub(crate) use other::{CallBounds, OtherServices};
pub(crate) use reply::Reply;
pub use reply::framed;

use connection::{BoxedFuture, announce_answered};
pub(crate) use headers::MAX_HEADER_BYTES;
use headers::{CheckedHeaders, check};
use message::{PartialBody, ReceivedBody, receive};
use other::other;
use refusal::{late, no_room};
use reply::{refusal, response};

/// Memory of a call that waits for its message, besides the message.
const WAITING_BYTES: usize = 2 << 10;

/// Memory of a call to another service.
const OTHER_BYTES: usize = 4 << 10;

/// A method of a service.
pub trait UnaryMethod: Send + Sync + 'static {
    /// `/package.Service/UnaryMethod`.
    const PATH: &'static str;

    /// Data of a call from its arrival.
    type CallStart: Send;

    /// Called when a call arrives on a connection with these `leases`, whose caller waits for `timeout` at most.
    fn note(
        &self,
        headers: &HeaderMap,
        timeout: Option<Duration>,
        leases: &Arc<ConnectionLeases>,
    ) -> Self::CallStart;

    /// The leases of this worker, if answers carry any.
    fn leases(self: &Arc<Self>) -> WorkerLeases {
        WorkerLeases::default()
    }

    /// Called when the message of a call arrives later than the call itself.
    fn message_came(&self, start: &mut Self::CallStart);

    /// Answers `message` like [`Self::call`], or returns `None` if the answer has to wait or needs a future of its
    /// own.
    fn call_at_once(
        &self,
        start: &Self::CallStart,
        message: &Bytes,
    ) -> Option<Result<Bytes, Status>>;

    /// Whether [`Self::call`] is likely to answer when it is polled first, so that a task of its own would be wasted.
    fn answers_soon(&self) -> bool {
        false
    }

    /// Answers `message` with a message made by [`framed`].
    fn call(
        &self,
        start: Self::CallStart,
        message: Bytes,
    ) -> impl Future<Output = Result<Bytes, Status>> + Send;
}

/// Serves one method directly, and all other paths through `others`.
#[derive(Debug)]
pub(crate) struct Dispatcher<M> {
    pub method: Arc<M>,
    pub max_message_bytes: usize,
    /// Longest time until a message has arrived.
    pub message_timeout: Duration,
    pub others: OtherServices,
}

impl<M> Clone for Dispatcher<M> {
    fn clone(&self) -> Self {
        Self {
            method: self.method.clone(),
            max_message_bytes: self.max_message_bytes,
            message_timeout: self.message_timeout,
            others: self.others.clone(),
        }
    }
}

impl<M: UnaryMethod> Dispatcher<M> {
    /// Answers one call. Failures are answers too.
    ///
    /// A message that has already arrived is answered before this returns, if possible: then no future stores it, and
    /// consecutive calls find the same data in the caches.
    pub(crate) fn call(
        &self,
        mut request: Request<Incoming>,
        account: &Arc<Account>,
        leases: &Arc<ConnectionLeases>,
        in_flight: &InFlight,
    ) -> CallFuture {
        let CheckedHeaders {
            encoding,
            timeout,
            header_bytes,
        } = match check(&request) {
            Ok(checked) => checked,
            Err(response) => return CallFuture::refused(*response, account),
        };
        let path = request.uri().path_and_query();
        if path.is_none_or(|path| path.as_str() != M::PATH) {
            return match HeldBytes::try_new(account, OTHER_BYTES + header_bytes) {
                Ok(held) => {
                    let (others, in_flight) = (self.others.clone(), in_flight.clone());
                    CallFuture::Waiting(Box::pin(other(others, request, held, in_flight)))
                }
                Err(full) => CallFuture::refused(refusal(&no_room(account, full)), account),
            };
        }
        let start = self.method.note(request.headers(), timeout, leases);
        match receive(request.body_mut(), self.max_message_bytes, encoding) {
            ReceivedBody::All(message) => {
                account.record_message();
                self.answer(start, message, account, in_flight)
            }
            ReceivedBody::Part(first) => {
                let body = PartialBody {
                    first,
                    body: request.into_body(),
                    encoding,
                };
                self.answer_later(start, body, account, in_flight)
            }
        }
    }

    /// Answers a call whose message is here, at once if possible.
    fn answer(
        &self,
        start: M::CallStart,
        message: Bytes,
        account: &Arc<Account>,
        in_flight: &InFlight,
    ) -> CallFuture {
        if let Some(answer) = self.method.call_at_once(&start, &message) {
            announce_answered();
            return CallFuture::Answered(Some((answer, account.clone())));
        }
        if self.method.answers_soon() {
            announce_answered();
        }
        let (method, in_flight) = (self.method.clone(), in_flight.clone());
        let held = HeldBytes::new(account, CALL_BYTES + message.len());
        // Captured one by one, they would be laid out after the future that is awaited if its size is a multiple of
        // theirs, and the compiler would copy both: see `CallFuture::waiting`.
        let call = (start, message);
        let place = Box::new_uninit();
        CallFuture::waiting(Box::write(place, async move {
            let (_is_in_flight, (start, message)) = (in_flight, call);
            Ok(response(method.call(start, message).await, held))
        }))
    }

    /// Answers a call when its message has arrived.
    fn answer_later(
        &self,
        mut start: M::CallStart,
        mut body: PartialBody,
        account: &Arc<Account>,
        in_flight: &InFlight,
    ) -> CallFuture {
        let mut held = match HeldBytes::try_new(account, WAITING_BYTES) {
            Ok(held) => held,
            Err(full) => {
                return CallFuture::refused(refusal(&no_room(account, full)), account);
            }
        };
        let (method, in_flight) = (self.method.clone(), in_flight.begins_later());
        let (max_bytes, timeout) = (self.max_message_bytes, self.message_timeout);
        let place = Box::new_uninit();
        CallFuture::waiting(Box::write(place, async move {
            let message = body.message(max_bytes, &mut held);
            let message = tokio::time::timeout(timeout, message).await;
            let message = message.unwrap_or_else(|_| Err(late(held.account(), timeout)));
            let answer = match message {
                Ok(message) => {
                    held.account().record_message();
                    let _is_in_flight = in_flight.upgrade();
                    method.message_came(&mut start);
                    if let Some(answer) = method.call_at_once(&start, &message) {
                        answer
                    } else {
                        method.call(start, message).await
                    }
                }
                Err(status) => Err(status),
            };
            Ok(response(answer, held))
        }))
    }
}

/// A call with one message in each direction. It is small, because it is moved several times before its first poll.
pub(crate) enum CallFuture {
    /// `None` after the answer was taken.
    Answered(Option<(Result<Bytes, Status>, Arc<Account>)>),
    Waiting(BoxedFuture<Result<Response<Reply>, Infallible>>),
}

impl CallFuture {
    /// A call that waits. Write its `future` into memory that is already allocated: an allocation in between can fail,
    /// so the compiler would first make the future on the stack and then copy its two kilobytes.
    fn waiting<F>(future: Box<F>) -> Self
    where
        F: Future<Output = Result<Response<Reply>, Infallible>> + Send + 'static,
    {
        Self::Waiting(Box::into_pin(future))
    }

    /// A call that is refused with `response`.
    fn refused(response: Response<Reply>, account: &Account) -> Self {
        account.hold_until_flushed(CALL_BYTES);
        Self::Waiting(Box::pin(async move { Ok(response) }))
    }
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
                Poll::Ready(Ok(response(answer, HeldBytes::nothing(account))))
            }
            Self::Waiting(reply) => reply.as_mut().poll(context),
        }
    }
}
