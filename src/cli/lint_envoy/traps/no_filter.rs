//! Traps in items that are meant to be a rate limit filter but are not.

use super::super::{
    document::DocumentValue,
    finding::{Findings, Trap},
};

/// The type of the filter, as it is written in `@type`.
const TYPE: &str = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit";

/// The usual name of the filter.
pub(super) const USUAL_NAME: &str = "envoy.filters.http.ratelimit";

/// Types of Envoy's API v2, which was removed, and the current ones.
const OLD_TYPES: [(&str, &str); 3] = [
    (
        "envoy.config.filter.http.rate_limit.v2.RateLimit",
        "envoy.extensions.filters.http.ratelimit.v3.RateLimit",
    ),
    (
        "envoy.config.filter.network.rate_limit.v2.RateLimit",
        "envoy.extensions.filters.network.ratelimit.v3.RateLimit",
    ),
    (
        "envoy.config.filter.network.http_connection_manager.v2.HttpConnectionManager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    ),
];

/// Names of filters in Envoy's API v2, and the current ones.
pub(super) const OLD_NAMES: [(&str, &str); 5] = [
    ("envoy.rate_limit", USUAL_NAME),
    ("envoy.ratelimit", "envoy.filters.network.ratelimit"),
    (
        "envoy.http_connection_manager",
        "envoy.filters.network.http_connection_manager",
    ),
    ("envoy.router", "envoy.filters.http.router"),
    ("envoy.tcp_proxy", "envoy.filters.network.tcp_proxy"),
];

/// Checks a filter whose `@type` Envoy does not know, but that resembles the rate limit filter's.
pub(crate) fn unknown_filter(filter: &DocumentValue<'_>, name: &str, found: &mut Findings) {
    let (text, fix) = match OLD_TYPES.iter().find(|(old, _)| *old == name) {
        Some((_, new)) => (
            format!("`{name}` is a type of Envoy's API v2, which is gone: Envoy refuses it"),
            format!("did you mean `\"@type\": type.googleapis.com/{new}`?"),
        ),
        None => (
            format!("Envoy has no filter of the type `{name}`"),
            format!("did you mean `\"@type\": {TYPE}`?"),
        ),
    };
    found.error(Trap::NoFilter, filter, text, fix);
}

/// Checks an item of `http_filters`, or of a patch that adds one, for settings below `config`, as in Envoy's API v2.
pub(crate) fn untyped(entry: &DocumentValue<'_>, found: &mut Findings) {
    let name = entry.text_of("name").unwrap_or_default();
    if let Some(config) = entry.get("config")
        && is_usual_name(name)
        && entry.get("typed_config").is_none()
    {
        found.error(
            Trap::NoFilter,
            &config,
            format!("`config` of `{name}` is from Envoy's API v2, which is gone: it is not read"),
            format!("write `name: {USUAL_NAME}`, and `typed_config` with `\"@type\": {TYPE}`"),
        );
    }
}

/// Whether a filter of this name is a rate limit filter, unless its type says otherwise.
pub(crate) fn is_usual_name(name: &str) -> bool {
    name == USUAL_NAME || name == OLD_NAMES[0].0
}

/// Whether a filter of this name is the router, unless its type says otherwise.
pub(crate) fn is_router_name(name: &str) -> bool {
    matches!(name, "envoy.filters.http.router" | "envoy.router")
}

/// Whether `name`, which is not the filter's name, was probably meant to be.
pub(crate) fn resembles_filter(name: &str) -> bool {
    let letters = |name: &str| -> String {
        let letters = name.chars().filter(char::is_ascii_alphabetic);
        letters.map(|letter| letter.to_ascii_lowercase()).collect()
    };
    if OLD_TYPES.iter().any(|(old, _)| *old == name) {
        return true;
    }
    let (name, own) = (letters(name), letters(TYPE));
    let own = own.strip_prefix("typegoogleapiscom").unwrap_or(&own);
    let has_own_words = name.contains("httpratelimit");
    let is_other = name.contains("quota") || name.contains("local");
    (has_own_words || is_one_slip(&name, own)) && !is_other
}

/// Whether changing at most three letters in one place turns one text into the other.
pub(crate) fn is_one_slip(one: &str, other: &str) -> bool {
    const MAX_LETTERS: usize = 3;
    let common =
        |pairs: &mut dyn Iterator<Item = (u8, u8)>| pairs.take_while(|(a, b)| a == b).count();
    let before = common(&mut one.bytes().zip(other.bytes()));
    let after = common(&mut one.bytes().rev().zip(other.bytes().rev()));
    let left = |text: &str| text.len().saturating_sub(before + after);
    // Short names are close to many others.
    let bound = MAX_LETTERS.min(other.len() / 3);
    one != other && left(one).max(left(other)) <= bound
}
