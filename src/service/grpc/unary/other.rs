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
use tokio::sync::watch;
use tonic::{Status, service::Routes};

use crate::service::{
    grpc::unary::{
        connection::{BoxedFuture, InFlight, Phase, draining},
        message::{MessageEnds, no_room, too_large},
        reply::{GRPC_STATUS, Reply, refusal},
    },
    held_bytes::{CALL_BYTES, HeldBytes},
};

const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const UNIMPLEMENTED: HeaderValue = HeaderValue::from_static("12");

/// The services of a port besides decisions.
#[derive(Clone, Debug)]
pub(crate) struct OtherServices {
    pub(crate) routes: Routes,
    /// The bounds of a call to this path.
    pub(crate) bounds: fn(path: &str) -> CallBounds,
    pub(crate) phases: watch::Receiver<Phase>,
}

/// Bounds of a call to another service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallBounds {
    /// Most bytes of the requests of a call; of each message if the call stays open.
    pub(crate) bytes: usize,
    /// Whether messages follow one another for as long as both sides want. Each gives its bytes back when the service
    /// has taken it. A drain ends the requests of such a call, and waits until the service has seen that.
    pub(crate) stays_open: bool,
}

impl CallBounds {
    /// For calls with a message or two.
    pub(crate) const SHORT: Self = Self {
        bytes: 64 << 10,
        stays_open: false,
    };
}

/// Bound on the part of a path that an error repeats.
const MAX_PATH_CHARS: usize = 200;

/// Answers a call by `others`. `held` stays charged until the reply is sent.
pub(super) async fn other(
    others: OtherServices,
    request: Request<Incoming>,
    held: HeldBytes,
    in_flight: InFlight,
) -> Result<Response<Reply>, Infallible> {
    let account = held.account().clone();
    let path = request.uri().path();
    let bounds = (others.bounds)(path);
    let path: String = path.chars().take(MAX_PATH_CHARS).collect();
    let mut phases = others.phases;
    let request = request.map(|body| LimitedBody {
        body,
        held: HeldBytes::new(&account, 0),
        left: bounds.bytes,
        open: bounds.stays_open.then(|| OpenCall {
            messages: MessageEnds::new(bounds.bytes),
            drain: Some(Box::pin(async move { draining(&mut phases).await })),
            _in_flight: in_flight,
        }),
    });
    let others = TowerToHyperService::new(others.routes);
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
    held: HeldBytes,
    /// Bytes that may still follow in a call that does not stay open.
    left: usize,
    open: Option<OpenCall>,
}

/// The part of a call that stays open.
struct OpenCall {
    messages: MessageEnds,
    /// `None` once a drain has begun.
    drain: Option<BoxedFuture<()>>,
    _in_flight: InFlight,
}

impl LimitedBody {
    /// Charges the bytes of a frame.
    fn charge(&mut self, bytes: &[u8]) -> Result<(), Status> {
        match &mut self.open {
            Some(open) => open.messages.read(bytes)?,
            None => {
                let left = self.left.checked_sub(bytes.len());
                self.left = left.ok_or_else(|| too_large(bytes.len(), self.left))?;
            }
        }
        let held = self.held.add(bytes.len());
        held.map_err(|full| no_room(self.held.account(), full))
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(open) = &mut this.open {
            // The service asks for more when it has taken all whole messages.
            this.held.resize(open.messages.unfinished());
            open.drain
                .take_if(|drain| drain.as_mut().poll(context).is_ready());
            if open.drain.is_none() {
                return Poll::Ready(None);
            }
        }
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame.map_err(|_| Status::cancelled("the request ended early"));
        Poll::Ready(Some(frame.and_then(|frame| {
            if let Some(bytes) = frame.data_ref() {
                this.charge(bytes)?;
            }
            Ok(frame)
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
