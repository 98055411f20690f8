//! Reads the message of a call from its body, and decompresses it (gRPC, "Message-Encoding").

use std::{
    future::poll_fn,
    io::Read,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use flate2::read::{GzDecoder, ZlibDecoder};
use hyper::body::{Body as _, Incoming};
use prost::bytes::{Bytes, BytesMut};
use tonic::Status;

use crate::{
    observe::metrics::CutOff,
    service::held_bytes::{Account, HeldBytes, NoHeldRoom},
};

/// Length of a message's prefix: a flag and the length (gRPC over HTTP2, "Length-Prefixed-Message").
pub(super) const PREFIX_BYTES: usize = 5;

/// How long a caller may take to end its stream after its message. Most end it with the message; the others are
/// answered after this time.
const END_OF_STREAM: Duration = Duration::from_millis(10);

/// How much of the request body has arrived when the call begins.
pub(super) enum ReceivedBody {
    /// The only message, completely.
    All(Bytes),
    /// The first data of the body, if any has arrived.
    Part(Option<FirstData>),
}

/// The next bytes of a body; `None` at its end.
pub(super) type FirstData = Result<Option<Bytes>, Status>;

/// Reads the part of the body that has arrived, without waiting.
pub(super) fn receive(body: &mut Incoming, max_bytes: usize, encoding: Encoding) -> ReceivedBody {
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

/// The body of a call whose message has not arrived completely, or needs more than a look.
pub(super) struct PartialBody {
    /// The first data, if any has arrived.
    pub(super) first: Option<FirstData>,
    pub(super) body: Incoming,
    pub(super) encoding: Encoding,
}

impl PartialBody {
    /// Reads the first message. Waits briefly for the end of the stream.
    pub(super) async fn message(
        &mut self,
        max_bytes: usize,
        held: &mut HeldBytes,
    ) -> Result<Bytes, Status> {
        let Self {
            first,
            body,
            encoding,
        } = self;
        let encoding = *encoding;
        let first = match first.take() {
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
}

async fn end_of_stream(body: &mut Incoming) -> Result<(), Status> {
    while !body.is_end_stream() && data(body).await?.is_some() {}
    Ok(())
}

/// Finds the ends of messages that follow one another in a stream.
#[derive(Debug)]
pub(super) struct MessageEnds {
    max_bytes: usize,
    /// The prefix of the present message, as far as it has arrived.
    prefix: [u8; PREFIX_BYTES],
    /// The length of the present message without its prefix, once that has arrived.
    length: usize,
    unfinished: usize,
}

impl MessageEnds {
    /// For messages of at most `max_bytes` without their prefix.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            prefix: [0; PREFIX_BYTES],
            length: 0,
            unfinished: 0,
        }
    }

    /// How many bytes of a message have arrived whose end has not.
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Takes the next bytes of the stream into account.
    ///
    /// # Errors
    ///
    /// If a message is too large.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        while !bytes.is_empty() {
            let begun = self.unfinished;
            let end = match begun {
                ..PREFIX_BYTES => PREFIX_BYTES,
                _ => PREFIX_BYTES + self.length,
            };
            let (own, more) = bytes.split_at(bytes.len().min(end - begun));
            bytes = more;
            self.unfinished += own.len();
            if begun < PREFIX_BYTES {
                self.prefix[begun..self.unfinished].copy_from_slice(own);
                if self.unfinished < PREFIX_BYTES {
                    continue;
                }
                self.length = message_length(&self.prefix[1..], self.max_bytes)?.unwrap_or(0);
            }
            if self.unfinished == PREFIX_BYTES + self.length {
                self.unfinished = 0;
            }
        }
        Ok(())
    }
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
        COMPRESSED => {
            return Err(Status::internal(
                "the message is compressed, but the call names no encoding",
            ));
        }
        flag => {
            return Err(Status::internal(format!(
                "invalid compression flag: {flag} (valid flags are 0 and 1)"
            )));
        }
    }
    let length = message_length(length, max_bytes)?;
    Ok(length.map(|length| PREFIX_BYTES + length))
}

