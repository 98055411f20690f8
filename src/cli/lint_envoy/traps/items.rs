//! Traps in items of `rate_limits`.

use super::super::{
    actions::{self, Holder, OrderName},
    document::DocumentValue,
    finding::{Findings, Trap},
    surroundings::{ItemList, OptionalValue},
};

/// Checks a list `rate_limits` for limits that a client escapes by leaving something out.
pub(crate) fn items<'d>(list: &ItemList<'_, 'd>, found: &mut Findings) {
    if !list.has_fallback() {
        for item in list.items {
            absent_value(list, item, found);
        }
    }
}

fn absent_value<'d>(list: &ItemList<'_, 'd>, item: &DocumentValue<'d>, found: &mut Findings) {
    // An item that counts after the response refuses no request.
    if item.is_true("apply_on_stream_done") {
        return;
    }
    let mut optional = list.optional_values(item);
    let is_shortened = optional.iter().all(|value| value.is_skipped);
    if is_shortened && item.list("actions").len() > optional.len() {
        return;
    }
    if !is_shortened {
        optional.retain(|value| !value.is_skipped);
    }
    let Some(first) = optional.first() else {
        return;
    };
    let names: Vec<_> = optional.iter().map(OptionalValue::shown).collect();
    let (separator, consequence) = if is_shortened {
        (
            " and the ",
            "with `skip_if_absent` its descriptor is empty, and no rule matches that",
        )
    } else {
        (" or the ", "Envoy then sends no descriptor for this item")
    };
    let names = names.join(separator);
    found.warning(
        Trap::AbsentValue,
        &first.action,
        format!("a client that leaves out the {names} is not limited: {consequence}"),
        "add an item that every request matches, such as `actions: [{ remote_address: {} }]`, or \
         refuse such requests",
    );
}

/// Checks an item of `rate_limits`.
pub(crate) fn item(item: &DocumentValue<'_>, holder: Holder, found: &mut Findings) {
    if holder == Holder::Route
        && let Some(addend) = item.get("hits_addend")
    {
        let consequence = match item.is_true("apply_on_stream_done") {
            true => "the call at the end of the stream counts one hit",
            false => "every request counts as one hit",
        };
        found.error(
            Trap::HitsAddend,
            &addend,
            format!("Envoy does not send `hits_addend` from here: {consequence}"),
            "move this item to a RateLimitPerRoute in `typed_per_filter_config`, or to the \
             filter's own `rate_limits`",
        );
    }
    for locality in actions::early_localities(item) {
        found.error(
            Trap::NoHostYet,
            &locality,
            "CLUSTER_LOCALITY_ENTRY is empty until Envoy has chosen a host: the descriptor is left out",
            "add `apply_on_stream_done: true`, or use another source",
        );
    }
    if item.is_true("apply_on_stream_done") && OrderName::of(item).is_none() {
        found.advice(
            Trap::StreamDone,
            item,
            "hits that are counted after the response include those of refused requests",
            "allow for that in the limit",
        );
    }
    for action in item.list("actions") {
        if let Some(headers) = action.get("request_headers")
            && let Some(name @ (":path" | "x-envoy-original-path")) = headers.text_of("header_name")
        {
            found.warning(
                Trap::QueryString,
                &headers,
                format!(
                    "`{name}` includes the query string: a client that changes it in each request has a \
                     new counter each time, and a rule for the path alone does not match"
                ),
                "write a `generic_key` on each route, or an `extension` of type \
                 envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor with `text: request.url_path`",
            );
        }
    }
}

/// Reports a map at `key`, where a list is meant.
pub(crate) fn single_item(key: &str, value: &DocumentValue<'_>, found: &mut Findings) {
    found.advice(
        Trap::ListOfOne,
        value,
        format!(
            "`{key}` is a list: Envoy reads this map as its only item, and other readers, such as Istio, \
             refuse it"
        ),
        "write `- ` before the item, or put it in brackets",
    );
}
