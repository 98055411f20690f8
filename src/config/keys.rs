//! The keys of rule files. Each is described once: the levels it belongs to, and the kind of its value. The lists of
//! keys, the suggestion for a misspelt one and the levels below follow from this table.

use super::suggest::closest;
use crate::core::{kind::WORDS, limit::Limit};

/// A key of rule files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Where it has a meaning; the first is named where it has none.
    levels: &'static [KeyLevel],
    pub(super) kind: KeyKind,
    /// Its meaning, in a sentence.
    pub(super) about: &'static str,
    pub(super) values: KeyValues,
    /// The value that holds without it, in YAML; empty if there is none.
    pub(super) default: &'static str,
    /// Values in YAML's flow style.
    pub(super) examples: &'static [&'static str],
}

/// The values of a key, beyond their kind.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyValues {
    Any,
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of these words, in any letter case.
    AnyCase(&'static [&'static str]),
    /// From the first number to the last.
    Between(u64, u64),
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

use KeyKind::{Boolean, FreeForm, Limits, List, Map, Number, Text, Texts};
use KeyLevel::{Descriptor, File, RateLimit, Refusal, Replaces, Reserve, Starts};

/// Merges another map into this one.
pub(super) const MERGE: &str = "<<";

/// Names the schema of a file at its top, for editors; it has no meaning for the rules.
pub(super) const SCHEMA: &str = "$schema";

#[rustfmt::skip]
const KEYS: [Key; 40] = [
    key("domain", &[File], Text)
        .about("The set of rules that requests name.")
        .examples(&["shop"]),
    key("descriptors", &[File, Descriptor], List(Descriptor))
        .about("The rules; below a descriptor, the rules for the next entry of the request.")
        .examples(&["[{key: remote_address, rate_limits: [3/second, 5000/day]}]"]),
    key("count", &[File, Descriptor], Text)
        .about("Which hits are counted when a limit refuses; beside `domain`, for all rules of the file without it.")
        .words(&["all", "admitted"]).or("all"),
    key("on_store_loss", &[File, Descriptor], Text)
        .about("The answer while the store is lost; beside `domain`, for all rules of the file without it.")
        .words(&["error", "allow", "deny", "local"]).or("error"),
    key("refusal", &[File, Descriptor], Map(Refusal))
        .about("The body that clients get with a refusal; beside `domain`, for all rules of the file without it.")
        .examples(&["{body: problem+json}"]),

    key("key", &[Descriptor], Text)
        .about("The key of the entry that the rule matches.")
        .examples(&["remote_address"]),
    key("value", &[Descriptor], Text)
        .about("The value of that entry, where `*` stands for any characters; any value if it is left out.")
        .examples(&["free", "/v1/*"]),
    key("rate_limit", &[Descriptor], Map(RateLimit))
        .about("The only limit of the rule.")
        .examples(&["{unit: second, requests_per_unit: 10}"]),
    key("rate_limits", &[Descriptor], Limits)
        .about("Several limits, all of which hold, each as a map or in the short form.")
        .examples(&["[3/second, 300/30m, 5000/day]"]),
    key("shadow_mode", &[Descriptor], Boolean)
        .about("Whether the rule counts and reports as usual but refuses nothing."),
    key("quota_mode", &[Descriptor], Boolean)
        .about("Whether the rule refuses only together with all other rules of the request that have this mode."),
    key("detailed_metric", &[Descriptor], Boolean)
        .about("Whether metrics name the values of the request at every level."),
    key("value_to_metric", &[Descriptor], Boolean)
        .about("Whether metrics name the value of this entry."),
    key("share_threshold", &[Descriptor], Boolean)
        .about("Whether all values that the wildcard matches share one counter."),
    key("reserve", &[Descriptor], Map(Reserve))
        .about("Charges hits before they are used, and settles them with their cost at the end of the stream.")
        .examples(&["{estimate: 800}", "{}"]),
    key("accuracy", &[Descriptor], Text)
        .about("How hits reach Redis: one by one, or in slices that each worker charges in advance. Both are exact.")
        .words(&["exact", "exact-leased"]).or("exact"),
    key("metadata", &[Descriptor], FreeForm)
        .about("Data that is returned with the decision, for Envoy's later filters.")
        .examples(&["{team: search}"]),

    key("unit", &[RateLimit], Text)
        .about("The unit of the period, in any letter case.")
        .any_case(&["second", "minute", "hour", "day", "week", "month", "year"]),
    key("unit_multiplier", &[RateLimit], Number)
        .about("The number of units in the period.")
        .between(1, u32::MAX as u64).or("1").examples(&["15"]),
    key("requests_per_unit", &[RateLimit], Number)
        .about("The hits that pass in a period, or the requests in flight; 0 refuses everything.")
        .between(0, Limit::MAX_REQUESTS).or("0").examples(&["100"]),
    key("unlimited", &[RateLimit], Boolean)
        .about("Whether everything passes without counting. Such a limit has no unit."),
    key("name", &[RateLimit, Replaces], Text)
        .about("The name by which other limits replace this one; in `replaces`, the name of the limit to replace.")
        .examples(&["every-tenant"]),
    key("replaces", &[RateLimit], List(Replaces))
        .about("Limits that do not apply where this one does.")
        .examples(&["[{name: every-tenant}]"]),
    key("algorithm", &[RateLimit], Text)
        .about("The way to count.")
        .words(WORDS).or("fixed_window"),
    key("window", &[RateLimit], Text)
        .about("The start of a fixed window: a whole number of periods since 1970, or the first hit.")
        .words(&["aligned", "first_hit"]).or("aligned"),
    key("burst", &[RateLimit], Number)
        .about("The size of a token bucket; `requests_per_unit` if it is left out.")
        .between(1, Limit::MAX_REQUESTS).examples(&["30"]),
    key("ttl", &[RateLimit], Text)
        .about("The longest time for which a request in flight counts, if its end is not heard of; for `concurrency`.")
        .examples(&["2m", "90s"]),
    key("calendar", &[RateLimit], Boolean)
        .about("Whether the period follows the calendar of a time zone."),
    key("time_zone", &[RateLimit], Text)
        .about("The time zone of the calendar.")
        .examples(&["Europe/Madrid", "UTC"]),
    key("starts", &[RateLimit], Map(Starts))
        .about("When months, years and days of the calendar begin.")
        .examples(&["{day: 31, hour: 6}"]),
    key("week_starts", &[RateLimit], Text)
        .about("The first day of a week of the calendar, in any letter case.")
        .any_case(&["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]).or("monday"),

    key("month", &[Starts], Number)
        .about("The first month of a year.")
        .between(1, 12).or("1"),
    key("day", &[Starts], Number)
        .about("The first day of a month or year; in a shorter month its last day.")
        .between(1, 31).or("1"),
    key("hour", &[Starts], Number)
        .about("The first hour of a day.")
        .between(0, 23).or("0"),

    key("estimate", &[Reserve], Number)
        .about("The hits to reserve for a request that brings no number of its own.")
        .between(1, Limit::MAX_REQUESTS).or("1").examples(&["800"]),
    key("missing", &[Reserve], Text)
        .about("The cost of a stream that is released without one: what was reserved, or nothing.")
        .words(&["estimate", "zero"]).or("estimate"),

    key("body", &[Refusal], Text)
        .about("The body: `problem+json` (RFC 9457), `none`, or a text with placeholders such as `{retry_after}`.")
        .examples(&["problem+json", "'Too many requests; try again in {retry_after} s.'"]),
    key("content_type", &[Refusal], Text)
        .about("The type of a text; values of placeholders are escaped for it.")
        .or("text/plain").examples(&["text/html", "application/json"]),
    key("status", &[Refusal], Number)
        .about("The status that the body shows; Envoy's `rate_limited_status` decides that of the response.")
        .between(400, 599).or("429").examples(&["503"]),
    key("headers", &[Refusal], Texts)
        .about("Headers that the refused response gets besides.")
        .examples(&["{x-should-retry: 'false'}"]),
];

const fn key(name: &'static str, levels: &'static [KeyLevel], kind: KeyKind) -> Key {
    Key {
        name,
        levels,
        kind,
        about: "",
        values: KeyValues::Any,
        default: match kind {
            Boolean => "false",
            _ => "",
        },
        examples: &[],
    }
}

impl Key {
    const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    const fn words(self, words: &'static [&'static str]) -> Self {
        let values = KeyValues::Words(words);
        Self { values, ..self }
    }

    const fn any_case(self, words: &'static [&'static str]) -> Self {
        let values = KeyValues::AnyCase(words);
        Self { values, ..self }
    }

    const fn between(self, low: u64, high: u64) -> Self {
        let values = KeyValues::Between(low, high);
        Self { values, ..self }
    }

    const fn or(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    const fn examples(self, examples: &'static [&'static str]) -> Self {
        Self { examples, ..self }
    }
}

