//! Findings about budgets and slots: orders at the end of a stream that never arrive, and costs there that are not
//! charged.

use std::collections::BTreeSet;

use super::{
    document::quoted,
    finding::{Findings, Trap},
    groups::ItemList,
    item::{
        Holder, ItemAction, KnownEntry, LimitItem,
        OrderName::{self, Release, Reservation, Unreserved},
    },
    model::FILTER_NAME,
    rules::KnownRules,
};
use crate::{
    config::fault::FaultLevel::{Error, Warning},
    core::limit::{Allows, CountPolicy, LeasePolicy, MissingCost, Rule},
};

/// The orders that some items give, each with the entries that it is for.
type Orders<'m, 'd> = BTreeSet<(OrderName, Option<&'m [KnownEntry<'d>]>)>;

/// Checks all items, with the rules if they are known.
pub(super) fn check<'d>(
    lists: &[ItemList<'_, 'd>],
    rules: Option<&KnownRules<'_>>,
    found: &mut Findings<'d>,
) {
    let all = lists.iter().flat_map(|list| &list.items);
    let everywhere = orders_of(all.map(|(item, _)| *item));
    for list in lists {
        let read = || list.items.iter().map(|(item, _)| *item).chain(list.beside);
        let given_back = read().filter(|item| item.is_at_end && item.gives_back());
        let mut orders = OrderCheck {
            own: orders_of(read()),
            given_back: given_back.map(|item| item.entries.as_deref()).collect(),
            everywhere: &everywhere,
            namespaces: &list.namespaces,
            found: &mut *found,
        };
        for (item, domains) in &list.items {
            if let (Some(order), Some(action)) = (item.order, item.actions.last()) {
                orders.order(item, order, action);
                continue;
            }
            let (Some(rules), Some(entries)) = (rules, &item.entries) else {
                continue;
            };
            let reached = domains
                .iter()
                .filter_map(|domain| rules.reached(domain, entries));
            let mut reached = reached.flat_map(|rules| rules.to_vec());
            // One finding is enough, however many rules its values lead to.
            let _ = reached.any(|rule| match item.holder {
                Holder::TcpFilter => orders.connection(item, rule),
                _ if item.is_at_end => orders.cost(item, rule),
                _ => orders.request(item, rule),
            });
        }
    }
}

fn orders_of<'m, 'd: 'm>(items: impl Iterator<Item = &'m LimitItem<'d>>) -> Orders<'m, 'd> {
    let orders = items.map(|item| Some((item.order?, item.entries.as_deref())));
    orders.flatten().collect()
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

/// The check of one list of items. Its functions return whether there is a finding.
struct OrderCheck<'m, 'd, 'c> {
    /// The orders of this list.
    own: Orders<'m, 'd>,
    /// The entries for which this list gives back hits.
    given_back: BTreeSet<Option<&'m [KnownEntry<'d>]>>,
    /// The orders of all lists.
    everywhere: &'c Orders<'m, 'd>,
    /// The metadata that the filters of this list write.
    namespaces: &'c BTreeSet<&'d str>,
    found: &'c mut Findings<'d>,
}

impl<'d> OrderCheck<'_, 'd, '_> {
    /// Checks an item that gives an order.
    fn order(&mut self, item: &LimitItem<'d>, order: OrderName, action: &ItemAction<'d>) {
        if order == Unreserved {
            return;
        }
        let name = action.key.unwrap_or_default();
        if !item.is_at_end {
            let text = format!(
                "`{name}` is sent with the request, before there is anything to release or to settle; add \
                 `apply_on_stream_done: true`"
            );
            self.found.add(Error, Trap::EarlyOrder, item.value, text);
        }
        if let Some((key, path)) = action.metadata() {
            let is_written = self.namespaces.is_empty() || self.namespaces.contains(key);
            if !is_written || path != ["reservation"] {
                let text = format!(
                    "`{name}` reads {} of the metadata {}, where Envoy puts nothing: this item is never sent; \
                     write `metadata_key: {{ key: {}, path: [{{ key: reservation }}] }}`, whatever the filter is named",
                    quoted(&path.join(".")),
                    quoted(key),
                    self.namespaces.first().unwrap_or(&FILTER_NAME)
                );
                let at = action.value;
                self.found.add(Error, Trap::OrderMetadata, at, text);
            }
        }
        let has_cost = item.holder != Holder::Route && item.value.has("hits_addend");
        if order == Reservation && !has_cost {
            let text = "this settlement brings no cost: what was reserved stays charged; add `hits_addend` with the \
                 cost, in a RateLimitPerRoute or the filter's own `rate_limits`";
            self.found.add(Error, Trap::LateCost, item.value, text);
        }
    }

