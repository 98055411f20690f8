//! Characters that look like the blanks and quotes of YAML and are none: word processors and web pages write them.

/// A sentence on the odd characters around or inside `text`, and how to go on.
pub(super) struct OddCharacters {
    pub(super) found: String,
    pub(super) fix: &'static str,
}

/// The odd characters of `text`, the name of a key or a plain text.
pub(super) fn odd_characters(text: &str) -> Option<OddCharacters> {
    if text.is_ascii() {
        return None;
    }
    if let Some(space) = text.chars().find(|next| is_odd_space(*next)) {
        let name = space_name(space);
        return Some(OddCharacters {
            found: format!("U+{:04X} ({name}) in `{text}`", u32::from(space)),
            fix: if space.is_whitespace() {
                "write a blank instead"
            } else {
                "remove it"
            },
        });
    }
    let rest = text.trim_matches(is_curly_quote);
    (text.starts_with(is_curly_quote) && text.ends_with(is_curly_quote)).then(|| OddCharacters {
        found: format!("curly quotes around `{rest}`"),
        fix: "write \" instead",
    })
}

/// Whether it shows as a blank, or not at all, and is a letter to YAML.
pub(super) fn is_odd_space(next: char) -> bool {
    let is_invisible = matches!(
        next,
        '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}' | '\u{ad}'
    );
    // YAML knows the breaks among them.
    let is_break = matches!(next, '\u{85}' | '\u{2028}' | '\u{2029}');
    is_invisible || !next.is_ascii() && next.is_whitespace() && !is_break
}

fn is_curly_quote(next: char) -> bool {
    matches!(next, '\u{2018}'..='\u{201f}')
}

fn space_name(space: char) -> &'static str {
    match space {
        '\u{a0}' => "no-break space",
        '\u{200b}' => "zero-width space",
        '\u{feff}' => "byte order mark",
        _ if space.is_whitespace() => "a space of another kind",
        _ => "an invisible character",
    }
}
