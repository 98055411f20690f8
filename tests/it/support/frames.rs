//! HTTP/2 frame by frame, including frames that no client would send.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use super::PATIENCE;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GO_AWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Beginnings of a connection that then stays silent, each one step further, and none of them a call.
pub fn beginnings() -> Vec<Vec<u8>> {
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let half_a_call = [&hello[..], &headers(1)[..20]].concat();
    vec![
        Vec::new(),
        PREFACE[..1].to_vec(),
        PREFACE[..20].to_vec(),
        PREFACE.to_vec(),
        hello,
        half_a_call,
    ]
}

#[derive(Debug)]
pub struct Frames(pub TcpStream);

impl Frames {
    pub fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(PREFACE).unwrap();
        stream.write_all(&frame(4, 0, 0, &[])).unwrap();
        Self(stream)
    }

    /// Type and payload of the next frame; `None` when the server has closed.
    pub fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        match self.next_frame() {
            Ok((kind, _, _, payload)) => Some((kind, payload)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing comes"),
            Err(_) => None,
        }
    }

    /// Type, flags, stream and payload of the next frame; `None` if none comes in time or the server has closed.
    pub fn try_read(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        self.next_frame().ok()
    }

    fn next_frame(&mut self) -> io::Result<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head)?;
        let [_, _, _, kind, flags, stream @ ..] = head;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut payload)?;
        Ok((kind, flags, u32::from_be_bytes(stream), payload))
    }

    /// Reads until a frame of this type, or until the server closes.
    pub fn read_until(&mut self, kind: u8) -> Option<Vec<u8>> {
        loop {
            let (found, payload) = self.read()?;
            if found == kind {
                return Some(payload);
            }
        }
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a call, without END_STREAM.
pub fn headers(stream: u32) -> Vec<u8> {
    frame(HEADERS, 4, stream, &header_block(0))
}

/// [`headers`], with a timeout (gRPC over HTTP/2, "Timeout").
pub fn headers_with_timeout(stream: u32, timeout: &str) -> Vec<u8> {
    let length = u8::try_from(timeout.len()).unwrap();
    let field = [b"\x00\x0cgrpc-timeout", &[length][..], timeout.as_bytes()].concat();
    frame(HEADERS, 4, stream, &[header_block(0), field].concat())
}

/// The header block of a call. Its fields are in the dynamic table afterwards if `literal` is 0x40, and not if it is 0
/// (RFC 7541, 6.2).
fn header_block(literal: u8) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let path = text("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    // POST and http; :path, :authority and others.
    let begin = [0x83, 0x86, literal | 4];
    let mut block = [&begin[..], &path, &[literal | 1], &text("tollgate")].concat();
    for part in ["content-type", "application/grpc", "te", "trailers"].chunks(2) {
        block.extend([&[literal], &text(part[0])[..], &text(part[1])].concat());
    }
    block
}

/// So many calls, each cancelled right after its headers, which repeat those of the first in six bytes.
pub fn cancelled_calls(count: usize) -> Vec<u8> {
    let first = header_block(0x40);
    let call = |stream| {
        let again = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
        let block = if stream == 1 { &first[..] } else { &again };
        let reset = frame(RESET, 0, stream, &[0, 0, 0, 8]);
        [frame(HEADERS, 4, stream, block), reset].concat()
    };
    streams().take(count).flat_map(call).collect()
}

/// A request for one descriptor, in one frame with END_STREAM.
pub fn data(stream: u32) -> Vec<u8> {
    let entry = b"\x0a\x01k\x12\x01v";
    let descriptor = [&[0x0a, u8::try_from(entry.len()).unwrap()][..], entry].concat();
    let length = [u8::try_from(descriptor.len()).unwrap()];
    let request = [b"\x0a\x01d\x12", &length[..], &descriptor].concat();
    let length = u32::try_from(request.len()).unwrap().to_be_bytes();
    let message = [&[0][..], &length, &request].concat();
    frame(0, 1, stream, &message)
}

pub fn streams() -> impl Iterator<Item = u32> {
    (1..).step_by(2)
}
