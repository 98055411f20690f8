//! Parses values of flags and variables, in the syntax of Go programs.

use std::{
    convert::Infallible,
    fmt,
    net::{IpAddr, SocketAddr},
    ops::{Bound, Deref, RangeBounds},
    path::PathBuf,
    time::Duration,
};

use crate::{
    foundation::header_text::{is_free_name, is_token},
    net::endpoint::{BareIpv6, split},
};

/// A text that can contain a password, which `Debug` hides.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(String);

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Deref for Hidden {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(..)")
    }
}

/// A path. An empty text is accepted here, because an empty variable counts as unset later.
pub(super) fn file_path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(text.into())
}

/// `tag:value`, with exactly one colon, as the reference reads its maps.
pub(super) fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((tag, value)) if !value.contains(':') => Ok((tag.to_owned(), value.to_owned())),
        _ => Err("expected TAG:VALUE".to_owned()),
    }
}

/// `:9090`, `127.0.0.1:9090`, `[::1]:9090`, `localhost:9090`
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let read = || {
        let (host, port) = split(text, BareIpv6::WithPort);
        let ip = match host {
            "" => IpAddr::from([0, 0, 0, 0]),
            "localhost" => IpAddr::from([127, 0, 0, 1]),
            ip => ip.parse().ok()?,
        };
        Some(SocketAddr::new(ip, port?.parse().ok()?))
    };
    read().ok_or_else(|| {
        "expected [HOST]:PORT, where HOST is an IP address or localhost, such as :9090".to_owned()
    })
}

pub(super) fn path(text: &str) -> Result<String, String> {
    // The HTTP router would read braces as a pattern.
    if text.starts_with('/') && !text.contains(['{', '}']) {
        Ok(text.to_owned())
    } else {
        Err("expected a path that begins with / and has no braces".to_owned())
    }
}

/// A number in `range`. Ranges exclude 0 if a bound of 0 would refuse every request, and numbers that no process could
/// reach.
pub(super) fn number<T: TryFrom<u64>>(
    range: impl RangeBounds<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
    move |text: &str| {
        let number = text.parse::<u64>().ok();
        let number = number.filter(|number| bounds.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| expected_number(bounds))
    }
}

fn expected_number(bounds: (Bound<u64>, Bound<u64>)) -> String {
    let low = match bounds.0 {
        Bound::Included(low) => low,
        Bound::Excluded(low) => low + 1,
        Bound::Unbounded => 0,
    };
    match bounds.1 {
        Bound::Included(high) => format!("expected a whole number from {low} to {high}"),
        Bound::Excluded(high) => format!("expected a whole number from {low} and below {high}"),
        Bound::Unbounded => format!("expected a whole number, {low} or more"),
    }
}

/// The number of a TCP or UDP port.
pub(super) fn port(text: &str) -> Result<u16, String> {
    let port = text.parse();
    port.map_err(|_| "expected a port from 0 to 65535".to_owned())
}

/// A whole number, which can be negative.
pub(super) fn whole_number(text: &str) -> Result<i64, String> {
    let number = text.parse();
    number.map_err(|_| "expected a whole number".to_owned())
}

pub(super) fn decimal(text: &str) -> Result<f64, String> {
    let number = text.parse();
    number.map_err(|_| "expected a number, such as 0.5".to_owned())
}

/// A share: above 0, and at most 1.
pub(super) fn share(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a number above 0 and at most 1, such as 0.8".to_owned()),
    }
}

/// A boolean as Go's `strconv.ParseBool` reads it.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("expected true or false (or 1, t, 0, f)".to_owned()),
    }
}

/// A valid header name (RFC 9110, `token`) that every response can have, because Envoy forwards the name as it is.
pub(super) fn header_name(text: &str) -> Result<String, String> {
    if !is_token(text) {
        return Err("expected a header name, such as RateLimit-Limit".to_owned());
    }
    if !is_free_name(text) {
        return Err(
            "this header frames a response; choose another name, such as RateLimit-Limit"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

/// A whole number of milliseconds above 0, as in OpenTelemetry's variables.
pub(super) fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(millis) if millis > 0 => Ok(Duration::from_millis(millis)),
        _ => Err("expected a number of milliseconds above 0".to_owned()),
    }
}

/// A duration that is not zero.
pub(super) fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected a duration longer than 0, such as 10ms".to_owned()),
        some => Ok(some),
    }
}

/// A duration as Go's `time.ParseDuration` reads it: `10ms`, `1h30m`, `1.5s`, `0`. It is not negative, and at most 292
/// years, so that it can be added to any moment.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());
    let too_long = || "expected a duration of at most 2562047h".to_owned();
    let bad = || {
        "expected a duration: a number and ns, us, ms, s, m or h, such as 10ms or 1h30m".to_owned()
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end_of_number = rest
            .find(|next: char| !next.is_ascii_digit() && next != '.')
            .ok_or_else(bad)?;
        let (number, after) = rest.split_at(end_of_number);
        let end_of_unit = after
            .find(|next: char| next.is_ascii_digit() || next == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end_of_unit);
        let unit_secs = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        let part = Duration::try_from_secs_f64(number * unit_secs).map_err(|_| too_long())?;
        total = total.saturating_add(part);
        rest = after;
    }
    if total > LONGEST {
        return Err(too_long());
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        assert_eq!(duration("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("150us"), Ok(Duration::from_micros(150)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1x",
            "1s5",
            "1..5s",
            "9999999999999999999999h",
            "2562048h",
            "10000000000000000000s",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        let longest = duration("2562047h47m").unwrap();
        assert!(std::time::Instant::now().checked_add(longest).is_some());
    }

    #[test]
    fn numbers_outside_of_their_range_are_refused_with_the_range() {
        assert_eq!(number::<u32>(1..=64)("64"), Ok(64));
        for bad in ["0", "65", "-1", "1.5", "", "x"] {
            let expected = "expected a whole number from 1 to 64";
            assert_eq!(number::<u32>(1..=64)(bad).unwrap_err(), expected, "{bad}");
        }
        assert_eq!(number::<usize>(..)("0"), Ok(0));
        let expected = "expected a whole number, 1 or more";
        assert_eq!(number::<usize>(1..)("0").unwrap_err(), expected);
        assert_eq!(port("65535"), Ok(65535));
        assert_eq!(
            port("65536").unwrap_err(),
            "expected a port from 0 to 65535"
        );
        assert_eq!(whole_number("-3"), Ok(-3));
    }

    #[test]
    fn a_share_is_above_0_and_at_most_1() {
        for good in ["1", "1.0", "0.8", "0.0001"] {
            assert!(share(good).is_ok(), "{good}");
        }
        for bad in ["0", "-0.5", "1.01", "80", "NaN", "inf", "", "x"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn booleans_are_those_of_go() {
        assert_eq!(boolean("T"), Ok(true));
        assert_eq!(boolean("0"), Ok(false));
        assert!(boolean("yes").is_err());
        assert!(boolean("").is_err());
    }
}
