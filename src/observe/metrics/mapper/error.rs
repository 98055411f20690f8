//! All that can be wrong with a mapping file.

/// Why a mapping file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The source has the line and the column.
    #[error("not a mapping file")]
    Format(#[source] serde_yaml::Error),
    #[error("mappings[{at}]: no `match`")]
    NoMatch { at: usize },
    #[error("mappings[{at}]: no `name` for the match `{matches}`")]
    NoName { at: usize, matches: String },
    #[error("mappings[{at}]: every segment of a glob must be a word or `*`: `{matches}`")]
    Glob { at: usize, matches: String },
    #[error("mappings[{at}]: `match` is not a regular expression")]
    Regex {
        at: usize,
        #[source]
        source: Box<regex::Error>,
    },
    #[error("mappings[{at}]: a label consists of letters, digits and `_`, not `{label}`")]
    Label { at: usize, label: String },
    #[error("mappings[{at}]: a scale must be more than 0, not {scale}")]
    Scale { at: usize, scale: f64 },
    #[error("{location}: buckets must ascend: {buckets:?}")]
    Buckets { location: String, buckets: Vec<f64> },
}
