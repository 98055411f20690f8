//! Traps in orders to tollgate: the settlement of reservations, and hits that are given back.

use super::super::{
    actions::{self, Holder, KnownRules, OrderName, RateLimitItem, RuleCharging},
    finding::{Findings, Trap, TrapSeverity},
    scope::{Filter, Scope},
};
use super::no_filter::USUAL_NAME;
use crate::cli::lint_envoy::surroundings::{self, AnswerPart};

/// Fields in the metadata of tollgate's replies that are numbers.
const NUMBERS: [&str; 2] = ["reserved", "hitsAddend"];

/// The first Envoy, major and minor, that has the headers of the answer at the end of a stream.
const HEADERS_SINCE: (u64, u64) = (1, 40);

/// A cost that is there for real answers only, in all versions of Envoy.
const FROM_METADATA: &str = "hits_addend: { format: \"%DYNAMIC_METADATA(tollgate:tokens)%\" }";

/// Checks the items of one list for costs that are lost, or charged for refusals.
pub(crate) fn costs(items: &[RateLimitItem<'_>], found: &mut Findings) {
    for item in items {
        let charges_rest = |other: &RateLimitItem<'_>| {
            other.order == Some(OrderName::Unreserved) && other.entries == item.entries
        };
        if item.order == Some(OrderName::Reservation) && !items.iter().any(charges_rest) {
            found.warning(
                Trap::LostCost,
                &item.value,
                "the cost of a request is lost if Envoy did not wait for its reservation",
                "add an item with these actions and this `hits_addend`, but with `generic_key: { descriptor_key: \
                 tollgate.unreserved, descriptor_value: \"1\" }` in place of the reservation",
            );
        }
        let is_cost = matches!(
            item.order,
            Some(OrderName::Reservation | OrderName::Unreserved)
        );
        // A refused request has no reservation.
        let is_sent = !actions::needs_metadata(&item.value);
        if is_cost && is_sent && surroundings::has_value_on_refusal(&item.value) {
            let addend = item.value.get("hits_addend");
            found.warning(
                Trap::ChargedRefusals,
                addend.as_ref().unwrap_or(&item.value),
                "refused requests have these hits as well, and are charged",
                format!(
                    "take them from a value that only a real answer has, such as `{FROM_METADATA}`, where \
                     envoy.filters.http.header_to_metadata puts a header of the upstream"
                ),
            );
        }
    }
}

