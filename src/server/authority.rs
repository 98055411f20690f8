//! Repairs calls with an invalid `:authority`, names the stream to calls, and watches for resets.
//!
//! Unless configured otherwise, Envoy sends the name of the cluster as `:authority`, and Istio's names
//! (`outbound|8081||ratelimit.ns.svc…`) are invalid. gRPC's C-core, which Envoy's `google_grpc` and the libraries of
//! Python, Ruby, PHP and C++ use, sends the path of a Unix socket, `run%2Ftollgate.sock`. The HTTP/2 library resets
//! such a call before any service sees it, and Envoy then lets the request pass: nothing is limited.
//!
//! So this module inspects the bytes of a connection before they reach the library. In a header block (RFC 9113, 6.2)
//! it replaces an invalid literal `:authority` by a valid one of equal length, in characters and, if Huffman-coded, in
//! bits. This keeps the lengths of the frame, of the string and of the entry in the dynamic table, so both sides keep
//! equal tables, and later calls that refer to the entry are valid too. All other frames are skipped by their length.
//!
//! A Huffman code can be longer than its text; that of `^` is. No valid text has a code that long, so the replacement
//! is then written without one. The string and its frame become shorter, but the entry, whose size counts characters,
//! does not.
//!
//! Only an empty text cannot be repaired: an authority has at least one character, so the entry would become longer.
//!
//! While rules lease, a header with the number of the stream is added to each block of one frame, in a form that no
//! dynamic table takes up. Then the reset of a stream by its client finds the lease that its answer carried.

