//! Repairs calls with an invalid `:authority`, and counts those that HTTP/2 resets.
//!
//! Envoy sends the name of the cluster as `:authority` unless it is configured otherwise, and Istio's names
//! (`outbound|8081||ratelimit.ns.svc…`) are not valid. gRPC's C-core, which is Envoy's `google_grpc` and the library
//! of Python, Ruby, PHP and C++, sends the path of a Unix socket, `run%2Ftollgate.sock`. The HTTP/2 library resets
//! such a call before any service sees it, and Envoy then lets the request pass: nothing is limited.
//!
//! So this module inspects the bytes of a connection on their way to the library. In a header block (RFC 9113, 6.2)
//! it replaces an invalid literal `:authority` by a valid one with as many characters, and, in Huffman code, as many
//! bits. Frame, string and the entry of the dynamic table keep their lengths, so both sides keep equal states, and
//! later calls that refer to the entry are valid too. All other frames are skipped by their length.
//!
//! An empty text cannot be repaired, nor one whose code is longer by half than the text itself, which encoders then
//! send uncoded. A name in the dynamic table is not recognised: encoders find `:authority` in the static table, or
//! write it out as C-core does.

mod huffman;

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
    foundation::log_throttle::LogThrottle,
    observe::metrics::{Authorities, Metrics, StreamsReset},
    service::{
        budget::{Account, Budget, Reservation},
        grpc::unary::{count_read, is_turn_over},
    },
};

/// Length of the client's preface (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// Length, type, flags and stream of a frame.
const HEAD_BYTES: usize = 9;

/// The largest frame that a client may send, since the server announces no other size. A longer one ends the
/// connection, so it is not inspected.
const MAX_FRAME_BYTES: usize = 16 << 10;

/// Most frames of a header block that are inspected. The library accepts fewer, and ends the connection after them.
const MAX_BLOCK_FRAMES: usize = 8;

/// Memory that the library may hold for a header block until the block ends.
const OPEN_BLOCK_BYTES: usize = 128 << 10;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;

const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Bound on the part of a name that is logged.
const MAX_LOGGED_CHARS: usize = 200;

/// Counts invalid authorities and reset streams, and logs now and then what to do about them. All workers share one.
#[derive(Debug)]
pub(super) struct AuthorityLog {
    metrics: Arc<Metrics>,
    /// One each, so that harmless events do not hide others.
    replaced: LogThrottle,
    refused: LogThrottle,
    reset: [LogThrottle; StreamsReset::CODES.len()],
}

impl AuthorityLog {
    pub(super) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            replaced: LogThrottle::default(),
            refused: LogThrottle::default(),
            reset: Default::default(),
        })
    }

    fn replaced(&self, found: &[u8]) {
        Authorities::count(&self.metrics.authorities.replaced);
        if self.replaced.is_over() {
            let found = shown(found);
            tracing::warn!(
                "calls come with the authority `{found}`, which is none; they are answered all the \
                 same. It is the name of a cluster: set `authority` in Envoy's `envoy_grpc`; or the path \
                 of a socket: set `grpc.default_authority` in the arguments of the channel"
            );
        }
    }

    fn refused(&self, found: &[u8]) {
        Authorities::count(&self.metrics.authorities.refused);
        if self.refused.is_over() {
            let found = shown(found);
            tracing::error!(
                "calls come with the authority `{found}`, of which none can be made: HTTP/2 resets each \
                 of them, and Envoy lets the requests pass. Set `authority` in Envoy's `envoy_grpc`, or \
                 `grpc.default_authority` in the arguments of the channel"
            );
        }
    }

    fn reset(&self, code: u32) {
        const NO_ERROR: usize = 0;
        let code = self.metrics.streams_reset.count(code);
        // NO_ERROR: the call was answered before its stream ended.
        if code != NO_ERROR && self.reset[code].is_over() {
            let name = StreamsReset::CODES[code];
            let why = match name {
                "PROTOCOL_ERROR" => " (its headers are not those of a request)",
                "REFUSED_STREAM" => " (one connection has more than `--max-streams` at a time)",
                _ => "",
            };
            tracing::warn!(
                "HTTP/2 reset a call with {name}{why}: it has no answer, and Envoy lets such a request pass"
            );
        }
    }
}

