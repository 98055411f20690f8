//! A record as one line of text:
//!
//! ```text
//! OVER_LIMIT shop: remote_address="192.0.2.1" -> shop.remote_address at shop.yaml:4: 3/second 4 over, 5000/day 17
//! OK shop: plan="free" -> no rule; user="x" hits 5 -> shop.user at shop.yaml:9: 100/hour 12
//! ```

use std::fmt::{self, Write as _};

use super::{
    record::{DecisionRecord, DescriptorRecord, JudgedBy, LimitRecord},
    values::LoggedValue,
};
use crate::core::{
    decision::Code,
    matcher::{NoMatch, PlacedRule, RuleOrigin},
    request::Entry,
};

/// Bound on the bytes of a key, a value or a name that a line shows.
const MAX_TEXT_BYTES: usize = 256;

/// Bound on the entries of a descriptor that a line shows, and on the descriptors of a request.
const MAX_LISTED: usize = 16;

impl fmt::Display for DecisionRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.decision.overall {
            Code::Ok => "OK",
            Code::OverLimit => "OVER_LIMIT",
        })?;
        if self.decision.is_shadowed {
            f.write_str(" (by shadow mode)")?;
        }
        if self.decision.is_degraded {
            f.write_str(" (without the store)")?;
        }
        write!(f, " {}: ", Shown(self.domain))?;
        list(f, "; ", &self.descriptors, |f, descriptor| {
            descriptor.fmt(f)
        })
    }
}

impl fmt::Display for DescriptorRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(
            f,
            ", ",
            self.descriptor.entries,
            |f, Entry { key, value }| match self.values.of(value) {
                LoggedValue::Shown(value) => write!(f, "{}=\"{}\"", Shown(key), Shown(value)),
                LoggedValue::Hashed(hash) => write!(f, "{}={hash}", Shown(key)),
            },
        )?;
        match self.descriptor.hits.signed() {
            1 => {}
            hits => write!(f, " hits {hits}")?,
        }
        write!(f, " -> {}", self.judged_by)?;
        for (index, limit) in self.limits.iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { ", " })?;
            limit.fmt(f)?;
        }
        let is_over = self.limits.iter().any(|limit| limit.is_over);
        if is_over && self.status.code == Code::Ok {
            f.write_str(" (shadow mode of the rule)")?;
        }
        Ok(())
    }
}

impl fmt::Display for JudgedBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing(NoMatch::UnknownDomain) => f.write_str("unknown domain"),
            Self::Nothing(NoMatch::NoRule(_)) => f.write_str("no rule"),
            Self::Nothing(NoMatch::NoLimit(_)) => f.write_str("a level without a limit"),
            Self::Unlimited(rule) => write!(f, "unlimited by {rule}"),
            Self::Replaced(rule) => write!(f, "replaced: {rule}"),
            Self::Rule(rule) => rule.fmt(f),
            Self::OwnLimit => f.write_str("the request's own limit"),
        }
    }
}

impl fmt::Display for PlacedRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuleOrigin { file, line } = self.origin;
        write!(f, "{}", Shown(self.rule.path.as_bytes()))?;
        if file.is_empty() {
            return Ok(());
        }
        write!(f, " at {}", Shown(file.as_bytes()))?;
        line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

impl fmt::Display for LimitRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.limit.name {
            write!(f, "{} ", Shown(name.as_bytes()))?;
        }
        write!(f, "{} {}", self.limit.rate(), self.count)?;
        f.write_str(if self.is_over { " over" } else { "" })
    }
}

/// Writes the first items of a list, and how many there are more.
fn list<T>(
    f: &mut fmt::Formatter<'_>,
    separator: &str,
    items: &[T],
    mut write: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().take(MAX_LISTED).enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        write(f, item)?;
    }
    match items.len().saturating_sub(MAX_LISTED) {
        0 => Ok(()),
        more => write!(f, "{separator}… {more} more"),
    }
}

/// Bytes from outside, without anything that could end or forge a line, and not longer than a line should be.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = &self.0[..self.0.len().min(MAX_TEXT_BYTES)];
        for chunk in bytes.utf8_chunks() {
            for next in chunk.valid().chars() {
                match next {
                    '\'' => f.write_char(next)?,
                    next => write!(f, "{}", next.escape_debug())?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        match self.0.len() - bytes.len() {
            0 => Ok(()),
            more => write!(f, "… {more} bytes more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: &str) {
        assert_eq!(Shown(bytes).to_string(), expected);
    }

    #[test]
    fn no_text_ends_or_forges_a_line_or_is_long() {
        check("café's".as_bytes(), "café's");
        check(b"a\nINFO b\r\t\x1b[31m\0", "a\\nINFO b\\r\\t\\u{1b}[31m\\0");
        check(b"\"; OK x: k=\\", "\\\"; OK x: k=\\\\");
        check("\u{202e}\u{2028}".as_bytes(), "\\u{202e}\\u{2028}");
        check(b"\xff\xfe", "\\xff\\xfe");
        let long = Shown(&[b'a'; 16 << 10]).to_string();
        assert!(
            long.ends_with("a… 16128 bytes more") && long.len() < 300,
            "{long}"
        );
        // The bound divides a character.
        let divided = Shown(format!("a{}", "é".repeat(200)).as_bytes()).to_string();
        assert!(divided.ends_with("é\\xc3… 145 bytes more"), "{divided}");
    }
}