    /// Checks a descriptor of the TCP filter, which reaches a rule.
    fn connection(&mut self, item: &LimitItem<'d>, rule: &Rule) -> bool {
        if needs_order(rule) {
            let text = format!(
                "the TCP filter asks the rule `{}`, and cannot release: it calls once, when a connection begins; ask \
                 it by the HTTP filter, or take a rule without `concurrency` and `reserve`",
                rule.path
            );
            self.found.add(Error, Trap::NoRelease, item.value, text);
        }
        needs_order(rule)
    }

    /// Checks an item of a request, which reaches a rule.
    fn request(&mut self, item: &LimitItem<'d>, rule: &Rule) -> bool {
        let entries = item.entries.as_deref();
        let is_given = |order| self.own.contains(&(order, entries));
        let is_settled = is_given(Reservation);
        let is_released = is_given(Release);
        let is_ended = is_settled || self.given_back.contains(&entries);
        let missing = rule.reserve().map(|reserve| reserve.missing);
        let is_zero = missing == Some(MissingCost::Zero);
        let (level, order, consequence) = match missing {
            None if needs_order(rule) && !is_settled && !is_released => {
                (Error, Release, "a slot is held until the `ttl` ends")
            }
            Some(_) if !(is_ended || is_zero && is_released) => (
                Error,
                Reservation,
                "the estimate stays charged, whatever the cost",
            ),
            Some(_) if is_zero && is_settled && !is_released => (
                Warning,
                Release,
                "a stream without a cost keeps its estimate",
            ),
            _ => return false,
        };
        let is_elsewhere = self.everywhere.contains(&(order, entries));
        let elsewhere = ["no item orders", "only another list orders"][usize::from(is_elsewhere)];
        let name = ["tollgate.reservation", "tollgate.release"][usize::from(order == Release)];
        let text = format!(
            "the rule `{}` waits for an order, and {elsewhere} `{name}`: {consequence}; add an item with these \
             actions, then a `metadata` action of the key `{name}` that reads `reservation`, and \
             `apply_on_stream_done: true`",
            rule.path
        );
        self.found.add(level, Trap::NoRelease, item.value, text);
        true
    }

    /// Checks an item at the end of the stream, which reaches a rule and is no order.
    fn cost(&mut self, item: &LimitItem<'d>, rule: &Rule) -> bool {
        let entries = item.entries.as_deref();
        let mut orders = [Reservation, Release, Unreserved].into_iter();
        let has_orders = orders.any(|order| self.own.contains(&(order, entries)));
        if item.gives_back() || rule.is_unlimited() || needs_order(rule) && has_orders {
            return false;
        }
        let path = &rule.path;
        let (level, text) = match charges_what_fits(rule) {
            Some(reason) => (
                Error,
                format!(
                    "the rule `{path}` has {reason}: a cost at the end that does not fit is lost; take a window that \
                     counts everything (`fixed_window`, `first_hit` or a calendar, without `count: admitted`), or \
                     `reserve` with its entries"
                ),
            ),
            None if item.value.has("hits_addend") => return false,
            None => (
                Warning,
                format!(
                    "without `hits_addend`, the rule `{path}` counts one hit for each answer, whatever it costs; add \
                     `hits_addend` with the cost, or remove `apply_on_stream_done`"
                ),
            ),
        };
        self.found.add(level, Trap::LateCost, item.value, text);
        true
    }
}
