//! The HTTP services. On the HTTP port: `/healthcheck`, with `?verbose` for reasons, and `/json` unless it is off.
//! On the debug port: `/` (this list), `/metrics`, `/stats`, `/rlconfig`, `/top` and `/history`. On the Prometheus
//! port: its page.

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

mod health;
mod history;
mod json;
mod page;
mod rlconfig;
mod statistics;
mod top;

pub(crate) use health::{Components, Health};
pub(crate) use history::HistoryRecorder;
pub(crate) use json::BodyLimits;
pub(crate) use page::BlockingQueue;
pub(crate) use statistics::Statistics;
pub(crate) use top::TopTalkersPage;

use json::{answer_json, is_json, plain};
use page::text_page;
use rlconfig::rlconfig;
use top::top;

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
/top: the values that are refused most by each rule, as JSON; ?text for people
/history: the last hour of decisions, latency, store and memory, as JSON
";

/// Routes of the debug port.
pub(crate) fn debug(
    rules: Rules,
    statistics: Statistics,
    history: HistoryRecorder,
    talkers: TopTalkersPage,
) -> Router {
    let blocking = statistics.blocking.clone();
    let pages = blocking.clone();
    let lines = statistics.clone();
    let lines = move |Extension(account)| async move { lines.lines(account) };
    let metrics = move |Extension(account)| async move { statistics.prometheus(account) };
    let rlconfig = move |Extension(account)| async move {
        let begin = move || (rlconfig(&rules), 0);
        text_page(blocking.page(account, begin))
    };
    let top = move |Extension(account), RawQuery(query): RawQuery, headers: HeaderMap| async move {
        top(talkers, &pages, account, query.as_deref(), &headers)
    };
    let history = move |Extension(account)| async move { history.page(account) };
    Router::new()
        // As in the reference, an unknown path leads here.
        .fallback(|| async { INDEX })
        .route("/metrics", get(metrics))
        .route("/stats", get(lines))
        .route("/rlconfig", get(rlconfig))
        .route("/top", get(top))
        .route("/history", get(history))
}