fn shown(found: &[u8]) -> String {
    let text = String::from_utf8_lossy(found);
    let text: String = text.chars().take(MAX_LOGGED_CHARS).collect();
    text.escape_debug().to_string()
}

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

fn payload_bytes(head: &[u8; HEAD_BYTES]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// Total length of the frames of the header block that begins here, or else the number of missing bytes, as far as is
/// known. An invalid frame ends the block.
fn block_frames(bytes: &[u8]) -> Result<usize, usize> {
    let mut end = 0;
    for nth in 0..MAX_BLOCK_FRAMES {
        let Some(head) = bytes[end..].first_chunk() else {
            return Err(end + HEAD_BYTES - bytes.len());
        };
        let length = payload_bytes(head);
        if nth > 0 && (head[3] != CONTINUATION || length > MAX_FRAME_BYTES) {
            break;
        }
        end += HEAD_BYTES + length;
        if let Some(lacking) = end.checked_sub(bytes.len()).filter(|lacking| *lacking > 0) {
            return Err(lacking);
        }
        if head[4] & END_HEADERS != 0 || end > MAX_FRAME_BYTES {
            break;
        }
    }
    Ok(end)
}

/// Whether the last of these frames ends their header block.
fn has_end(mut frames: &[u8]) -> bool {
    while let Some(head) = frames.first_chunk() {
        if head[4] & END_HEADERS != 0 {
            return true;
        }
        frames = frames
            .get(HEAD_BYTES + payload_bytes(head)..)
            .unwrap_or(&[]);
    }
    false
}

/// The part of the block in the HEADERS frame, without padding and priority, and the end of that frame.
fn first_fragment(frames: &[u8]) -> Option<(Range<usize>, usize)> {
    let head = frames.first_chunk::<HEAD_BYTES>()?;
    let end = HEAD_BYTES + payload_bytes(head);
    let mut fragment = HEAD_BYTES..end;
    if head[4] & PADDED != 0 {
        let padding = *frames.get(HEAD_BYTES)?;
        fragment = fragment.start + 1..end.checked_sub(padding.into())?;
    }
    if head[4] & PRIORITY != 0 {
        fragment.start += 5;
    }
    (fragment.start <= fragment.end).then_some((fragment, end))
}

/// The replacement of a name: an authority with as many characters, in as many bits.
fn instead(name: &[u8], is_huffman: bool) -> Option<Vec<u8>> {
    let like_it: Vec<u8> = name.iter().map(|&byte| replacement(byte)).collect();
    let authority = match Authority::try_from(&*like_it) {
        Ok(_) => like_it,
        Err(_) if name.is_empty() => return None,
        Err(_) if is_huffman => coded_authority(name.len(), huffman::bits(name))?,
        Err(_) => vec![b'-'; name.len()],
    };
    Some(if is_huffman {
        huffman::encode(&authority)
    } else {
        authority
    })
}

/// A valid character with a code of equal length, for a byte that an authority must not contain.
fn replacement(byte: u8) -> u8 {
    match byte {
        b'|' => b'+',
        b' ' | b'%' | b'/' => b'-',
        b'"' | b'?' => b'!',
        other => other,
    }
}

/// An authority of so many characters, in so many bits of the Huffman code. It exists if codes have at most eight
/// bits on average.
fn coded_authority(characters: usize, bits: usize) -> Option<Vec<u8>> {
    /// Characters by the length of their codes.
    const LONGEST_FIRST: [(usize, u8); 7] = [
        (13, b'$'),
        (11, b'+'),
        (10, b'!'),
        (8, b'X'),
        (7, b'x'),
        (6, b'-'),
        (SHORTEST, b'0'),
    ];
    const SHORTEST: usize = 5;
    let mut spare = bits.checked_sub(characters * SHORTEST)?;
    let mut authority = Vec::with_capacity(characters);
    for _ in 0..characters {
        let fits = |(length, _): &&(usize, u8)| length - SHORTEST <= spare;
        let (length, byte) = LONGEST_FIRST.iter().find(fits)?;
        spare -= length - SHORTEST;
        authority.push(*byte);
    }
    (spare == 0).then_some(authority)
}

/// A string in a header block (RFC 7541, 5.2).
#[derive(Debug)]
struct HeaderString {
    /// Position of its bytes.
    bytes: Range<usize>,
    is_huffman: bool,
}

/// The value of the next `:authority` from `at` on that is written out (RFC 7541, 6), or that refers to an empty one
/// in the static table.
fn next_authority(block: &[u8], at: &mut usize) -> Option<HeaderString> {
    /// Its index in the static table.
    const AUTHORITY: usize = 1;
    while let Some(&first) = block.get(*at) {
        let prefix_bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let index = integer(block, at, prefix_bits)?;
        match first {
            0x80.. if index == AUTHORITY => {
                return Some(HeaderString {
                    bytes: 0..0,
                    is_huffman: false,
                });
            }
            // A field from a table, or a change of a table's size.
            0x80.. | 0x20..0x40 => continue,
            _ => {}
        }
        let is_authority = match index {
            0 => is_authority(block, &string(block, at)?),
            _ => index == AUTHORITY,
        };
        let value = string(block, at)?;
        if is_authority {
            return Some(value);
        }
    }
    None
}

fn is_authority(block: &[u8], name: &HeaderString) -> bool {
    let known: &[u8] = if name.is_huffman {
        &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f]
    } else {
        b":authority"
    };
    block[name.bytes.clone()] == *known
}

