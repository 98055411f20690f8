//! Lets calls in whose `:authority` is the name of an Envoy cluster.
//!
//! Envoy sends the cluster's name as `:authority` unless it is told another one, and Istio's names
//! (`outbound|8081||ratelimit.ns.svc…`) are no authority. The HTTP/2 library resets such a call
//! before any service sees it, and Envoy then lets the request pass: nothing is limited.
//!
//! So the bytes of a connection are looked at on their way to the library. In a HEADERS frame
//! (RFC 9113, 6.2) a literal `:authority` that is none gets the characters that are wrong replaced
//! by ones whose Huffman code (RFC 7541, appendix B) is as long. Frame, string and the entry of the
//! dynamic table keep their lengths, so the states of both sides stay the same, and calls that
//! later only name that entry are as good. All other frames are stepped over by their length.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::codegen::http::uri::Authority;

use crate::metrics::{Authorities, Metrics};

/// What a client says first (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// Length, type, flags and stream of a frame.
const HEAD_BYTES: usize = 9;

/// The largest frame that a client may send, for the server says nothing else. A longer one ends
/// the connection, so it is not looked at.
const MAX_FRAME_BYTES: usize = 16 << 10;

const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The log says it once in this time, however many connections come.
const SILENCE: Duration = Duration::from_secs(60);

/// No more of a name is logged.
const MAX_LOGGED_CHARS: usize = 200;

/// Counts bad authorities, and says now and then what to do about them. One for all workers.
#[derive(Debug)]
pub(super) struct Notes {
    metrics: Arc<Metrics>,
    said: Mutex<Option<Instant>>,
}

impl Notes {
    pub(super) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            said: Mutex::default(),
        })
    }

    fn replaced(&self, found: &[u8]) {
        Authorities::count(&self.metrics.authorities.replaced);
        if self.is_time() {
            let found = shown(found);
            tracing::warn!(
                "calls come with the authority `{found}`, which is none; they are answered all the \
                 same. It is the name of a cluster: set `authority` in Envoy's `envoy_grpc`"
            );
        }
    }

    fn refused(&self, found: &[u8]) {
        Authorities::count(&self.metrics.authorities.refused);
        if self.is_time() {
            let found = shown(found);
            tracing::error!(
                "calls come with the authority `{found}`, which is none: HTTP/2 resets each of \
                 them, and Envoy lets the requests pass. It is the name of a cluster: set \
                 `authority` in Envoy's `envoy_grpc`"
            );
        }
    }

    fn is_time(&self) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = said.is_none_or(|said| said.elapsed() >= SILENCE);
        if is_time {
            *said = Some(Instant::now());
        }
        is_time
    }
}

fn shown(found: &[u8]) -> String {
    let text = String::from_utf8_lossy(found);
    let text: String = text.chars().take(MAX_LOGGED_CHARS).collect();
    text.escape_debug().to_string()
}

/// A connection whose calls have an authority.
#[derive(Debug)]
pub(super) struct Mended<S> {
    stream: S,
    notes: Arc<Notes>,
    /// Bytes that need no look: the rest of the frame that is passing.
    passing: usize,
    /// The beginning of a frame that has to be whole before it is looked at.
    held: Vec<u8>,
    /// Held bytes that were looked at and are on their way out.
    given: usize,
    is_whole: bool,
}

impl<S> Mended<S> {
    pub(super) fn new(stream: S, notes: Arc<Notes>) -> Self {
        Self {
            stream,
            notes,
            passing: PREFACE_BYTES,
            held: Vec::new(),
            given: 0,
            is_whole: false,
        }
    }

