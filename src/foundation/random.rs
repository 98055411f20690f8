//! Random numbers: ids, and times that are spread. They are not for secrets.

use std::time::Duration;

/// A random id of 8 bytes; 0 stands for none, so it is never returned.
pub(crate) fn id() -> u64 {
    fastrand::u64(1..)
}

/// A random number for the life of counters in memory; never 0, and never the largest.
pub(crate) fn epoch() -> u32 {
    fastrand::u32(1..u32::MAX)
}

/// A random id of 16 bytes, neither half of which is 0.
pub(crate) fn long_id() -> u128 {
    u128::from(id()) << 64 | u128::from(id())
}

/// A random UUID (RFC 9562, version 4).
pub(crate) fn uuid() -> String {
    let id = long_id() & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let text = format!("{id:032x}");
    let parts = [
        &text[..8],
        &text[8..12],
        &text[12..16],
        &text[16..20],
        &text[20..],
    ];
    parts.join("-")
}

/// Whether something happens that does so with this probability, from 0 to 1.
pub(crate) fn happens(probability: f64) -> bool {
    fastrand::f64() < probability
}

/// A random time between the two, in steps of a thousandth.
pub(crate) fn between(least: Duration, most: Duration) -> Duration {
    const STEPS: u32 = 1000;
    least + most.saturating_sub(least) / STEPS * fastrand::u32(0..=STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_its_version_and_variant() {
        for _ in 0..100 {
            let text = uuid();
            let parts: Vec<_> = text.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12], "{text}");
            assert_eq!(&text[14..15], "4", "{text}");
            assert!("89ab".contains(&text[19..20]), "{text}");
        }
    }

    #[test]
    fn both_halves_of_a_long_id_are_random() {
        let (first, second) = (long_id(), long_id());
        for half in [|id: u128| id >> 64, |id: u128| id & u128::from(u64::MAX)] {
            assert_ne!(half(first), 0);
            assert_ne!(half(first), half(second));
        }
    }

    #[test]
    fn two_lives_of_counters_have_two_numbers_and_none_is_0() {
        let epochs = [epoch(), epoch()];
        assert!(epochs[0] != epochs[1] && !epochs.contains(&0), "{epochs:?}");
    }

    #[test]
    fn certain_things_happen_always_and_impossible_ones_never() {
        for _ in 0..100 {
            assert!(happens(1.0));
            assert!(!happens(0.0));
        }
    }

    #[test]
    fn threads_draw_different_ids() {
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(long_id)).collect();
        let ids: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let mut ids: Vec<u128> = ids.into_iter().map(Result::unwrap).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 8);
    }

    #[test]
    fn times_are_spread_between_their_bounds() {
        let (least, most) = (Duration::from_secs(1), Duration::from_secs(2));
        let times: Vec<_> = (0..100).map(|_| between(least, most)).collect();
        assert!(times.iter().all(|time| (least..=most).contains(time)));
        assert!(times.iter().any(|time| *time < Duration::from_millis(1300)));
        assert!(times.iter().any(|time| *time > Duration::from_millis(1700)));
        assert_eq!(between(most, least), most);
    }
}
