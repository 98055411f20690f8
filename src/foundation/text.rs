//! Byte strings that are built piece by piece: keys of counters, and texts by which rules are looked up.
//!
//! Most pieces are short. A `SmallVec` would call `memcpy` for each; this type copies them with plain moves.

use std::ops::Deref;

/// Bytes that grow at their end. Up to `N` bytes are stored inline; a longer text allocates.
#[derive(Clone, Debug)]
pub struct Text<const N: usize> {
    len: usize,
    inline: [u8; N],
    /// The whole text while it is longer than `N`.
    long: Vec<u8>,
}

/// Numbers below this have at most eight digits.
const EIGHT_DIGITS: u64 = 100_000_000;

/// The eight digits of a number below [`EIGHT_DIGITS`], leading zeros included, the first digit in the
/// lowest byte. It splits the number in half three times, and each split works on all parts of one word
/// at once.
fn eight_digits(number: u64) -> u64 {
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    // 5243 / 2^19 and 103 / 2^10 are a hundredth and a tenth, exact for numbers of four and of two
    // digits.
    let hundreds = ((fours * 5243) >> 19) & 0x0000_007f_0000_007f;
    let pairs = hundreds | ((fours - hundreds * 100) << 16);
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((pairs - tens * 10) << 8)
}

/// Copies `from` to `to`, which has the same length. Short texts are copied with two possibly
/// overlapping word stores, which is cheaper than a call of `memcpy`.
#[inline]
fn copy(from: &[u8], to: &mut [u8]) {
    fn ends<const N: usize>(from: &[u8], to: &mut [u8]) -> Option<()> {
        let (first, last) = (from.first_chunk::<N>()?, from.last_chunk::<N>()?);
        *to.first_chunk_mut()? = *first;
        *to.last_chunk_mut()? = *last;
        Some(())
    }
    let is_copied = match from.len() {
        4..8 => ends::<4>(from, to),
        8..=16 => ends::<8>(from, to),
        17..=32 => ends::<16>(from, to),
        33..=64 => ends::<32>(from, to),
        _ => None,
    };
    if is_copied.is_none() {
        to.copy_from_slice(from);
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Text<N> {
    #[inline]
    pub const fn new() -> Self {
        Self {
            len: 0,
            inline: [0; N],
            long: Vec::new(),
        }
    }

    pub fn clear(&mut self) {
        self.len = 0;
        self.long.clear();
    }

    pub fn push(&mut self, byte: u8) {
        self.lengthen(1)[0] = byte;
    }

    /// Inlined in each place, as those below are: as a call it takes 14 % of the instructions of a key.
    #[inline(always)]
    pub fn push_slice(&mut self, bytes: &[u8]) {
        copy(bytes, self.lengthen(bytes.len()));
    }

    /// Appends `head` and `bytes`, for which it makes room once.
    #[inline(always)]
    pub fn push_both<const M: usize>(&mut self, head: &[u8; M], bytes: &[u8]) {
        let room = self.lengthen(M + bytes.len());
        let (start, rest) = room.split_at_mut(M);
        start.copy_from_slice(head);
        copy(bytes, rest);
    }

    /// Appends `number` in decimal. With `itoa` a plan takes 3 % more instructions, counted on the core alone: each key
    /// has a number.
    #[inline(always)]
    pub fn push_decimal(&mut self, number: u64) {
        if number >= EIGHT_DIGITS {
            return self.push_long_decimal(number);
        }
        let digits = eight_digits(number);
        // The last digit stays, even a zero.
        let zeros = (digits | 1 << 56).trailing_zeros() / 8;
        self.push_digits(digits >> (8 * zeros), 8 - zeros as usize);
    }

    #[inline(never)]
    fn push_long_decimal(&mut self, number: u64) {
        self.push_decimal(number / EIGHT_DIGITS);
        self.push_digits(eight_digits(number % EIGHT_DIGITS), 8);
    }

    /// Appends the first `count` of `digits`.
    fn push_digits(&mut self, digits: u64, count: usize) {
        let ascii = (digits | 0x3030_3030_3030_3030).to_le_bytes();
        self.push_first(&ascii, count);
    }

    /// Appends the first `count` of `bytes`. Where there is room, it copies all of `bytes` at once.
    ///
    /// # Panics
    ///
    /// If `bytes` has fewer.
    #[inline(always)]
    pub fn push_first<const M: usize>(&mut self, bytes: &[u8; M], count: usize) {
        let room = self.inline.get_mut(self.len..);
        match room.and_then(|room| room.first_chunk_mut()) {
            // The next append overwrites the bytes after the end.
            Some(room) if count <= M => {
                *room = *bytes;
                self.len += count;
            }
            _ => self.push_near_the_end(&bytes[..count]),
        }
    }

    /// Appends where there may be less room than [`Self::push_first`] copies into.
    #[cold]
    fn push_near_the_end(&mut self, bytes: &[u8]) {
        self.push_slice(bytes);
    }

    /// Lengthens the text by `by` bytes and returns these.
    fn lengthen(&mut self, by: usize) -> &mut [u8] {
        let start = self.len;
        self.len += by;
        if self.len > N {
            return self.lengthen_beyond(start);
        }
        &mut self.inline[start..self.len]
    }

    #[cold]
    fn lengthen_beyond(&mut self, start: usize) -> &mut [u8] {
        if start <= N {
            self.long.extend_from_slice(&self.inline[..start]);
        }
        self.long.resize(self.len, 0);
        &mut self.long[start..]
    }
}

impl<const N: usize> Deref for Text<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.inline.get(..self.len).unwrap_or(&self.long)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_has_all_of_its_digits_on_both_sides_of_each_bound() {
        for number in [
            0,
            9,
            10,
            11,
            99,
            100,
            99_999_999,
            100_000_000,
            9_999_999_999_999_999,
            10_000_000_000_000_000,
            u64::MAX,
        ] {
            let mut text = Text::<24>::new();
            text.push_decimal(number);
            assert_eq!(text.to_vec(), number.to_string().into_bytes());
        }
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn more_bytes_than_there_are_cannot_be_appended() {
        Text::<8>::new().push_first(b"12", 3);
    }

    proptest! {
        #[test]
        fn it_holds_what_was_put_into_it_in_order(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..7), 0..9),
        ) {
            let mut text = Text::<16>::new();
            for _ in 0..2 {
                text.clear();
                for piece in &pieces {
                    match piece[..] {
                        [byte] => text.push(byte),
                        _ => text.push_slice(piece),
                    }
                }
                prop_assert_eq!(&text[..], pieces.concat());
            }
        }

        #[test]
        fn decimals_read_as_the_formatter_writes_them(bits in 0_u32..=64, number in any::<u64>()) {
            let number = number.checked_shr(bits).unwrap_or(0);
            let mut text = Text::<16>::new();
            text.push_decimal(number);
            prop_assert_eq!(text.to_vec(), number.to_string().into_bytes());
        }
    }
}
