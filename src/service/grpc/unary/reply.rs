//! Replies: framed messages, and the bodies and responses that carry them.

use std::{
    cell::RefCell,
    mem,
    pin::Pin,
    sync::LazyLock,
    task::{Context, Poll, ready},
};

use hyper::{
    HeaderMap, Response,
    body::{Body, Frame},
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};
use prost::bytes::{Bytes, BytesMut};
use tonic::Status;

use super::message::PREFIX_BYTES;
use crate::service::held_bytes::{CALL_BYTES, HeldBytes, ReplyBytes};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const OK: HeaderValue = HeaderValue::from_static("0");
pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The headers of every answer, and the trailers of every call that succeeds, to be copied.
static HEADERS: LazyLock<HeaderMap> = LazyLock::new(|| only(CONTENT_TYPE, GRPC));
static TRAILERS: LazyLock<HeaderMap> = LazyLock::new(|| only(GRPC_STATUS, OK));

/// A map with many free places: hyper and h2 look up ten other names in it for each call, and a lookup that begins at a
/// free place ends there.
fn only(name: HeaderName, value: HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(24);
    headers.insert(name, value);
    headers
}

/// Frames a message that `write` puts at the end of `room` bytes. It returns where the message begins.
pub fn framed(room: usize, write: impl FnOnce(&mut [u8]) -> usize) -> Bytes {
    if PREFIX_BYTES + room > REPLIES_BYTES {
        let mut own = vec![0; PREFIX_BYTES + room];
        let start = frame(&mut own, room, write);
        // The reply may be much shorter than its room, and may live long.
        return Bytes::copy_from_slice(&own[start..]);
    }
    REPLIES.with_borrow_mut(|replies| {
        if replies.len() < PREFIX_BYTES + room {
            replies.clear();
            replies.resize(REPLIES_BYTES, 0);
        }
        let start = frame(replies, room, write);
        replies.split_off(start).freeze()
    })
}

/// Frames a message at the end of `buffer`. Returns where the frame begins.
fn frame(buffer: &mut [u8], room: usize, write: impl FnOnce(&mut [u8]) -> usize) -> usize {
    let (before, room) = buffer.split_at_mut(buffer.len() - room);
    let unused = write(room);
    let length = u32::try_from(room.len() - unused).expect("a reply is shorter than 4 GB");
    let start = before.len() + unused - PREFIX_BYTES;
    let prefix = &mut buffer[start..][..PREFIX_BYTES];
    // The message is not compressed.
    prefix[0] = 0;
    prefix[1..].copy_from_slice(&length.to_be_bytes());
    start
}

/// Many replies share one allocation, which is reused when all of them are sent. A single reply that its caller does
/// not read can keep this many bytes of it alive.
const REPLIES_BYTES: usize = 2048;

thread_local! {
    /// The buffer for the replies of one worker, which is filled from its end.
    static REPLIES: RefCell<BytesMut> = RefCell::new(BytesMut::with_capacity(REPLIES_BYTES));
}

/// The response to a call, which charges the reply instead of what the call `held`.
pub(super) fn response(answer: Result<Bytes, Status>, mut held: HeldBytes) -> Response<Reply> {
    match answer {
        Ok(message) => {
            held.resize(CALL_BYTES + message.len());
            let mut response = Response::new(Reply::Message(ReplyBytes::new(message, held)));
            *response.headers_mut() = HEADERS.clone();
            response
        }
        Err(status) => {
            held.account().hold_until_flushed(CALL_BYTES);
            refusal(&status)
        }
    }
}

/// The response to a call that ends with `status`.
pub(super) fn refusal(status: &Status) -> Response<Reply> {
    status.clone().into_http::<()>().map(|()| Reply::Nothing)
}

/// The body of a reply.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A message; trailers follow.
    Message(ReplyBytes),
    Trailers,
    Nothing,
    Other(tonic::body::Body, HeldBytes),
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
                Frame::trailers(TRAILERS.clone())
            }
            Self::Nothing => return Poll::Ready(None),
            Self::Other(body, held) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                let sent = |bytes: Bytes| {
                    let held = HeldBytes::new(held.account(), bytes.len());
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
