//! The keys of rule files: the levels that each belongs to, and the kind of its value. The lists of keys, the
//! suggestion for a misspelt one and the levels below follow from this table. `docs/rules.schema.json` describes them
//! to people.

use KeyKind::{Boolean, FreeForm, Limits, List, Map, Number, Text, Texts};
use KeyLevel::{Descriptor, File, RateLimit, Refusal, Replaces, Reserve, Starts};

use crate::core::kind::WORDS;

/// A key of rule files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Where it has a meaning; the first is named where it has none.
    levels: &'static [KeyLevel],
    pub(super) kind: KeyKind,
    /// The words that it takes or, of the types of bodies, the usual ones; empty if it takes others than words.
    pub(super) words: &'static [&'static str],
}

/// The maps that keys belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyLevel {
    File,
    Descriptor,
    RateLimit,
    Replaces,
    Starts,
    Reserve,
    Refusal,
}

/// The kind of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyKind {
    Text,
    Boolean,
    Number,
    /// A map of keys of this level.
    Map(KeyLevel),
    /// A list of such maps.
    List(KeyLevel),
    /// A list of limits, each a map or in the short form.
    Limits,
    /// A map with any content.
    FreeForm,
    /// A map with any keys, whose values are texts.
    Texts,
}

/// Merges another map into this one.
pub(super) const MERGE: &str = "<<";

/// The JSON Schema of rule files, for editors: it accepts every file that can be used, and refuses those with a mistake
/// in the shape of one map. It cannot see that a descriptor stands twice, for example.
pub(crate) const RULES_SCHEMA: &str = include_str!("../../docs/rules.schema.json");

/// Names the schema of a file at its top, for editors; it has no meaning for the rules.
pub(super) const SCHEMA: &str = "$schema";

#[rustfmt::skip]
const KEYS: [Key; 40] = [
    key("domain", &[File], Text),
    key("descriptors", &[File, Descriptor], List(Descriptor)),
    key("count", &[File, Descriptor], Text).words(&["all", "admitted"]),
    key("on_store_loss", &[File, Descriptor], Text).words(&["error", "allow", "deny", "local"]),
    key("refusal", &[File, Descriptor], Map(Refusal)),

    key("key", &[Descriptor], Text),
    key("value", &[Descriptor], Text),
    key("rate_limit", &[Descriptor], Map(RateLimit)),
    key("rate_limits", &[Descriptor], Limits),
    key("shadow_mode", &[Descriptor], Boolean),
    key("quota_mode", &[Descriptor], Boolean),
    key("detailed_metric", &[Descriptor], Boolean),
    key("value_to_metric", &[Descriptor], Boolean),
    key("share_threshold", &[Descriptor], Boolean),
    key("reserve", &[Descriptor], Map(Reserve)),
    key("accuracy", &[Descriptor], Text).words(&["exact", "exact-leased"]),
    key("metadata", &[Descriptor], FreeForm),

    key("unit", &[RateLimit], Text).words(&["second", "minute", "hour", "day", "week", "month", "year"]),
    key("unit_multiplier", &[RateLimit], Number),
    key("requests_per_unit", &[RateLimit], Number),
    key("unlimited", &[RateLimit], Boolean),
    key("name", &[RateLimit, Replaces], Text),
    key("replaces", &[RateLimit], List(Replaces)),
    key("algorithm", &[RateLimit], Text).words(WORDS),
    key("window", &[RateLimit], Text).words(&["aligned", "first_hit"]),
    key("burst", &[RateLimit], Number),
    key("ttl", &[RateLimit], Text),
    key("calendar", &[RateLimit], Boolean),
    key("time_zone", &[RateLimit], Text),
    key("starts", &[RateLimit], Map(Starts)),
    key("week_starts", &[RateLimit], Text)
        .words(&["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]),

    key("month", &[Starts], Number),
    key("day", &[Starts], Number),
    key("hour", &[Starts], Number),

    key("estimate", &[Reserve], Number),
    key("missing", &[Reserve], Text).words(&["estimate", "zero"]),

    key("body", &[Refusal], Text),
    key("content_type", &[Refusal], Text)
        .words(&["text/plain", "text/html", "application/json", "another type of text, XML or JSON"]),
    key("status", &[Refusal], Number),
    key("headers", &[Refusal], Texts),
];

const fn key(name: &'static str, levels: &'static [KeyLevel], kind: KeyKind) -> Key {
    Key {
        name,
        levels,
        kind,
        words: &[],
    }
}

impl Key {
    const fn words(self, words: &'static [&'static str]) -> Self {
        Self { words, ..self }
    }

    /// The key of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// Where it belongs, for a map of another `level` that has it.
    pub(super) fn place(&self, level: KeyLevel) -> &'static str {
        match self.levels[0] {
            File => "at the top of the file",
            Descriptor if self.name == "key" && level == File => "to an item of `descriptors`",
            Descriptor if self.name == "key" => "to a descriptor, one level up",
            Descriptor => "beside the `key` of a descriptor",
            RateLimit | Replaces => "inside `rate_limit`",
            Starts => "inside `starts`",
            Reserve => "inside `reserve`",
            Refusal => "inside `refusal`",
        }
    }

    pub(super) fn belongs_to(&self, level: KeyLevel) -> bool {
        self.levels.contains(&level)
    }
}

