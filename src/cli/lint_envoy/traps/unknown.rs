//! Fields of limits that Envoy does not know.

use super::super::{
    document::{DocumentValue, camel},
    finding::{Findings, Trap},
};
use crate::config::suggest::closest;

/// The actions that Envoy knows.
const ACTIONS: [&str; 13] = [
    "source_cluster",
    "destination_cluster",
    "request_headers",
    "query_parameters",
    "remote_address",
    "generic_key",
    "header_value_match",
    "dynamic_metadata",
    "metadata",
    "extension",
    "masked_remote_address",
    "query_parameter_value_match",
    "remote_address_match",
];

/// The fields of an item of `rate_limits`.
const ITEM: [&str; 7] = [
    "actions",
    "stage",
    "disable_key",
    "limit",
    "hits_addend",
    "apply_on_stream_done",
    "x_ratelimit_option",
];

/// Checks an item of `rate_limits`, even without `actions`.
pub(crate) fn unknown_actions(item: &DocumentValue<'_>, found: &mut Findings) {
    let has_actions = item.get("actions").is_some();
    let is_misspelt = |name: &str| closest(name, ["actions"].into_iter()).is_some();
    // Other messages than Envoy's have lists of this name too.
    if has_actions || item.entries().iter().any(|(name, _)| is_misspelt(name)) {
        unknown_fields(item, "field of `rate_limits`", &ITEM, found);
    }
    for action in item.list("actions") {
        let kinds = ACTIONS.iter().filter(|kind| action.get(kind).is_some());
        let kinds = kinds.count();
        if !unknown_fields(&action, "action", &ACTIONS, found) && kinds != 1 {
            found.error(
                Trap::UnknownField,
                item,
                format!(
                    "an item of `actions` is one action, and this has {kinds}: Envoy refuses it"
                ),
                "write one in each item, such as `- remote_address: {}`",
            );
        }
    }
}

/// Checks a descriptor of the TCP filter.
pub(super) fn unknown_entries(descriptor: &DocumentValue<'_>, found: &mut Findings) {
    let fields = ["entries", "limit", "hits_addend", "is_negative_hits"];
    unknown_fields(descriptor, "field of a descriptor", &fields, found);
    for entry in descriptor.list("entries") {
        unknown_fields(&entry, "field of an entry", &["key", "value"], found);
    }
}

/// Reports the fields of a map that are not in `known`. Returns whether there are any.
fn unknown_fields(
    value: &DocumentValue<'_>,
    what: &str,
    known: &[&str],
    found: &mut Findings,
) -> bool {
    let mut unknown = value.entries();
    unknown.retain(|(name, _)| {
        !known
            .iter()
            .any(|known| name == known || *name == camel(known))
    });
    for (name, _) in &unknown {
        let fix = match closest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("write one of {}", known.join(", ")),
        };
        let text = format!("Envoy has no {what} `{name}`, and refuses it");
        // The value of the field could be an empty map, which has no position.
        found.error(Trap::UnknownField, value, text, fix);
    }
    !unknown.is_empty()
}
