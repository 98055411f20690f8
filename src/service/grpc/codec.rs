//! Messages on the wire. Like tonic's own codec, except that an unreadable message is the caller's fault and gets
//! INVALID_ARGUMENT.

use std::marker::PhantomData;

use prost::{
    Message,
    bytes::Buf,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use tonic::{
    Status,
    codec::{DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// Most descriptors and entries together in a message longer than [`SMALL_BYTES`]. An empty one is 2 bytes on the
/// wire and 72 in memory, and a growing list briefly exists twice: without a bound 4 MB would become 270.
pub(super) const MAX_PARTS: usize = 1 << 17;

/// Messages up to this size decode to a few megabytes at most.
const SMALL_BYTES: usize = 64 << 10;

/// Encodes `T` and decodes `U`.
#[derive(Clone, Debug)]
pub(crate) struct Codec<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<T: Message, U> Encoder for Codec<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message
            .encode(buffer)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl<T, U: Message + Default> Decoder for Codec<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        decode(buffer).map(Some)
    }
}

/// Decodes the message in `buffer`, which must be contiguous.
///
/// # Errors
///
/// INVALID_ARGUMENT if the message is invalid.
pub(super) fn decode<U: Message + Default>(buffer: impl Buf) -> Result<U, Status> {
    if buffer.remaining() > SMALL_BYTES && parts(buffer.chunk(), 2) > MAX_PARTS {
        return Err(Status::invalid_argument(format!(
            "more than {MAX_PARTS} descriptors and entries"
        )));
    }
    U::decode(buffer)
        .map_err(|error| Status::invalid_argument(format!("not a readable message: {error}")))
}

/// Counts the fields of `message` that could be messages, down to `levels`. Stops at invalid bytes, as the decoder
/// will.
fn parts(mut message: &[u8], levels: usize) -> usize {
    let mut count = 0;
    while levels > 0 && message.has_remaining() {
        let Ok((tag, wire_type)) = decode_key(&mut message) else {
            break;
        };
        if wire_type != WireType::LengthDelimited {
            if skip_field(wire_type, tag, &mut message, DecodeContext::default()).is_err() {
                break;
            }
            continue;
        }
        let length = decode_varint(&mut message).map(usize::try_from);
        let Some((part, rest)) = length
            .ok()
            .and_then(Result::ok)
            .and_then(|length| message.split_at_checked(length))
        else {
            break;
        };
        count += 1 + parts(part, levels - 1);
        message = rest;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_on_two_levels() {
        // Two descriptors with an entry each, the second entry with a key; then a domain.
        let message = b"\x12\x02\x0a\x00\x18\x07\x12\x05\x0a\x03\x0a\x01k\x0a\x01d";
        assert_eq!(parts(message, 2), 5);
        assert_eq!(parts(&message[..6], 2), 2);
        assert_eq!(parts(&[0x12, 0].repeat(1000), 2), 1000);
    }

    #[test]
    fn what_cannot_be_read_is_not_counted() {
        assert_eq!(parts(b"\x12\x00\x12\x7f", 2), 1);
        assert_eq!(parts(b"\x12\x00\xff\xff", 2), 1);
        assert_eq!(parts(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 2), 0);
        assert_eq!(parts(&[0x0b; 100_000], 2), 0);
    }
}
