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

pub(crate) type Metadata = BTreeMap<String, MetadataValue>;

/// Adds a copy of `from` to `into`. A key that `into` already has keeps its value, except that two maps
/// are merged recursively.
pub(crate) fn merge(into: &mut Metadata, from: &Metadata) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(MetadataValue::Map(into)), MetadataValue::Map(from)) => merge(into, from),
            (Some(_), _) => {}
            (None, value) => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, MetadataValue)]) -> Metadata {
        let own = |(key, value): &(&str, MetadataValue)| ((*key).to_owned(), value.clone());
        entries.iter().map(own).collect()
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
        merge(&mut into, &from);
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
