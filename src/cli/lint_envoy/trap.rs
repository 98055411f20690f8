//! Traps, the parts of a configuration that they look at, and reports of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use super::{
    actions::{Holder, KnownRules, RateLimitItem},
    document::DocumentValue,
    finding::{Finding, TrapSeverity},
    surroundings::ItemList,
};

/// A setting that Envoy accepts and that limits nothing, or not what its author meant.
#[derive(Debug)]
pub(super) struct Trap {
    /// Its name, stable across versions.
    pub(super) name: &'static str,
    /// Reports it, with the fix, wherever a subject has it.
    pub(super) look: fn(&Subject<'_, '_>, &mut Report<'_>),
}

/// A part of a configuration that traps look at.
#[derive(Debug)]
pub(super) enum Subject<'s, 'd> {
    /// `envoy.filters.http.ratelimit`
    HttpFilter(FilterSubject<'s, 'd>),
    /// `envoy.filters.network.ratelimit`
    TcpFilter(FilterSubject<'s, 'd>),
    /// `envoy.filters.http.rate_limit_quota`
    QuotaFilter(&'s DocumentValue<'d>),
    /// A filter whose `@type` resembles that of `envoy.filters.http.ratelimit`, but is none that Envoy has.
    UnknownFilter {
        filter: &'s DocumentValue<'d>,
        name: &'s str,
    },
    /// The `grpc_service` that a filter calls.
    Service(&'s DocumentValue<'d>),
    /// The `envoy_grpc` of a filter, in a bootstrap that has all clusters there are.
    Call {
        envoy_grpc: &'s DocumentValue<'d>,
        clusters: &'s BTreeMap<String, DocumentValue<'d>>,
    },
    VirtualHost(&'s DocumentValue<'d>),
    Route(&'s DocumentValue<'d>),
    /// An item of `configPatches` of an EnvoyFilter.
    Patch(&'s DocumentValue<'d>),
    /// A map at `key`, where a list is meant.
    SingleItem {
        key: &'s str,
        value: &'s DocumentValue<'d>,
    },
    /// An item of `http_filters`, or of a patch that adds one.
    FilterEntry(&'s DocumentValue<'d>),
    /// A route or the like with a `typed_per_filter_config`.
    Configured {
        value: &'s DocumentValue<'d>,
        names: &'s FilterNames<'d>,
    },
    /// A list `rate_limits`.
    Items(&'s ItemList<'s, 'd>),
    /// An item of `rate_limits`.
    Item {
        limit: &'s DocumentValue<'d>,
        holder: Holder,
    },
    /// A cluster that a filter calls.
    Cluster {
        name: &'s str,
        cluster: &'s DocumentValue<'d>,
    },
    /// A connection manager as a whole, with the rules if they are known.
    Scope {
        scope: &'s Scope<'d>,
        rules: Option<&'s KnownRules<'s>>,
    },
}

/// A filter, and where it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilterSubject<'s, 'd> {
    pub(super) filter: &'s DocumentValue<'d>,
    /// Whether it is in a dump of a running Envoy, which leaves out values that are false or 0.
    pub(super) is_dump: bool,
}

/// The rate limit filters of a connection manager and the descriptors of its routes.
#[derive(Debug, Default)]
pub(super) struct Scope<'d> {
    /// The connection manager; `None` for values outside of any.
    pub(super) manager: Option<DocumentValue<'d>>,
    pub(super) filters: Vec<Filter<'d>>,
    /// `envoy.filters.network.ratelimit`, which stands outside of connection managers.
    pub(super) tcp_filters: Vec<DocumentValue<'d>>,
    pub(super) descriptors: Vec<RateLimitItem<'d>>,
    /// Routes and virtual hosts with a `typed_per_filter_config`.
    pub(super) configured: Vec<DocumentValue<'d>>,
    pub(super) has_routes: bool,
    /// Whether a filter has a type that Envoy does not have, but that resembles that of the rate limit filter.
    pub(super) has_unknown_filter: bool,
    /// Name of the route configuration that arrives over xDS.
    pub(super) route_config: Option<String>,
    /// The path of its listener.
    pub(super) listener: Option<String>,
    pub(super) is_dump: bool,
    /// The filters that this file shows in `http_filters`.
    pub(super) entries: Vec<FilterEntry<'d>>,
    /// The filters of all connection managers that call a service.
    pub(super) callers: Rc<Callers>,
}

impl Scope<'_> {
    /// Whether there may be more rate limit filters than this file shows.
    pub(super) fn has_unknown_entry(&self) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.limits == MayLimit::Unknown)
    }
}

/// An item of `http_filters`.
#[derive(Debug)]
pub(super) struct FilterEntry<'d> {
    pub(super) name: &'d str,
    pub(super) limits: MayLimit,
}

/// Whether a filter limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayLimit {
    /// It is a rate limit filter.
    Yes,
    /// It may be one, or run one: its configuration arrives over xDS, or chooses filters by request.
    Unknown,
    No,
}

/// The names by which routes can configure a rate limit filter.
#[derive(Debug)]
pub(super) struct FilterNames<'d> {
    pub(super) names: BTreeSet<&'d str>,
    pub(super) known: FiltersKnown,
}

/// How many of the filters a file shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FiltersKnown {
    /// All filters of each connection manager that uses the route.
    All,
    /// Some, such as those that an EnvoyFilter adds.
    Some,
    None,
}

/// How many connection managers have a filter that calls a service for some route.
#[derive(Debug, Default)]
pub(super) struct Callers {
    all: BTreeMap<CalledService, usize>,
    /// By the path of the listener.
    of_listeners: BTreeMap<(String, CalledService), usize>,
}

impl Callers {
    /// Adds the services that a connection manager calls, each once.
    pub(super) fn add(&mut self, listener: Option<&str>, called: BTreeSet<CalledService>) {
        for called in called {
            if let Some(listener) = listener {
                let of_listener = (listener.to_owned(), called.clone());
                *self.of_listeners.entry(of_listener).or_default() += 1;
            }
            *self.all.entry(called).or_default() += 1;
        }
    }

    /// How many call this service.
    pub(super) fn count(&self, called: &CalledService) -> usize {
        self.all.get(called).copied().unwrap_or_default()
    }

    /// How many of this listener call this service.
    pub(super) fn count_of(&self, listener: &str, called: &CalledService) -> usize {
        let key = (listener.to_owned(), called.clone());
        self.of_listeners.get(&key).copied().unwrap_or_default()
    }
}

/// A service and the domain that it is asked about.
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

/// `envoy.filters.http.ratelimit` among the filters of a connection manager.
#[derive(Debug)]
pub(super) struct Filter<'d> {
    pub(super) value: DocumentValue<'d>,
    pub(super) stage: u64,
    pub(super) domain: Option<String>,
    /// Whether it has its own `rate_limits`, which win over those of routes.
    pub(super) has_own: bool,
    /// Its name in the list of filters, by which routes configure it.
    pub(super) name: &'d str,
    /// The setting that disables it, unless a route enables it.
    pub(super) disabled: Option<DocumentValue<'d>>,
}

/// Collects the findings of one trap.
#[derive(Debug)]
pub(super) struct Report<'f> {
    pub(super) trap: &'static str,
    pub(super) findings: &'f mut Vec<Finding>,
}

impl Report<'_> {
    /// Reports the trap at `value`.
    pub(super) fn add(
        &mut self,
        value: &DocumentValue<'_>,
        severity: TrapSeverity,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.findings.push(Finding {
            position: value.position(),
            path: value.path(),
            severity,
            trap: self.trap,
            text: text.into(),
            fix: fix.into(),
        });
    }
}
