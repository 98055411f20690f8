//! A page of the keys that a store has.

/// Some keys of a store.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyPage {
    /// Without the prefix that all keys in Redis have.
    pub(crate) keys: Vec<Box<[u8]>>,
    /// Where the next page begins; `None` if this is the last one.
    pub(crate) cursor: Option<String>,
    /// Whether they are in the store of limits per second.
    pub(crate) is_per_second: bool,
}
