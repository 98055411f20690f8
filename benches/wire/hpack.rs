//! Header blocks → fields (RFC 7541). It decodes only the characters of replies to calls: Huffman codes longer than
//! 15 bits stand for bytes that no such reply contains.

use std::collections::VecDeque;

/// Size of the dynamic table in bytes, the default.
const TABLE_BYTES: usize = 4096;

/// Overhead of an entry in the table besides its texts, in bytes.
const ENTRY_BYTES: usize = 32;

/// The dynamic table after one peer's blocks so far.
#[derive(Debug, Default)]
pub struct Decoder {
    fields: VecDeque<Field>,
    bytes: usize,
}

/// A name and its value.
type Field = (Box<[u8]>, Box<[u8]>);

#[derive(Debug, thiserror::Error)]
#[error("a reply has headers that cannot be read")]
pub struct Unreadable;

impl Decoder {
    /// Calls `see` with the name and the value of each field of `block`.
    pub fn read(
        &mut self,
        mut block: &[u8],
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Unreadable> {
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                let index = integer(&mut block, 7)?;
                let (name, value) = self.field(index)?;
                see(name, value);
            } else if first & 0xe0 == 0x20 {
                // A change of the table's size, which this side never requested.
                let _ = integer(&mut block, 5)?;
            } else {
                let is_kept = first & 0xc0 == 0x40;
                let index = integer(&mut block, if is_kept { 6 } else { 4 })?;
                let name = match index {
                    0 => text(&mut block)?,
                    index => self.field(index)?.0.into(),
                };
                let value = text(&mut block)?;
                see(&name, &value);
                if is_kept {
                    self.keep(name, value);
                }
            }
        }
        Ok(())
    }

    fn field(&self, index: usize) -> Result<(&[u8], &[u8]), Unreadable> {
        if let Some(&(name, value)) = STATIC.get(index.wrapping_sub(1)) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let field = index.checked_sub(STATIC.len() + 1);
        let (name, value) = field
            .and_then(|index| self.fields.get(index))
            .ok_or(Unreadable)?;
        Ok((name, value))
    }

    fn keep(&mut self, name: Box<[u8]>, value: Box<[u8]>) {
        self.bytes += name.len() + value.len() + ENTRY_BYTES;
        self.fields.push_front((name, value));
        while self.bytes > TABLE_BYTES {
            let Some((name, value)) = self.fields.pop_back() else {
                return;
            };
            self.bytes -= name.len() + value.len() + ENTRY_BYTES;
        }
    }
}

/// An integer that begins in the lowest `bits` of the first byte.
fn integer(block: &mut &[u8], bits: u32) -> Result<usize, Unreadable> {
    let mask = (1_usize << bits) - 1;
    let mut number = usize::from(byte(block)?) & mask;
    if number < mask {
        return Ok(number);
    }
    for shift in [0, 7, 14] {
        let more = usize::from(byte(block)?);
        number += (more & 0x7f) << shift;
        if more & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Unreadable)
}

fn byte(block: &mut &[u8]) -> Result<u8, Unreadable> {
    let (&first, rest) = block.split_first().ok_or(Unreadable)?;
    *block = rest;
    Ok(first)
}

fn text(block: &mut &[u8]) -> Result<Box<[u8]>, Unreadable> {
    let is_huffman = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(block, 7)?;
    let (text, rest) = block.split_at_checked(length).ok_or(Unreadable)?;
    *block = rest;
    if is_huffman {
        huffman(text)
    } else {
        Ok(text.into())
    }
}

/// The bytes with codes of 5, 6, … bits, in the order of their codes: the code is canonical.
const BY_LENGTH: [(u32, &[u8]); 11] = [
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (9, b""),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
];

fn huffman(text: &[u8]) -> Result<Box<[u8]>, Unreadable> {
    let mut decoded = Vec::with_capacity(text.len() * 2);
    let bits = text
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at) & 1));
    let (mut code, mut length) = (0, 0);
    for bit in bits {
        code = code << 1 | bit;
        length += 1;
        if let Some(byte) = letter(code, length) {
            decoded.push(byte);
            (code, length) = (0, 0);
        } else if length > 15 {
            return Err(Unreadable);
        }
    }
    // The remaining bits are padding: ones, fewer than a byte.
    if length < 8 && code == (1 << length) - 1 {
        Ok(decoded.into())
    } else {
        Err(Unreadable)
    }
}

/// The byte with this code of `length` bits.
fn letter(code: u32, length: u32) -> Option<u8> {
    let mut first = 0;
    for (bits, bytes) in BY_LENGTH {
        if bits == length {
            let at = usize::try_from(code.checked_sub(first)?).ok()?;
            return bytes.get(at).copied();
        }
        first = (first + u32::try_from(bytes.len()).ok()?) << 1;
    }
    None
}

/// The entries of the static table.
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
