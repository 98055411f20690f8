//! Domains and descriptors of a configuration, compared with the rules that should match them.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher as _, RandomState},
    rc::Rc,
};

use super::{
    document::{EnvoyValue, quoted},
    finding::{Findings, Trap},
    groups::ItemList,
    item::KnownEntry,
    model::{EnvoyModel, RouteLevel},
};
use crate::{
    config::{fault::FaultLevel::Error, keys::closest},
    core::{counter::Joined, limit::Rule, matcher::Matcher, request::Entry},
    foundation::printable::Shown,
};

/// Most descriptors that are tried for one of the configuration, and for all of a file; beyond, a match is assumed.
const MAX_TRIES: usize = 10_000;
const MAX_TRIES_OF_FILE: usize = 100_000;

/// More entries than these have too many orders, and only so many descriptors and domains are looked for elsewhere: no
/// more findings are listed.
const MAX_ORDERED: usize = 4;
const MAX_GUESSES: usize = 100;

/// Most domains that descriptors of an unknown one are compared with.
const MAX_DOMAINS: usize = 20;

/// A value that no rule has.
const ANY: &str = "\u{1}any";

/// By depth and key, the values that rules name there, with a letter in place of a wildcard.
type RuleValues = BTreeMap<(usize, String), BTreeSet<String>>;

/// The rules that some values lead to; `None` if there are too many values to try.
type Reached<'m> = Option<Rc<[&'m Rule]>>;

/// The rules that descriptors should match.
#[derive(Debug)]
pub(super) struct KnownRules<'m> {
    pub(super) matcher: &'m Matcher,
    /// By domain.
    values: BTreeMap<&'m str, RuleValues>,
    /// By the hash of a domain and entries.
    reached: RefCell<HashMap<u64, Reached<'m>>>,
    hasher: RandomState,
    tries_left: Cell<usize>,
    orders_left: Cell<usize>,
    /// By domain without rules.
    meant: RefCell<BTreeMap<String, Option<&'m str>>>,
}

impl<'m> KnownRules<'m> {
    pub(super) fn new(matcher: &'m Matcher) -> Self {
        let names = matcher.domain_names().iter();
        let names = names.filter_map(|name| str::from_utf8(name).ok());
        Self {
            matcher,
            values: names.map(|name| (name, values_in(matcher, name))).collect(),
            reached: RefCell::default(),
            hasher: RandomState::new(),
            tries_left: Cell::new(MAX_TRIES_OF_FILE),
            orders_left: Cell::new(MAX_GUESSES),
            meant: RefCell::default(),
        }
    }

    pub(super) fn has_domain(&self, domain: &str) -> bool {
        self.matcher.domain(domain.as_bytes()).is_some()
    }

    fn domains(&self) -> impl Iterator<Item = &'m str> {
        self.values.keys().copied()
    }

    /// The domain of a rule file that an unknown one probably means.
    fn meant(&self, domain: &str) -> Option<&'m str> {
        let mut meant = self.meant.borrow_mut();
        let is_full = meant.len() >= MAX_GUESSES;
        let known = meant.get(domain).copied().or(is_full.then_some(None));
        known.unwrap_or_else(|| {
            let found = closest(domain, self.domains());
            meant.insert(domain.to_owned(), found);
            found
        })
    }

    /// The rules that requests could reach with `entries`, each once; `None` for a domain without rules, and if there
    /// are too many values to try.
    pub(super) fn reached(&self, domain: &str, entries: &[KnownEntry<'_>]) -> Reached<'m> {
        let name = self.hasher.hash_one((domain, entries));
        if let Some(known) = self.reached.borrow().get(&name) {
            return known.clone();
        }
        let found = self.search(domain, entries).map(Into::into);
        self.reached.borrow_mut().insert(name, found.clone());
        found
    }

    fn search(&self, domain: &str, entries: &[KnownEntry<'_>]) -> Option<Vec<&'m Rule>> {
        let rules = self.matcher.domain(domain.as_bytes())?;
        let values = self.values.get(domain)?;
        let mut tries = 1_usize;
        let mut columns = Vec::with_capacity(entries.len());
        for ((key, value), depth) in entries.iter().zip(1..) {
            let named = values.get(&(depth, (*key).to_owned()));
            let named = named.filter(|_| value.is_none());
            tries = tries.checked_mul(1 + named.map_or(0, BTreeSet::len))?;
            if tries > MAX_TRIES.min(self.tries_left.get()) {
                return None;
            }
            let named = named.into_iter().flatten().map(String::as_str);
            let column: Vec<&str> = [value.unwrap_or(ANY)].into_iter().chain(named).collect();
            columns.push(column);
        }
        let left = self.tries_left.get().checked_sub(tries)?;
        self.tries_left.set(left);
        let (mut found, mut joined) = (BTreeMap::new(), Joined::new());
        for mut at in 0..tries {
            let mut picked = Vec::with_capacity(entries.len());
            for ((key, _), column) in entries.iter().zip(&columns) {
                picked.push(Entry {
                    key: key.as_bytes(),
                    value: column[at % column.len()].as_bytes(),
                });
                at /= column.len();
            }
            if let Ok(matched) = rules.find(&picked, &mut joined) {
                found.insert(matched.rule.id.0, matched.rule);
            }
        }
        Some(found.into_values().collect())
    }

    /// Another order of some entries that a rule of the domain has.
    fn other_order<'d>(&self, domain: &str, of: &[KnownEntry<'d>]) -> Option<Vec<KnownEntry<'d>>> {
        let length = Some(of.len()).filter(|length| *length <= MAX_ORDERED)?;
        let mut orders = (0..(1..=length).product()).map(|mut number: usize| {
            let mut rest = of.to_vec();
            let picked = (1..=length).rev().map(|left| {
                let next = number % left;
                number /= left;
                rest.remove(next)
            });
            picked.collect::<Vec<_>>()
        });
        orders.find(|order| {
            let found = self.search(domain, order);
            found.is_some_and(|rules| !rules.is_empty())
        })
    }
}

