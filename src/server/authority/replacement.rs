//! A valid authority that takes the place of an invalid one: as long, in characters and in bits.

use tonic::codegen::http::uri::Authority;

use super::huffman;

/// The replacement of a name: an authority with as many characters, in as many bits.
pub(super) fn instead(name: &[u8], is_huffman: bool) -> Option<Vec<u8>> {
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
pub(super) fn replacement(byte: u8) -> u8 {
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
