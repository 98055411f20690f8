//! Bytes that are put together piece by piece: keys, and what rules are looked up by.

use std::ops::Deref;

/// Bytes that grow at their end. Up to `N` of them lie inline, and only more take memory of their own.
#[derive(Clone, Debug)]
pub struct Text<const N: usize> {
    len: usize,
    inline: [u8; N],
    /// All of it while it is longer than `N`.
    long: Vec<u8>,
}

/// The numbers below 100, in two digits.
const DIGITS: [[u8; 2]; 100] = {
    let mut digits = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        let ascii = b"0123456789";
        digits[number] = [ascii[number / 10], ascii[number % 10]];
        number += 1;
    }
    digits
};

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

    pub fn push_slice(&mut self, bytes: &[u8]) {
        self.lengthen(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `number` as the formatter would, without the formatter's cost.
    pub fn push_decimal(&mut self, mut number: u64) {
        let digits = |number: u64| DIGITS[(number % 100) as usize];
        if number < 10 {
            // Lengths of texts, often.
            return self.push(digits(number)[1]);
        }
        let length = number.ilog10() as usize + 1;
        let (first, pairs) = self.lengthen(length).as_rchunks_mut();
        for pair in pairs.iter_mut().rev() {
            *pair = digits(number);
            number /= 100;
        }
        if let [digit] = first {
            *digit = digits(number)[1];
        }
    }

    /// Makes it `by` bytes longer and returns these.
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
