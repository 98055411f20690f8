//! Parses values of flags and variables, in the syntax of Go programs.

use std::{
    convert::Infallible,
    fmt,
    net::{IpAddr, SocketAddr},
    ops::{Deref, RangeBounds},
    path::PathBuf,
    time::Duration,
};

use clap::builder::RangedU64ValueParser;

use crate::net::endpoint::{BareIpv6, split};

/// A text that may hold a password; its `Debug` hides it.
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

/// The keys and values of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entries(pub Vec<(String, String)>);

pub(super) fn entries(text: &str) -> Result<Entries, String> {
    let mut entries = vec![(String::new(), None::<String>)];
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        let (key, value) = entries.last_mut().expect("there is always an entry");
        match (next, value) {
            (',', _) => entries.push((String::new(), None)),
            ('=', value @ None) => *value = Some(String::new()),
            (next, value) => {
                let literal = match next {
                    '\\' => rest.next().ok_or("nothing follows the last backslash")?,
                    other => other,
                };
                value.as_mut().unwrap_or(key).push(literal);
            }
        }
    }
    let pair = |(key, value): (String, Option<String>)| match value {
        Some(value) if !key.is_empty() => Ok((key, value)),
        _ => Err(format!("`{key}` is not KEY=VALUE")),
    };
    Ok(Entries(
        entries.into_iter().map(pair).collect::<Result<_, _>>()?,
    ))
}

/// A path. An empty text is allowed here; later an empty variable counts as unset.
pub(super) fn file_path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(text.into())
}

pub(super) fn file_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("expected an octal number up to 777".to_owned()),
    }
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
    let (host, port) = split(text, BareIpv6::WithPort);
    let port = port.ok_or("expected [HOST]:PORT")?;
    let port = port.parse().map_err(|_| "the port is not a port number")?;
    let ip = match host {
        "" => IpAddr::from([0, 0, 0, 0]),
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        ip => ip.parse().map_err(|_| "the host is not an IP address")?,
    };
    Ok(SocketAddr::new(ip, port))
}

pub(super) fn path(text: &str) -> Result<String, String> {
    // The router would read braces as a pattern.
    if text.starts_with('/') && !text.contains(['{', '}']) {
        Ok(text.to_owned())
    } else {
        Err("expected a path that begins with /".to_owned())
    }
}

/// A number in `range`. The ranges exclude 0 where every request needs one, and more than a process could have.
pub(super) fn number(range: impl RangeBounds<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// A boolean as Go's `strconv.ParseBool` reads it.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("expected true or false (or 1, t, 0, f)".to_owned()),
    }
}

/// A valid header name (RFC 9110, `token`): Envoy forwards the name as it is.
pub(super) fn header_name(text: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_token) {
        return Err("not a header name".to_owned());
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
        Duration::ZERO => Err("must be longer than 0".to_owned()),
        some => Ok(some),
    }
}

/// A duration as Go's `time.ParseDuration` reads it: `10ms`, `1h30m`, `1.5s`, `0`; not negative, and at most 292
/// years, so that it can be added to every moment.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());
    let too_long = || format!("`{text}` is longer than 2562047h, the longest duration");
    let bad = || {
        format!(
            "`{text}` is not a duration; write a number and ns, us, ms, s, m or h, such as 10ms or 1h30m"
        )
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
        let (number, behind) = rest.split_at(end_of_number);
        let end_of_unit = behind
            .find(|next: char| next.is_ascii_digit() || next == '.')
            .unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end_of_unit);
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
        rest = behind;
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
    fn booleans_are_those_of_go() {
        assert_eq!(boolean("T"), Ok(true));
        assert_eq!(boolean("0"), Ok(false));
        assert!(boolean("yes").is_err());
        assert!(boolean("").is_err());
    }

    #[test]
    fn descriptors_are_pairs_with_an_escape() {
        let pairs = |text: &str| {
            let Entries(pairs) = entries(text).unwrap();
            pairs
                .iter()
                .map(|(key, value)| format!("{key}→{value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(pairs("a=b,c=d=e"), ["a→b", "c→d=e"]);
        assert_eq!(pairs(r"a\=b=c\,d,e="), ["a=b→c,d", "e→"]);
        for bad in ["", "a", "a=b,", "=b", "a=b\\"] {
            assert!(entries(bad).is_err(), "{bad}");
        }
    }
}
