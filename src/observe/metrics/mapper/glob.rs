//! Globs: patterns of words and stars between dots.

/// Words, and stars that each match any one segment between dots.
#[derive(Clone, Debug)]
pub(super) struct Glob(Vec<Segment>);

/// In the order of specificity words come before stars.
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

    /// Which segments are stars. Of two globs that match one name, the smaller of these vectors has a word where the
    /// other one has its first star.
    pub(super) fn stars(&self) -> Vec<bool> {
        self.0
            .iter()
            .map(|segment| *segment == Segment::Star)
            .collect()
    }
}
