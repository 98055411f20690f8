//! HTTP/2 frame by frame, as no client would send them.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use super::PATIENCE;

/// What a client says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GO_AWAY: u8 = 7;

/// Ways to begin a connection and then to say no more, each a little further, and none of them a call.
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

/// A client that writes and reads frames as they stand.
#[derive(Debug)]
pub struct Frames(pub TcpStream);

impl Frames {
    /// Says hello.
    pub fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(PREFACE).unwrap();
        stream.write_all(&frame(4, 0, 0, &[])).unwrap();
        Self(stream)
    }

    /// Type and payload of the next frame; nothing when the server has closed.
    pub fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.fill(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.fill(&mut payload)?;
        Some((head[3], payload))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.0.read_exact(bytes) {
            Ok(()) => Some(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing comes"),
            Err(_) => None,
        }
    }

    /// Reads until a frame of that type comes, or the server has closed.
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

/// The headers of a call, without an end to its stream.
pub fn headers(stream: u32) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let block = [
        &[0x83, 0x86, 0x04][..],
        &text("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
        &[0x01],
        &text("tollgate"),
        &[0x00],
        &text("content-type"),
        &text("application/grpc"),
        &[0x00],
        &text("te"),
        &text("trailers"),
    ]
    .concat();
    frame(1, 4, stream, &block)
}

/// A request for one descriptor, in one frame that ends the stream.
pub fn data(stream: u32) -> Vec<u8> {
    let entry = b"\x0a\x01k\x12\x01v";
    let descriptor = [&[0x0a, u8::try_from(entry.len()).unwrap()][..], entry].concat();
    let request = [
        b"\x0a\x01d\x12",
        &[u8::try_from(descriptor.len()).unwrap()][..],
        &descriptor,
    ]
    .concat();
    let length = u32::try_from(request.len()).unwrap().to_be_bytes();
    let message = [&[0][..], &length, &request].concat();
    frame(0, 1, stream, &message)
}

pub fn streams() -> impl Iterator<Item = u32> {
    (1..).step_by(2)
}
