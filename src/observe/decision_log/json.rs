//! A record as one line of JSON, in ASCII only: whatever a request holds, a line stays one line for every reader.
//!
//! `docs/decision-log.md` describes the fields.

use std::fmt::{self, Write as _};

use super::{
    record::{DecisionRecord, DescriptorRecord, JudgedBy, LimitRecord, TARGET},
    values::LoggedValue,
};
use crate::core::{
    decision::Code,
    matcher::{NoMatch, PlacedRule, RuleOrigin},
    request::Entry,
};

/// Bound on the bytes of a key, a value or a name that a line shows.
const MAX_TEXT_BYTES: usize = 1024;

/// Bound on the entries of a descriptor that a line shows, and on the descriptors of a request.
const MAX_LISTED: usize = 16;

/// A record in JSON, with the end of its line.
pub(super) struct JsonLine<'a>(pub(super) &'a DecisionRecord<'a>);

impl JsonLine<'_> {
    pub(super) fn text(&self) -> String {
        // Enough for a descriptor with two limits: most lines never grow.
        let mut text = String::with_capacity(512);
        let written = write!(text, "{self}");
        debug_assert!(written.is_ok());
        text
    }
}

impl fmt::Display for JsonLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DecisionRecord {
            domain,
            decision,
            descriptors,
            moment,
            took,
        } = self.0;
        let millis = i64::try_from(moment.millis()).unwrap_or(i64::MAX);
        let moment = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
        write!(
            f,
            "{{\"target\":\"{TARGET}\",\"time\":\"{moment:.3}\",\"domain\":"
        )?;
        text(f, domain)?;
        write!(
            f,
            ",\"code\":\"{}\",\"shadow_mode\":{},\"degraded\":{},\"latency_us\":{},\"descriptors\":",
            code(decision.overall),
            decision.is_shadowed,
            decision.is_degraded,
            took.as_micros()
        )?;
        list(f, descriptors, descriptor)?;
        if let more @ 1.. = descriptors.len().saturating_sub(MAX_LISTED) {
            write!(f, ",\"omitted\":{more}")?;
        }
        f.write_str("}\n")
    }
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

fn descriptor(f: &mut fmt::Formatter<'_>, record: &DescriptorRecord<'_>) -> fmt::Result {
    let entries = record.descriptor.entries;
    f.write_str("{\"entries\":")?;
    list(f, entries, |f, entry| self::entry(f, entry, record))?;
    if let more @ 1.. = entries.len().saturating_sub(MAX_LISTED) {
        write!(f, ",\"omitted\":{more}")?;
    }
    let hits = record.descriptor.hits.signed();
    write!(
        f,
        ",\"hits\":{hits},\"code\":\"{}\",\"by\":",
        code(record.status.code)
    )?;
    let (by, rule) = match &record.judged_by {
        JudgedBy::Nothing(NoMatch::UnknownDomain) => ("unknown_domain", None),
        JudgedBy::Nothing(NoMatch::NoRule(_)) => ("no_rule", None),
        JudgedBy::Nothing(NoMatch::NoLimit(_)) => ("no_limit", None),
        JudgedBy::Unlimited(rule) => ("unlimited", Some(rule)),
        JudgedBy::Replaced(rule) => ("replaced", Some(rule)),
        JudgedBy::Rule(rule) => ("rule", Some(rule)),
        JudgedBy::OwnLimit => ("request", None),
    };
    write!(f, "\"{by}\"")?;
    if let Some(rule) = rule {
        self::rule(f, rule)?;
    }
    if !record.limits.is_empty() {
        f.write_str(",\"limits\":")?;
        list(f, &record.limits, limit)?;
        write!(f, ",\"remaining\":{}", record.status.remaining)?;
        if let Some(binding) = &record.status.binding {
            write!(f, ",\"reset_secs\":{}", binding.reset_secs)?;
        }
    }
    f.write_char('}')
}

fn entry(
    f: &mut fmt::Formatter<'_>,
    Entry { key, value }: &Entry<'_>,
    record: &DescriptorRecord<'_>,
) -> fmt::Result {
    f.write_str("{\"key\":")?;
    text(f, key)?;
    f.write_str(",\"value\":")?;
    match record.values.of(value) {
        LoggedValue::Shown(value) => {
            text(f, value)?;
            if value.len() > MAX_TEXT_BYTES {
                write!(f, ",\"value_bytes\":{}", value.len())?;
            }
        }
        LoggedValue::Hashed(hash) => write!(f, "\"{hash}\"")?,
    }
    f.write_char('}')
}

