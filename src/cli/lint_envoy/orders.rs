//! Findings about budgets and slots: orders at the end of a stream that never arrive, and costs there that are not
//! charged.

use std::collections::BTreeSet;

use super::{
    document::quoted,
    finding::{Findings, Trap},
    groups::ItemList,
    item::{Holder, KnownEntry, LimitItem, RELEASE, RESERVATION, UNRESERVED},
    model::FILTER_NAME,
    rules::KnownRules,
};
use crate::{
    config::fault::FaultLevel::{self, Error, Warning},
    core::limit::{Allows, CountPolicy, LeasePolicy, MissingCost, Rule},
};

/// Most rules that are looked at for the items of a file; beyond, nothing is found.
const MAX_JUDGED: usize = 10_000_000;

/// A finding about an item, if there is one.
type AboutItem = Option<(FaultLevel, Trap, String)>;

/// Checks all items, with the rules if they are known.
pub(super) fn check<'d>(
    lists: &[ItemList<'_, 'd>],
    rules: Option<&KnownRules<'_>>,
    found: &mut Findings<'d>,
) {
    let mut left = MAX_JUDGED;
    for list in lists {
        let read = || list.items.iter().copied().chain(list.beside);
        let own = read().filter_map(|item| Some((item.order?, item.entries.as_deref())));
        let given_back = read().filter(|item| item.is_at_end && item.gives_back());
        let readers = list.readers.values();
        let orders = OrderCheck {
            own: own.collect(),
            given_back: given_back.map(|item| item.entries.as_deref()).collect(),
            namespaces: readers.map(|reader| reader.filter.namespace()).collect(),
        };
        for item in &list.items {
            if let Some(order) = item.order {
                orders.order(item, order, found);
                continue;
            }
            let (Some(rules), Some(entries)) = (rules, &item.entries) else {
                continue;
            };
            let domains = list.domains(item).into_iter();
            let reached = domains.filter_map(|domain| rules.reached(domain, entries));
            let reached = reached.flat_map(|rules| rules.to_vec()).take(left);
            let mut reached = reached.inspect(|_| left -= 1);
            // One finding is enough, however many rules its values lead to.
            let first = reached.find_map(|rule| match item.holder {
                Holder::TcpFilter => of_connection(rule),
                _ if item.is_at_end => orders.cost(item, rule),
                _ => orders.request(item, rule),
            });
            if let Some((level, trap, text)) = first {
                found.add(level, trap, item.value, text);
            }
        }
    }
}

/// Whether a rule takes something that an order at the end of the stream gives back.
fn needs_order(rule: &Rule) -> bool {
    rule.reserve().is_some() || rule.lease == Some(LeasePolicy::Slots)
}

/// Why a rule charges a cost at the end only if it still fits; `None` if it always charges it.
fn charges_what_fits(rule: &Rule) -> Option<String> {
    let Allows::Within(limits) = &rule.allows else {
        return None;
    };
    let looking = limits.iter().find(|limit| limit.algorithm.looks_first());
    Some(match (rule.lease, looking) {
        (Some(LeasePolicy::Reserve(_)), _) => "`reserve`, and no order comes from here".to_owned(),
        (Some(LeasePolicy::Slices), _) => "`accuracy: exact-leased`".to_owned(),
        (_, Some(limit)) => format!("`algorithm: {}`", limit.algorithm.name()),
        _ if rule.counts == CountPolicy::Admitted => "`count: admitted`".to_owned(),
        _ => return None,
    })
}

/// The finding about a descriptor of the TCP filter, which reaches a rule.
fn of_connection(rule: &Rule) -> AboutItem {
    let text = format!(
        "the TCP filter asks the rule `{}`, and cannot release: it calls once, when a connection begins; ask it by \
         the HTTP filter, or take a rule without `concurrency` and `reserve`",
        rule.path
    );
    needs_order(rule).then_some((Error, Trap::NoRelease, text))
}

