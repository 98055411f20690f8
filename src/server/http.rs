//! Serves the HTTP ports.

use std::{sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};

use super::ports::accept_next;

/// How long a client of an HTTP port may take to send its headers, and between two requests.
const HTTP_HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves HTTP/1 until dropped, on so many connections; further ones wait to be accepted. What goes wrong with a
/// connection is that connection's own.
pub(super) async fn serve_http(listener: TcpListener, router: axum::Router, places: usize) {
    let places = Arc::new(Semaphore::new(places));
    let mut connections = JoinSet::new();
    while let Ok(place) = places.clone().acquire_owned().await {
        let stream = accept_next(&listener).await;
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HTTP_HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                tracing::debug!(%error, "an HTTP connection ended badly");
            }
            drop(place);
        });
        // Those that have ended are forgotten.
        while connections.try_join_next().is_some() {}
    }
}