/// An integer with a prefix (RFC 7541, 5.1); `None` if it is cut off or too large.
fn integer(block: &[u8], at: &mut usize, prefix_bits: u32) -> Option<usize> {
    let full = (1_usize << prefix_bits) - 1;
    let first = usize::from(*block.get(*at)?) & full;
    *at += 1;
    if first < full {
        return Some(first);
    }
    let mut value = full;
    for shift in [0, 7, 14, 21] {
        let next = usize::from(*block.get(*at)?);
        *at += 1;
        value += (next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The string at `at`; moves `at` behind it.
fn string(block: &[u8], at: &mut usize) -> Option<HeaderString> {
    let is_huffman = block.get(*at)? & 0x80 != 0;
    let length = integer(block, at, 7)?;
    let end = at.checked_add(length).filter(|end| *end <= block.len())?;
    let bytes = *at..end;
    *at = end;
    Some(HeaderString { bytes, is_huffman })
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

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible, sync::Mutex};

    use hyper::{Request, Response, body::Incoming, server::conn::http2, service::service_fn};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tonic::body::Body;

    use super::*;
    use crate::service::budget::Budget;

    fn account() -> Arc<Account> {
        Budget::new(usize::MAX, Arc::default()).account()
    }

    const ISTIO: &[u8] = b"outbound|8081||tollgate.tollgate.svc.cluster.local";

    /// A string in Huffman code, after its length.
    fn huffman(text: &[u8]) -> Vec<u8> {
        let coded = huffman::encode(text);
        [length(0x80, coded.len()), coded].concat()
    }

    fn plain(text: &[u8]) -> Vec<u8> {
        [&length(0, text.len()), text].concat()
    }

    /// A length as HPACK writes it: in seven bits if it is less than 127, and the rest in further bytes of seven
    /// bits, the lowest first.
    fn length(flag: u8, length: usize) -> Vec<u8> {
        let Some(mut rest) = length.checked_sub(127) else {
            return vec![flag | u8::try_from(length).unwrap()];
        };
        let mut bytes = vec![flag | 127];
        while rest >= 128 {
            bytes.push(u8::try_from(rest % 128).unwrap() | 0x80);
            rest /= 128;
        }
        bytes.push(u8::try_from(rest).unwrap());
        bytes
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// `:method POST`, a literal path, `:authority`, and one header with a new name.
    fn block(authority: &[u8]) -> Vec<u8> {
        block_as(&[0x41], authority)
    }

    /// Like [`block`], with another beginning of `:authority`.
    fn block_as(name: &[u8], authority: &[u8]) -> Vec<u8> {
        [
            &[0x83, 0x44][..],
            &plain(b"/envoy/Call"),
            name,
            authority,
            &[0x40],
            &plain(b"te"),
            &huffman(b"trailers"),
        ]
        .concat()
    }

    fn connection(block: &[u8]) -> Vec<u8> {
        [
            vec![b'P'; PREFACE_BYTES],
            frame(4, 0, &[]),
            frame(HEADERS, 4, block),
            frame(0, 1, b"A|B"),
        ]
        .concat()
    }

    /// The output of a connection whose bytes arrive in pieces of this size.
    fn rewritten(bytes: &[u8], piece: usize) -> (Vec<u8>, Arc<AuthorityLog>) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let authority_log = AuthorityLog::new(Arc::default());
        let out = runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(piece);
            let mut server = AuthorityRewriter::new(server, authority_log.clone(), account());
            let mut out = Vec::new();
            let sent = async {
                client.write_all(bytes).await.unwrap();
                drop(client);
            };
            let (_, read) = tokio::join!(sent, server.read_to_end(&mut out));
            read.unwrap();
            out
        });
        (out, authority_log)
    }

    #[track_caller]
    fn check(before: &[u8], after: &[u8], [replaced, refused]: [u64; 2]) {
        for piece in [1, 2, 7, 30, 64, 100_000] {
            let (out, authority_log) = rewritten(&connection(before), piece);
            assert_eq!(out, connection(after), "in pieces of {piece}");
            assert_eq!(counts(&authority_log), [replaced, refused]);
        }
    }

    fn counts(authority_log: &AuthorityLog) -> [u64; 2] {
        let Authorities { replaced, refused } = &authority_log.metrics.authorities;
        [replaced, refused].map(|count| count.load(Relaxed))
    }

    #[test]
    fn names_of_clusters_become_authorities_of_the_same_length() {
        let istio = b"outbound+8081++tollgate.tollgate.svc.cluster.local";
        for write in [huffman, plain] {
            check(&block(&write(ISTIO)), &block(&write(istio)), [1, 0]);
            let (blank, instead) = (b"rate limit/v\"1?%7c", b"rate-limit-v!1!-7c");
            check(&block(&write(blank)), &block(&write(instead)), [1, 0]);
        }
    }

    #[test]
    fn names_of_clusters_may_be_long() {
        for bytes in [126, 127, 128, 130, 160, 254, 255, 256, 300, 500] {
            let before = format!("outbound|8081||{}", "a".repeat(bytes - 15));
            let after = before.replace('|', "+");
            for write in [huffman, plain] {
                let (before, after) = (write(before.as_bytes()), write(after.as_bytes()));
                check(&block(&before), &block(&after), [1, 0]);
            }
        }
    }

    #[test]
    fn a_frame_may_be_as_large_as_the_protocol_allows() {
        let name = b"outbound|8081||a";
        let around = block(&plain(b"")).len();
        // Padded by one long authority, whose length takes three bytes.
        let long = [
            &name[..],
            &b"a".repeat(MAX_FRAME_BYTES - around - 2 - name.len()),
        ]
        .concat();
        let before = block(&plain(&long));
        assert_eq!(before.len(), MAX_FRAME_BYTES);
        let after: Vec<u8> = long
            .iter()
            .map(|&byte| if byte == b'|' { b'+' } else { byte })
            .collect();
        check(&before, &block(&plain(&after)), [1, 0]);
    }

    #[test]
    fn an_authority_is_left_alone() {
        for good in [&b"tollgate"[..], b"127.0.0.1:8081", b"[::1]:80", b"a_b~c"] {
            for write in [huffman, plain] {
                check(&block(&write(good)), &block(&write(good)), [0, 0]);
            }
        }
    }

    /// Every way to write the name of a literal field: by index or in full, to be indexed, not, or never.
    fn names() -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        for kind in [0x40, 0x00, 0x10] {
            names.push(vec![kind | 1]);
            names.push([vec![kind], plain(b":authority")].concat());
            names.push([vec![kind], huffman(b":authority")].concat());
        }
        names
    }

    #[test]
    fn the_name_may_be_spelled_out_in_any_way() {
        for name in names() {
            for write in [huffman, plain] {
                let [before, after] = [b"run%2Ft.sock", b"run-2Ft.sock"];
                let [before, after] = [before, after].map(|text| block_as(&name, &write(text)));
                check(&before, &after, [1, 0]);
            }
        }
    }

    #[test]
    fn fields_of_other_names_are_left_alone() {
        for name in [
            &b":authoritx"[..],
            b":authorit",
            b":authority:",
            b":path",
            b"host",
        ] {
            for write in [huffman, plain] {
                let block = block_as(&[&[0x40][..], &write(name)].concat(), &write(ISTIO));
                check(&block, &block, [0, 0]);
            }
        }
    }

    #[test]
    fn what_cannot_be_an_authority_is_counted_and_left_alone() {
        let long = huffman("é".as_bytes());
        let broken = [0x81, 0x00];
        for name in names() {
            for bad in [&plain(b"")[..], &huffman(b""), &long, &broken] {
                let block = block_as(&name, bad);
                check(&block, &block, [0, 1]);
            }
        }
        let in_the_static_table = block_as(&[0x81], &[]);
        check(&in_the_static_table, &in_the_static_table, [0, 1]);
    }

    #[test]
    fn all_authorities_of_a_block_are_rewritten() {
        let twice = |name: &[u8]| [block(&plain(name)), block(&huffman(name))].concat();
        check(&twice(b"a|b"), &twice(b"a+b"), [2, 0]);
    }

    /// Splits a block into frames at these positions.
    fn frames(block: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (block.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(block.len());
        let (mut start, last) = (0, cuts.len() - 1);
        let mut frames = Vec::new();
        for (nth, end) in cuts.into_iter().enumerate() {
            let kind = if nth == 0 { HEADERS } else { CONTINUATION };
            let flags = if nth == last { END_HEADERS } else { 0 };
            frames.extend(frame(kind, flags, &block[start..end]));
            start = end;
        }
        frames
    }

    #[test]
    fn a_block_that_goes_on_in_other_frames_is_rewritten() {
        let cut = |name: &[u8], cuts: &[usize]| {
            let preface = vec![b'P'; PREFACE_BYTES];
            let block = block_as(&names()[2], &huffman(name));
            [preface, frames(&block, cuts), frame(0, 1, b"A|B")].concat()
        };
        for at in 0..60 {
            for cuts in [&[at][..], &[at, at + 3], &[at; 7]] {
                for piece in [1, 9, 1000] {
                    let (out, authority_log) = rewritten(&cut(ISTIO, cuts), piece);
                    let istio = b"outbound+8081++tollgate.tollgate.svc.cluster.local";
                    assert_eq!(out, cut(istio, cuts), "{cuts:?} {piece}");
                    assert_eq!(counts(&authority_log), [1, 0]);
                }
            }
        }
        // Not repaired across more frames.
        let (out, authority_log) = rewritten(&cut(ISTIO, &[30; 40]), 1000);
        assert_eq!(out, cut(ISTIO, &[30; 40]));
        assert_eq!(counts(&authority_log), [0, 0]);
    }

    #[test]
    fn resets_are_counted_by_their_codes_however_they_are_written() {
        let written = [
            frame(4, 0, &[0; 6]),
            frame(RST_STREAM, 0, &[0, 0, 0, 1]),
            frame(HEADERS, 4, &[RST_STREAM; 30]),
            frame(0, 0, &[RST_STREAM; 3000]),
            frame(RST_STREAM, 0, &[0, 0, 0, 1]),
            frame(HEADERS, 5, &[]),
            frame(RST_STREAM, 0, &[0, 0, 0, 7]),
            // Not a code of HTTP/2.
            frame(RST_STREAM, 0, &[1, 0, 0, 0]),
            frame(7, 0, &[0, 0, 0, 0, 0, 0, 0, 1]),
        ]
        .concat();
        for piece in [1, 2, 5, 8, 64, 100_000] {
            let authority_log = AuthorityLog::new(Arc::default());
            let runtime = tokio::runtime::Builder::new_current_thread();
            { runtime }.build().unwrap().block_on(async {
                let (mut client, server) = tokio::io::duplex(piece);
                let mut server = AuthorityRewriter::new(server, authority_log.clone(), account());
                let sent = async {
                    server.write_all(&written).await.unwrap();
                    drop(server);
                };
                let mut out = Vec::new();
                let (_, read) = tokio::join!(sent, client.read_to_end(&mut out));
                read.unwrap();
                assert_eq!(out, written);
            });
            let totals = authority_log.metrics.streams_reset.totals();
            let totals: Vec<_> = totals.filter(|(_, total)| *total > 0).collect();
            let expected = [
                ("PROTOCOL_ERROR", 2),
                ("INTERNAL_ERROR", 1),
                ("REFUSED_STREAM", 1),
            ];
            assert_eq!(totals, expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_harmless_does_not_silence_what_is_not() {
        let authority_log = AuthorityLog::new(Arc::default());
        let said = || {
            let silences = [
                &authority_log.replaced,
                &authority_log.refused,
                &authority_log.reset[1],
                &authority_log.reset[7],
            ];
            silences.map(LogThrottle::has_begun)
        };
        authority_log.replaced(b"a|b");
        assert_eq!(said(), [true, false, false, false]);
        authority_log.refused(b"");
        assert_eq!(said(), [true, true, false, false]);
        authority_log.reset(1);
        assert_eq!(said(), [true, true, true, false]);
        assert!(!authority_log.refused.is_over(), "it was just said");
    }

    #[test]
    fn padding_and_priority_are_stepped_over() {
        let block = |authority: &[u8]| {
            let block = block(&huffman(authority));
            [&[3, 0, 0, 0, 0, 9][..], &block, &[0; 3]].concat()
        };
        let wrap = |block: &[u8]| {
            let preface = vec![b'P'; PREFACE_BYTES];
            [preface, frame(HEADERS, 4 | PADDED | PRIORITY, block)].concat()
        };
        let (out, _) = rewritten(&wrap(&block(b"a|b")), 50);
        assert_eq!(out, wrap(&block(b"a+b")));
    }

    #[test]
    fn replacements_are_as_long_as_what_they_replace() {
        for byte in 0..=u8::MAX {
            let bits = |byte| huffman::bits(&[byte]);
            assert_eq!(bits(byte), bits(replacement(byte)));
        }
    }

    /// A client's side of the dynamic table, with an encoder that follows instructions.
    #[derive(Default)]
    struct Encoder {
        /// The newest one first.
        entries: VecDeque<(Vec<u8>, Vec<u8>)>,
        max_bytes: usize,
        block: Vec<u8>,
    }

    /// How to write a field.
    #[derive(Clone, Copy, Debug)]
    struct Form {
        kind: u8,
        is_name_huffman: bool,
        is_value_huffman: bool,
        /// Refers to its name by the static index.
        is_by_index: bool,
        /// Refers to the whole field by index, if it is in the table.
        is_indexed: bool,
    }

    impl Encoder {
        fn resize(&mut self, max_bytes: usize) {
            self.max_bytes = max_bytes;
            self.integer(0x20, 5, max_bytes);
            self.evict(0);
        }

        fn integer(&mut self, first: u8, prefix_bits: u32, value: usize) {
            let full = (1 << prefix_bits) - 1;
            let byte = |value: usize| u8::try_from(value).unwrap();
            if value < full {
                return self.block.push(first | byte(value));
            }
            self.block.push(first | byte(full));
            let mut rest = value - full;
            while rest >= 0x80 {
                self.block.push(byte(rest & 0x7f) | 0x80);
                rest >>= 7;
            }
            self.block.push(byte(rest));
        }

        /// In Huffman code only if that is not longer, as encoders do.
        fn string(&mut self, text: &[u8], is_huffman: bool) {
            let coded = huffman::encode(text);
            if is_huffman && coded.len() <= text.len() {
                self.integer(0x80, 7, coded.len());
                self.block.extend(coded);
            } else {
                self.integer(0, 7, text.len());
                self.block.extend(text);
            }
        }

        fn field(&mut self, name: &[u8], static_index: usize, value: &[u8], form: Form) {
            let found = self
                .entries
                .iter()
                .position(|entry| (&*entry.0, &*entry.1) == (name, value));
            if let Some(found) = found.filter(|_| form.is_indexed) {
                return self.integer(0x80, 7, 62 + found);
            }
            let prefix_bits = if form.kind == 0x40 { 6 } else { 4 };
            if form.is_by_index && static_index > 0 {
                self.integer(form.kind, prefix_bits, static_index);
            } else {
                self.integer(form.kind, prefix_bits, 0);
                self.string(name, form.is_name_huffman);
            }
            self.string(value, form.is_value_huffman);
            if form.kind == 0x40 {
                let bytes = size(name, value);
                self.evict(bytes);
                if bytes <= self.max_bytes {
                    self.entries.push_front((name.to_vec(), value.to_vec()));
                }
            }
        }

        /// Evicts entries until `bytes` more fit.
        fn evict(&mut self, bytes: usize) {
            let size = |(name, value): &(Vec<u8>, Vec<u8>)| size(name, value);
            while bytes + self.entries.iter().map(size).sum::<usize>() > self.max_bytes {
                if self.entries.pop_back().is_none() {
                    return;
                }
            }
        }
    }

    /// The size of an entry in the table (RFC 7541, 4.1).
    fn size(name: &[u8], value: &[u8]) -> usize {
        32 + name.len() + value.len()
    }

    /// The calls that the library passes on, one after the other, and the number of reset streams.
    fn served(bytes: &[u8], calls: usize, piece: usize) -> (Vec<Request<()>>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let resets = { runtime }.build().unwrap().block_on(async {
            let (mut client, server) = tokio::io::duplex(piece);
            let serve = service_fn(|request: Request<Incoming>| {
                seen.lock().unwrap().push(request.map(drop));
                async { Ok::<_, Infallible>(Response::new(Body::empty())) }
            });
            let io = TokioIo::new(AuthorityRewriter::new(
                server,
                AuthorityLog::new(Arc::default()),
                account(),
            ));
            let server = http2::Builder::new(TokioExecutor::new()).serve_connection(io, serve);
            let asking = async {
                let (mut reading, mut writing) = tokio::io::split(&mut client);
                let writes = writing.write_all(bytes);
                let reads = async {
                    let (mut ended, mut resets) = (0, 0);
                    while ended < calls {
                        let mut head = [0; HEAD_BYTES];
                        reading.read_exact(&mut head).await.unwrap();
                        let mut payload = vec![0; payload_bytes(&head)];
                        reading.read_exact(&mut payload).await.unwrap();
                        assert_ne!(head[3], 7, "GOAWAY {payload:?}");
                        resets += usize::from(head[3] == RST_STREAM);
                        ended += usize::from([HEADERS, RST_STREAM].contains(&head[3]));
                    }
                    resets
                };
                tokio::join!(writes, reads).1
            };
            tokio::select! {
                resets = asking => resets,
                ended = server => panic!("the connection ended: {ended:?}"),
            }
        });
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        (seen, resets)
    }

    fn form() -> impl Strategy<Value = Form> {
        let kinds = prop::sample::select(vec![0x40, 0x40, 0x00, 0x10]);
        (kinds, any::<[bool; 4]>()).prop_map(|(kind, [name, value, by_index, indexed])| Form {
            kind,
            is_name_huffman: name,
            is_value_huffman: value,
            is_by_index: by_index,
            is_indexed: indexed,
        })
    }

    fn authorities() -> impl Strategy<Value = Vec<u8>> {
        let text = |text: &str| Just(text.as_bytes().to_vec());
        prop_oneof![
            Just(ISTIO.to_vec()),
            text("run%2Ftollgate.sock"),
            text("tollgate:8081"),
            text("<tollgate>"),
            text(""),
            "[ -~]{1,40}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 1..60),
        ]
    }

    proptest! {
        /// Compares with the HTTP/2 library, which reads each call of a connection, including calls that refer to
        /// entries of earlier ones.
        #[test]
        fn calls_arrive_with_all_else_as_it_was(
            calls in prop::collection::vec(
                (authorities(), form(), 0..12_u8, form(), prop::option::of(0..5000_usize), any::<[u8; 2]>()),
                1..12,
            ),
            piece in 1..3000_usize,
        ) {
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            // Settings, on stream 0.
            bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
            let mut encoder = Encoder { max_bytes: 4096, ..Encoder::default() };
            for (nth, (authority, of_authority, filler, of_filler, room, cuts)) in calls.iter().enumerate() {
                if let Some(room) = room {
                    encoder.resize(*room % 4097);
                }
                encoder.block.extend([0x83, 0x86]);
                encoder.field(b":path", 4, format!("/{nth}").as_bytes(), *of_filler);
                encoder.field(b":authority", 1, authority, *of_authority);
                let filler = usize::from(*filler);
                encoder.field(b"filler", 0, &b"f".repeat(filler * 100), *of_filler);
                let block = std::mem::take(&mut encoder.block);
                let cuts: Vec<_> = cuts.iter().map(|cut| usize::from(*cut) * 7).collect();
                let mut frames = frames(&block, if nth % 3 == 0 { &cuts } else { &[] });
                // Each call is a stream of its own, and its first frame ends it.
                frames[4] |= 1;
                let stream = u8::try_from(nth * 2 + 1).unwrap();
                let mut at = 0;
                while at < frames.len() {
                    frames[at + 8] = stream;
                    at += HEAD_BYTES + payload_bytes(frames[at..].first_chunk().unwrap());
                }
                bytes.extend(frames);
            }
            let (seen, resets) = served(&bytes, calls.len(), piece);
            let is_empty = |call: &&(Vec<u8>, Form, u8, Form, Option<usize>, [u8; 2])| call.0.is_empty();
            prop_assert_eq!(resets, calls.iter().filter(is_empty).count());
            let answered = calls.iter().enumerate().filter(|(_, call)| !call.0.is_empty());
            for (request, (nth, (authority, _, filler, ..))) in seen.iter().zip(answered) {
                prop_assert_eq!(request.uri().path(), format!("/{nth}"));
                let filled = request.headers()["filler"].len();
                prop_assert_eq!(filled, usize::from(*filler) * 100);
                let sent = request.uri().authority().unwrap().as_str();
                prop_assert_eq!(sent.len(), authority.len());
                if Authority::try_from(&authority[..]).is_ok() {
                    prop_assert_eq!(sent.as_bytes(), &authority[..]);
                }
            }
            prop_assert_eq!(seen.len() + resets, calls.len());
        }

        /// Any input keeps its length, and only header blocks change.
        #[test]
        fn any_bytes_pass(
            frames in prop::collection::vec((0..10u8, any::<u8>(), prop::collection::vec(any::<u8>(), 0..80)), 0..8),
            tail in prop::collection::vec(any::<u8>(), 0..20),
            piece in 1..200usize,
        ) {
            let mut bytes = vec![b'P'; PREFACE_BYTES];
            for (kind, flags, payload) in &frames {
                bytes.extend(frame(*kind, *flags, payload));
            }
            bytes.extend(&tail);
            let (out, _) = rewritten(&bytes, piece);
            prop_assert_eq!(out.len(), bytes.len());
            let kinds = frames.iter().map(|(kind, ..)| *kind).chain(tail.get(3).copied());
            let is_touched = kinds.into_iter().any(|kind| kind == HEADERS);
            prop_assert!(is_touched || out == bytes);
        }
    }
}
