//! The HTTP services. On the HTTP port: `/healthcheck`, with `?verbose` for reasons, and `/json` unless it is off.
//! On the debug port: `/` (this list), `/metrics`, `/stats`, `/rlconfig` and `/counters`. On the Prometheus port: its
//! page.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::RawQuery,
    http::{HeaderMap, StatusCode},
    routing::{any, get, post},
};

use crate::{
    service::{grpc, limiter::Rules},
    store::contract::Store,
};

mod counters;
mod health;
mod json;
mod page;
mod rlconfig;
mod statistics;

use counters::Change;
pub(crate) use counters::{Counters, KeySource, Peer, RedisKeys};
pub(crate) use health::{Components, Health};
pub(crate) use json::BodyLimits;
pub(crate) use page::BlockingQueue;
pub(crate) use statistics::Statistics;

use json::{answer_json, is_json, plain};
use page::text_page;
use rlconfig::rlconfig;

/// Routes of the HTTP port. Without a service there is no `/json`.
pub(crate) fn http<S: Store>(
    health: Health,
    components: Components,
    service: Option<grpc::Service<S>>,
    blocking: BlockingQueue,
    bodies: BodyLimits,
) -> Router {
    let healthcheck = move |RawQuery(query): RawQuery| async move {
        health.answer(query.as_deref(), &components)
    };
    let mut routes = Router::new().route("/healthcheck", any(healthcheck));
    if let Some(service) = service {
        let service = Arc::new(service);
        let json = move |Extension(account), headers: HeaderMap, body: Body| async move {
            if is_json(&headers) {
                answer_json(&service, &blocking, &account, body, bodies).await
            } else {
                let text = "Unsupported Media Type: send application/json\n";
                plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)
            }
        };
        routes = routes.route("/json", post(json));
    }
    routes.fallback(|| async { plain(StatusCode::NOT_FOUND, "404 page not found\n") })
}

/// Routes of the Prometheus port.
pub(crate) fn prometheus(statistics: Statistics, path: &str) -> Router {
    let page = move |Extension(account)| async move { statistics.prometheus(account) };
    Router::new().route(path, get(page))
}

const INDEX: &str = "\
/: this list
/metrics: statistics for Prometheus
/stats: statistics under their statsd names, one a line
/rlconfig: the rules in use, one limit a line
/counters?domain=NAME: the hits of a domain's counters now, page by page
POST /counters/get: the counters of descriptors in a RateLimitRequest as JSON; `tollgate counters --help` has commands
POST /counters/reset: takes all hits off the counters of descriptors, for callers on this machine or with the token
POST /counters/grant: lets as many more hits pass as each descriptor has, until its windows end, for the same callers
";

/// Routes of the debug port.
pub(crate) fn debug(rules: Rules, statistics: Statistics, counters: Counters) -> Router {
    let blocking = statistics.blocking.clone();
    let lines = statistics.clone();
    let lines = move |Extension(account)| async move { lines.lines(account) };
    let metrics = move |Extension(account)| async move { statistics.prometheus(account) };
    let rlconfig = move |Extension(account)| async move {
        let begin = move || (rlconfig(&rules), 0);
        text_page(blocking.page(account, begin))
    };
    let list = counters.clone();
    let list = move |Extension(account), RawQuery(query): RawQuery| async move {
        list.list(account, query.as_deref()).await
    };
    let look = counters.clone();
    let look = move |Extension(account), headers: HeaderMap, body: Body| async move {
        look.get(account, headers, body).await
    };
    let change = |change| {
        let counters = counters.clone();
        move |Extension(peer), Extension(account), headers: HeaderMap, body: Body| async move {
            counters.change(change, peer, account, headers, body).await
        }
    };
    Router::new()
        // As in the reference, an unknown path leads here.
        .fallback(|| async { INDEX })
        .route("/metrics", get(metrics))
        .route("/stats", get(lines))
        .route("/rlconfig", get(rlconfig))
        .route("/counters", get(list))
        .route("/counters/get", post(look))
        .route("/counters/reset", post(change(Change::Reset)))
        .route("/counters/grant", post(change(Change::Grant)))
}
