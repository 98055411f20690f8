//! Texts from outside, as a terminal, a log or a pipeline can read them.

use std::fmt::{self, Write as _};

/// `text` on one line, with escapes for line breaks and for characters that are invisible or that a terminal obeys.
pub(crate) fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for next in text.chars() {
        match next {
            '\'' | '"' | '\\' => line.push(next),
            next => line.extend(next.escape_debug()),
        }
    }
    line
}

/// `text` with its line breaks, and with escapes as in [`on_one_line`].
pub(crate) fn on_its_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(on_one_line).collect();
    lines.join("\n")
}

/// The name of a file at the beginning of a line.
pub(crate) fn file_name(name: &str) -> String {
    let mut shown = on_one_line(name);
    // A line that begins with `::` would be a command of a GitHub workflow.
    if shown.trim_start().starts_with([':', '#']) {
        shown.insert_str(0, "./");
    }
    shown
}

/// A number and its noun: `1 filter`, `2 filters`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountOf(pub(crate) usize, pub(crate) &'static str);

impl fmt::Display for CountOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, noun) = self;
        let plural = if *number == 1 { "" } else { "s" };
        write!(f, "{number} {noun}{plural}")
    }
}

/// Most bytes of a text that [`Shown`] shows.
const MAX_SHOWN_BYTES: usize = 256;

/// Bytes from outside, without anything that could end or forge a line, and not longer than a line should be.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = &self.0[..self.0.len().min(MAX_SHOWN_BYTES)];
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

/// Shows bytes as megabytes, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Megabytes(pub usize);

impl fmt::Display for Megabytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MB", self.0.div_ceil(1_000_000))
    }
}

#[cfg(test)]
#[test]
fn bytes_are_rounded_up_to_megabytes() {
    assert_eq!(Megabytes(1_000_001).to_string(), "2 MB");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_no_character_and_readers_see_the_others_as_they_are() {
        let text = "a\r\n\u{1b}[31m\u{7}\u{9b}\u{202e}é漢😀\"'\\";
        let shown = "a\\r\\n\\u{1b}[31m\\u{7}\\u{9b}\\u{202e}é漢😀\"'\\";
        assert_eq!(on_one_line(text), shown);
        assert_eq!(on_its_lines("a\nb\r"), "a\nb\\r");
    }

    #[test]
    fn the_name_of_a_file_is_no_command_of_a_workflow() {
        for (name, shown) in [
            ("a b.yaml", "a b.yaml"),
            ("::error", "./::error"),
            (" #x", "./ #x"),
        ] {
            assert_eq!(file_name(name), shown);
        }
    }

    #[test]
    fn a_noun_agrees_with_its_number() {
        let shown = [0, 1, 2].map(|number| CountOf(number, "filter").to_string());
        assert_eq!(shown, ["0 filters", "1 filter", "2 filters"]);
    }

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
