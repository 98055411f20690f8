//! Free-form data of a rule, which replies can carry to Envoy's later filters.

use std::collections::BTreeMap;

/// A value of a `google.protobuf.Struct`.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Self>),
    Map(Metadata),
}

/// The entries of a map in the order of their keys, each key once. A rule has few of them, and a file has many rules:
/// a node of a tree would be ten times as large.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(Box<[(Box<str>, MetadataValue)]>);

impl Metadata {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a copy of `from`. A key that is already there keeps its value, except that two maps are merged recursively.
    pub(crate) fn merge(&mut self, from: &Self) {
        let mut merged: BTreeMap<_, _> = std::mem::take(self).into_iter().collect();
        for (key, value) in &from.0 {
            match (merged.get_mut(key), value) {
                (Some(MetadataValue::Map(into)), MetadataValue::Map(from)) => into.merge(from),
                (Some(_), _) => {}
                (None, value) => {
                    merged.insert(key.clone(), value.clone());
                }
            }
        }
        *self = merged.into();
    }
}

impl From<BTreeMap<Box<str>, MetadataValue>> for Metadata {
    fn from(map: BTreeMap<Box<str>, MetadataValue>) -> Self {
        Self(map.into_iter().collect())
    }
}

/// The last value of a key counts.
impl<K: Into<Box<str>>> FromIterator<(K, MetadataValue)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, MetadataValue)>>(entries: I) -> Self {
        let entries = entries.into_iter();
        let map: BTreeMap<_, _> = entries.map(|(key, value)| (key.into(), value)).collect();
        map.into()
    }
}

impl IntoIterator for Metadata {
    type Item = (Box<str>, MetadataValue);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_vec().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, MetadataValue)]) -> Metadata {
        entries.iter().cloned().collect()
    }

    #[test]
    fn entries_stand_in_the_order_of_their_keys_and_the_last_value_of_a_key_counts() {
        let [a, b, last] = [1.0, 2.0, 3.0].map(MetadataValue::Number);
        let metadata = map(&[("b", b.clone()), ("a", a), ("a", last.clone())]);
        assert!(!metadata.is_empty());
        let entries: Vec<_> = metadata.into_iter().collect();
        assert_eq!(entries, [("a".into(), last), ("b".into(), b)]);
        assert!(map(&[]).is_empty());
    }

    #[test]
    fn the_first_value_stays_and_maps_grow_together() {
        let one = MetadataValue::Number(1.0);
        let two = MetadataValue::Number(2.0);
        let mut into = map(&[
            ("a", one.clone()),
            ("m", MetadataValue::Map(map(&[("x", one.clone())]))),
            ("l", MetadataValue::List(vec![one.clone()])),
        ]);
        let from = map(&[
            ("a", two.clone()),
            ("b", two.clone()),
            (
                "m",
                MetadataValue::Map(map(&[("x", two.clone()), ("y", two.clone())])),
            ),
            ("l", MetadataValue::List(vec![two.clone()])),
        ]);
        into.merge(&from);
        let expected = map(&[
            ("a", one.clone()),
            ("b", two.clone()),
            (
                "m",
                MetadataValue::Map(map(&[("x", one.clone()), ("y", two)])),
            ),
            ("l", MetadataValue::List(vec![one])),
        ]);
        assert_eq!(into, expected);
    }
}