/// The check of one list of items.
struct OrderCheck<'m, 'd> {
    /// The orders of this list, each with the entries that it is for.
    own: BTreeSet<(&'d str, Option<&'m [KnownEntry<'d>]>)>,
    /// The entries for which this list gives back hits.
    given_back: BTreeSet<Option<&'m [KnownEntry<'d>]>>,
    /// The metadata that the filters of this list write.
    namespaces: BTreeSet<&'d str>,
}

impl<'d> OrderCheck<'_, 'd> {
    /// Checks an item that gives an order.
    fn order(&self, item: &LimitItem<'d>, name: &str, found: &mut Findings<'d>) {
        if name == UNRESERVED {
            return;
        }
        if !item.is_at_end {
            let text = format!(
                "`{name}` is sent with the request, before there is anything to release or to settle; add \
                 `apply_on_stream_done: true`"
            );
            found.add(Error, Trap::EarlyOrder, item.value, text);
        }
        if let Some((action, is_dynamic, key, path)) = item.metadata() {
            let is_known = self.namespaces.is_empty() || self.namespaces.contains(key);
            if !(is_dynamic && is_known && path == ["reservation"]) {
                let (key, path) = (quoted(key), quoted(&path.join(".")));
                let written = self.namespaces.first().unwrap_or(&FILTER_NAME);
                let text = format!(
                    "`{name}` reads {path} of the metadata {key}, where Envoy puts nothing: this item is never sent; \
                     write `source: DYNAMIC, metadata_key: {{ key: {written}, path: [{{ key: reservation }}] }}`, \
                     whatever the filter is named"
                );
                found.add(Error, Trap::OrderMetadata, action, text);
            }
        }
        let has_cost = item.holder != Holder::Route && item.value.has("hits_addend");
        if name == RESERVATION && !has_cost {
            let text = "this settlement brings no cost: what was reserved stays charged; add `hits_addend` with the \
                 cost, in a RateLimitPerRoute or the filter's own `rate_limits`";
            found.add(Error, Trap::LateCost, item.value, text);
        }
    }

    /// The finding about an item of a request, which reaches a rule.
    fn request(&self, item: &LimitItem<'d>, rule: &Rule) -> AboutItem {
        let entries = item.entries.as_deref();
        let is_given = |order| self.own.contains(&(order, entries));
        let (is_settled, is_released) = (is_given(RESERVATION), is_given(RELEASE));
        let is_ended = is_settled || self.given_back.contains(&entries);
        let missing = rule.reserve().map(|reserve| reserve.missing);
        let is_zero = missing == Some(MissingCost::Zero);
        let (level, name, consequence) = match missing {
            None if needs_order(rule) && !is_settled && !is_released => {
                (Error, RELEASE, "a slot is held until the `ttl` ends")
            }
            Some(_) if !(is_ended || is_zero && is_released) => {
                (Error, RESERVATION, "the whole estimate stays charged")
            }
            Some(_) if is_zero && is_settled && !is_released => {
                (Warning, RELEASE, "without a cost the estimate stays")
            }
            _ => return None,
        };
        let text = format!(
            "the rule `{}` waits for an order, and no item of this list orders `{name}`: {consequence}; add an item \
             with these actions, then a `metadata` action of the key `{name}` that reads `reservation`, and \
             `apply_on_stream_done: true`",
            rule.path
        );
        Some((level, Trap::NoRelease, text))
    }

    /// The finding about an item at the end of the stream, which reaches a rule and is no order.
    fn cost(&self, item: &LimitItem<'d>, rule: &Rule) -> AboutItem {
        let entries = item.entries.as_deref();
        let mut orders = [RESERVATION, RELEASE, UNRESERVED].into_iter();
        let has_orders = orders.any(|order| self.own.contains(&(order, entries)));
        if item.gives_back() || rule.is_unlimited() || needs_order(rule) && has_orders {
            return None;
        }
        let path = &rule.path;
        let (level, text) = match charges_what_fits(rule) {
            Some(reason) => {
                let text = format!(
                    "the rule `{path}` has {reason}: a cost at the end that does not fit is lost; take a window that \
                     counts everything (`fixed_window`, `first_hit` or a calendar, without `count: admitted`), or \
                     `reserve` with its entries"
                );
                (Error, text)
            }
            None if item.value.has("hits_addend") => return None,
            None => {
                let text = format!(
                    "without `hits_addend`, the rule `{path}` counts one hit for each answer, whatever it costs; add \
                     `hits_addend` with the cost, or remove `apply_on_stream_done`"
                );
                (Warning, text)
            }
        };
        Some((level, Trap::LateCost, text))
    }
}
