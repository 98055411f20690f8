//! Calls with one message in each direction, directly on hyper: a router, layers and boxed bodies would cost a third
//! of a decision.

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{HeaderMap, Request, Response, body::Incoming};
use prost::bytes::Bytes;
use tonic::Status;

use crate::service::{
    answered_leases::{ConnectionLeases, WorkerLeases},
    held_bytes::{Account, CALL_BYTES, HeldBytes},
};

mod connection;
mod headers;
mod message;
mod other;
mod reply;

pub(crate) use connection::{
    Calls, InFlight, Phase, TimedConnection, arrived, count_read, draining, is_turn_over,
};
pub(crate) use other::{CallBounds, OtherServices};
pub(crate) use reply::Reply;
pub use reply::framed;

use connection::BoxedFuture;
use headers::{CheckedHeaders, check};
pub(crate) use headers::{MAX_HEADER_BYTES, for_decision};
use message::{PartialBody, ReceivedBody, late, no_room, receive};
use other::other;
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
            Err(response) => return refused(*response, account),
        };
        let path = request.uri().path_and_query();
        if path.is_none_or(|path| path.as_str() != M::PATH) {
            return match HeldBytes::try_new(account, OTHER_BYTES + header_bytes) {
                Ok(held) => {
                    let (others, in_flight) = (self.others.clone(), in_flight.clone());
                    Box::pin(other(others, request, held, in_flight))
                }
                Err(full) => refused(refusal(&no_room(account, full)), account),
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

    /// Answers a call whose message is here.
    fn answer(
        &self,
        start: M::CallStart,
        message: Bytes,
        account: &Arc<Account>,
        in_flight: &InFlight,
    ) -> CallFuture {
        let (method, in_flight) = (self.method.clone(), in_flight.clone());
        let held = HeldBytes::new(account, CALL_BYTES + message.len());
        Box::pin(async move {
            let _is_in_flight = in_flight;
            Ok(response(method.call(start, message).await, held))
        })
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
                return refused(refusal(&no_room(account, full)), account);
            }
        };
        let (method, in_flight) = (self.method.clone(), in_flight.begins_later());
        let (max_bytes, timeout) = (self.max_message_bytes, self.message_timeout);
        Box::pin(async move {
            let message = body.message(max_bytes, &mut held);
            let message = tokio::time::timeout(timeout, message).await;
            let message = message.unwrap_or_else(|_| Err(late(held.account(), timeout)));
            let answer = match message {
                Ok(message) => {
                    held.account().record_message();
                    let _is_in_flight = in_flight.upgrade();
                    method.message_came(&mut start);
                    method.call(start, message).await
                }
                Err(status) => Err(status),
            };
            Ok(response(answer, held))
        })
    }
}

/// A call with one message in each direction. It is small, because it is moved several times before its first poll.
pub(crate) type CallFuture = BoxedFuture<Result<Response<Reply>, Infallible>>;

/// A call that is refused with `response`.
fn refused(response: Response<Reply>, account: &Account) -> CallFuture {
    account.hold_until_flushed(CALL_BYTES);
    Box::pin(async move { Ok(response) })
}
