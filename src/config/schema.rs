//! The JSON Schema of rule files, made of the table of keys. Editors complete and check rules by it.
//!
//! It accepts every file that can be used, and refuses those with a mistake that is in the shape of one map: it cannot
//! see that a descriptor stands twice, for example. Its form is draft 7, which all editors and validators read.

use serde_json::{Map, Value, json};

use super::keys::{Key, KeyKind, KeyLevel, KeyValues, SCHEMA};

mod conditions;
mod patterns;

use conditions::conditions;
use patterns::{any_case, one_of, short_form_pattern};

/// The levels with a definition of their own; that of the file is the schema itself.
const DEFINED: [KeyLevel; 6] = [
    KeyLevel::Descriptor,
    KeyLevel::RateLimit,
    KeyLevel::Replaces,
    KeyLevel::Starts,
    KeyLevel::Reserve,
    KeyLevel::Refusal,
];

/// The schema of one document of a rule file.
pub(crate) fn schema() -> Value {
    let mut schema = level_schema(KeyLevel::File);
    let about =
        "A file that names its schema is for tollgate only: envoyproxy/ratelimit refuses this key.";
    let mut definitions = Map::new();
    for level in DEFINED {
        definitions.insert(name(level).to_owned(), level_schema(level));
    }
    schema["properties"][SCHEMA] = json!({"type": "string", "description": about});
    schema["definitions"] = definitions.into();
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "A rule file of tollgate".into();
    schema
}

fn name(level: KeyLevel) -> &'static str {
    match level {
        KeyLevel::File => "file",
        KeyLevel::Descriptor => "descriptor",
        KeyLevel::RateLimit => "rate_limit",
        KeyLevel::Replaces => "replaces",
        KeyLevel::Starts => "starts",
        KeyLevel::Reserve => "reserve",
        KeyLevel::Refusal => "refusal",
    }
}

fn reference(level: KeyLevel) -> Value {
    json!({"$ref": format!("#/definitions/{}", name(level))})
}

/// The keys without which a map of this level is refused. Their values are not empty.
fn required(level: KeyLevel) -> &'static [&'static str] {
    match level {
        KeyLevel::File => &["domain"],
        KeyLevel::Descriptor => &["key"],
        KeyLevel::Replaces => &["name"],
        KeyLevel::Refusal => &["body"],
        KeyLevel::RateLimit | KeyLevel::Starts | KeyLevel::Reserve => &[],
    }
}

/// The schema of maps of this level.
fn level_schema(level: KeyLevel) -> Value {
    let own = Key::all().filter(|key| key.belongs_to(level));
    let properties: Map<_, _> = own
        .map(|key| (key.name.to_owned(), key_schema(key, level)))
        .collect();
    let mut schema = json!({
        "type": map_types(level),
        "properties": properties,
        "patternProperties": misplaced(level),
        "additionalProperties": false,
    });
    if !required(level).is_empty() {
        schema["required"] = json!(required(level));
    }
    let conditions = conditions(level);
    if !conditions.is_empty() {
        schema["allOf"] = conditions.into();
    }
    schema
}

/// Null is as good as no map, but not in a list.
fn map_types(level: KeyLevel) -> Value {
    match level {
        KeyLevel::File | KeyLevel::Descriptor | KeyLevel::Replaces | KeyLevel::Reserve => {
            json!("object")
        }
        KeyLevel::RateLimit | KeyLevel::Starts | KeyLevel::Refusal => {
            json!(["object", "null"])
        }
    }
}

/// Keys of other levels, which have no effect here: the reference accepts them, so they are warnings only. An editor
/// shows the message and does not propose them.
fn misplaced(level: KeyLevel) -> Value {
    let mut places: Vec<(&str, Vec<&str>)> = Vec::new();
    for key in Key::all().filter(|key| !key.belongs_to(level)) {
        let place = key.place(level);
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, keys)) => keys.push(key.name),
            None => places.push((place, vec![key.name])),
        }
    }
    let patterns = places.into_iter().map(|(place, keys)| {
        let message = format!("This key has no effect here; it belongs {place}.");
        let schema = json!({"deprecationMessage": message, "doNotSuggest": true});
        (one_of(&keys), schema)
    });
    Value::Object(patterns.collect())
}

