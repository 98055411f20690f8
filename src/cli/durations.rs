//! Durations as text for people.

use std::fmt::Write as _;

/// Seconds in the two largest units that they fill: `45s`, `1m 5s`, `19h 38m`, `364d 3h`.
pub(super) fn duration(secs: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let Some(largest) = UNITS.iter().position(|(length, _)| secs >= *length) else {
        return "0s".to_owned();
    };
    let (length, name) = UNITS[largest];
    let mut text = format!("{}{name}", secs / length);
    if let Some((next, name)) = UNITS.get(largest + 1) {
        let count = secs % length / next;
        if count > 0 {
            let _ = write!(text, " {count}{name}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_two_units_at_most() {
        for (secs, expected) in [
            (0, "0s"),
            (1, "1s"),
            (60, "1m"),
            (65, "1m 5s"),
            (3_600, "1h"),
            (3_601, "1h"),
            (70_691, "19h 38m"),
            (86_400, "1d"),
            (86_400 + 59, "1d"),
            (31_460_400, "364d 3h"),
        ] {
            assert_eq!(duration(secs), expected, "{secs}");
        }
    }
}
