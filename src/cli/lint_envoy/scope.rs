//! Connection managers, with everything that the checks need to know about their filters and routes.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use super::{
    actions::{Holder, RateLimitItem},
    document::DocumentValue,
};

/// The rate limit filters of a connection manager and the descriptors of its routes.
#[derive(Debug, Default)]
pub(super) struct Scope<'d> {
    /// The connection manager; `None` for values outside all of them.
    pub(super) manager: Option<DocumentValue<'d>>,
    pub(super) filters: Vec<Filter<'d>>,
    /// Filters `envoy.filters.network.ratelimit`, which are not part of connection managers.
    pub(super) tcp_filters: Vec<DocumentValue<'d>>,
    pub(super) descriptors: Vec<RateLimitItem<'d>>,
    /// Routes and virtual hosts with a `typed_per_filter_config`.
    pub(super) configured: Vec<DocumentValue<'d>>,
    pub(super) has_routes: bool,
    /// Whether some filter has a type that Envoy does not know, but that resembles the rate limit filter's.
    pub(super) has_unknown_filter: bool,
    /// The name of the route configuration, if it arrives over xDS.
    pub(super) route_config: Option<String>,
    /// The path of the listener.
    pub(super) listener: Option<String>,
    pub(super) is_dump: bool,
    /// The items of `http_filters` in this file.
    pub(super) entries: Vec<FilterEntry<'d>>,
    /// The services that the filters of all connection managers call.
    pub(super) callers: Rc<Callers>,
}

impl Scope<'_> {
    /// Whether there can be more rate limit filters than this file shows.
    pub(super) fn has_unknown_entry(&self) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.limits == MayLimit::Unknown)
    }

    /// Whether the filter calls the service for some request.
    pub(super) fn calls_service(&self, filter: &Filter<'_>) -> bool {
        let is_asked = |item: &RateLimitItem<'_>| match item.holder {
            Holder::Route => item.stage() == filter.stage,
            Holder::PerRoute => true,
            Holder::Filter => false,
        };
        filter.has_own || self.descriptors.iter().any(is_asked)
    }

    /// The domains of the rules that limit an item: its own, or those of the filters of its stage.
    pub(super) fn domains_of<'s>(&'s self, item: &RateLimitItem<'s>) -> Vec<&'s str> {
        let stage = item.stage();
        let of_stage = self.filters.iter().filter(|filter| filter.stage == stage);
        match item.domain {
            Some(domain) => vec![domain],
            None => of_stage
                .filter_map(|filter| filter.domain.as_deref())
                .collect(),
        }
    }
}

/// An item of `http_filters`.
#[derive(Debug)]
pub(super) struct FilterEntry<'d> {
    pub(super) name: &'d str,
    pub(super) limits: MayLimit,
}

/// Whether a filter can limit requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayLimit {
    /// It is a rate limit filter.
    Yes,
    /// It could be one, or run one, because its configuration arrives over xDS or chooses filters by request.
    Unknown,
    No,
}

/// The names under which routes can configure a rate limit filter.
#[derive(Debug)]
pub(super) struct FilterNames<'d> {
    pub(super) names: BTreeSet<&'d str>,
    pub(super) known: FiltersKnown,
}

/// How many of the rate limit filters a file shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FiltersKnown {
    /// All filters of every connection manager that uses the route.
    All,
    /// Some of them, such as those that an EnvoyFilter adds.
    Some,
    None,
}

/// For each service, how many connection managers have a filter that calls it for some route.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// By service and path of the listener, and once more by service only.
    counts: BTreeMap<(Option<String>, CalledService), usize>,
}

impl Callers {
    /// Adds the services that one connection manager calls, each once.
    pub(super) fn add(&mut self, listener: Option<&str>, called: BTreeSet<CalledService>) {
        for called in called {
            for listener in [None].into_iter().chain(listener.map(Some)) {
                let of_listener = (listener.map(str::to_owned), called.clone());
                *self.counts.entry(of_listener).or_default() += 1;
            }
        }
    }

    /// How many connection managers of this listener, or of all, call this service.
    pub(super) fn count(&self, listener: Option<&str>, called: &CalledService) -> usize {
        let key = (listener.map(str::to_owned), called.clone());
        self.counts.get(&key).copied().unwrap_or_default()
    }
}

/// A service, and the domain in the calls to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CalledService {
    domain: String,
    service: String,
}

impl CalledService {
    /// The service that a filter calls.
    pub(super) fn of(filter: &DocumentValue<'_>) -> Self {
        let service = filter.at(&["rate_limit_service", "grpc_service"]);
        let name = service.and_then(|service| {
            let names = [
                ["envoy_grpc", "cluster_name"],
                ["google_grpc", "target_uri"],
            ];
            let mut names = names.iter().filter_map(|keys| service.at(keys)?.text());
            names.next()
        });
        Self {
            domain: filter.text_of("domain").unwrap_or_default().to_owned(),
            service: name.unwrap_or_default().to_owned(),
        }
    }
}

/// A filter `envoy.filters.http.ratelimit` of a connection manager.
#[derive(Debug)]
pub(super) struct Filter<'d> {
    pub(super) value: DocumentValue<'d>,
    pub(super) stage: u64,
    pub(super) domain: Option<String>,
    /// Whether it has its own `rate_limits`, which take precedence over those of routes.
    pub(super) has_own: bool,
    /// Its name in the list of filters, under which routes configure it.
    pub(super) name: &'d str,
    /// The setting that disables it, unless a route enables it.
    pub(super) disabled: Option<DocumentValue<'d>>,
}