/// The schema of the value of `key` in a map of this level.
fn key_schema(key: &Key, level: KeyLevel) -> Value {
    let is_required = required(level).contains(&key.name);
    let mut schema = value_schema(key, is_required);
    schema["description"] = key.about.into();
    if !key.default.is_empty() {
        schema["default"] = literal(key.default);
    }
    if !key.examples.is_empty() {
        schema["examples"] = key.examples.iter().map(|text| literal(text)).collect();
    }
    schema
}

/// A value of the table in YAML's flow style.
fn literal(yaml: &str) -> Value {
    serde_yaml::from_str(yaml).expect("a test reads all values of the table")
}

fn value_schema(key: &Key, is_required: bool) -> Value {
    match (key.kind, key.values) {
        (KeyKind::Text, KeyValues::Words(words)) => {
            let words = words.iter().map(|word| json!(word));
            json!({"enum": words.chain([Value::Null]).collect::<Vec<_>>()})
        }
        (KeyKind::Text, KeyValues::AnyCase(words)) => {
            json!({"anyOf": [{"enum": words}, any_case_or_null(words, key)]})
        }
        // A scalar is the text as it is written, with quotes or without.
        (KeyKind::Text, _) if is_required => {
            json!({"type": ["string", "integer", "boolean"], "minLength": 1, "maximum": i64::MAX})
        }
        (KeyKind::Text, _) => {
            json!({"type": ["string", "integer", "boolean", "null"], "maximum": i64::MAX})
        }
        (KeyKind::Boolean, _) => json!({"type": ["boolean", "null"]}),
        (KeyKind::Number, KeyValues::Between(low, high)) => {
            json!({"type": ["integer", "null"], "minimum": low, "maximum": high})
        }
        (KeyKind::Number, _) => json!({"type": ["integer", "null"]}),
        (KeyKind::Map(level), _) => json!({"allOf": [reference(level)]}),
        (KeyKind::List(level), _) => {
            json!({"type": ["array", "null"], "items": reference(level)})
        }
        (KeyKind::Limits, _) => {
            let short = json!({"type": "string", "pattern": short_form_pattern()});
            let map = json!({
                "type": "object",
                "allOf": [reference(KeyLevel::RateLimit)],
                "properties": {"unlimited": {"enum": [false, null]}},
            });
            json!({"type": ["array", "null"], "minItems": 1, "items": {"anyOf": [short, map]}})
        }
        (KeyKind::FreeForm, _) => json!({"type": ["object", "null"]}),
        (KeyKind::Texts, _) => {
            json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}})
        }
    }
}

/// One of the words in any letter case; or any text for a unit, since that of an unlimited rule is not read. The
/// conditions of the level say when it is.
fn any_case_or_null(words: &[&str], key: &Key) -> Value {
    let types = json!(["string", "integer", "boolean", "null"]);
    match key.name {
        "unit" => json!({"type": types}),
        _ => json!({"type": ["string", "null"], "pattern": any_case(words)}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_meaning_and_its_default_and_examples_are_values_of_it() {
        for key in Key::all() {
            assert!(key.about.ends_with('.'), "{}", key.name);
            let values = key.examples.iter().chain([&key.default]);
            for value in values.filter(|value| !value.is_empty()) {
                let value: Value = serde_yaml::from_str(value).unwrap();
                let is_fine = match key.kind {
                    KeyKind::Text => value.is_string(),
                    KeyKind::Boolean => value.is_boolean(),
                    KeyKind::Number => value.is_u64(),
                    KeyKind::Map(_) | KeyKind::FreeForm | KeyKind::Texts => value.is_object(),
                    KeyKind::List(_) | KeyKind::Limits => value.is_array(),
                };
                assert!(is_fine, "{}: {value}", key.name);
            }
        }
    }

    #[test]
    fn each_level_has_its_keys_and_passes_over_those_of_others() {
        let schema = schema();
        let keys = |of: &Value| of["properties"].as_object().unwrap().len();
        let definitions = &schema["definitions"];
        let of_levels: usize = DEFINED
            .iter()
            .map(|level| keys(&definitions[name(*level)]))
            .sum();
        let places: usize = Key::all()
            .map(|key| {
                DEFINED
                    .iter()
                    .filter(|level| key.belongs_to(**level))
                    .count()
            })
            .sum();
        assert_eq!(of_levels, places);
        // With the key for the schema itself.
        assert_eq!(keys(&schema), 6);
        let misplaced = schema["patternProperties"].as_object().unwrap();
        assert!(
            misplaced
                .keys()
                .any(|pattern| pattern.contains("requests_per_unit"))
        );
    }
}
