//! The ends of keys of fixed windows, such as `60@29920500`. They are remembered, because many rules share a few
//! lengths of windows, and writing the two numbers takes three divisions for each limit of a request.

use std::cell::RefCell;

use crate::{
    core::window::{Period, Timestamp, Window, window},
    foundation::text::Text,
};

/// The longest end, in bytes. The product of its two numbers is a time in seconds, so both together have few digits.
const MAX_BYTES: usize = 24;

/// More than there are units, so that each unit without a multiplier has a place of its own.
const PLACES: usize = 16;

/// The end of all keys for windows of one length, while a window lasts.
#[derive(Clone, Copy)]
struct KeyEnd {
    period: Period,
    window: Window,
    bytes: [u8; MAX_BYTES],
    length: usize,
}

thread_local! {
    /// The ends that this thread wrote last. They only save work: each is checked before it is used.
    static LAST: RefCell<[KeyEnd; PLACES]> = const { RefCell::new([KeyEnd::UNUSED; PLACES]) };
}

impl KeyEnd {
    const UNUSED: Self = Self {
        period: Period::SECOND,
        // It contains no moment.
        window: Window {
            start: Timestamp::from_secs(0),
            end: Timestamp::from_secs(0),
        },
        bytes: [0; MAX_BYTES],
        length: 0,
    };

    fn new(period: Period, now: Timestamp) -> Self {
        let window = window(period, now);
        let mut text = Text::<MAX_BYTES>::new();
        text.push_decimal(period.secs());
        text.push(b'@');
        text.push_decimal(window.start.secs() / period.secs());
        let mut bytes = [0; MAX_BYTES];
        bytes[..text.len()].copy_from_slice(&text);
        Self {
            period,
            window,
            bytes,
            length: text.len(),
        }
    }

    fn is_for(&self, period: Period, now: Timestamp) -> bool {
        self.period == period && self.window.start <= now && now < self.window.end
    }
}

/// Appends the period in seconds and the number of its window at `now` to `keys`. Returns that window.
pub(super) fn push_key_end<const N: usize>(
    keys: &mut Text<N>,
    period: Period,
    now: Timestamp,
) -> Window {
    LAST.with_borrow_mut(|last| {
        let place = period.unit() as usize + period.multiplier().get() as usize;
        let end = &mut last[place % PLACES];
        if !end.is_for(period, now) {
            *end = KeyEnd::new(period, now);
        }
        keys.push_first(&end.bytes, end.length);
        end.window
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::core::window::Unit;

    #[test]
    fn the_longest_end_has_room() {
        for (period, secs) in [(Period::SECOND, u64::MAX / 1000), (Unit::Year.into(), 0)] {
            let mut keys = Text::<MAX_BYTES>::new();
            push_key_end(&mut keys, period, Timestamp::from_secs(secs));
            assert!(keys.len() <= MAX_BYTES, "{}", keys.len());
        }
    }

    proptest! {
        #[test]
        fn a_remembered_end_is_that_of_the_period_and_the_moment(
            asked in prop::collection::vec(
                (prop::sample::select(Unit::ALL.to_vec()), 1_u32..40, 0_u64..100_000_000_000),
                1..40,
            ),
        ) {
            for (unit, multiplier, secs) in asked {
                let now = Timestamp::from_secs(secs);
                let multiplier = NonZeroU32::new(multiplier).unwrap();
                let period = Period::new(unit, multiplier).unwrap();
                let mut keys = Text::<MAX_BYTES>::new();
                let found = push_key_end(&mut keys, period, now);
                prop_assert_eq!(found, window(period, now));
                let length = period.secs();
                let expected = format!("{length}@{}", secs / length);
                prop_assert_eq!(&*keys, expected.as_bytes());
            }
        }
    }
}
