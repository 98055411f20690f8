//! Routes the pages of the debug port.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{Path, RawQuery, Request},
    http::{HeaderMap, StatusCode, Uri},
    middleware::{self, Next},
    routing::{MethodRouter, get, post},
};

use crate::{
    observe::talkers::Talkers,
    service::{
        admin::{
            Counters, Snapshots, Statistics,
            explain::{Question, USAGE, answer_question, url_question},
            json::{is_json, json_headers, plain, read_whole},
            origin::refuse_rebound,
            page::{BlockingQueue, text_page},
            rules::{rlconfig, rule_tree},
            start_page::{file, start_page},
            top::top,
        },
        grpc,
        limiter::Rules,
    },
    store::contract::Store,
};

const INDEX: &str = "\
/: this list, and for browsers a page
/page/{file}: the files of that page
/snapshot: decisions, latency, store and hits of the rules until now, written once a second, as JSON
/rules: the rules in use as a tree, as JSON
/settings: the settings in use and where each is from, without secrets, as JSON
/metrics: statistics for Prometheus
/stats: statistics under their statsd names, one a line
/rlconfig: the rules in use, one limit a line
/explain: how a request would be decided, and why, as JSON
/top: the values that are refused most by each rule, as JSON
POST /counters/get: the counters of descriptors in a RateLimitRequest as JSON; `tollgate counters --help` has commands
POST /counters/reset: takes all hits off the counters of descriptors, for callers that may
";

/// The parts of the server that these pages show.
pub(crate) struct DebugPages<S> {
    pub rules: Rules,
    pub statistics: Statistics,
    pub talkers: Arc<Talkers>,
    pub counters: Counters,
    pub snapshots: Snapshots,
    /// The text of `/settings`.
    pub settings: String,
    pub service: Arc<grpc::Service<S>>,
}

/// Routes of the debug port.
pub(crate) fn debug<S: Store + Clone>(pages: DebugPages<S>) -> Router {
    let DebugPages {
        rules,
        statistics,
        talkers,
        counters,
        snapshots,
        settings,
        service,
    } = pages;
    let blocking = statistics.blocking.clone();
    let guard = |request: Request, next: Next| async move {
        match refuse_rebound(&request) {
            Some(refusal) => refusal,
            None => next.run(request).await,
        }
    };
    Router::new()
        .fallback(|| async { plain(StatusCode::NOT_FOUND, "404 page not found\n") })
        .merge(start_page_routes(snapshots, settings.into()))
        .merge(tree_route(rules.clone(), blocking.clone()))
        .route("/explain", explain(service, blocking.clone()))
        .merge(statistics_routes(rules, statistics))
        .merge(top_route(talkers, blocking))
        .merge(counter_routes(counters))
        .layer(middleware::from_fn(guard))
}

fn start_page_routes(snapshots: Snapshots, settings: Bytes) -> Router {
    let start = |headers: HeaderMap| async move { start_page(&headers, INDEX) };
    let file = |Path(name): Path<String>| async move { file(&name) };
    let snapshot = move || async move { snapshots.page() };
    let settings = move || async move { (json_headers(), settings) };
    Router::new()
        .route("/", get(start))
        .route("/page/{file}", get(file))
        .route("/snapshot", get(snapshot))
        .route("/settings", get(settings))
}

fn tree_route(rules: Rules, blocking: BlockingQueue) -> Router {
    let tree = move || async move {
        let page = blocking.page(move || rule_tree(&rules));
        (json_headers(), page)
    };
    Router::new().route("/rules", get(tree))
}

fn statistics_routes(rules: Rules, statistics: Statistics) -> Router {
    let blocking = statistics.blocking.clone();
    let lines = statistics.clone();
    let lines = move || async move { lines.lines() };
    let metrics = move || async move { statistics.prometheus() };
    let rlconfig = move || async move { text_page(blocking.page(move || rlconfig(&rules))) };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/stats", get(lines))
        .route("/rlconfig", get(rlconfig))
}

fn top_route(talkers: Arc<Talkers>, blocking: BlockingQueue) -> Router {
    let top = move || async move {
        let page = blocking.page(move || top(&talkers));
        (json_headers(), page)
    };
    Router::new().route("/top", get(top))
}

fn counter_routes(counters: Counters) -> Router {
    let look = counters.clone();
    let look = move |headers: HeaderMap, body: Body| async move { look.get(headers, body).await };
    let reset = move |Extension(peer), uri: Uri, headers: HeaderMap, body: Body| async move {
        counters.reset(peer, uri, headers, body).await
    };
    Router::new()
        .route("/counters/get", post(look))
        .route("/counters/reset", post(reset))
}

/// `/explain`: the request to explain is in the query, or in a body as for `/json`.
fn explain<S: Store + Clone>(
    service: Arc<grpc::Service<S>>,
    blocking: BlockingQueue,
) -> MethodRouter {
    let (other, queue) = (service.clone(), blocking.clone());
    let by_url = move |RawQuery(query): RawQuery| async move {
        match query.as_deref().map(url_question) {
            None => plain(StatusCode::OK, USAGE),
            Some(question) => answer_question(&other, &queue, question).await,
        }
    };
    let by_body = move |headers: HeaderMap, body: Body| async move {
        if !is_json(&headers) {
            let text = "Unsupported Media Type: send application/json\n";
            return plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
        }
        match read_whole(body).await {
            Ok(body) => answer_question(&service, &blocking, Ok(Question::Body(body))).await,
            Err(refusal) => refusal,
        }
    };
    get(by_url).post(by_body)
}
