//! The deadline that a caller sets for its call, and the part of it that a decision may use.

use std::time::Duration;

/// Most digits of a timeout (gRPC over HTTP/2, "TimeoutValue").
const MAX_DIGITS: usize = 8;

/// A tenth of the time is reserved for the network.
const MARGIN: u32 = 10;

/// The part of `timeout` that a decision may use.
pub(super) fn for_decision(timeout: Duration) -> Duration {
    timeout - timeout / MARGIN
}

/// How long after its arrival an answer is of use to the caller (gRPC over HTTP/2, "Timeout"). `None` if `text`
/// is no timeout. Envoy sends milliseconds, 20 unless it is configured otherwise.
pub(super) fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > MAX_DIGITS {
        return None;
    }
    let number = digits.iter().try_fold(0, |number: u64, digit| {
        digit
            .is_ascii_digit()
            .then(|| number * 10 + u64::from(digit - b'0'))
    })?;
    match unit {
        b'H' => Some(Duration::from_secs(number * 3600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<Duration>) {
        assert_eq!(parse(text.as_bytes()), expected, "{text}");
    }

    #[test]
    fn timeouts_are_read_in_every_unit() {
        check("20m", Some(Duration::from_millis(20)));
        check("0m", Some(Duration::ZERO));
        check("99999999H", Some(Duration::from_secs(99_999_999 * 3600)));
        check("2M", Some(Duration::from_secs(120)));
        check("2S", Some(Duration::from_secs(2)));
        check("7u", Some(Duration::from_micros(7)));
        check("7n", Some(Duration::from_nanos(7)));
    }

    #[test]
    fn what_is_no_timeout_is_none() {
        for text in ["", "m", "20", "20x", "-1m", "1.5S", "123456789m", " 20m"] {
            check(text, None);
        }
    }

    #[test]
    fn a_tenth_is_left_for_the_way() {
        let of_envoy = Duration::from_millis(20);
        assert_eq!(for_decision(of_envoy), Duration::from_millis(18));
        assert_eq!(for_decision(Duration::ZERO), Duration::ZERO);
    }
}
