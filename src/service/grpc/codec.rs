//! Messages on the wire. tonic frames and compresses them; requests are read and replies are written by
//! [`fast_path`](super::fast_path), or by prost.

use prost::{
    Message,
    bytes::{Buf as _, BufMut as _, Bytes},
};
use tonic::{
    Status,
    codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

fn buffers() -> BufferSettings {
    // Only a stream of several messages would pass on what it has when there is so much.
    BufferSettings::new(BUFFER_BYTES, 32 << 10)
}

/// Leaves the bytes of messages as they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct EncodedMessages;

/// The first size of the buffers of a call: most messages are shorter.
const BUFFER_BYTES: usize = 512;

impl tonic::codec::Codec for EncodedMessages {
    type Encode = Vec<u8>;
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

impl Encoder for EncodedMessages {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

impl Decoder for EncodedMessages {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

/// Decodes a message with prost.
///
/// # Errors
///
/// INVALID_ARGUMENT if the message is invalid, because that is the caller's fault.
pub(super) fn decode<U: Message + Default>(message: Bytes) -> Result<U, Status> {
    U::decode(message)
        .map_err(|error| Status::invalid_argument(format!("not a readable message: {error}")))
}
