//! Clients that make a server hold as much memory as it allows, for tests of the effects on other clients.

use std::{
    collections::HashMap,
    io::{ErrorKind, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use prost::Message as _;

use super::{
    ask::{descriptor, request},
    frames::{DATA, Frames, GO_AWAY, HEADERS, RESET, SETTINGS, WINDOW_UPDATE, frame, headers},
};

/// A client that cannot send for this long has met a server that accepts no more.
const ENOUGH: Duration = Duration::from_secs(3);

/// The largest frame that a server must accept (RFC 9113, 4.2).
const FRAME_BYTES: usize = 16 << 10;

/// One connection that respects the server's windows and can close its own.
#[derive(Debug)]
pub struct Hoarder {
    frames: Frames,
    next: u32,
    /// Bytes that may be sent on the connection, and initially on a stream.
    window: i64,
    initial: i64,
    /// Bytes that may be sent on the open streams.
    windows: HashMap<u32, i64>,
    /// Calls that the server has answered or reset.
    pub ended: usize,
    pub is_closed: bool,
}

impl Hoarder {
    /// Opens a connection on which the server may send `window` bytes of each reply.
    pub fn connect(address: SocketAddr, window: u32) -> Self {
        let mut frames = Frames::connect(address);
        let setting = [&[0, 4][..], &window.to_be_bytes()].concat();
        let setting = frame(SETTINGS, 0, 0, &setting);
        frames.0.write_all(&setting).unwrap();
        if let Some(more @ 1..) = window.checked_sub(65_535) {
            let more = frame(WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
            frames.0.write_all(&more).unwrap();
        }
        frames.0.set_read_timeout(Some(ENOUGH)).unwrap();
        frames.0.set_write_timeout(Some(ENOUGH)).unwrap();
        Self {
            frames,
            next: 1,
            window: 65_535,
            initial: 65_535,
            windows: HashMap::new(),
            ended: 0,
            is_closed: false,
        }
    }

    /// Begins a call with `bytes`, which end its stream if `is_end`. Returns whether they were sent; otherwise the
    /// server has answered earlier, closed, or accepts no more.
    pub fn call(&mut self, bytes: &[u8], is_end: bool) -> bool {
        let stream = self.next;
        self.next += 2;
        self.windows.insert(stream, self.initial);
        if !self.write(&headers(stream)) {
            return false;
        }
        let mut pieces = bytes.chunks(FRAME_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let length = i64::try_from(piece.len()).unwrap();
            loop {
                let Some(left) = self.windows.get_mut(&stream) else {
                    return false;
                };
                if self.window >= length && *left >= length {
                    *left -= length;
                    self.window -= length;
                    break;
                }
                if !self.hear() {
                    return false;
                }
            }
            let flags = u8::from(is_end && pieces.peek().is_none());
            if !self.write(&frame(DATA, flags, stream, piece)) {
                return false;
            }
        }
        true
    }

    /// So many calls, unless the server closes before.
    fn with_calls(mut self, calls: usize, bytes: &[u8], is_end: bool) -> Self {
        for _ in 0..calls {
            if !self.call(bytes, is_end) && self.is_closed {
                break;
            }
        }
        self
    }

    pub fn write(&mut self, bytes: &[u8]) -> bool {
        let written = self.frames.0.write_all(bytes);
        self.is_closed |= matches!(&written, Err(error) if error.kind() != ErrorKind::WouldBlock);
        written.is_ok()
    }

    pub fn hear(&mut self) -> bool {
        let Some((kind, flags, stream, payload)) = self.frames.try_read() else {
            return false;
        };
        let number = |at: usize| {
            let bytes = payload[at..at + 4].try_into().unwrap();
            i64::from(u32::from_be_bytes(bytes))
        };
        match kind {
            SETTINGS if flags & 1 == 0 => {
                for at in (0..payload.len()).step_by(6) {
                    if payload[at..at + 2] == [0, 4] {
                        let more = number(at + 2) - self.initial;
                        self.initial += more;
                        self.windows.values_mut().for_each(|window| *window += more);
                    }
                }
                return self.write(&frame(SETTINGS, 1, 0, &[]));
            }
            WINDOW_UPDATE if stream == 0 => self.window += number(0),
            WINDOW_UPDATE => {
                if let Some(window) = self.windows.get_mut(&stream) {
                    *window += number(0);
                }
            }
            HEADERS if flags & 1 != 0 => self.end(stream),
            RESET => self.end(stream),
            GO_AWAY => self.is_closed = true,
            _ => {}
        }
        !self.is_closed
    }

    fn end(&mut self, stream: u32) {
        self.ended += usize::from(self.windows.remove(&stream).is_some());
    }
}

pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// Calls with messages of `bytes` each, without their last byte.
pub fn calls_without_end(address: SocketAddr, calls: usize, bytes: usize) -> Hoarder {
    let message = framed(&vec![b'x'; bytes]);
    let begun = &message[..message.len() - 1];
    Hoarder::connect(address, 65_535).with_calls(calls, begun, false)
}

/// Calls on `connections`, as many as each allows, with a closed window for replies: each has `descriptors`, whose
/// only value is `value`.
pub fn unread_replies(
    address: SocketAddr,
    connections: usize,
    calls: usize,
    message: &[u8],
) -> Vec<Hoarder> {
    let hoard = || Hoarder::connect(address, 0).with_calls(calls, &framed(message), true);
    thread::scope(|scope| {
        let all: Vec<_> = (0..connections).map(|_| scope.spawn(hoard)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// A client that requests the long health page as often as the sockets have room for, and reads nothing.
pub fn who_does_not_read(port: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(port).unwrap();
    stream.set_nonblocking(true).unwrap();
    let requests = b"GET /healthcheck?verbose HTTP/1.1\r\nhost: test\r\n\r\n".repeat(2_000);
    while stream.write(&requests).is_ok() {}
    stream
}

/// Requests with a hundred new names for statistics each, `length` bytes long and all different, for a rule with
/// `detailed_metric`.
pub fn made_up_names(names: usize, length: usize) -> Vec<Vec<u8>> {
    const OF_EACH: usize = 100;
    let name = |number| format!("{number:0>length$}");
    let all = (0..names).map(|number| descriptor(&[("named", &name(number))]));
    let all: Vec<_> = all.collect();
    let requests = all.chunks(OF_EACH).map(|some| request("d", some.to_vec()));
    requests.map(|request| request.encode_to_vec()).collect()
}

/// Almost the largest message that is let in.
pub const MESSAGE: usize = 250_000;

/// Clients of `/json` with bodies of almost the largest size, without the last byte.
pub fn slow_bodies(address: SocketAddr, clients: usize) -> Vec<TcpStream> {
    let head = format!(
        "POST /json HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {MESSAGE}\r\n\r\n"
    );
    let body = vec![b' '; MESSAGE - 1];
    let send = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_write_timeout(Some(ENOUGH)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        // The server may stop reading once it has refused the request.
        let _ = stream.write_all(&body);
        stream
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..clients).map(|_| scope.spawn(send)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// A message with `descriptors`, whose only entry has this value.
pub fn many_descriptors(descriptors: usize, value: &[u8]) -> Vec<u8> {
    let mut one = descriptor(&[("k", "")]);
    one.entries[0].value = value.to_vec().into();
    request("d", vec![one; descriptors]).encode_to_vec()
}
