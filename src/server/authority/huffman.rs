//! The Huffman code of header texts (RFC 7541, appendix B), and the valid authority that replaces an invalid one: of
//! equal length in characters, and in bits if possible.

use tonic::codegen::http::uri::Authority;

use crate::server::authority::hpack::HeaderString;

/// For each length of codes in bits: the first code, and the bytes that this code and the following ones stand for.
const CODES: [(usize, u32, &[u8]); 21] = [
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
    (19, 0x7fff0, b"\\\xc3\xd0"),
    (20, 0xfffe6, b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2"),
    (
        21,
        0x1f_ffdc,
        b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    ),
    (
        22,
        0x3f_ffd2,
        b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\
          \xe8\xe9",
    ),
    (
        23,
        0x7f_ffd8,
        b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\
          \xbc\xbf\xc5\xe7\xef",
    ),
    (
        24,
        0xff_ffea,
        b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    ),
    (25, 0x1ff_ffec, b"\xc7\xcf\xea\xeb"),
    (
        26,
        0x3ff_ffe0,
        b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    ),
    (
        27,
        0x7ff_ffde,
        b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    ),
    (
        28,
        0xfff_ffe2,
        b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\
          \x1e\x1f\x7f\xdc\xf9",
    ),
    (30, 0x3fff_fffc, b"\n\r\x16"),
];

/// Decodes a text; `None` if the bytes are not valid.
pub(super) fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(coded.len() * 8 / 5);
    let (mut code, mut bits, mut rows) = (0_u32, 0, CODES.iter());
    for at in 0..coded.len() * 8 {
        code = code << 1 | u32::from(coded[at / 8] >> (7 - at % 8) & 1);
        bits += 1;
        // Longer codes are also greater numbers, so each row is visited once.
        let (length, first, bytes) = rows.as_slice().first()?;
        if bits < *length {
            continue;
        }
        let nth = code.checked_sub(*first).map(usize::try_from);
        match nth.and_then(|nth| bytes.get(nth.ok()?)) {
            Some(&byte) => {
                text.push(byte);
                (code, bits, rows) = (0, 0, CODES.iter());
            }
            None => drop(rows.next()),
        }
    }
    // The remaining bits must be padding of ones.
    (bits < 8 && code == (1 << bits) - 1).then_some(text)
}

/// Encodes a text, padded to whole bytes.
pub(super) fn encode(text: &[u8]) -> Vec<u8> {
    let mut coded = Vec::with_capacity(text.len());
    let (mut pending, mut bits) = (0_u64, 0);
    for (length, code) in text.iter().filter_map(|&byte| code(byte)) {
        pending = pending << length | u64::from(code);
        bits += length;
        while bits >= 8 {
            bits -= 8;
            coded.push((pending >> bits).to_le_bytes()[0]);
        }
    }
    if bits > 0 {
        let padded = pending << (8 - bits) | 0xff >> bits;
        coded.push(padded.to_le_bytes()[0]);
    }
    coded
}

/// Length of the encoded text in bits.
pub(super) fn bits(text: &[u8]) -> usize {
    let codes = text.iter().filter_map(|&byte| code(byte));
    codes.map(|(bits, _)| bits).sum()
}

/// The code of a byte, and its length in bits. Every byte has a code.
fn code(byte: u8) -> Option<(usize, u32)> {
    CODES.iter().find_map(|(bits, first, bytes)| {
        let at = bytes.iter().position(|known| *known == byte)?;
        Some((*bits, first + u32::try_from(at).ok()?))
    })
}

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
        let coded = is_huffman.then(|| coded_authority(name.len(), bits(name)));
        let coded = coded.flatten();
        is_huffman = coded.is_some();
        authority = coded.unwrap_or_else(|| vec![b'-'; name.len()]);
    }
    let bytes = if is_huffman {
        encode(&authority)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The code is canonical, so the lengths of the codes define it. The last code stands for the end, not for a byte.
    #[test]
    fn the_table_is_the_whole_code() {
        let mut next = 0;
        let mut before = 5;
        let mut all: Vec<u8> = Vec::new();
        for (bits, first, bytes) in CODES {
            next <<= bits - before;
            assert_eq!(first, next, "of {bits} bits");
            assert!(bytes.is_sorted());
            next += u32::try_from(bytes.len()).unwrap();
            before = bits;
            all.extend(bytes);
        }
        assert_eq!(next, (1 << 30) - 1);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..=u8::MAX));
    }

    /// The examples of RFC 7541, C.4 and C.6.
    #[test]
    fn known_texts_have_known_codes() {
        for (text, coded) in [
            (&b""[..], &[][..]),
            (b"no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (b"private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
            (b"302", &[0x64, 0x02]),
        ] {
            assert_eq!(encode(text), coded);
            assert_eq!(decode(coded).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_is_no_code_is_no_text() {
        // These are padding of zeros, padding of more than seven bits, and the code for the end.
        for bad in [&[0x00_u8][..], &[0x07, 0xff], &[0xff], &[0xff; 4]] {
            assert_eq!(decode(bad), None, "{bad:x?}");
        }
    }

    proptest! {
        #[test]
        fn a_text_is_found_again(text: Vec<u8>) {
            let coded = encode(&text);
            prop_assert_eq!(coded.len(), bits(&text).div_ceil(8));
            prop_assert_eq!(decode(&coded), Some(text));
        }

        /// Each text has exactly one encoding.
        #[test]
        fn a_code_is_made_again(coded: Vec<u8>) {
            if let Some(text) = decode(&coded) {
                prop_assert_eq!(encode(&text), coded);
            }
        }
    }
}