    /// Looks at what came and mends it; returns how many bytes can go on. The rest is the beginning
    /// of a frame that is to be held.
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
                self.passing = HEAD_BYTES + length;
                continue;
            }
            let end = at + HEAD_BYTES + length;
            let Some(frame) = bytes.get_mut(at..end) else {
                return at;
            };
            self.headers(frame);
            at = end;
        }
    }

    /// How many bytes the held frame lacks, as far as is known.
    fn lacking(&self) -> usize {
        let wanted = match self.held.first_chunk::<HEAD_BYTES>() {
            None => HEAD_BYTES,
            Some(head) if head[3] == HEADERS && payload_bytes(head) <= MAX_FRAME_BYTES => {
                HEAD_BYTES + payload_bytes(head)
            }
            Some(_) => HEAD_BYTES,
        };
        wanted.saturating_sub(self.held.len())
    }

    fn headers(&self, frame: &mut [u8]) {
        let flags = frame[4];
        let mut block = &mut frame[HEAD_BYTES..];
        if flags & PADDED != 0 {
            let Some((&mut padding, rest)) = block.split_first_mut() else {
                return;
            };
            let Some(length) = rest.len().checked_sub(padding.into()) else {
                return;
            };
            block = &mut rest[..length];
        }
        if flags & PRIORITY != 0 {
            let Some(rest) = block.get_mut(5..) else {
                return;
            };
            block = rest;
        }
        if let Some((value, is_huffman)) = literal_authority(block) {
            self.authority(&mut block[value], is_huffman);
        }
    }

    fn authority(&self, value: &mut [u8], is_huffman: bool) {
        let Some(symbols) = symbols(value, is_huffman) else {
            return;
        };
        let found: Vec<u8> = symbols.iter().map(|symbol| symbol.byte).collect();
        if Authority::try_from(found.as_slice()).is_ok() {
            return;
        }
        let Some(instead) = instead(&found) else {
            return self.notes.refused(&found);
        };
        for (symbol, byte) in symbols.iter().zip(instead) {
            symbol.write(byte, value, is_huffman);
        }
        self.notes.replaced(&found);
    }
}

fn payload_bytes(head: &[u8; HEAD_BYTES]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// The authority that is made of a name; nothing if that cannot be.
pub(crate) fn instead(name: &[u8]) -> Option<Vec<u8>> {
    let instead: Vec<u8> = name.iter().map(|&byte| replacement(byte)).collect();
    Authority::try_from(instead.as_slice())
        .ok()
        .map(|_| instead)
}

/// What may stand in an authority instead of a byte that may not. Their codes are equally long.
fn replacement(byte: u8) -> u8 {
    match byte {
        b'|' => b'+',
        b' ' | b'%' | b'/' => b'-',
        b'"' | b'?' => b'!',
        other => other,
    }
}

/// Where the value of a literal `:authority` stands in a header block, and whether it is in
/// Huffman code (RFC 7541, 6).
fn literal_authority(block: &[u8]) -> Option<(std::ops::Range<usize>, bool)> {
    /// The static table's index of `:authority`, which encoders take before any of their own.
    const AUTHORITY: usize = 1;
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        let prefix_bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let index = integer(block, &mut at, prefix_bits)?;
        if matches!(first, 0x80.. | 0x20..0x40) {
            // Wholly in a table, or the size of one.
            continue;
        }
        if index == 0 {
            let (name, _) = string(block, at)?;
            at = name.end;
        }
        let (value, is_huffman) = string(block, at)?;
        if index == AUTHORITY {
            return Some((value, is_huffman));
        }
        at = value.end;
    }
    None
}

