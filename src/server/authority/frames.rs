//! Frames of HTTP/2 (RFC 9113, 4 and 6.2): where header blocks begin and end.

use std::ops::Range;

/// The size of a frame's head: length, type, flags and stream.
pub(super) const HEAD_BYTES: usize = 9;

/// The largest frame that a client may send, since the server announces no other size. A longer one ends the
/// connection, so it need not be inspected.
pub(super) const MAX_FRAME_BYTES: usize = 16 << 10;

/// Most frames of a header block that are inspected. The library accepts fewer, and ends the connection after them.
pub(super) const MAX_BLOCK_FRAMES: usize = 8;

pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;

/// The length of a frame's payload.
pub(super) fn payload_bytes(head: &[u8; HEAD_BYTES]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// Writes the length of the payload into a frame's head.
pub(super) fn set_payload_bytes(head: &mut [u8; HEAD_BYTES], payload: usize) {
    let [low, middle, high, ..] = payload.to_le_bytes();
    head[..3].copy_from_slice(&[high, middle, low]);
}

/// The stream of a frame.
pub(super) fn stream_id(head: &[u8; HEAD_BYTES]) -> u32 {
    u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff
}

/// Whether these frames are one, with a whole header block at its end.
pub(super) fn is_whole_block(frames: &[u8]) -> bool {
    frames.first_chunk::<HEAD_BYTES>().is_some_and(|head| {
        let is_whole = head[4] & (END_HEADERS | PADDED) == END_HEADERS;
        is_whole && HEAD_BYTES + payload_bytes(head) == frames.len()
    })
}

/// The total length of the frames of the header block that begins here; or, as an error, how many bytes of them are
/// missing, as far as known. An invalid frame ends the block.
pub(super) fn block_frames(bytes: &[u8]) -> Result<usize, usize> {
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
pub(super) fn has_end(mut frames: &[u8]) -> bool {
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
pub(super) fn first_fragment(frames: &[u8]) -> Option<(Range<usize>, usize)> {
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

/// Writes `block` into the fragments of these frames. If it is shorter than they are, the last ones shrink. Returns the
/// new length of the frames.
pub(super) fn refill(frames: &mut [u8], fragments: &[Range<usize>], mut block: &[u8]) -> usize {
    let (mut from, mut to) = (0, 0);
    for fragment in fragments {
        let Some(head) = frames[from..].first_chunk::<HEAD_BYTES>() else {
            break;
        };
        let payload = payload_bytes(head);
        let end = from + HEAD_BYTES + payload;
        let (piece, rest) = block.split_at(fragment.len().min(block.len()));
        let payload = payload - (fragment.len() - piece.len());
        frames.copy_within(from..fragment.start, to);
        if let Some(head) = frames[to..].first_chunk_mut() {
            set_payload_bytes(head, payload);
        }
        to += fragment.start - from;
        frames[to..to + piece.len()].copy_from_slice(piece);
        to += piece.len();
        frames.copy_within(fragment.end..end, to);
        to += end - fragment.end;
        (from, block) = (end, rest);
    }
    to
}