impl Key {
    /// The key of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// All keys, in the order of the table.
    pub(super) fn all() -> impl Iterator<Item = &'static Self> {
        KEYS.iter()
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

/// Whether the value of a key of this name is a scalar.
pub(super) fn is_scalar(name: &str) -> bool {
    Key::find(name).is_some_and(|key| matches!(key.kind, Text | Boolean | Number))
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

/// The word that is meant by one that the key of this name does not take: a close one, or one with a part of it, as
/// `token_bucket` has of `leaky_bucket`.
pub(super) fn word_instead_of(word: &str, key: &str) -> Option<&'static str> {
    let key = Key::find(key)?;
    let words = match key.values {
        KeyValues::Words(words) | KeyValues::AnyCase(words) => words,
        KeyValues::Any | KeyValues::Between(..) => {
            return closest(word, key.examples.iter().copied());
        }
    };
    let parts = |text: &'_ str| -> Vec<String> {
        let parts = text.split(|letter: char| !letter.is_alphanumeric());
        parts.map(str::to_lowercase).collect()
    };
    let own = parts(word);
    let has_part = |known: &&str| parts(known).iter().any(|part| own.contains(part));
    let mut known = words.iter().copied();
    closest(word, known.clone()).or_else(|| known.find(has_part))
}

/// Whether an unknown key probably means `key`.
pub(super) fn is_meant(unknown: &str, key: &'static str) -> bool {
    Key::find(unknown).is_none() && closest(unknown, std::iter::once(key)).is_some()
}