/// An integer whose first bits share a byte (RFC 7541, 5.1); nothing if it is cut off or absurd.
fn integer(block: &[u8], at: &mut usize, prefix_bits: u32) -> Option<usize> {
    let full = (1_usize << prefix_bits) - 1;
    let first = usize::from(*block.get(*at)?) & full;
    *at += 1;
    if first < full {
        return Some(first);
    }
    let mut value = full;
    for shift in [0, 7, 14] {
        let next = usize::from(*block.get(*at)?);
        *at += 1;
        value += (next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Where the bytes of a string stand, and whether they are in Huffman code (RFC 7541, 5.2).
fn string(block: &[u8], mut at: usize) -> Option<(std::ops::Range<usize>, bool)> {
    let is_huffman = block.get(at)? & 0x80 != 0;
    let length = integer(block, &mut at, 7)?;
    let end = at.checked_add(length).filter(|end| *end <= block.len())?;
    Some((at..end, is_huffman))
}

/// One character of a string, and where its code stands, in bits.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    byte: u8,
    at: usize,
}

impl Symbol {
    fn write(self, byte: u8, value: &mut [u8], is_huffman: bool) {
        if byte == self.byte {
            return;
        }
        if !is_huffman {
            value[self.at / 8] = byte;
            return;
        }
        let Some((bits, code)) = code(byte) else {
            return;
        };
        for (at, bit) in (self.at..).zip((0..bits).rev()) {
            let mask = 0x80 >> (at % 8);
            if code >> bit & 1 == 1 {
                value[at / 8] |= mask;
            } else {
                value[at / 8] &= !mask;
            }
        }
    }
}

/// The characters of RFC 7541's code that a name can have: the length of their codes in bits, the
/// first code of that length, and who has it and the following ones.
const CODES: [(usize, u32, &[u8]); 10] = [
    (5, 0x0, b"012aceiost"),
    (6, 0x14, b" %-./3456789=A_bdfghlmnpru"),
    (7, 0x5c, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, 0xf8, b"&*,;XZ"),
    (10, 0x3f8, b"!\"()?"),
    (11, 0x7fa, b"'+|"),
    (12, 0xffa, b"#>"),
    (13, 0x1ff8, b"\0$@[]~"),
    (14, 0x3ffc, b"^}"),
    (15, 0x7ffc, b"<`{"),
];

fn code(byte: u8) -> Option<(usize, u32)> {
    CODES.iter().find_map(|(bits, first, bytes)| {
        let at = bytes.iter().position(|known| *known == byte)?;
        Some((*bits, first + u32::try_from(at).ok()?))
    })
}

/// The characters of a string; nothing if there is one that no name has.
fn symbols(value: &[u8], is_huffman: bool) -> Option<Vec<Symbol>> {
    if !is_huffman {
        let symbol = |(at, &byte)| Symbol { byte, at: at * 8 };
        return Some(value.iter().enumerate().map(symbol).collect());
    }
    let mut symbols = Vec::with_capacity(value.len() * 8 / 5);
    let (mut start, mut code) = (0, 0_u32);
    for at in 0..value.len() * 8 {
        code = code << 1 | u32::from(value[at / 8] >> (7 - at % 8) & 1);
        let bits = at + 1 - start;
        let found = CODES.iter().find_map(|(length, first, bytes)| {
            let nth = code.checked_sub(*first)?;
            let byte = *bytes.get(usize::try_from(nth).ok()?)?;
            (*length == bits).then_some(byte)
        });
        if let Some(byte) = found {
            symbols.push(Symbol { byte, at: start });
            (start, code) = (at + 1, 0);
        } else if bits > 15 {
            return None;
        }
    }
    // What is left is padding, of ones.
    let left = value.len() * 8 - start;
    (left < 8 && code == (1 << left) - 1).then_some(symbols)
}

impl<S: AsyncRead + Unpin> AsyncRead for Mended<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.held.is_empty() {
                let before = buf.filled().len();
                ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
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

impl<S: AsyncRead + Unpin> Mended<S> {
    /// Reads on until the held frame is whole, or can be no more, and looks at it.
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
                // The end, in the middle of a frame: whoever reads it has to know.
                break;
            }
        }
        let mut held = std::mem::take(&mut self.held);
        self.look(&mut held);
        self.held = held;
        self.is_whole = true;
        Poll::Ready(Ok(()))
    }
}

