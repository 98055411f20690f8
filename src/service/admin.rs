//! The HTTP services. The HTTP port has `/healthcheck`, with `?verbose` for reasons, `/livez`, and `/json` unless it is
//! off. The debug port has the pages of `debug.rs`, and the Prometheus port has the page to scrape.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::RawQuery,
    http::{HeaderMap, StatusCode},
    routing::{any, get, post},
};

use crate::{service::grpc, store::contract::Store};

mod counters;
mod debug;
mod explain;
mod json;
mod origin;
mod page;
mod rules;
mod snapshot;
mod start_page;
mod statistics;
mod top;

pub(crate) use counters::{ChangeAccess, Counters, report};
pub(crate) use debug::{DebugPages, debug};
pub(crate) use origin::Peer;
pub(crate) use page::BlockingQueue;
pub(crate) use snapshot::{Components, Health, Snapshots};
pub(crate) use statistics::Statistics;

use json::{answer_json, plain};
use origin::refuse_foreign;

/// Routes of the HTTP port. Without a service there is no `/json`.
pub(crate) fn http<S: Store + Clone>(
    health: Health,
    components: Components,
    service: Option<Arc<grpc::Service<S>>>,
    blocking: BlockingQueue,
) -> Router {
    let healthcheck = move |RawQuery(query): RawQuery| async move {
        health.answer(query.as_deref(), &components)
    };
    let mut routes = Router::new()
        .route("/healthcheck", any(healthcheck))
        // The process is alive if it answers. Missing rules or a lost Redis are no reason to restart it.
        .route("/livez", get(|| async { plain(StatusCode::OK, "OK") }));
    if let Some(service) = service {
        let json = move |headers: HeaderMap, body: Body| async move {
            match refuse_foreign(&headers) {
                Some(refusal) => refusal,
                None => answer_json(&service, &blocking, body).await,
            }
        };
        routes = routes.route("/json", post(json));
    }
    routes.fallback(|| async { plain(StatusCode::NOT_FOUND, NO_SUCH_PATH) })
}

/// The reply to an unknown path on the HTTP port. Its first line is the reference's.
const NO_SUCH_PATH: &str = "404 page not found\n\
    This port has /healthcheck, /livez and, unless it is off, /json. The page for people is on the debug port: \
    http://localhost:6070/ by default (--debug-port).\n";

/// Routes of the Prometheus port.
pub(crate) fn prometheus(statistics: Statistics, path: &str) -> Router {
    let page = move || async move { statistics.prometheus() };
    Router::new().route(path, get(page))
}
