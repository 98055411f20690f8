//! The conditions of the schema: keys of one map that depend on each other.

use serde_json::{Value, json};

use super::patterns::{any_case, content_type_pattern};
use crate::{
    config::keys::{Key, KeyLevel, KeyValues},
    core::{kind::Algorithm, window::Unit},
};

/// The conditions that every map of this level has to meet.
pub(super) fn conditions(level: KeyLevel) -> Vec<Value> {
    match level {
        KeyLevel::Descriptor => of_descriptors(),
        KeyLevel::RateLimit => vec![of_limits()],
        KeyLevel::Refusal => of_refusals(),
        KeyLevel::File | KeyLevel::Replaces | KeyLevel::Starts | KeyLevel::Reserve => Vec::new(),
    }
}

fn of_descriptors() -> Vec<Value> {
    let wildcard = json!({"type": "string", "pattern": "\\*"});
    let in_value = json!({"required": ["value"], "properties": {"value": wildcard}});
    let in_key = json!({"properties": {"key": wildcard}});
    vec![
        // One form of limits only.
        json!({
            "if": with("rate_limits", json!({"type": "array"})),
            "then": {"properties": {"rate_limit": {"type": "null"}}},
        }),
        json!({
            "if": with("share_threshold", json!({"const": true})),
            "then": {"anyOf": [in_value, in_key]},
        }),
        of_reserving_rules(),
        of_sliced_rules(),
    ]
}

/// Aligned windows, which count what they admit.
fn of_sliced_rules() -> Value {
    let is_sliced = with("accuracy", json!({"const": "exact-leased"}));
    let mut rule = leasing(is_sliced, json!(["fixed_window", null]));
    rule["then"]["properties"]["reserve"] = json!({"type": "null"});
    rule
}

/// Limits that can be settled, which count what they admit.
fn of_reserving_rules() -> Value {
    let reserves = with("reserve", json!({"type": "object"}));
    leasing(reserves, json!(["fixed_window", "token_bucket", null]))
}

/// A rule that leases has limits by one of these algorithms, in aligned windows, and counts what they admit.
fn leasing(condition: Value, algorithms: Value) -> Value {
    let limit = json!({
        "algorithm": {"enum": algorithms},
        "window": {"enum": ["aligned", null]},
        "unlimited": {"enum": [false, null]},
    });
    json!({
        "if": condition,
        "then": {
            "anyOf": [{"required": ["rate_limit"]}, {"required": ["rate_limits"]}],
            "properties": {
                "count": {"enum": ["admitted", null]},
                "rate_limit": {"properties": limit},
                "rate_limits": {"items": {"properties": limit}},
            },
        },
    })
}

/// A type only for a template, and a status only for a body that shows it.
fn of_refusals() -> Vec<Value> {
    let nothing = json!({"type": "null"});
    let is_word = |word: &str| with("body", json!({"const": word}));
    let shows_status = json!({"type": "string", "pattern": "^problem\\+json$|\\{status\\}"});
    vec![
        json!({
            "if": {"anyOf": [is_word("problem+json"), is_word("none")]},
            "then": {"properties": {"content_type": nothing}},
            "else": {"properties": {"content_type": {"anyOf": [
                {"enum": ["text/plain", "text/html", "application/json", null]},
                {"type": "string", "pattern": content_type_pattern()},
            ]}}},
        }),
        json!({
            "if": with("body", shows_status),
            "else": {"properties": {"status": nothing}},
        }),
    ]
}

/// An unlimited rule has no unit; all other limits have one, and settings that fit their algorithm.
fn of_limits() -> Value {
    let names = Unit::ALL.map(Unit::name);
    let nothing = json!({"type": "null"});
    json!({
        "if": with("unlimited", json!({"const": true})),
        "then": {"properties": {"unit": {"not": units(&names)}}},
        "else": {
            "allOf": [
                {
                    "if": with("algorithm", json!({"const": "concurrency"})),
                    "then": {
                        "required": ["ttl"],
                        "properties": {
                            "unit": nothing,
                            "unit_multiplier": nothing,
                            "ttl": {"type": "string"},
                            "requests_per_unit": {"maximum": Algorithm::MAX_LOGGED},
                        },
                    },
                    "else": {
                        "required": ["unit"],
                        "properties": {"unit": units(&names), "ttl": nothing},
                    },
                },
                {
                    "if": with("burst", json!({"type": "integer"})),
                    "then": with("algorithm", json!({"const": "token_bucket"})),
                },
                {
                    "if": with("algorithm", json!({"const": "sliding_log"})),
                    "then": {"properties": {"requests_per_unit": {"maximum": Algorithm::MAX_LOGGED}}},
                },
                {
                    "if": with("algorithm", json!({"const": "sliding_window"})),
                    "then": {"properties": {"requests_per_unit": {"maximum": u32::MAX}}},
                },
                {
                    "if": with("algorithm", json!({"enum": looking_first()})),
                    "then": {"properties": {"window": {"type": "null"}, "calendar": {"not": {"const": true}}}},
                    "else": of_fixed_windows(),
                },
            ],
        },
    })
}

/// Either a calendar, which needs a time zone and a unit that it knows, or none of its settings.
fn of_fixed_windows() -> Value {
    let nothing = json!({"type": "null"});
    let only_for = |starts: &str, unit: &[&str]| {
        json!({
            "if": with("starts", with(starts, json!({"type": "integer"}))),
            "then": {"properties": {"unit": units(unit)}},
        })
    };
    json!({
        "if": with("calendar", json!({"const": true})),
        "then": {
            "required": ["time_zone"],
            "properties": {
                "unit": units(&["day", "week", "month", "year"]),
                "unit_multiplier": {"enum": [1, null]},
                "time_zone": {"type": "string"},
                "window": {"enum": ["aligned", null]},
            },
            "allOf": [
                only_for("month", &["year"]),
                only_for("day", &["month", "year"]),
                {
                    "if": with("week_starts", json!({"type": "string"})),
                    "then": {"properties": {"unit": units(&["week"])}},
                },
            ],
        },
        "else": {
            "properties": {
                "time_zone": nothing,
                "week_starts": nothing,
                "starts": {"additionalProperties": nothing},
            },
        },
    })
}

/// Holds for a map that has `key`, with a value that fits `schema`.
fn with(key: &str, schema: Value) -> Value {
    json!({"type": "object", "required": [key], "properties": {key: schema}})
}

/// Holds for these units. The words stand first, so that editors can propose them.
fn units(units: &[&str]) -> Value {
    json!({"anyOf": [{"enum": units}, {"type": "string", "pattern": any_case(units)}]})
}

/// The algorithms that count only the hits that they let pass.
fn looking_first() -> Vec<&'static str> {
    let algorithm = Key::find("algorithm").map(|key| key.values);
    let Some(KeyValues::Words(words)) = algorithm else {
        return Vec::new();
    };
    let names = words.iter().copied();
    names
        .filter(|name| *name != Algorithm::FixedWindow.name())
        .collect()
}
