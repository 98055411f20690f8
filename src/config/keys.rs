//! The keys of rule files. Each is described once: the levels it belongs to, and the kind of its value. The lists of
//! keys, the suggestion for a misspelt one and the levels below follow from this table.

use super::suggest::closest;

/// A key of rule files.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Where it has a meaning; the first is named where it has none.
    levels: &'static [KeyLevel],
    pub(super) kind: KeyKind,
}

/// The maps that keys belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyLevel {
    File,
    Descriptor,
    RateLimit,
    Replaces,
    Starts,
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
}

use KeyKind::{Boolean, FreeForm, Limits, List, Map, Number, Text};
use KeyLevel::{Descriptor, File, RateLimit, Replaces, Starts};

/// Merges another map into this one.
pub(super) const MERGE: &str = "<<";

#[rustfmt::skip]
const KEYS: [Key; 30] = [
    // The set of rules that requests name.
    key("domain", &[File], Text),
    // The rules, and those below a rule.
    key("descriptors", &[File, Descriptor], List(Descriptor)),
    // Which hits are counted when a limit refuses: all or admitted.
    key("count", &[File, Descriptor], Text),
    // The answer while the store is lost: error, allow, deny or local.
    key("on_store_loss", &[File, Descriptor], Text),

    // The key of the entry that the rule matches.
    key("key", &[Descriptor], Text),
    // The value of that entry; any value if it is left out.
    key("value", &[Descriptor], Text),
    // The only limit of the rule.
    key("rate_limit", &[Descriptor], Map(RateLimit)),
    // Several limits.
    key("rate_limits", &[Descriptor], Limits),
    // Whether the rule counts and reports as usual but refuses nothing.
    key("shadow_mode", &[Descriptor], Boolean),
    // Whether the rule refuses only together with all others of the request.
    key("quota_mode", &[Descriptor], Boolean),
    // Whether metrics name every value.
    key("detailed_metric", &[Descriptor], Boolean),
    // Whether metrics name the value of this entry.
    key("value_to_metric", &[Descriptor], Boolean),
    // Whether all values that a wildcard matches share one counter.
    key("share_threshold", &[Descriptor], Boolean),
    // Data that is returned with the decision.
    key("metadata", &[Descriptor], FreeForm),

    // The unit of the period: second to year.
    key("unit", &[RateLimit], Text),
    // The number of units in the period.
    key("unit_multiplier", &[RateLimit], Number),
    // The hits that pass in a period.
    key("requests_per_unit", &[RateLimit], Number),
    // Whether everything passes.
    key("unlimited", &[RateLimit], Boolean),
    // The name that other limits replace this one by; in `replaces`, the name of the limit that is replaced.
    key("name", &[RateLimit, Replaces], Text),
    // Limits that do not apply where this one does.
    key("replaces", &[RateLimit], List(Replaces)),
    // The way to count.
    key("algorithm", &[RateLimit], Text),
    // The start of a fixed window: aligned or first_hit.
    key("window", &[RateLimit], Text),
    // The size of a token bucket.
    key("burst", &[RateLimit], Number),
    // Whether the period follows a calendar.
    key("calendar", &[RateLimit], Boolean),
    // The time zone of the calendar.
    key("time_zone", &[RateLimit], Text),
    // When months, years and days of the calendar begin.
    key("starts", &[RateLimit], Map(Starts)),
    // The first day of a week of the calendar.
    key("week_starts", &[RateLimit], Text),

    // The first month of a year, the first day of a month or year, and the first hour of a day.
    key("month", &[Starts], Number),
    key("day", &[Starts], Number),
    key("hour", &[Starts], Number),
];

const fn key(name: &'static str, levels: &'static [KeyLevel], kind: KeyKind) -> Key {
    Key { name, levels, kind }
}

impl Key {
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
            Map(_) | FreeForm => "a map",
        }
    }

    /// The level of the maps in the value, if they have one.
    pub(super) fn level(self) -> Option<KeyLevel> {
        match self {
            Map(level) | List(level) => Some(level),
            Limits => Some(RateLimit),
            Text | Boolean | Number | FreeForm => None,
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

/// Whether an unknown key probably means `key`.
pub(super) fn is_meant(unknown: &str, key: &'static str) -> bool {
    Key::find(unknown).is_none() && closest(unknown, std::iter::once(key)).is_some()
}
