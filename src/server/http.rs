//! Starts and serves the HTTP ports: one for health and JSON calls, one for statistics and rules, one for Prometheus.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    http::{StatusCode, Version, header::HOST},
    response::{IntoResponse as _, Response},
};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, Id, JoinSet},
    time::Instant,
};

use crate::{
    foundation::lock::lock,
    server::{
        accept::LEAST_TIME,
        parts::Parts,
        ports::{Ports, accept_next},
        tasks::{OwnedTasks, Task},
    },
    service::{
        admin::{self, Counters, DebugPages, Health, Peer, Snapshots, Statistics},
        grpc,
    },
    settings::resolved::{ResolvedSetting, ResolvedValue},
    store::any::AnyStore,
};

/// Most bytes of a request's headers, and of replies that a client leaves unread while it sends more requests.
const MAX_BUFFER_BYTES: usize = 16 << 10;

/// How long a request, its reply and the wait for the next request can take together.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The connections of one HTTP port.
struct HttpConnections {
    /// Most connections.
    most: usize,
    running: JoinSet<()>,
    /// Each with its beginning, and that of its last request.
    open: HashMap<Id, (AbortHandle, Instant, Began)>,
}

/// When a connection's last request began, or the connection itself if there was none.
type Began = Arc<Mutex<Instant>>;

/// Serves HTTP/1 until dropped. When all places are taken, a new connection replaces the one that has been without a
/// new request for the longest. An error affects only its own connection. Requests carry the connection's [`Peer`] in
/// their extensions.
async fn serve_http(listener: TcpListener, router: axum::Router, most: usize) {
    let mut connections = HttpConnections {
        most,
        running: JoinSet::new(),
        open: HashMap::new(),
    };
    loop {
        let stream = accept_next(&listener).await;
        connections.make_room().await;
        let opened = Instant::now();
        let began = Began::new(Mutex::new(opened));
        let served = serve(stream, router.clone(), began.clone());
        let handle = connections.running.spawn(served);
        connections
            .open
            .insert(handle.id(), (handle, opened, began));
    }
}

impl HttpConnections {
    /// Waits for a place, and closes the connection that has been without a new request for the longest if need be.
    /// Each has its least time, so that a probe is answered in a crowd; its requests add nothing to that, or those that
    /// send many would keep new connections out.
    async fn make_room(&mut self) {
        // Forgets connections that have ended.
        while let Some(ended) = self.running.try_join_next_with_id() {
            let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
            self.open.remove(&id);
        }
        if self.open.len() < self.most {
            return;
        }
        let oldest = self.open.values().map(|(_, opened, _)| *opened).min();
        if let Some(oldest) = oldest
            && oldest.elapsed() < LEAST_TIME
        {
            tokio::time::sleep_until(oldest + LEAST_TIME).await;
        }
        let open = self.open.iter();
        let had_their_time = open.filter(|(_, (_, opened, _))| opened.elapsed() >= LEAST_TIME);
        let idlest = had_their_time.min_by_key(|(_, (.., began))| *lock(began));
        if let Some((&id, (handle, ..))) = idlest {
            handle.abort();
            self.open.remove(&id);
        }
    }
}

async fn serve(stream: TcpStream, router: axum::Router, began: Began) {
    let service = TowerToHyperService::new(router);
    // A connection without a peer is closed already, and nothing would read a reply.
    let Ok(peer) = stream.peer_addr() else { return };
    let call = |mut request: Request<Incoming>| {
        *lock(&began) = Instant::now();
        request.extensions_mut().insert(Peer(peer));
        let answer = match refuse_hosts(&request) {
            None => Ok(hyper::service::Service::call(&service, request)),
            Some(refusal) => Err(refusal),
        };
        async move {
            match answer {
                Ok(answer) => answer.await,
                Err(refusal) => Ok(refusal),
            }
        }
    };
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(TIMEOUT)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(call));
    let mut served = std::pin::pin!(served);
    loop {
        let deadline = *lock(&began) + TIMEOUT;
        match tokio::time::timeout_at(deadline, served.as_mut()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => return tracing::debug!(%error, "an HTTP connection ended badly"),
            Err(_) if *lock(&began) + TIMEOUT > deadline => {}
            Err(_) => return tracing::debug!("an HTTP connection took too long"),
        }
    }
}

/// Refuses a request that does not have exactly one Host (RFC 9112, 3.2), because two proxies could see two different
/// hosts in it. Any text is accepted as the host, because Envoy's health checks send the name of the cluster.
fn refuse_hosts(request: &Request<Incoming>) -> Option<Response> {
    let hosts = request.headers().get_all(HOST).iter().count();
    let is_good = hosts == 1 || hosts == 0 && request.version() < Version::HTTP_11;
    let refused = || (StatusCode::BAD_REQUEST, "send one Host\n").into_response();
    (!is_good).then(refused)
}

/// Starts to serve the ports, each with up to `most` connections. `json` answers calls in JSON, and explains them.
pub(super) fn start(
    parts: &Parts<'_>,
    ports: Ports,
    most: usize,
    (health, statistics): (Health, Statistics),
    json: grpc::Service<AnyStore>,
    tasks: &mut OwnedTasks,
) {
    let settings = parts.settings;
    let service = Arc::new(json);
    let counters = counters(parts, &service, &statistics);
    let components = parts.backend.components(&parts.metrics);
    let snapshots = Snapshots::new(parts.rules.clone(), statistics.clone(), components.clone());
    let routes = admin::http(
        health,
        components,
        settings.listen.http_json.then(|| service.clone()),
        statistics.blocking.clone(),
    );
    let serving = serve_http(ports.http, routes, most);
    tasks.start(Task::HttpListener, serving);
    let routes = admin::debug(DebugPages {
        rules: parts.rules.clone(),
        statistics: statistics.clone(),
        talkers: parts.talkers.clone(),
        counters,
        snapshots,
        settings: settings_page(&settings.resolved),
        service,
    });
    let serving = serve_http(ports.debug, routes, most);
    tasks.start(Task::DebugListener, serving);
    if let Some(prometheus) = ports.prometheus {
        let routes = admin::prometheus(statistics, &settings.stats.prometheus_path);
        let serving = serve_http(prometheus, routes, most);
        tasks.start(Task::PrometheusListener, serving);
    }
}

/// The parts that `/counters` of the debug port needs.
fn counters(
    parts: &Parts<'_>,
    service: &grpc::Service<AnyStore>,
    statistics: &Statistics,
) -> Counters {
    let settings = parts.settings;
    Counters {
        rules: parts.rules.clone(),
        store: service.limiter.store.clone(),
        clock: service.clock.clone(),
        blocking: statistics.blocking.clone(),
        access: settings.listen.change_access(),
        leases: parts.leases.clone(),
    }
}

/// The text of the page, which is written once because no setting changes while the process runs.
pub(super) fn settings_page(settings: &[ResolvedSetting]) -> String {
    let settings: Vec<_> = settings.iter().map(setting).collect();
    format!("{}\n", json!({ "settings": settings }))
}

fn setting(setting: &ResolvedSetting) -> Value {
    let ResolvedSetting {
        group,
        flag,
        variable,
        value,
        source,
    } = setting;
    let mut fields = json!({
        "group": group,
        "flag": flag,
        "variable": variable,
        "value": null,
        "source": source.name(),
    });
    match value {
        ResolvedValue::Unset => {}
        ResolvedValue::Secret => fields["secret"] = true.into(),
        ResolvedValue::Text(text) => fields["value"] = text.as_str().into(),
    }
    fields
}