fn rule(f: &mut fmt::Formatter<'_>, placed: &PlacedRule<'_>) -> fmt::Result {
    let RuleOrigin { file, line } = placed.origin;
    f.write_str(",\"rule\":")?;
    text(f, placed.rule.path.as_bytes())?;
    if file.is_empty() {
        return Ok(());
    }
    f.write_str(",\"file\":")?;
    text(f, file.as_bytes())?;
    line.map_or(Ok(()), |line| write!(f, ",\"line\":{line}"))
}

fn limit(f: &mut fmt::Formatter<'_>, record: &LimitRecord<'_>) -> fmt::Result {
    let limit = record.limit;
    let (rate, algorithm) = (limit.rate(), limit.algorithm.name());
    write!(f, "{{\"limit\":\"{rate}\",\"algorithm\":\"{algorithm}\"")?;
    if let Some(name) = &limit.name {
        f.write_str(",\"name\":")?;
        text(f, name.as_bytes())?;
    }
    let LimitRecord {
        count,
        is_over,
        is_binding,
        ..
    } = record;
    write!(
        f,
        ",\"count\":{count},\"over\":{is_over},\"binding\":{is_binding}}}"
    )
}

/// Writes the first items of a list.
fn list<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    mut write: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    f.write_char('[')?;
    for (index, item) in items.iter().take(MAX_LISTED).enumerate() {
        if index > 0 {
            f.write_char(',')?;
        }
        write(f, item)?;
    }
    f.write_char(']')
}

/// Writes a text, cut at the bound; bytes that are no text become U+FFFD.
fn text(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    f.write_char('"')?;
    for chunk in bytes[..bytes.len().min(MAX_TEXT_BYTES)].utf8_chunks() {
        characters(f, chunk.valid())?;
        if !chunk.invalid().is_empty() {
            character(f, char::REPLACEMENT_CHARACTER)?;
        }
    }
    f.write_char('"')
}

/// Writes the characters that stand for themselves in one go.
fn characters(f: &mut fmt::Formatter<'_>, mut text: &str) -> fmt::Result {
    while let Some(at) = text.find(|c| !is_plain(c)) {
        f.write_str(&text[..at])?;
        let mut rest = text[at..].chars();
        rest.next().map_or(Ok(()), |c| character(f, c))?;
        text = rest.as_str();
    }
    f.write_str(text)
}

fn is_plain(c: char) -> bool {
    matches!(c, ' '..='~') && c != '"' && c != '\\'
}

/// Writes a character that does not stand for itself.
fn character(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    match c {
        '"' | '\\' => write!(f, "\\{c}"),
        c => {
            let units = c.encode_utf16(&mut [0; 2]).to_vec();
            units
                .into_iter()
                .try_for_each(|unit| write!(f, "\\u{unit:04x}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: &[u8]) -> String {
        fmt::from_fn(|f| text(f, bytes)).to_string()
    }

    #[test]
    fn a_text_is_ascii_on_one_line_and_reads_back_as_itself() {
        for hostile in [
            "café \"quoted\" \\ back",
            "a\nb\r\u{b}\u{c}\u{85}\u{2028}\u{2029}",
            "\0\u{1b}[31m\u{7f}",
            "\u{202e}\u{feff}<script>😀",
        ] {
            let line = written(hostile.as_bytes());
            assert!(
                line.bytes().all(|byte| (b' '..0x7f).contains(&byte)),
                "{line}"
            );
            let read: String = serde_json::from_str(&line).unwrap();
            assert_eq!(read, hostile);
        }
    }

    #[test]
    fn a_long_text_is_cut_and_bytes_that_are_no_text_are_replaced() {
        let long = written(&[b'a'; 16 << 10]);
        assert_eq!(long.len(), MAX_TEXT_BYTES + 2);
        assert_eq!(written(b"a\xff\xfeb"), "\"a\\ufffd\\ufffdb\"");
    }
}
