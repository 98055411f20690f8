//! Traps of limits without a filter that uses them.

use super::super::{
    actions::Holder,
    finding::TrapSeverity,
    seen::CountOf,
    trap::{Scope, Subject, Trap},
};

/// The type of the filter, as it is written in `@type`.
const TYPE: &str = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit";

/// Limits in a connection manager without a rate limit filter.
pub(super) const NO_FILTER: Trap = Trap {
    name: "no-filter",
    look: |subject, report| match subject {
        Subject::UnknownFilter { filter, name } => report.add(
            filter,
            TrapSeverity::Error,
            format!("Envoy has no filter of the type `{name}`"),
            format!("did you mean `\"@type\": {TYPE}`?"),
        ),
        Subject::Scope { scope, .. } => {
            if let Some(manager) = &scope.manager
                && let Some(items) = items_without_filter(scope)
            {
                let filters = manager.get("http_filters");
                report.add(
                    filters.as_ref().unwrap_or(manager),
                    TrapSeverity::Error,
                    format!(
                        "no rate limit filter in this connection manager: its {} of `rate_limits` limit{} nothing",
                        CountOf(items, "item"),
                        if items == 1 { "s" } else { "" }
                    ),
                    "add envoy.filters.http.ratelimit before the router",
                );
            }
        }
        _ => {}
    },
};

/// The number of items of `rate_limits`, if there is any and no filter for them.
fn items_without_filter(scope: &Scope<'_>) -> Option<usize> {
    if !scope.filters.is_empty() || scope.has_unknown_filter {
        return None;
    }
    let items = scope.descriptors.iter();
    let items = items.filter(|item| item.holder != Holder::Filter).count();
    (items > 0).then_some(items)
}

/// Whether `name`, which is not the filter's, was probably meant to be it.
pub(crate) fn resembles_filter(name: &str) -> bool {
    let letters = |name: &str| -> String {
        let letters = name.chars().filter(char::is_ascii_alphabetic);
        letters.map(|letter| letter.to_ascii_lowercase()).collect()
    };
    let (name, own) = (letters(name), letters(TYPE));
    let own = own.strip_prefix("typegoogleapiscom").unwrap_or(&own);
    let has_own_words = name.contains("httpratelimit");
    let is_other = name.contains("quota") || name.contains("local");
    (has_own_words || is_one_slip(&name, own)) && !is_other
}

/// Whether a change of at most three letters at one place leads from one text to the other.
pub(crate) fn is_one_slip(one: &str, other: &str) -> bool {
    const MAX_LETTERS: usize = 3;
    let common =
        |pairs: &mut dyn Iterator<Item = (u8, u8)>| pairs.take_while(|(a, b)| a == b).count();
    let before = common(&mut one.bytes().zip(other.bytes()));
    let behind = common(&mut one.bytes().rev().zip(other.bytes().rev()));
    let left = |text: &str| text.len().saturating_sub(before + behind);
    // A short name is close to many others.
    let bound = MAX_LETTERS.min(other.len() / 3);
    one != other && left(one).max(left(other)) <= bound
}
