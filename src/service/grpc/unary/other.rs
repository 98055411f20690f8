//! Calls to the other services of a port, such as health and reflection, with bounds on what they hold.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper::{
    Request, Response,
    body::{Body, Frame, Incoming},
    header::{HeaderName, HeaderValue},
};
use hyper_util::service::TowerToHyperService;
use prost::bytes::Bytes;
use tonic::{Status, service::Routes};

use super::{
    refusal::{no_room, too_large},
    reply::{GRPC_STATUS, Reply, refusal},
};
use crate::service::budget::{CALL_BYTES, Reservation};

const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const UNIMPLEMENTED: HeaderValue = HeaderValue::from_static("12");

/// Bound on the bytes that a client may send in one call to another service.
const MAX_OTHER_BYTES: usize = 64 << 10;

/// Bound on the part of a path that an error repeats.
const MAX_PATH_CHARS: usize = 200;

/// Answers a call by `others`. `held` stays charged until the reply is sent.
pub(super) async fn other(
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
    account.record_message();
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
        let frame = frame.map_err(|_| Status::cancelled("the request ended early"));
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
