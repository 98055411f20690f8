//! The HTTP services. On the HTTP port: `/healthcheck`, with `?verbose` for reasons, and `/json` unless it is off.
//! On the debug port: `/` (this list), `/metrics`, `/stats`, `/rlconfig` and `/explain`. On the Prometheus port: its
//! page.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::RawQuery,
    http::{HeaderMap, StatusCode},
    routing::{MethodRouter, any, get, post},
};

use crate::{
    service::{grpc, limiter::Rules},
    store::contract::Store,
};

mod explain;
mod health;
mod json;
mod page;
mod rlconfig;
mod statistics;

pub(crate) use health::{Components, Health};
pub(crate) use json::BodyLimits;
pub(crate) use page::BlockingQueue;
pub(crate) use statistics::Statistics;

use explain::{Question, USAGE, answer_question, url_question};
use json::{answer_json, is_json, plain, read_whole};
use page::text_page;
use rlconfig::rlconfig;

/// Routes of the HTTP port. Without a service there is no `/json`.
pub(crate) fn http<S: Store>(
    health: Health,
    components: Components,
    service: Option<Arc<grpc::Service<S>>>,
    blocking: BlockingQueue,
    bodies: BodyLimits,
) -> Router {
    let healthcheck = move |RawQuery(query): RawQuery| async move {
        health.answer(query.as_deref(), &components)
    };
    let mut routes = Router::new().route("/healthcheck", any(healthcheck));
    if let Some(service) = service {
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
/explain: how a request would be decided, and why, as JSON
";

/// Routes of the debug port.
pub(crate) fn debug<S: Store>(
    rules: Rules,
    statistics: Statistics,
    service: Arc<grpc::Service<S>>,
    bodies: BodyLimits,
) -> Router {
    let blocking = statistics.blocking.clone();
    let explained = explain_routes(service, blocking.clone(), bodies);
    let lines = statistics.clone();
    let lines = move |Extension(account)| async move { lines.lines(account) };
    let metrics = move |Extension(account)| async move { statistics.prometheus(account) };
    let rlconfig = move |Extension(account)| async move {
        let begin = move || (rlconfig(&rules), 0);
        text_page(blocking.page(account, begin))
    };
    Router::new()
        // As in the reference, an unknown path leads here.
        .fallback(|| async { INDEX })
        .route("/metrics", get(metrics))
        .route("/stats", get(lines))
        .route("/rlconfig", get(rlconfig))
        .route("/explain", explained)
}

/// `/explain`: the question is in the query, or in a body as for `/json`.
fn explain_routes<S: Store>(
    service: Arc<grpc::Service<S>>,
    blocking: BlockingQueue,
    bodies: BodyLimits,
) -> MethodRouter {
    let (other, queue) = (service.clone(), blocking.clone());
    let by_url = move |Extension(account), RawQuery(query): RawQuery| async move {
        match query.as_deref().map(url_question) {
            None => plain(StatusCode::OK, USAGE),
            Some(question) => answer_question(&other, &queue, &account, question).await,
        }
    };
    let by_body = move |Extension(account), headers: HeaderMap, body: Body| async move {
        if !is_json(&headers) {
            let text = "Unsupported Media Type: send application/json\n";
            return plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
        }
        match read_whole(&account, body, bodies).await {
            Ok((body, _held)) => {
                let question = Question::Body(body);
                answer_question(&service, &blocking, &account, Ok(question)).await
            }
            Err(refusal) => *refusal,
        }
    };
    get(by_url).post(by_body)
}