fn values_in(matcher: &Matcher, domain: &str) -> RuleValues {
    let mut values = RuleValues::new();
    for outlined in matcher.outline(domain.as_bytes()) {
        let (key, value) = matcher.key_and_value(outlined.node);
        let [key, value] = [key, value].map(String::from_utf8_lossy);
        if !value.is_empty() {
            let place = (outlined.depth, key.into_owned());
            let named = values.entry(place).or_default();
            named.insert(value.replace('*', "x"));
        }
    }
    values
}

/// `plan=free, path=…`
fn shown(entries: &[KnownEntry<'_>]) -> String {
    let shown = entries.iter().take(10).map(|(key, value)| {
        let value = value.unwrap_or("…");
        format!("{}={}", Shown(key.as_bytes()), Shown(value.as_bytes()))
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Reports domains and descriptors that no rule has.
pub(super) fn check<'d>(
    model: &EnvoyModel<'d>,
    lists: &[ItemList<'_, 'd>],
    rules: &KnownRules<'_>,
    found: &mut Findings<'d>,
) {
    let configs = model.tables().flat_map(RouteLevel::all_configs);
    let configs = configs.filter_map(|config| config.limits);
    for named in model.filters().map(|filter| filter.value).chain(configs) {
        let domain = named.text_of("domain");
        // A route without a domain of its own uses the filter's.
        if !domain.is_empty() && !rules.has_domain(domain) {
            let shown = quoted(domain);
            let fix = match rules.meant(domain) {
                Some(similar) => format!("did you mean `{similar}`?"),
                None => "name the `domain` of a rule file".to_owned(),
            };
            let text = format!("no rule file has the domain {shown}: everything passes; {fix}");
            found.add(Error, Trap::Domain, named, text);
        }
    }
    for list in lists {
        for item in list.items.iter().filter(|item| !list.is_uncertain(item)) {
            if let Some(entries) = &item.entries {
                descriptor(item.value, entries, &list.domains(item), rules, found);
            }
        }
    }
}

/// Reports entries that no rule of these domains matches. Those of a domain without rules are compared with the one
/// that was probably meant, or else with all: then only their order can be wrong.
fn descriptor<'d>(
    at: EnvoyValue<'d>,
    entries: &[KnownEntry<'d>],
    domains: &BTreeSet<&'d str>,
    rules: &KnownRules<'_>,
    found: &mut Findings<'d>,
) {
    let Some(first) = domains.first() else {
        return;
    };
    let known = domains.iter().filter(|domain| rules.has_domain(domain));
    let mut compared: Vec<&str> = known.copied().collect();
    if compared.is_empty() {
        compared.extend(rules.meant(first));
    }
    let is_certain = !compared.is_empty();
    if !is_certain {
        let all = rules.domains().take(MAX_DOMAINS);
        compared.extend(all.map(|domain| -> &str { domain }));
    }
    let is_match = |rules: Reached<'_>| rules.is_none_or(|rules| !rules.is_empty());
    let mut reached = compared.iter().map(|domain| rules.reached(domain, entries));
    if compared.is_empty() || reached.any(is_match) {
        return;
    }
    let orders_left = rules.orders_left.get();
    rules.orders_left.set(orders_left.saturating_sub(1));
    let mut orders = compared.iter().filter(|_| orders_left > 0);
    let order = orders.find_map(|domain| Some((domain, rules.other_order(domain, entries)?)));
    let fix = match &order {
        Some((_, order)) => format!("the rule has the order ({})", shown(order)),
        None if is_certain => "add a rule with these keys in this order".to_owned(),
        None => return,
    };
    let domain = order.map_or(compared[0], |(domain, _)| domain);
    let (domain, entries) = (quoted(domain), shown(entries));
    let text = format!(
        "no rule of the domain {domain} matches ({entries}): this descriptor is not limited; {fix}"
    );
    found.add(Error, Trap::Descriptor, at, text);
}
