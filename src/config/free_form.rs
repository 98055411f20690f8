//! Free-form data of a rule: YAML nodes → metadata.

use std::collections::BTreeMap;

use super::{
    keys::MERGE,
    node::{NodeKind, YamlNode},
    scalar::{Scalar, describe, float, resolve},
};
use crate::core::metadata::MetadataValue;

/// Free-form data as the reference converts it to a `Struct`: all numbers are floating-point, and every key is a
/// text.
pub(super) fn metadata(node: &YamlNode<'_>) -> MetadataValue {
    match &node.kind {
        NodeKind::Scalar { text, is_plain } => match resolve(text, *is_plain) {
            Scalar::Null => MetadataValue::Null,
            Scalar::Bool(value) => MetadataValue::Bool(value),
            #[expect(clippy::cast_precision_loss, reason = "a Struct has no other numbers")]
            Scalar::Int(number) => MetadataValue::Number(number as f64),
            Scalar::Float => MetadataValue::Number(float(text)),
            Scalar::Text => MetadataValue::Text(text.to_string()),
        },
        NodeKind::List(items) => MetadataValue::List(items.iter().map(metadata).collect()),
        NodeKind::Map(entries) => {
            let mut map = BTreeMap::new();
            let mut merged = BTreeMap::new();
            for (key, value) in entries {
                match &key.kind {
                    NodeKind::Scalar { text, is_plain } if *is_plain && text == MERGE => {
                        merge_metadata(value, &mut merged);
                    }
                    _ => {
                        map.insert(metadata_key(key).into(), metadata(value));
                    }
                }
            }
            for (key, value) in merged {
                map.entry(key).or_insert(value);
            }
            MetadataValue::Map(map.into())
        }
        // Already reported by `check_free_form`.
        NodeKind::Tagged => MetadataValue::Null,
    }
}

fn merge_metadata(node: &YamlNode<'_>, into: &mut BTreeMap<Box<str>, MetadataValue>) {
    match metadata(node) {
        MetadataValue::Map(map) => {
            for (key, value) in map {
                into.entry(key).or_insert(value);
            }
        }
        MetadataValue::List(_) => {
            if let NodeKind::List(items) = &node.kind {
                items.iter().for_each(|item| merge_metadata(item, into));
            }
        }
        MetadataValue::Null
        | MetadataValue::Bool(_)
        | MetadataValue::Number(_)
        | MetadataValue::Text(_) => {}
    }
}

/// A key as text: `n` is a boolean in YAML 1.1, and becomes the text "false".
pub(super) fn metadata_key(node: &YamlNode<'_>) -> String {
    match &node.kind {
        NodeKind::Scalar { text, is_plain } => match resolve(text, *is_plain) {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Int(number) => number.to_string(),
            Scalar::Null => "null".to_owned(),
            Scalar::Float | Scalar::Text => text.to_string(),
        },
        kind => describe(kind),
    }
}
