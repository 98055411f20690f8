//! Repairs calls with an invalid `:authority`, and counts those that HTTP/2 resets.
//!
//! Envoy sends the name of the cluster as `:authority` unless it is configured otherwise, and Istio's names
//! (`outbound|8081||ratelimit.ns.svc…`) are not valid. gRPC's C-core, which is Envoy's `google_grpc` and the library
//! of Python, Ruby, PHP and C++, sends the path of a Unix socket, `run%2Ftollgate.sock`. The HTTP/2 library resets
//! such a call before any service sees it, and Envoy then lets the request pass: nothing is limited.
//!
//! So this module inspects the bytes of a connection on their way to the library. In a header block (RFC 9113, 6.2)
//! it replaces an invalid literal `:authority` by a valid one of the same length, in characters and, in Huffman code,
//! in bits. The lengths of the frame, of the string and of the entry in the dynamic table stay as they were, so both
//! sides keep equal tables, and later calls that refer to the entry are valid too. All other frames are skipped by
//! their length.
//!
//! An empty text cannot be repaired, nor one whose code is longer by half than the text itself, which encoders then
//! send uncoded. A name in the dynamic table is not recognised: encoders find `:authority` in the static table, or
//! write it out as C-core does.

use std::{
    borrow::Cow,
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::codegen::http::uri::Authority;

use crate::{
    observe::metrics::{Authorities, Metrics},
    service::{
        budget::{Account, Budget, Reservation},
        grpc::unary::{count_read, is_turn_over},
    },
};

mod frames;
mod hpack;
mod huffman;
mod log;
mod replacement;
#[cfg(test)]
mod tests;

pub(super) use log::AuthorityLog;

use frames::{
    CONTINUATION, END_HEADERS, HEAD_BYTES, HEADERS, MAX_FRAME_BYTES, RST_STREAM, block_frames,
    first_fragment, has_end, payload_bytes,
};
use hpack::{HeaderString, next_authority};
use replacement::instead;

/// Length of the client's preface (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// Memory that the library may hold for a header block until the block ends.
const OPEN_BLOCK_BYTES: usize = 128 << 10;

/// A connection that repairs `:authority` and counts resets.
#[derive(Debug)]
pub(super) struct AuthorityRewriter<S> {
    stream: S,
    authority_log: Arc<AuthorityLog>,
    /// Bytes to pass on without inspection: the rest of the current frame.
    passing: usize,
    /// The beginning of frames that must be complete before they are inspected.
    held: Vec<u8>,
    /// Inspected bytes of `held` that have been passed on.
    given: usize,
    is_whole: bool,
    /// Bytes until the start of the library's next frame.
    writing: usize,
    account: Arc<Account>,
    /// Memory charged for a header block that has not ended: here, and in the library.
    waits: Option<Reservation>,
    is_open: Option<Reservation>,
}

impl<S> AuthorityRewriter<S> {
    pub(super) fn new(stream: S, authority_log: Arc<AuthorityLog>, account: Arc<Account>) -> Self {
        Self {
            stream,
            authority_log,
            account,
            waits: None,
            is_open: None,
            passing: PREFACE_BYTES,
            held: Vec::new(),
            given: 0,
            is_whole: false,
            writing: 0,
        }
    }

    /// Inspects and repairs new bytes; returns how many can be passed on. The rest is the beginning of a frame, which
    /// must be held.
    fn look(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            let passed = self.passing.min(bytes.len() - at);
            self.passing -= passed;
            at += passed;
            let Some(head) = bytes[at..].first_chunk::<HEAD_BYTES>() else {
                return at;
            };
            let length = payload_bytes(head);
            if head[3] != HEADERS || length > MAX_FRAME_BYTES {
                if head[3] == CONTINUATION && head[4] & END_HEADERS != 0 {
                    self.is_open = None;
                }
                self.passing = HEAD_BYTES + length;
                continue;
            }
            let Ok(length) = block_frames(&bytes[at..]) else {
                return at;
            };
            self.headers(&mut bytes[at..at + length]);
            if !has_end(&bytes[at..at + length]) {
                self.is_open = Some(Reservation::new(&self.account, OPEN_BLOCK_BYTES));
            }
            at += length;
        }
    }

    /// Bytes that the held frames lack, as far as is known.
    fn lacking(&self) -> usize {
        match self.held.first_chunk::<HEAD_BYTES>() {
            None => HEAD_BYTES - self.held.len(),
            Some(head) if head[3] == HEADERS && payload_bytes(head) <= MAX_FRAME_BYTES => {
                block_frames(&self.held).err().unwrap_or(0)
            }
            Some(_) => 0,
        }
    }

    /// Repairs the header block in these frames.
    fn headers(&self, frames: &mut [u8]) {
        let Some((first, mut at)) = first_fragment(frames) else {
            return;
        };
        if at == frames.len() {
            return self.block(&mut frames[first]);
        }
        let mut fragments = vec![first];
        while let Some(head) = frames[at..].first_chunk() {
            let start = at + HEAD_BYTES;
            at = start + payload_bytes(head);
            fragments.push(start..at);
        }
        let pieces = fragments.iter().map(|fragment| &frames[fragment.clone()]);
        let mut block = pieces.collect::<Vec<_>>().concat();
        self.block(&mut block);
        let mut rest = &block[..];
        for fragment in fragments {
            let (piece, behind) = rest.split_at(fragment.len());
            frames[fragment].copy_from_slice(piece);
            rest = behind;
        }
    }

    fn block(&self, block: &mut [u8]) {
        let mut at = 0;
        while let Some(HeaderString { bytes, is_huffman }) = next_authority(block, &mut at) {
            self.authority(&mut block[bytes], is_huffman);
        }
    }

    fn authority(&self, value: &mut [u8], is_huffman: bool) {
        let found = if is_huffman {
            huffman::decode(value).map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(&*value))
        };
        let Some(found) = found else {
            return self.authority_log.refused(value);
        };
        if Authority::try_from(&*found).is_ok() {
            return;
        }
        match instead(&found, is_huffman) {
            Some(instead) if instead.len() == value.len() => {
                self.authority_log.replaced(&found);
                value.copy_from_slice(&instead);
            }
            _ => self.authority_log.refused(&found),
        }
    }

    /// Inspects the heads of written frames. A reply has three, and each costs one turn of this loop: nothing
    /// compared with the system call that wrote them. The library never offers part of a head, though the stream may
    /// accept fewer bytes.
    fn written(&mut self, offered: &[u8], accepted: usize) {
        let mut at = self.writing;
        while at < accepted {
            let Some(head) = offered[at..].first_chunk::<HEAD_BYTES>() else {
                // Gives up for good: the positions of frames are lost.
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

/// Repairs whole frames that follow a client's preface, for fuzzing; returns the numbers of replaced and of
/// irreparable names.
#[doc(hidden)]
pub fn rewrite(frames: &mut [u8]) -> [u64; 2] {
    let metrics = Arc::<Metrics>::default();
    let account = Budget::new(usize::MAX, metrics.clone()).account();
    let mut connection = AuthorityRewriter::new((), AuthorityLog::new(metrics.clone()), account);
    connection.passing = 0;
    connection.look(frames);
    let Authorities { replaced, refused } = &metrics.authorities;
    [replaced, refused].map(|count| count.load(Relaxed))
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityRewriter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.held.is_empty() {
                if is_turn_over(cx) {
                    return Poll::Pending;
                }
                let before = buf.filled().len();
                ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
                count_read(buf.filled().len() - before);
                if buf.filled().len() == before {
                    return Poll::Ready(Ok(()));
                }
                let good = this.look(&mut buf.filled_mut()[before..]);
                this.held.extend_from_slice(&buf.filled()[before + good..]);
                buf.set_filled(before + good);
                if good > 0 {
                    return Poll::Ready(Ok(()));
                }
            }
            if this.is_whole {
                let left = &this.held[this.given..];
                let count = left.len().min(buf.remaining());
                buf.put_slice(&left[..count]);
                this.given += count;
                if this.given == this.held.len() {
                    (this.held, this.given, this.is_whole) = (Vec::new(), 0, false);
                }
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_hold(cx))?;
        }
    }
}

impl<S: AsyncRead + Unpin> AuthorityRewriter<S> {
    /// Reads until the held frames are complete, or cannot become so, and inspects them.
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
            if read.is_pending() {
                let held = self.held.capacity();
                self.waits = Some(Reservation::new(&self.account, held));
            }
            ready!(read)?;
            if count == 0 {
                // The stream ends within a frame; the reader must see that.
                break;
            }
        }
        let mut held = std::mem::take(&mut self.held);
        self.look(&mut held);
        self.held = held;
        self.waits = None;
        self.is_whole = true;
        Poll::Ready(Ok(()))
    }
}

/// Without vectored writes: replies are small, and copying them together costs less than `writev`.
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
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.account.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
