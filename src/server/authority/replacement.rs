//! Finds the valid authority that replaces an invalid one: of equal length in characters, and in bits if possible.

use tonic::codegen::http::uri::Authority;

use super::{hpack::HeaderString, huffman};

/// An authority as it is written into a header block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Replacement {
    pub(super) bytes: Vec<u8>,
    pub(super) is_huffman: bool,
}

/// The replacement of the name in `string`: an authority with the same number of characters. Its code has the same
/// number of bits; or it has no code and is shorter, because the name's code is longer than its characters.
/// `None` if the name is empty.
pub(super) fn instead(name: &[u8], string: &HeaderString) -> Option<Replacement> {
    if name.is_empty() {
        return None;
    }
    let mut authority: Vec<u8> = name.iter().map(|&byte| replacement(byte)).collect();
    let mut is_huffman = string.is_huffman;
    if Authority::try_from(&*authority).is_err() {
        let coded = is_huffman.then(|| coded_authority(name.len(), huffman::bits(name)));
        let coded = coded.flatten();
        is_huffman = coded.is_some();
        authority = coded.unwrap_or_else(|| vec![b'-'; name.len()]);
    }
    let bytes = if is_huffman {
        huffman::encode(&authority)
    } else {
        authority
    };
    (bytes.len() <= string.bytes.len()).then_some(Replacement { bytes, is_huffman })
}

/// For a byte that an authority must not contain, a valid character with a code of equal length.
pub(super) fn replacement(byte: u8) -> u8 {
    match byte {
        b'|' => b'+',
        b' ' | b'%' | b'/' => b'-',
        b'"' | b'?' => b'!',
        other => other,
    }
}

/// An authority of `characters` whose Huffman code has `bits`. It exists if codes have at most eight bits on average.
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