use std::{
    borrow::Cow,
    io,
    ops::Range,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::codegen::http::uri::Authority;

use crate::{
    observe::metrics::Metrics,
    server::authority::huffman::{Replacement, instead},
    service::answered_leases::{ConnectionLeases, STREAM, WorkerLeases},
};

mod frames;
mod hpack;
mod huffman;
mod log;
#[cfg(test)]
mod tests;

pub(super) use log::AuthorityLog;

use frames::{
    HEAD_BYTES, HEADERS, MAX_FRAME_BYTES, RST_STREAM, block_frames, first_fragment, has_end,
    is_whole_block, payload_bytes, refill, set_payload_bytes, stream_id,
};
use hpack::{AuthorityEntries, HeaderString, literal, next_authority, plain_string};

/// The length of the client's preface (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// A connection that repairs `:authority` and counts resets.
pub(super) struct AuthorityRewriter<S> {
    stream: S,
    authority_log: Arc<AuthorityLog>,
    /// How many bytes to pass on without inspection: the rest of the current frame.
    passing: usize,
    /// The beginning of frames that must be complete before they are inspected.
    held: Vec<u8>,
    /// Inspected bytes that are to be passed on, and how many of them have been.
    ready: Vec<u8>,
    given: usize,
    /// The frames among the bytes inspected last that are to name their stream: each a whole block without padding.
    unnamed: Vec<Range<usize>>,
    leases: Arc<ConnectionLeases>,
    entries: AuthorityEntries,
    /// How many bytes the library still writes before its next frame.
    writing: usize,
}

impl<S> AuthorityRewriter<S> {
    pub(super) fn new(
        stream: S,
        authority_log: Arc<AuthorityLog>,
        leases: Arc<ConnectionLeases>,
    ) -> Self {
        Self {
            stream,
            authority_log,
            leases,
            passing: PREFACE_BYTES,
            held: Vec::new(),
            ready: Vec::new(),
            given: 0,
            unnamed: Vec::new(),
            entries: AuthorityEntries::default(),
            writing: 0,
        }
    }

    /// Inspects and repairs new bytes. Returns the range of the bytes to hold, which are the beginning of a frame. The
    /// bytes before this range can be passed on; those after it are left over because frames became shorter.
    fn look(&mut self, bytes: &mut [u8]) -> Range<usize> {
        let (mut at, mut end) = (0, bytes.len());
        let names_streams = self.leases.names_streams();
        loop {
            let passed = self.passing.min(end - at);
            self.passing -= passed;
            at += passed;
            let Some(head) = bytes[at..end].first_chunk::<HEAD_BYTES>() else {
                return at..end;
            };
            let length = payload_bytes(head);
            if head[3] != HEADERS || length > MAX_FRAME_BYTES {
                if head[3] == RST_STREAM {
                    self.leases.reset(stream_id(head));
                }
                self.passing = HEAD_BYTES + length;
                continue;
            }
            let Ok(length) = block_frames(&bytes[at..end]) else {
                return at..end;
            };
            let left = self.headers(&mut bytes[at..at + length]);
            if left < length {
                bytes.copy_within(at + length..end, at + left);
                end -= length - left;
            }
            at += left;
            let frame = at - left..at;
            if names_streams && is_whole_block(&bytes[frame.clone()]) {
                self.unnamed.push(frame);
            }
            if !has_end(&bytes[at - left..at]) {
                // The rest is not inspected, so the positions of older entries are unknown from here on.
                self.entries = AuthorityEntries::default();
            }
        }
    }

    /// Copies inspected `bytes`, in which the frames of `unnamed` name their streams.
    fn named(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut named = Vec::with_capacity(bytes.len() + 64);
        let mut from = 0;
        for frame in self.unnamed.drain(..) {
            named.extend_from_slice(&bytes[from..frame.start]);
            from = frame.end;
            let start = named.len();
            named.extend_from_slice(&bytes[frame]);
            append_stream(&mut named, start);
        }
        named.extend_from_slice(&bytes[from..]);
        named
    }

    /// How many bytes the held frames lack, as far as known.
    fn lacking(&self) -> usize {
        match self.held.first_chunk::<HEAD_BYTES>() {
            None => HEAD_BYTES - self.held.len(),
            Some(head) if head[3] == HEADERS && payload_bytes(head) <= MAX_FRAME_BYTES => {
                block_frames(&self.held).err().unwrap_or(0)
            }
            Some(_) => 0,
        }
    }

    /// Repairs the header block in these frames, and returns their new length.
    fn headers(&mut self, frames: &mut [u8]) -> usize {
        let Some((first, mut at)) = first_fragment(frames) else {
            return frames.len();
        };
        if at == frames.len() {
            let length = self.block(&mut frames[first.clone()]);
            if length == first.len() {
                return frames.len();
            }
            let block = frames[first.clone()][..length].to_vec();
            return refill(frames, &[first], &block);
        }
        let mut fragments = vec![first];
        while let Some(head) = frames[at..].first_chunk() {
            let start = at + HEAD_BYTES;
            at = start + payload_bytes(head);
            fragments.push(start..at);
        }
        let pieces = fragments.iter().map(|fragment| &frames[fragment.clone()]);
        let mut block = pieces.collect::<Vec<_>>().concat();
        let length = self.block(&mut block);
        refill(frames, &fragments, &block[..length])
    }

    /// Repairs a header block, and returns its new length.
    fn block(&mut self, block: &mut [u8]) -> usize {
        let (mut at, mut end) = (0, block.len());
        while let Some(string) = next_authority(&block[..end], &mut at, &mut self.entries) {
            match self.replacement(&block[string.bytes.clone()], &string) {
                None => {}
                Some(same) if same.is_huffman == string.is_huffman => {
                    block[string.bytes].copy_from_slice(&same.bytes);
                }
                Some(shorter) => {
                    let plain = plain_string(&shorter.bytes);
                    at = string.start + plain.len();
                    block[string.start..at].copy_from_slice(&plain);
                    block.copy_within(string.bytes.end..end, at);
                    end -= string.bytes.end - at;
                }
            }
        }
        end
    }

    /// The authority to write in place of `value`, if that is invalid and can be replaced.
    fn replacement(&self, value: &[u8], string: &HeaderString) -> Option<Replacement> {
        let found = if string.is_huffman {
            huffman::decode(value).map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(value))
        };
        let Some(found) = found else {
            self.authority_log.refused(value);
            return None;
        };
        if Authority::try_from(&*found).is_ok() {
            return None;
        }
        let instead = instead(&found, string);
        match instead {
            Some(_) => self.authority_log.replaced(&found),
            None => self.authority_log.refused(&found),
        }
        instead
    }

    /// Inspects the heads of written frames. A reply has three, and each costs one turn of this loop, which is nothing
    /// compared with the system call that wrote them. The library never offers a part of a head, though the stream can
    /// accept fewer bytes.
    fn written(&mut self, offered: &[u8], accepted: usize) {
        let mut at = self.writing;
        while at < accepted {
            let Some(head) = offered[at..].first_chunk::<HEAD_BYTES>() else {
                // Gives up for good, because the positions of frames are lost.
                at = usize::MAX;
                break;
            };
            let payload = at + HEAD_BYTES;
            if head[3] == RST_STREAM
                && let Some(code) = offered[payload..].first_chunk()
            {
                self.authority_log.reset(u32::from_be_bytes(*code));
            }
            at = payload + payload_bytes(head);
        }
        self.writing = at - accepted;
    }
}