/// Without vectored writes: replies are small, and to put them behind each other costs less than `writev`.
impl<S: AsyncWrite + Unpin> AsyncWrite for Mended<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const ISTIO: &[u8] = b"outbound|8081||tollgate.tollgate.svc.cluster.local";

    /// A string in Huffman code, with its length before it.
    fn huffman(text: &[u8]) -> Vec<u8> {
        let mut bits = String::new();
        for &byte in text {
            let (length, code) = code(byte).unwrap();
            bits += &format!("{code:0length$b}");
        }
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        let byte = |bits: &[u8]| {
            let bits = std::str::from_utf8(bits).unwrap();
            u8::from_str_radix(bits, 2).unwrap()
        };
        let bytes: Vec<_> = bits.as_bytes().chunks(8).map(byte).collect();
        let length = u8::try_from(bytes.len()).unwrap();
        [vec![0x80 | length], bytes].concat()
    }

    fn plain(text: &[u8]) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()], text].concat()
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// `:method POST`, a path of its own, `:authority`, and one header with a new name.
    fn block(authority: &[u8]) -> Vec<u8> {
        [
            &[0x83, 0x44][..],
            &plain(b"/envoy/Call"),
            &[0x41],
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

    /// What comes out of a connection whose bytes come in pieces of this size.
    fn mended(bytes: &[u8], piece: usize) -> (Vec<u8>, Arc<Notes>) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let notes = Notes::new(Arc::default());
        let out = runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(piece);
            let mut server = Mended::new(server, notes.clone());
            let mut out = Vec::new();
            let sent = async {
                client.write_all(bytes).await.unwrap();
                drop(client);
            };
            let (_, read) = tokio::join!(sent, server.read_to_end(&mut out));
            read.unwrap();
            out
        });
        (out, notes)
    }

    #[track_caller]
    fn check(before: &[u8], after: &[u8], [replaced, refused]: [u64; 2]) {
        for piece in [1, 2, 7, 30, 64, 100_000] {
            let (out, notes) = mended(&connection(before), piece);
            assert_eq!(out, connection(after), "in pieces of {piece}");
            let Authorities {
                replaced: some,
                refused: others,
            } = &notes.metrics.authorities;
            let load = |count: &std::sync::atomic::AtomicU64| {
                count.load(std::sync::atomic::Ordering::Relaxed)
            };
            assert_eq!([load(some), load(others)], [replaced, refused]);
        }
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
    fn an_authority_is_left_alone() {
        for good in [&b"tollgate"[..], b"127.0.0.1:8081", b"[::1]:80", b"a_b~c"] {
            for write in [huffman, plain] {
                check(&block(&write(good)), &block(&write(good)), [0, 0]);
            }
        }
    }

    #[test]
    fn what_cannot_be_an_authority_is_counted_and_left_alone() {
        for bad in [&b"a<b"[..], b"a|b#c", b"{x}", b"a:b:c|"] {
            for write in [huffman, plain] {
                check(&block(&write(bad)), &block(&write(bad)), [0, 1]);
            }
        }
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
        let (out, _) = mended(&wrap(&block(b"a|b")), 50);
        assert_eq!(out, wrap(&block(b"a+b")));
    }

    #[test]
    fn every_code_is_found_again_and_replacements_are_as_long() {
        for (_, _, bytes) in CODES {
            for &byte in bytes {
                let text = huffman(&[byte]);
                let found = symbols(&text[1..], true).unwrap();
                assert_eq!(found.len(), 1);
                assert_eq!(found[0].byte, byte);
                let bits = |byte| code(byte).unwrap().0;
                assert_eq!(bits(byte), bits(replacement(byte)));
            }
        }
    }

    proptest! {
        /// Whatever comes, as much goes on, and nothing but header blocks is touched.
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
            let (out, _) = mended(&bytes, piece);
            prop_assert_eq!(out.len(), bytes.len());
            let kinds = frames.iter().map(|(kind, ..)| *kind).chain(tail.get(3).copied());
            let is_touched = kinds.into_iter().any(|kind| kind == HEADERS);
            prop_assert!(is_touched || out == bytes);
        }
    }
}
