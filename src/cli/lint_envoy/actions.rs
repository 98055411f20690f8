//! Derives from the actions of `rate_limits` the descriptors that they build, as far as a configuration shows them.

use std::{cell::RefCell, collections::BTreeSet};

use super::document::DocumentValue;
use crate::{
    config::keys::closest,
    core::{
        counter::Joined,
        matcher::{Domain, Matcher},
        request::Entry,
    },
};

/// Most combinations of values to try for one descriptor; if there are more, a match is assumed.
const MAX_TRIES: usize = 10_000;

/// A value that no rule contains.
const ANY: &str = "\u{1}any";

/// The message that contains a list `rate_limits`. Only items of a route have stages, and only from these Envoy drops
/// `hits_addend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A route or a virtual host.
    Route,
    /// A `RateLimitPerRoute`.
    PerRoute,
    /// The filter itself.
    Filter,
}

/// One item of a list `rate_limits`.
#[derive(Clone, Debug)]
pub(super) struct RateLimitItem<'d> {
    pub(super) value: DocumentValue<'d>,
    pub(super) holder: Holder,
    /// The domain that replaces the filter's.
    pub(super) domain: Option<&'d str>,
    /// The order to tollgate that its last entry is.
    pub(super) order: Option<OrderName>,
    /// The entries before the order; `None` if an action is unknown.
    pub(super) entries: Option<KnownEntries<'d>>,
    /// The entries of a request without the values that a client can leave out, if such a request is limited by these
    /// entries only.
    pub(super) shorter: Option<KnownEntries<'d>>,
    /// The request header that its hits are read from, if a client can leave it out.
    pub(super) optional_addend: Option<&'d str>,
}

/// The orders that tollgate carries out for reservations, by the key of the last entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderName {
    /// It settles a reservation.
    Reservation,
    Release,
    Unreserved,
}

impl OrderName {
    /// The order that an item of `rate_limits` gives.
    pub(super) fn of(item: &DocumentValue<'_>) -> Option<Self> {
        let actions = item.list("actions");
        let entries = entries(actions.last()?)?;
        match entries.last()?.0 {
            "tollgate.reservation" => Some(Self::Reservation),
            "tollgate.release" => Some(Self::Release),
            "tollgate.unreserved" => Some(Self::Unreserved),
            _ => None,
        }
    }
}

/// Keys, and their values where they are known.
pub(super) type KnownEntries<'d> = Vec<(&'d str, Option<&'d str>)>;

impl<'d> RateLimitItem<'d> {
    pub(super) fn new(value: DocumentValue<'d>, holder: Holder, domain: Option<&'d str>) -> Self {
        let order = OrderName::of(&value);
        let mut actions = value.list("actions");
        actions.truncate(actions.len() - usize::from(order.is_some()));
        Self {
            order,
            entries: all_entries(&actions),
            shorter: None,
            optional_addend: None,
            domain: domain.filter(|domain| holder != Holder::Route && !domain.is_empty()),
            holder,
            value,
        }
    }

    pub(super) fn stage(&self) -> u64 {
        self.value.number("stage")
    }

    pub(super) fn shows_address(&self) -> bool {
        let actions = self.value.list("actions");
        actions.iter().any(|action| {
            action.get("remote_address").is_some() || action.get("masked_remote_address").is_some()
        })
    }
}

/// `plan=free, path=…`
pub(super) fn shown(entries: &[(&str, Option<&str>)]) -> String {
    let texts: Vec<_> = entries
        .iter()
        .map(|(key, value)| format!("{key}={}", value.unwrap_or("…")))
        .collect();
    texts.join(", ")
}

/// The entries of all actions; `None` if one of the actions is unknown.
pub(super) fn all_entries<'d>(actions: &[DocumentValue<'d>]) -> Option<KnownEntries<'d>> {
    let entries: Option<Vec<KnownEntries<'_>>> = actions.iter().map(entries).collect();
    entries.map(|entries| entries.concat())
}

