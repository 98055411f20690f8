//! Decompresses messages of callers (gRPC, "Message-Encoding").

use std::io::Read;

use flate2::read::{GzDecoder, ZlibDecoder};
use prost::bytes::Bytes;
use tonic::Status;

use super::refusal::too_large;

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
