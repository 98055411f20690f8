//! The entries of one map, with those of the maps that it merges.

use std::collections::HashMap;

// Keys of rule files come from the operator, so a fast hash without protection against collisions is enough.
use foldhash::fast::RandomState;

use super::{
    keys::MERGE,
    node::{NodeKind, YamlNode},
};

/// The keys and values of one map.
#[derive(Default)]
pub(super) struct Fields<'n> {
    pub(super) own: FieldMap<'n>,
    merged: FieldMap<'n>,
}

type FieldMap<'n> = HashMap<&'n str, (&'n YamlNode<'n>, &'n YamlNode<'n>), RandomState>;

impl<'n> Fields<'n> {
    /// The key and the value; an own entry counts before a merged one.
    pub(super) fn entry(&self, key: &str) -> Option<(&'n YamlNode<'n>, &'n YamlNode<'n>)> {
        self.own.get(key).or_else(|| self.merged.get(key)).copied()
    }

    /// The value of `key`, unless it is null.
    pub(super) fn get(&self, key: &str) -> Option<&'n YamlNode<'n>> {
        let (_, value) = self.entry(key)?;
        (!value.is_null()).then_some(value)
    }

    /// The position of `key`'s value, or of `key` itself if the value has none.
    pub(super) fn at(&self, key: &str) -> Option<usize> {
        let (key, value) = self.entry(key)?;
        value.offset.or(key.offset)
    }
}

/// Merges the entries of `from`, a map or a list of maps; the first value of a key counts.
pub(super) fn merge<'n>(from: &'n YamlNode<'n>, into: &mut Fields<'n>) {
    match &from.kind {
        NodeKind::Map(entries) => {
            for (key, value) in entries {
                match &key.kind {
                    NodeKind::Scalar { text, .. } if text == MERGE => merge(value, into),
                    NodeKind::Scalar { text, .. } => {
                        into.merged.entry(text).or_insert((key, value));
                    }
                    NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Tagged => {}
                }
            }
        }
        NodeKind::List(items) => items.iter().for_each(|item| merge(item, into)),
        NodeKind::Scalar { .. } | NodeKind::Tagged => {}
    }
}