/// The entries of one action; `None` if the action is unknown.
fn entries<'d>(action: &DocumentValue<'d>) -> Option<KnownEntries<'d>> {
    /// Actions with a default key, unless `descriptor_key` names another.
    const NAMED: [(&str, &str); 8] = [
        ("source_cluster", "source_cluster"),
        ("destination_cluster", "destination_cluster"),
        ("remote_address", "remote_address"),
        ("masked_remote_address", "masked_remote_address"),
        ("generic_key", "generic_key"),
        ("header_value_match", "header_match"),
        ("query_parameter_value_match", "query_match"),
        ("remote_address_match", "remote_address_match"),
    ];
    for (name, own) in NAMED {
        if let Some(action) = action.get(name) {
            let key = action
                .text_of("descriptor_key")
                .filter(|key| !key.is_empty());
            let value = action.text_of("descriptor_value");
            // A value with a format command depends on the request.
            let value = value.filter(|value| !value.contains('%'));
            return Some(vec![(key.unwrap_or(own), value)]);
        }
    }
    for name in [
        "request_headers",
        "query_parameters",
        "metadata",
        "dynamic_metadata",
    ] {
        if let Some(action) = action.get(name) {
            return Some(vec![(action.text_of("descriptor_key")?, None)]);
        }
    }
    None
}

/// The `RateLimitPerRoute` of a route.
pub(super) fn per_route<'d>(route: &DocumentValue<'d>) -> Option<DocumentValue<'d>> {
    let mut configs = filter_configs(route).into_iter();
    configs.find_map(|(_, config)| per_route_config(&config))
}

/// The entries of `typed_per_filter_config`: the name of each filter, and its settings.
pub(super) fn filter_configs<'d>(value: &DocumentValue<'d>) -> Vec<(&'d str, DocumentValue<'d>)> {
    let configs = value.get("typed_per_filter_config");
    configs.map_or_else(Vec::new, |configs| configs.entries())
}

/// Whether the `rate_limits` of the virtual host apply although the route has its own.
pub(super) fn includes_host(route: &DocumentValue<'_>) -> bool {
    let action = route.get("route");
    action.is_some_and(|action| action.is_true("include_vh_rate_limits"))
        || per_route(route).is_some_and(|own| own.text_of("vh_rate_limits") == Some("INCLUDE"))
}

/// The `RateLimitPerRoute` in an entry of a `typed_per_filter_config`: the entry itself, or the content of a
/// `FilterConfig`.
pub(super) fn per_route_config<'d>(config: &DocumentValue<'d>) -> Option<DocumentValue<'d>> {
    let (name, message) = config.message()?;
    if name == "envoy.config.route.v3.FilterConfig" {
        return per_route_config(&message.get("config")?);
    }
    name.ends_with(".ratelimit.v3.RateLimitPerRoute")
        .then_some(message)
}

/// The metadata sources of an item that are still empty when Envoy evaluates it.
pub(super) fn early_localities<'d>(limit: &DocumentValue<'d>) -> Vec<DocumentValue<'d>> {
    if limit.is_true("apply_on_stream_done") {
        return Vec::new();
    }
    let actions = limit.list("actions");
    let sources = actions
        .iter()
        .filter_map(|action| action.at(&["metadata", "source"]));
    sources
        .filter(|source| source.text() == Some("CLUSTER_LOCALITY_ENTRY"))
        .collect()
}

/// Whether Envoy leaves out the descriptor of an item unless there is some metadata.
pub(super) fn needs_metadata(item: &DocumentValue<'_>) -> bool {
    let actions = item.list("actions");
    let mut metadata = actions.iter().filter_map(|action| action.get("metadata"));
    metadata.any(|action| {
        let default = action.text_of("default_value").unwrap_or_default();
        default.is_empty() && !action.is_true("skip_if_absent")
    })
}

/// Which hits a rule charges; each includes the demands of those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleCharging {
    /// All hits, or the rule is not known.
    #[default]
    Any,
    /// Those of admitted requests.
    Admitted,
    /// Those of admitted requests, each of which holds slots until it ends (`concurrency`).
    Slots,
    /// It reserves them.
    Reserved,
    /// It reserves them, and gives back those that no cost follows (`missing: zero`).
    Released,
}

/// The rules that descriptors should match.
#[derive(Debug)]
pub(super) struct KnownRules<'m> {
    matcher: &'m Matcher,
    /// Which hits each rule charges.
    charging: Vec<RuleCharging>,
    joined: RefCell<Joined>,
}

