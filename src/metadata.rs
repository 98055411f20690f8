//! Free-form data of a rule, which replies can carry to Envoy's later filters.

use std::collections::BTreeMap;

/// A value of a `google.protobuf.Struct`.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Self>),
    Map(Map),
}

pub type Map = BTreeMap<String, Value>;

/// Adds a copy of `from` to `into`. A key that `into` already has keeps its value, except that two maps
/// are merged recursively.
pub fn merge(into: &mut Map, from: &Map) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Map(into)), Value::Map(from)) => merge(into, from),
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

    fn map(entries: &[(&str, Value)]) -> Map {
        let own = |(key, value): &(&str, Value)| ((*key).to_owned(), value.clone());
        entries.iter().map(own).collect()
    }

    #[test]
    fn the_first_value_stays_and_maps_grow_together() {
        let one = Value::Number(1.0);
        let two = Value::Number(2.0);
        let mut into = map(&[
            ("a", one.clone()),
            ("m", Value::Map(map(&[("x", one.clone())]))),
            ("l", Value::List(vec![one.clone()])),
        ]);
        let from = map(&[
            ("a", two.clone()),
            ("b", two.clone()),
            (
                "m",
                Value::Map(map(&[("x", two.clone()), ("y", two.clone())])),
            ),
            ("l", Value::List(vec![two.clone()])),
        ]);
        merge(&mut into, &from);
        let expected = map(&[
            ("a", one.clone()),
            ("b", two.clone()),
            ("m", Value::Map(map(&[("x", one.clone()), ("y", two)]))),
            ("l", Value::List(vec![one])),
        ]);
        assert_eq!(into, expected);
    }
}
