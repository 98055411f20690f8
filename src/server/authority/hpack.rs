//! Finds `:authority` in a header block (RFC 7541).

use std::ops::Range;

/// A string in a header block (RFC 7541, 5.2).
#[derive(Debug)]
pub(super) struct HeaderString {
    /// Where the length of the string begins.
    pub(super) start: usize,
    /// Where the bytes of the string are.
    pub(super) bytes: Range<usize>,
    pub(super) is_huffman: bool,
}

/// Which entries of a client's dynamic table have the name `:authority`; the lowest bit is the newest entry. 128 bits
/// are enough: an entry counts for at least 32 bytes, and the table has 4,096, since the server announces no other
/// size.
///
/// An entry that is too large for the table empties the table and is not added. Counting it as an entry here does no
/// harm: no older entries can be referred to, and newer ones are counted from the newest.
#[derive(Debug, Default)]
pub(super) struct AuthorityEntries(u128);

impl AuthorityEntries {
    /// The index of the newest entry, which follows the static table.
    const NEWEST: usize = 62;

    fn has(&self, index: usize) -> bool {
        let nth = index.checked_sub(Self::NEWEST);
        let nth = nth.and_then(|nth| u32::try_from(nth).ok());
        nth.and_then(|nth| self.0.checked_shr(nth))
            .is_some_and(|entries| entries & 1 == 1)
    }

    fn insert(&mut self, is_authority: bool) {
        self.0 = self.0 << 1 | u128::from(is_authority);
    }
}

/// The value of the next `:authority` after `at` that is a literal (RFC 7541, 6), or that refers to the empty one in
/// the static table.
pub(super) fn next_authority(
    block: &[u8],
    at: &mut usize,
    entries: &mut AuthorityEntries,
) -> Option<HeaderString> {
    /// The index of `:authority` in the static table.
    const AUTHORITY: usize = 1;
    while let Some(&first) = block.get(*at) {
        if let 0x82..=0xfe = first {
            // The usual case: an indexed field that is not the static `:authority`.
            *at += 1;
            continue;
        }
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
                    start: 0,
                    bytes: 0..0,
                    is_huffman: false,
                });
            }
            // An indexed field, or a change of the table's size.
            0x80.. | 0x20..0x40 => continue,
            _ => {}
        }
        let is_authority = match index {
            0 => is_authority(block, &string(block, at)?),
            _ => index == AUTHORITY || entries.has(index),
        };
        let value = string(block, at)?;
        if first >= 0x40 {
            entries.insert(is_authority);
        }
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

/// Reads an integer with a prefix (RFC 7541, 5.1); `None` if it is cut off or too large.
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

/// Reads the string at `at`, and moves `at` to the byte after it.
fn string(block: &[u8], at: &mut usize) -> Option<HeaderString> {
    let (start, is_huffman) = (*at, block.get(*at)? & 0x80 != 0);
    let length = integer(block, at, 7)?;
    let end = at.checked_add(length).filter(|end| *end <= block.len())?;
    let bytes = *at..end;
    *at = end;
    Some(HeaderString {
        start,
        bytes,
        is_huffman,
    })
}

/// Writes a field that no dynamic table takes up (RFC 7541, 6.2.2).
pub(super) fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0], &*plain_string(name), &*plain_string(value)].concat()
}

/// Writes a text as a string without Huffman code.
pub(super) fn plain_string(text: &[u8]) -> Vec<u8> {
    const FULL: usize = 0x7f;
    let mut string = Vec::with_capacity(text.len() + 4);
    let mut rest = text.len();
    if rest >= FULL {
        string.push(low_bits(FULL));
        rest -= FULL;
        while rest > FULL {
            string.push(low_bits(rest) | 0x80);
            rest >>= 7;
        }
    }
    string.push(low_bits(rest));
    string.extend_from_slice(text);
    string
}

fn low_bits(number: usize) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}
