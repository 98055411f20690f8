//! Names and labels with references to the parts that a pattern matched.

use regex::Captures;

/// A text with references such as `$1` or `${1}`.
#[derive(Clone, Debug)]
pub(super) struct MappingTemplate(pub(super) String);

impl MappingTemplate {
    /// Fills in the segments matched by a glob's stars. A reference beyond them is empty.
    pub(super) fn fill(&self, groups: &[&str]) -> String {
        let mut filled = String::new();
        let mut rest = self.0.as_str();
        while let Some(at) = rest.find('$') {
            filled.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let Some((number, behind)) = reference(rest) else {
                filled.push('$');
                continue;
            };
            // The first group is 1.
            let group = number
                .parse::<usize>()
                .ok()
                .and_then(|number| number.checked_sub(1));
            filled.push_str(group.and_then(|at| groups.get(at)).unwrap_or(&""));
            rest = behind;
        }
        filled.push_str(rest);
        filled
    }

    /// Fills in the groups of a regular expression. Here the name of a reference is as long as possible, as in Go:
    /// `$1_x` means group `1_x`, hence is empty; `${1}_x` means group 1.
    pub(super) fn expand(&self, found: &Captures<'_>) -> String {
        let mut filled = String::new();
        found.expand(&self.0, &mut filled);
        filled
    }
}

/// The number after a `$`, and the text after the reference.
fn reference(text: &str) -> Option<(&str, &str)> {
    let (number, is_closed) = match text.strip_prefix('{') {
        Some(braced) => (braced, true),
        None => (text, false),
    };
    let digits = number.bytes().take_while(u8::is_ascii_digit).count();
    let (number, behind) = number.split_at(digits);
    let behind = if is_closed {
        behind.strip_prefix('}')?
    } else {
        behind
    };
    (!number.is_empty()).then_some((number, behind))
}