impl<'m> KnownRules<'m> {
    pub(super) fn new(matcher: &'m Matcher) -> Self {
        let charging = matcher.rules().iter().map(|rule| match rule.reserve() {
            // The default is to keep the estimate.
            Some(reserve) if reserve.missing != Default::default() => RuleCharging::Released,
            Some(_) => RuleCharging::Reserved,
            None if !rule.ttl().is_zero() => RuleCharging::Slots,
            None if rule.counts != Default::default() => RuleCharging::Admitted,
            None => RuleCharging::Any,
        });
        Self {
            charging: charging.collect(),
            matcher,
            joined: RefCell::default(),
        }
    }

    pub(super) fn has_domain(&self, domain: &str) -> bool {
        self.matcher.domain(domain.as_bytes()).is_some()
    }

    /// The domain that was probably meant, for a domain without rules.
    pub(super) fn similar_domain(&self, domain: &str) -> Option<&str> {
        let names = self.matcher.domain_names().iter();
        let names = names.filter_map(|name| str::from_utf8(name).ok());
        closest(domain, names)
    }

    /// Whether some request could turn `entries` into a descriptor that a rule matches.
    pub(super) fn may_answer(&self, domain: &str, entries: &[(&str, Option<&str>)]) -> bool {
        let reached = self.reached(domain, entries);
        reached.is_none_or(|mut reached| reached.next().is_some())
    }

    /// The most that a rule demands which some request could reach with `entries`.
    pub(super) fn charging(&self, domain: &str, entries: &[(&str, Option<&str>)]) -> RuleCharging {
        let most = self.charging.iter().copied().max().unwrap_or_default();
        let mut charging = RuleCharging::Any;
        // Without such rules there is nothing to try.
        if most > charging {
            for reached in self.reached(domain, entries).into_iter().flatten() {
                charging = charging.max(reached);
                if charging == most {
                    break;
                }
            }
        }
        charging
    }

    /// How the rules charge that requests could reach with `entries`; `None` for a domain without rules, and if there
    /// are too many combinations of values.
    fn reached(
        &self,
        domain: &str,
        entries: &[(&str, Option<&str>)],
    ) -> Option<impl Iterator<Item = RuleCharging>> {
        let domain = self.matcher.domain(domain.as_bytes())?;
        let values: Vec<Vec<String>> = entries
            .iter()
            .map(|(key, value)| match value {
                Some(value) => vec![(*value).to_owned()],
                None => self.values(key),
            })
            .collect();
        let combinations = values.iter().try_fold(1_usize, |combinations, values| {
            combinations
                .checked_mul(values.len())
                .filter(|combinations| *combinations <= MAX_TRIES)
        })?;
        Some((0..combinations).filter_map(move |mut combination| {
            let pick = |(values, (key, _)): (&'_ Vec<String>, &(&'_ str, _))| {
                let value = values[combination % values.len()].clone();
                combination /= values.len();
                ((*key).to_owned(), value)
            };
            let picked: Vec<_> = values.iter().zip(entries).map(pick).collect();
            self.find(domain, &picked)
        }))
    }

    /// How the rule charges that these entries match.
    fn find(&self, domain: Domain<'_>, entries: &[(String, String)]) -> Option<RuleCharging> {
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| Entry {
                key: key.as_bytes(),
                value: value.as_bytes(),
            })
            .collect();
        let found = domain.find(&entries, &mut self.joined.borrow_mut()).ok()?;
        Some(self.charging[found.rule.id.0])
    }

    /// Values to try for `key`: one that no rule contains, and each text that follows the key in a rule's path, with a
    /// letter in place of a wildcard.
    fn values(&self, key: &str) -> Vec<String> {
        let before = format!(".{key}_");
        let mut values = BTreeSet::from([ANY.to_owned()]);
        for rule in self.matcher.rules() {
            for (at, _) in rule.path.match_indices(&before) {
                let after = rule.path[at + before.len()..].replace('*', "x");
                // Values can contain dots.
                let ends = after.match_indices('.').map(|(end, _)| end);
                values.extend(ends.chain([after.len()]).map(|end| after[..end].to_owned()));
            }
        }
        values.into_iter().collect()
    }
}
