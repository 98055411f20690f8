//! Regular expressions of the schema, in the subset that all dialects read: no flags and no look-around.

use std::fmt::Write as _;

/// The words for units in the short form of a limit, but `m`: a capital one may mean months, and is refused.
const UNIT_WORDS: [&str; 30] = [
    "s", "sec", "secs", "second", "seconds", "min", "mins", "minute", "minutes", "h", "hr", "hrs",
    "hour", "hours", "d", "day", "days", "w", "wk", "wks", "week", "weeks", "mo", "month",
    "months", "y", "yr", "yrs", "year", "years",
];

/// Matches exactly these names.
pub(super) fn one_of(names: &[&str]) -> String {
    format!("^({})$", names.join("|"))
}

/// Matches exactly these words, in any letter case.
pub(super) fn any_case(words: &[&str]) -> String {
    format!("^({})$", letters(words))
}

/// Matches limits in the short form.
pub(super) fn short_form_pattern() -> String {
    let words = letters(&UNIT_WORDS);
    let part = |digits: usize, suffix: char| format!("[0-9]+(\\.[0-9]{{1,{digits}}})?{suffix}");
    let [thousands, millions, billions] = [(3, 'k'), (6, 'M'), (9, 'G')].map(|(n, c)| part(n, c));
    let number = format!("([0-9]+|{thousands}|{millions}|{billions})");
    format!("^\\s*\\+?{number}\\s*(/| per )\\s*([0-9]+)?\\s*(m|{words})\\s*$")
}

/// Matches the types of bodies.
pub(super) fn content_type_pattern() -> String {
    let charset = "[uU][tT][fF]-8";
    let with_syntax = "([a-z0-9.+-]+\\+)?(json|xml)";
    format!("^(text/(plain|html|xml)|application/{with_syntax})(; *charset={charset})?$")
}

/// The words as alternatives, each letter in both cases.
fn letters(words: &[&str]) -> String {
    let mut pattern = String::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            pattern.push('|');
        }
        for letter in word.chars() {
            // Writing to a string cannot fail.
            let _ = write!(pattern, "[{letter}{}]", letter.to_ascii_uppercase());
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::short_form::unit;
    use crate::core::window::Unit;

    #[test]
    fn the_words_for_units_are_those_of_the_short_form() {
        for word in UNIT_WORDS {
            assert!(unit(word).is_some(), "{word}");
        }
        for name in Unit::ALL.map(Unit::name) {
            assert!(UNIT_WORDS.contains(&name), "{name}");
        }
        assert!(unit("m").is_some() && unit("M").is_none());
        assert_eq!(any_case(&["s", "mo"]), "^([sS]|[mM][oO])$");
    }
}
