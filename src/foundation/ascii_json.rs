//! JSON of ASCII only: whatever a text holds, it is one line for every reader, and no terminal obeys it.

use std::io;

use serde::Serialize;
use serde_json::{
    Value, json,
    ser::{Formatter, Serializer},
};

/// Writes other characters as `\u`, and the short escapes of JSON as JSON has them.
struct AsciiFormatter;

impl Formatter for AsciiFormatter {
    #[inline]
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        mut fragment: &str,
    ) -> io::Result<()> {
        // It has no control characters of ASCII but DEL: those before the space have escapes of their own.
        while let Some(at) = fragment.bytes().position(|byte| byte > b'~') {
            writer.write_all(&fragment.as_bytes()[..at])?;
            let mut rest = fragment[at..].chars();
            let units = rest.next().map(|c| c.encode_utf16(&mut [0; 2]).to_vec());
            for unit in units.into_iter().flatten() {
                write!(writer, "\\u{unit:04x}")?;
            }
            fragment = rest.as_str();
        }
        writer.write_all(fragment.as_bytes())
    }
}

/// `value` as one line of JSON.
///
/// # Panics
///
/// If it cannot be written as JSON: it has a map whose keys are no texts.
pub(crate) fn ascii_json(value: &impl Serialize) -> String {
    // Enough for a decision with two limits: most lines never grow.
    let mut line = Vec::with_capacity(512);
    let written = value.serialize(&mut Serializer::with_formatter(&mut line, AsciiFormatter));
    written.expect("its keys are texts, and memory takes all bytes");
    String::from_utf8(line).expect("it is ASCII")
}

/// `value` as JSON of several lines.
///
/// # Panics
///
/// As [`ascii_json`].
pub(crate) fn pretty_ascii_json(value: &Value) -> String {
    let (pretty, mut text) = (format!("{value:#}"), Vec::new());
    // Other characters stand in its texts only. Lines end in those of ASCII.
    let written = AsciiFormatter.write_string_fragment(&mut text, &pretty);
    written.expect("memory takes all bytes");
    String::from_utf8(text).expect("it is ASCII")
}

/// `value` as JSON whose maps have no values that are null.
///
/// # Panics
///
/// As [`ascii_json`].
pub(crate) fn json_without_nulls(value: &impl Serialize) -> Value {
    fn drop_nulls(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|_, value| !value.is_null());
                fields.values_mut().for_each(drop_nulls);
            }
            Value::Array(items) => items.iter_mut().for_each(drop_nulls),
            _ => {}
        }
    }
    let mut json = json!(value);
    drop_nulls(&mut json);
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_ascii_on_one_line_and_reads_back_as_itself() {
        for hostile in [
            "café \"quoted\" \\ back",
            "a\nb\r\u{b}\u{c}\u{85}\u{2028}\u{2029}",
            "\0\u{1b}[31m\u{7f}",
            "\u{202e}\u{feff}<script>😀",
        ] {
            let line = ascii_json(&hostile);
            let mut bytes = line.bytes();
            assert!(bytes.all(|byte| (b' '..0x7f).contains(&byte)), "{line}");
            let read: String = serde_json::from_str(&line).unwrap();
            assert_eq!(read, hostile);
        }
        assert_eq!(ascii_json(&" ~").to_string(), "\" ~\"");
    }

    #[test]
    fn json_of_several_lines_is_ascii_too() {
        let pretty = pretty_ascii_json(&json!({ "a": ["é"] }));
        assert_eq!(pretty, "{\n  \"a\": [\n    \"\\u00e9\"\n  ]\n}");
    }

    #[test]
    fn maps_lose_their_nulls_and_lists_keep_them() {
        let value = json!({ "a": null, "b": [null, { "c": null, "d": 1 }], "e": { "f": null } });
        let expected = json!({ "b": [null, { "d": 1 }], "e": {} });
        assert_eq!(json_without_nulls(&value), expected);
    }
}