/// Checks the items of one list for hits that Envoy can no longer read when it sends the item. Its version is major and
/// minor, if known.
pub(crate) fn late_headers(
    items: &[RateLimitItem<'_>],
    version: Option<(u64, u64)>,
    found: &mut Findings,
) {
    for item in items {
        // From a route Envoy sends no addend at all.
        if item.holder == Holder::Route || !item.value.is_true("apply_on_stream_done") {
            continue;
        }
        let until = match surroundings::part_of_answer(&item.value) {
            // An unknown version is less than all others.
            Some(AnswerPart::Headers) if version < Some(HEADERS_SINCE) => " before Envoy 1.40",
            Some(AnswerPart::Trailers) => "",
            _ => continue,
        };
        let addend = item.value.get("hits_addend");
        found.warning(
            Trap::LateHeader,
            addend.as_ref().unwrap_or(&item.value),
            format!(
                "`{}` has no value at the end of a stream{until}: the item is left out",
                surroundings::format(&item.value).unwrap_or_default()
            ),
            format!(
                "have envoy.filters.http.header_to_metadata read a header of the answer, and write `{FROM_METADATA}`"
            ),
        );
    }
}

/// Checks the orders of a connection manager, with the rules if they are known.
pub(super) fn orders(scope: &Scope<'_>, rules: Option<&KnownRules<'_>>, found: &mut Findings) {
    for item in &scope.descriptors {
        numbers_as_texts(scope, item, found);
        let is_at_end = item.value.is_true("apply_on_stream_done");
        match item.order {
            None if is_at_end => give_back(scope, item, rules, found),
            None => reservation(scope, item, rules, found),
            Some(_) => {}
        }
    }
    let mut orders = scope.descriptors.iter().filter_map(|item| item.order);
    if orders.any(|order| order != OrderName::Unreserved) {
        retried_settlements(scope, found);
        shared_metadata(scope, rules, found);
    }
}

/// The most that a rule demands which an item can reach.
fn charging(
    scope: &Scope<'_>,
    item: &RateLimitItem<'_>,
    rules: Option<&KnownRules<'_>>,
) -> RuleCharging {
    let (Some(rules), Some(entries)) = (rules, &item.entries) else {
        return RuleCharging::Any;
    };
    let domains = scope.domains_of(item).into_iter();
    let charging = domains.map(|domain| rules.charging(domain, entries));
    charging.max().unwrap_or_default()
}

/// Whether there is an order, one that `is_meant`, for the entries of an item.
fn is_ordered_for(
    scope: &Scope<'_>,
    item: &RateLimitItem<'_>,
    is_meant: impl Fn(OrderName) -> bool,
) -> bool {
    let mut others = scope.descriptors.iter();
    others.any(|other| other.order.is_some_and(&is_meant) && other.entries == item.entries)
}

/// Checks an item that is sent at the request.
fn reservation(
    scope: &Scope<'_>,
    item: &RateLimitItem<'_>,
    rules: Option<&KnownRules<'_>>,
    found: &mut Findings,
) {
    let charging = charging(scope, item, rules);
    let is_released = || is_ordered_for(scope, item, |order| order == OrderName::Release);
    if charging == RuleCharging::Slots && !is_released() {
        found.warning(
            Trap::NoRelease,
            &item.value,
            "a rule of this descriptor has `algorithm: concurrency`, but no item orders `tollgate.release`: each \
             request counts as in flight until the `ttl` ends",
            "add an item with these actions, then a `metadata` action of the key `tollgate.release` that reads \
             `reservation`, and `apply_on_stream_done: true`",
        );
    }
    if charging == RuleCharging::Released && !is_released() {
        found.warning(
            Trap::NoRelease,
            &item.value,
            "a rule of this descriptor has `missing: zero`, but no item orders `tollgate.release`: streams without a \
             cost keep their estimate",
            "add an item with these actions, then a `metadata` action of the key `tollgate.release` that reads \
             `reservation`, and `apply_on_stream_done: true`",
        );
    }
    let reserves = || charging >= RuleCharging::Reserved || is_ordered_for(scope, item, |_| true);
    // From a route Envoy sends no addend at all.
    if let Some(header) = item.optional_addend
        && item.holder != Holder::Route
        && reserves()
    {
        found.warning(
            Trap::AddendWithoutEstimate,
            item.value.get("hits_addend").as_ref().unwrap_or(&item.value),
            format!(
                "a client that leaves out the header `{header}` is not limited: Envoy then sends no descriptor for \
                 this item"
            ),
            "remove `hits_addend`, and write `estimate` in the `reserve` of the rule",
        );
    }
}

/// Checks an item at the end of the stream that is no order.
fn give_back(
    scope: &Scope<'_>,
    item: &RateLimitItem<'_>,
    rules: Option<&KnownRules<'_>>,
    found: &mut Findings,
) {
    let addend = item.value.get("hits_addend");
    let Some(addend) = addend.filter(|addend| addend.is_true("is_negative_hits")) else {
        return;
    };
    let is_gated =
        actions::needs_metadata(&item.value) || !surroundings::has_value_on_refusal(&item.value);
    if is_gated || item.holder == Holder::Route {
        return;
    }
    let (severity, consequence) = match charging(scope, item, rules) {
        RuleCharging::Any => (
            TrapSeverity::Advice,
            "which were not charged if the rule has `count: admitted` or `reserve`, or if several replicas share a \
             Redis",
        ),
        RuleCharging::Slots => return,
        RuleCharging::Admitted | RuleCharging::Reserved | RuleCharging::Released => (
            TrapSeverity::Warning,
            "which a rule of this descriptor never charged",
        ),
    };
    found.add(
        severity,
        Trap::UngatedGiveBack,
        &addend,
        format!("refused requests give back hits, too, {consequence}"),
        "add a `metadata` action without `default_value` that reads what only admitted requests have, or use a value \
         that only a real answer has",
    );
}

/// Reports actions that read numbers from the metadata of tollgate's replies.
fn numbers_as_texts(scope: &Scope<'_>, item: &RateLimitItem<'_>, found: &mut Findings) {
    for action in item.value.list("actions") {
        let Some(metadata) = action.get("metadata") else {
            continue;
        };
        let is_dynamic = matches!(metadata.text_of("source"), None | Some("DYNAMIC" | "0"));
        let Some(key) = metadata.get("metadata_key").filter(|_| is_dynamic) else {
            continue;
        };
        let from = key.text_of("key").unwrap_or_default();
        let is_reply = from == USUAL_NAME || scope.filters.iter().any(|own| namespace(own) == from);
        let path = key.list("path");
        let [field] = &path[..] else {
            continue;
        };
        let field = field.text_of("key").unwrap_or_default();
        if is_reply && NUMBERS.contains(&field) {
            found.error(
                Trap::StringMetadata,
                &metadata,
                format!(
                    "`{field}` is a number, and this action reads texts only: Envoy finds nothing, and without a \
                     default sends no descriptor"
                ),
                format!(
                    "read a text such as `reservation`, or take the number by `hits_addend: {{ format: \
                     \"%DYNAMIC_METADATA({from}:{field})%\" }}`"
                ),
            );
        }
    }
}

/// Reports filters whose calls are retried, settlements too.
fn retried_settlements(scope: &Scope<'_>, found: &mut Findings) {
    let policy = ["rate_limit_service", "grpc_service", "retry_policy"];
    let policies = scope.filters.iter();
    for policy in policies.filter_map(|filter| filter.value.at(&policy)) {
        found.warning(
            Trap::Retries,
            &policy,
            "a settlement that is retried gives back once more if it reaches another replica; one process ignores the \
             second",
            "remove `retry_policy`",
        );
    }
}

/// Reports filters whose replies replace the reservation of an earlier filter.
fn shared_metadata(scope: &Scope<'_>, rules: Option<&KnownRules<'_>>, found: &mut Findings) {
    // Outside connection managers the file does not show which filters are in one chain.
    if scope.manager.is_none() {
        return;
    }
    let reserving = scope.filters.iter();
    let reserving: Vec<_> = reserving
        .filter(|filter| may_reserve(scope, filter, rules))
        .collect();
    for (at, filter) in reserving.iter().enumerate() {
        let own = namespace(filter);
        if reserving[..at]
            .iter()
            .any(|earlier| namespace(earlier) == own)
        {
            let set = filter.value.get("metadata_namespace");
            found.warning(
                Trap::SharedMetadata,
                set.as_ref().unwrap_or(&filter.value),
                format!(
                    "two rate limit filters write the metadata `{own}`: a reservation of the first is lost if the \
                     last one has one"
                ),
                "give each its own `metadata_namespace`, and name it in `metadata_key`",
            );
        }
    }
}

/// Whether replies to a filter can have a reservation: it orders something for one, or a rule reserves.
fn may_reserve(scope: &Scope<'_>, filter: &Filter<'_>, rules: Option<&KnownRules<'_>>) -> bool {
    let mut items = scope.descriptors.iter();
    items.any(|item| {
        let is_charged = || {
            let domain = item.domain.or(filter.domain.as_deref())?;
            Some(rules?.charging(domain, item.entries.as_ref()?) >= RuleCharging::Slots)
        };
        is_sent_by(item, filter) && (item.order.is_some() || is_charged() == Some(true))
    })
}

/// Whether the filter sends an item, as far as the place of the item shows.
fn is_sent_by(item: &RateLimitItem<'_>, filter: &Filter<'_>) -> bool {
    let path = item.value.path();
    match item.holder {
        Holder::Route => item.stage() == filter.stage,
        Holder::PerRoute => path.contains(&format!(".{}.", filter.name)),
        Holder::Filter => path.starts_with(&filter.value.path()),
    }
}

/// The namespace of the metadata that a filter writes.
fn namespace<'d>(filter: &Filter<'d>) -> &'d str {
    let own = filter.value.text_of("metadata_namespace");
    own.filter(|own| !own.is_empty()).unwrap_or(USUAL_NAME)
}