impl KeyKind {
    /// The value in words.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Text => "a string",
            Boolean => "true or false",
            Number => "a whole number",
            List(_) | Limits => "a list",
            Map(_) | FreeForm | Texts => "a map",
        }
    }

    /// The level of the maps in the value, if they have one.
    pub(super) fn level(self) -> Option<KeyLevel> {
        match self {
            Map(level) | List(level) => Some(level),
            Limits => Some(RateLimit),
            Text | Boolean | Number | FreeForm | Texts => None,
        }
    }
}

/// The key that is meant by an unknown one: a close one of its level, or else of another; otherwise all of its level.
pub(super) fn expected_instead_of(name: &str, level: KeyLevel) -> String {
    let own = || KEYS.iter().filter(|key| key.belongs_to(level));
    let names = |key: &'static Key| key.name;
    let nearest = closest(name, own().map(names)).or_else(|| closest(name, KEYS.iter().map(names)));
    match nearest {
        Some(nearest) => format!("`{nearest}`"),
        None => {
            let own: Vec<_> = own().map(|key| key.name).collect();
            format!("one of {}", own.join(", "))
        }
    }
}

/// The words that the key of this name takes.
pub(super) fn words_of(key: &str) -> String {
    match Key::find(key).map(|key| key.words) {
        Some([words @ .., last]) => format!("{} or {last}", words.join(", ")),
        _ => String::new(),
    }
}

/// Whether an unknown key probably means `key`.
pub(super) fn is_meant(unknown: &str, key: &'static str) -> bool {
    Key::find(unknown).is_none() && closest(unknown, std::iter::once(key)).is_some()
}

/// The candidate closest to `name`, ignoring letter case, if few changes of letters lead to it.
pub(crate) fn closest<'n>(
    name: &str,
    candidates: impl Iterator<Item = &'n str>,
) -> Option<&'n str> {
    let (distance, nearest) = nearest(name, candidates)?;
    (distance <= (nearest.len() / 3).max(2)).then_some(nearest)
}

/// The candidate closest to `name`, ignoring letter case, and the number of letters to change.
pub(crate) fn nearest<'n>(
    name: &str,
    candidates: impl Iterator<Item = &'n str>,
) -> Option<(usize, &'n str)> {
    // A long name is close to none; its first 64 characters show that.
    let name: String = name.chars().take(64).collect();
    let name = name.to_lowercase();
    let distances = candidates.map(|candidate| {
        let distance = strsim::levenshtein(&name, &candidate.to_lowercase());
        (distance, candidate)
    });
    distances.min_by_key(|(distance, _)| *distance)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The map of this level in the schema.
    fn in_schema(schema: &Value, level: KeyLevel) -> &Value {
        let name = match level {
            File => return schema,
            Descriptor => "descriptor",
            RateLimit => "rate_limit",
            Replaces => "replaces",
            Starts => "starts",
            Reserve => "reserve",
            Refusal => "refusal",
        };
        &schema["definitions"][name]
    }

    #[test]
    fn the_schema_describes_each_key_at_its_levels_and_passes_over_it_at_others() {
        let schema: Value = serde_json::from_str(RULES_SCHEMA).unwrap();
        for level in [
            File, Descriptor, RateLimit, Replaces, Starts, Reserve, Refusal,
        ] {
            let map = in_schema(&schema, level);
            let mut described = map["properties"].as_object().unwrap().clone();
            described.remove(SCHEMA);
            let misplaced = map["patternProperties"].as_object().unwrap();
            let passes_over = |name: &str| {
                let mut names = misplaced
                    .keys()
                    .flat_map(|pattern| pattern.trim_matches(['^', '(', ')', '$']).split('|'));
                names.any(|known| known == name)
            };
            for key in &KEYS {
                let property = described.remove(key.name);
                let is_here = key.belongs_to(level);
                assert_eq!(property.is_some(), is_here, "{level:?}: {}", key.name);
                assert_eq!(passes_over(key.name), !is_here, "{level:?}: {}", key.name);
                let Some(property) = property else {
                    continue;
                };
                let about = property["description"].as_str().unwrap();
                assert!(about.ends_with('.'), "{}: {about}", key.name);
                // The usual types of bodies are not all.
                for word in key.words.iter().filter(|_| key.name != "content_type") {
                    assert!(property.to_string().contains(word), "{}: {word}", key.name);
                }
            }
            assert!(described.is_empty(), "{level:?}: {described:?}");
        }
    }
}