/// Appends the number of the stream to the last frame of `bytes`, which begins at `start`, if there is room.
fn append_stream(bytes: &mut Vec<u8>, start: usize) {
    let Some(head) = bytes[start..].first_chunk_mut::<HEAD_BYTES>() else {
        return;
    };
    let field = literal(STREAM.as_bytes(), stream_id(head).to_string().as_bytes());
    let length = payload_bytes(head) + field.len();
    if length <= MAX_FRAME_BYTES {
        set_payload_bytes(head, length);
        bytes.extend_from_slice(&field);
    }
}

/// Repairs whole frames that follow a client's preface, for fuzzing. Returns how many names were replaced, and how many
/// could not be repaired.
#[doc(hidden)]
pub fn rewrite(frames: &mut Vec<u8>) -> [u64; 2] {
    let metrics = Arc::<Metrics>::default();
    let leases = WorkerLeases::default().of_connection();
    let log = AuthorityLog::new(metrics.clone());
    let mut connection = AuthorityRewriter::new((), log, leases);
    connection.passing = 0;
    let held = connection.look(frames);
    frames.truncate(held.end);
    let server = &metrics.server;
    let (replaced, refused) = (&server.authorities_replaced, &server.authorities_refused);
    [replaced, refused].map(|count| count.load(Relaxed))
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityRewriter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready.is_empty() {
            if !this.held.is_empty() {
                ready!(this.poll_hold(cx))?;
                continue;
            }
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
            if buf.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            let new = &mut buf.filled_mut()[before..];
            let held = this.look(new);
            this.held.extend_from_slice(&new[held.clone()]);
            if !this.unnamed.is_empty() {
                this.ready = this.named(&new[..held.start]);
                buf.set_filled(before);
                continue;
            }
            buf.set_filled(before + held.start);
            if held.start > 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let left = &this.ready[this.given..];
        let count = left.len().min(buf.remaining());
        buf.put_slice(&left[..count]);
        this.given += count;
        if this.given == this.ready.len() {
            (this.ready, this.given) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AuthorityRewriter<S> {
    /// Reads until the held frames are complete or the stream ends, and inspects them.
    fn poll_hold(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let (known, lacking) = (self.held.len(), self.lacking());
            if lacking == 0 {
                break;
            }
            self.held.resize(known + lacking, 0);
            let mut buf = ReadBuf::new(&mut self.held[known..]);
            let read = Pin::new(&mut self.stream).poll_read(cx, &mut buf);
            let count = buf.filled().len();
            self.held.truncate(known + count);
            ready!(read)?;
            if count == 0 {
                // The stream ends within a frame; the reader must see that.
                break;
            }
        }
        let mut held = std::mem::take(&mut self.held);
        let looked = self.look(&mut held);
        held.truncate(looked.end);
        self.ready = self.named(&held);
        Poll::Ready(Ok(()))
    }
}

/// There are no vectored writes: replies are small, and copying them together costs less than `writev`.
impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityRewriter<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let accepted = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.written(bytes, accepted);
        Poll::Ready(Ok(accepted))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
