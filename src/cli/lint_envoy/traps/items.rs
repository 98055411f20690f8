//! Traps in routes and in single items of `rate_limits`.

use super::super::{
    actions::{self, Holder},
    document::DocumentValue,
    finding::TrapSeverity,
    trap::{Subject, Trap},
};

/// Limits on a route that answers by itself.
pub(super) const DIRECT_RESPONSE: Trap = Trap {
    name: "direct-response",
    look: |subject, report| {
        for direct in limited(subject, "direct_response") {
            report.add(
                &direct,
                TrapSeverity::Warning,
                "a direct response is never limited: the filter does nothing on such a route",
                "route it to a cluster, or remove the limit",
            );
        }
    },
};

/// Limits on a route that redirects.
pub(super) const REDIRECT: Trap = Trap {
    name: "redirect",
    look: |subject, report| {
        for redirect in limited(subject, "redirect") {
            report.add(
                &redirect,
                TrapSeverity::Warning,
                "a redirect is never limited: the filter does nothing on such a route",
                "route it to a cluster, or remove the limit",
            );
        }
    },
};

/// The answers at `key` of routes that have limits, of their own or of their virtual host.
fn limited<'d>(subject: &Subject<'_, 'd>, key: &str) -> Vec<DocumentValue<'d>> {
    let Subject::VirtualHost(host) = subject else {
        return Vec::new();
    };
    let has_limits = !host.list("rate_limits").is_empty();
    let routes = host.list("routes").into_iter();
    routes
        .filter(|route| has_limits || actions::per_route(route).is_some())
        .filter_map(|route| route.get(key))
        .collect()
}

/// Hits that Envoy does not send from a route.
pub(super) const HITS_ADDEND: Trap = Trap {
    name: "hits-addend",
    look: |subject, report| {
        if let Subject::Item {
            limit,
            holder: Holder::Route,
        } = subject
            && let Some(addend) = limit.get("hits_addend")
        {
            report.add(
                &addend,
                TrapSeverity::Error,
                "Envoy does not send `hits_addend` from here: every request counts as one hit",
                "move this item to a RateLimitPerRoute in `typed_per_filter_config`, or to the \
                 filter's own `rate_limits`",
            );
        }
    },
};

/// An action that needs a host before one is chosen.
pub(super) const NO_HOST_YET: Trap = Trap {
    name: "no-host-yet",
    look: |subject, report| {
        let Subject::Item { limit, .. } = subject else {
            return;
        };
        for locality in actions::early_localities(limit) {
            report.add(
                &locality,
                TrapSeverity::Error,
                "CLUSTER_LOCALITY_ENTRY is empty until Envoy has chosen a host: the descriptor is left out",
                "add `apply_on_stream_done: true`, or use another source",
            );
        }
    },
};

/// Hits that count after the response.
pub(super) const STREAM_DONE: Trap = Trap {
    name: "stream-done",
    look: |subject, report| {
        if let Subject::Item { limit, .. } = subject
            && limit.is_true("apply_on_stream_done")
        {
            report.add(
                limit,
                TrapSeverity::Advice,
                "hits that are counted after the response include those of refused requests",
                "allow for that in the limit",
            );
        }
    },
};
