//! Patterns of words and stars separated by dots, and templates that refer to the parts that a pattern matched.

use regex::Captures;

/// A pattern of words and stars. Each star matches any one segment of a name between dots.
#[derive(Clone, Debug)]
pub(super) struct Glob(Vec<Segment>);

/// The derived order of globs is by specificity: words come before stars.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Word(String),
    Star,
}

impl Glob {
    /// The glob of this text; `None` if a segment is neither a word nor a star.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let segments = text.split('.').map(|segment| match segment {
            "*" => Some(Segment::Star),
            word if word.is_empty() || word.contains('*') => None,
            word => Some(Segment::Word(word.to_owned())),
        });
        segments.collect::<Option<_>>().map(Self)
    }

    /// The segments that the stars match, if the glob matches the name.
    pub(super) fn find<'n>(&self, name: &[&'n str]) -> Option<Vec<&'n str>> {
        if self.0.len() != name.len() {
            return None;
        }
        let pairs = || self.0.iter().zip(name);
        let is_it = pairs().all(|(segment, found)| match segment {
            Segment::Word(word) => word == found,
            Segment::Star => true,
        });
        let stars = || pairs().filter(|(segment, _)| **segment == Segment::Star);
        is_it.then(|| stars().map(|(_, found)| *found).collect())
    }

    /// Which segments are stars. Of two globs that match one name, the one with the smaller vector has a word where the
    /// other has its first star.
    pub(super) fn stars(&self) -> Vec<bool> {
        self.0
            .iter()
            .map(|segment| *segment == Segment::Star)
            .collect()
    }
}

/// A template with references such as `$1` or `${1}`.
#[derive(Clone, Debug)]
pub(super) struct MappingTemplate(pub(super) String);

impl MappingTemplate {
    /// Fills in the segments that a glob's stars matched. A reference beyond the last star is empty.
    pub(super) fn fill(&self, groups: &[&str]) -> String {
        let mut filled = String::new();
        let mut rest = self.0.as_str();
        while let Some(at) = rest.find('$') {
            filled.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let Some((number, after)) = reference(rest) else {
                filled.push('$');
                continue;
            };
            // The first group is 1.
            let group = number
                .parse::<usize>()
                .ok()
                .and_then(|number| number.checked_sub(1));
            filled.push_str(group.and_then(|at| groups.get(at)).unwrap_or(&""));
            rest = after;
        }
        filled.push_str(rest);
        filled
    }

    /// Fills in the groups of a regular expression. As in Go, the name of a reference is as long as possible: `$1_x` is
    /// the group `1_x`, which does not exist and is empty; `${1}_x` is group 1 and `_x`.
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
    let (number, after) = number.split_at(digits);
    let after = if is_closed {
        after.strip_prefix('}')?
    } else {
        after
    };
    (!number.is_empty()).then_some((number, after))
}
