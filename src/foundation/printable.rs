//! Texts from outside, as a terminal, a log or a pipeline may read them.

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
}
