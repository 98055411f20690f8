//! The pages of the debug port.

use axum::{
    Extension, Router,
    body::Body,
    extract::RawQuery,
    http::HeaderMap,
    routing::{get, post},
};

use super::{
    Counters, HistoryRecorder, Statistics, TopTalkersPage,
    counters::Change,
    page::{BlockingQueue, text_page},
    rlconfig::rlconfig,
    top::top,
};
use crate::service::limiter::Rules;

const INDEX: &str = "\
/: this list
/metrics: statistics for Prometheus
/stats: statistics under their statsd names, one a line
/rlconfig: the rules in use, one limit a line
/top: the values that are refused most by each rule, as JSON; ?text for people
/history: the last hour of decisions, latency, store and memory, as JSON
/counters?domain=NAME: the hits of a domain's counters now, page by page
POST /counters/get: the counters of descriptors in a RateLimitRequest as JSON; `tollgate counters --help` has commands
POST /counters/reset: takes all hits off the counters of descriptors, for callers on this machine or with the token
POST /counters/grant: lets as many more hits pass as each descriptor has, until its windows end, for the same callers
";

/// The parts of the server that the pages show.
pub(crate) struct DebugPages {
    pub rules: Rules,
    pub statistics: Statistics,
    pub history: HistoryRecorder,
    pub talkers: TopTalkersPage,
    pub counters: Counters,
}

/// Routes of the debug port.
pub(crate) fn debug(pages: DebugPages) -> Router {
    let DebugPages {
        rules,
        statistics,
        history,
        talkers,
        counters,
    } = pages;
    let blocking = statistics.blocking.clone();
    let history = move |Extension(account)| async move { history.page(account) };
    Router::new()
        // As in the reference, an unknown path leads here.
        .fallback(|| async { INDEX })
        .route("/history", get(history))
        .merge(statistics_routes(rules, statistics))
        .merge(top_route(talkers, blocking))
        .merge(counter_routes(counters))
}

fn statistics_routes(rules: Rules, statistics: Statistics) -> Router {
    let blocking = statistics.blocking.clone();
    let lines = statistics.clone();
    let lines = move |Extension(account)| async move { lines.lines(account) };
    let metrics = move |Extension(account)| async move { statistics.prometheus(account) };
    let rlconfig = move |Extension(account)| async move {
        let begin = move || (rlconfig(&rules), 0);
        text_page(blocking.page(account, begin))
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/stats", get(lines))
        .route("/rlconfig", get(rlconfig))
}

fn top_route(talkers: TopTalkersPage, blocking: BlockingQueue) -> Router {
    let top = move |Extension(account), RawQuery(query): RawQuery, headers: HeaderMap| async move {
        top(talkers, &blocking, account, query.as_deref(), &headers)
    };
    Router::new().route("/top", get(top))
}

fn counter_routes(counters: Counters) -> Router {
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
        .route("/counters", get(list))
        .route("/counters/get", post(look))
        .route("/counters/reset", post(change(Change::Reset)))
        .route("/counters/grant", post(change(Change::Grant)))
}