/// The length of a message, which `bytes` begin with, if they are enough to know it.
fn message_length(bytes: &[u8], max_bytes: usize) -> Result<Option<usize>, Status> {
    let Some(length) = bytes.first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length > max_bytes {
        return Err(too_large(length, max_bytes));
    }
    Ok(Some(length))
}

/// Reads until the message is complete; returns its end.
async fn gather(
    bytes: Bytes,
    max_bytes: usize,
    encoding: Encoding,
    body: &mut Incoming,
    held: &mut HeldBytes,
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
                return Poll::Ready(Err(Status::cancelled("the request ended early")));
            }
        }
    }
}

/// The compression that a call may use; each message has a flag that says whether it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

/// All encodings, as in `grpc-accept-encoding`.
pub(super) const ALL: &str = "identity, gzip, deflate";

impl Encoding {
    /// The encoding of this name, if it is supported.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"identity" => Some(Self::Identity),
            b"gzip" => Some(Self::Gzip),
            b"deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    /// Decompresses a message.
    ///
    /// # Errors
    ///
    /// INTERNAL if it is not in this encoding, RESOURCE_EXHAUSTED if it is larger than `max_bytes`: no more than that
    /// is decompressed.
    pub(super) fn inflate(self, packed: &[u8], max_bytes: usize) -> Result<Bytes, Status> {
        let mut message = Vec::new();
        let most = u64::try_from(max_bytes)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        let inflated = match self {
            Self::Identity => packed.take(most).read_to_end(&mut message),
            Self::Gzip => GzDecoder::new(packed).take(most).read_to_end(&mut message),
            Self::Deflate => ZlibDecoder::new(packed)
                .take(most)
                .read_to_end(&mut message),
        };
        match inflated {
            Ok(bytes) if bytes > max_bytes => Err(too_large(bytes, max_bytes)),
            Ok(_) => Ok(message.into()),
            Err(error) => Err(Status::internal(format!(
                "the message cannot be decompressed: {error}"
            ))),
        }
    }
}

/// The status of a call that the bound has no room for.
pub(super) fn no_room(account: &Account, _: NoHeldRoom) -> Status {
    account.bound().note(CutOff::MESSAGE_NO_ROOM);
    Status::resource_exhausted("clients hold too much memory")
}

/// The status of a call whose message took longer than `timeout`.
pub(super) fn late(account: &Account, timeout: Duration) -> Status {
    account.bound().note(CutOff::MESSAGE_LATE);
    Status::deadline_exceeded(format!("the message did not arrive within {timeout:?}"))
}

/// The status of a message that is larger than it may be.
pub(super) fn too_large(bytes: usize, max_bytes: usize) -> Status {
    Status::resource_exhausted(format!(
        "message too large: {bytes} bytes, the limit is: {max_bytes} bytes"
    ))
}

#[cfg(test)]
mod tests {
    use crate::service::grpc::unary::framed;

    use super::*;

    #[test]
    fn a_message_ends_where_its_prefix_says() {
        let end = |bytes: &[u8], max| end_of_message(bytes, max, Encoding::Identity).unwrap();
        assert_eq!(end(&[], 10), None);
        assert_eq!(end(&[0, 0, 0, 0], 10), None);
        assert_eq!(end(&[0, 0, 0, 0, 7], 10), Some(12));
        assert_eq!(end(&framed(0, |_| 0), 0), Some(5));
    }

    #[test]
    fn the_ends_of_messages_are_found_however_they_are_cut() {
        let stream: Vec<u8> = [3_usize, 0, 10, 1]
            .into_iter()
            .flat_map(|length| {
                framed(length + 4, |room| {
                    room.fill(7);
                    4
                })
            })
            .collect();
        for size in 1..=stream.len() {
            let mut ends = MessageEnds::new(10);
            let mut read = 0;
            for part in stream.chunks(size) {
                ends.read(part).unwrap();
                read += part.len();
                let begun = [0, 8, 13, 28, 34].into_iter().rfind(|end| *end <= read);
                assert_eq!(ends.unfinished(), read - begun.unwrap(), "{size}");
            }
        }
        let error = MessageEnds::new(9).read(&stream).unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
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
