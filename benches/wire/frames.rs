//! HTTP/2 frames as a caller writes them (RFC 9113).

/// Length of a frame's header (section 4.1), in bytes.
pub const FRAME_HEADER: usize = 9;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;

/// Flags: END_STREAM, and ACK for SETTINGS and PING.
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// Initial size of both windows of a connection, in bytes.
pub const FIRST_WINDOW: u32 = 65_535;

/// Largest possible window, in bytes.
pub const WINDOW: u32 = (1 << 31) - 1;

/// Appends a frame on stream 0, the connection itself.
pub fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags, 0, 0, 0, 0]);
    out.extend_from_slice(payload);
}

/// The first bytes of a connection: no pushes are accepted, and replies need not wait for reads.
pub fn hello() -> Vec<u8> {
    let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut hello, SETTINGS, 0, &[0, 2, 0, 0, 0, 0]);
    let more = WINDOW - FIRST_WINDOW;
    frame(&mut hello, WINDOW_UPDATE, 0, &more.to_be_bytes());
    hello
}
