//! Starts and serves the HTTP ports: one for health and JSON calls, one for statistics and rules, one for Prometheus.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
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
    task::{Id, JoinSet},
    time::Instant,
};

use crate::{
    foundation::lock::lock,
    server::{
        parts::Parts,
        ports::{Ports, accept_next},
        tasks::{OwnedTasks, Task},
    },
    service::{
        admin::{self, BodyLimits, Counters, DebugPages, Health, Peer, Snapshots, Statistics},
        grpc,
        held_bytes::{Account, HeldBound},
    },
    settings::resolved::{ResolvedSetting, ResolvedValue},
    store::any::AnyStore,
};

/// Most bytes of a request's headers, and of replies that a client leaves unread while it sends more requests.
const MAX_BUFFER_BYTES: usize = 16 << 10;

/// Bounds on the connections of one HTTP port.
#[derive(Clone)]
pub(super) struct HttpLimits {
    /// Most connections.
    pub(super) max_connections: usize,
    /// How long a request, its reply and the wait for the next request can take together.
    pub(super) timeout: Duration,
    pub(super) bound: Arc<HeldBound>,
}

/// The connections of one HTTP port.
struct Connections {
    /// Most connections.
    max_connections: usize,
    running: JoinSet<()>,
    open: HashMap<Id, (Weak<Account>, Began)>,
}

/// When a connection's last request began, or the connection itself if there was none.
#[derive(Clone)]
struct Began(Arc<Mutex<Instant>>);

impl Began {
    fn now() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn renew(&self) {
        *lock(&self.0) = Instant::now();
    }

    fn get(&self) -> Instant {
        *lock(&self.0)
    }
}

/// Serves HTTP/1 until dropped. When all places are taken, a new connection replaces the one that has been without a
/// new request for the longest. An error affects only its own connection. Requests carry the connection's [`Account`]
/// and its [`Peer`] in their extensions.
pub(super) async fn serve_http(listener: TcpListener, router: axum::Router, limits: HttpLimits) {
    let mut connections = Connections {
        max_connections: limits.max_connections,
        running: JoinSet::new(),
        open: HashMap::new(),
    };
    loop {
        let stream = accept_next(&listener).await;
        connections.make_room();
        let began = Began::now();
        let account = limits.bound.account();
        // This port has its own places; the connection takes none of gRPC's.
        account.keep_place();
        let service = (router.clone(), account.clone());
        let served = serve(stream, service, began.clone(), limits.timeout);
        let handle = connections.running.spawn(served);
        let connection = (Arc::downgrade(&account), began);
        connections.open.insert(handle.id(), connection);
        account.served_by(handle);
    }
}

impl Connections {
    fn make_room(&mut self) {
        // Forgets connections that have ended.
        while let Some(ended) = self.running.try_join_next_with_id() {
            let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
            self.open.remove(&id);
        }
        if self.open.len() < self.max_connections {
            return;
        }
        let oldest = self.open.iter().min_by_key(|(_, (_, began))| began.get());
        if let Some((&id, (account, _))) = oldest {
            if let Some(account) = account.upgrade() {
                account.close();
            }
            self.open.remove(&id);
        }
    }
}

async fn serve(
    stream: TcpStream,
    (router, account): (axum::Router, Arc<Account>),
    began: Began,
    timeout: Duration,
) {
    let service = TowerToHyperService::new(router);
    // A connection without a peer is closed already, and nothing would read a reply.
    let Ok(peer) = stream.peer_addr() else { return };
    let call = |mut request: Request<Incoming>| {
        began.renew();
        request.extensions_mut().insert(account.clone());
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
        .header_read_timeout(timeout)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(call));
    let mut served = std::pin::pin!(served);
    loop {
        let deadline = began.get() + timeout;
        match tokio::time::timeout_at(deadline, served.as_mut()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => return tracing::debug!(%error, "an HTTP connection ended badly"),
            Err(_) if began.get() + timeout > deadline => {}
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

/// How long a request, its reply and the wait for the next request can take together.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts to serve the ports, each with up to `max_connections`. `json` answers calls in JSON, and explains them.
pub(super) fn start(
    parts: &Parts<'_>,
    ports: Ports,
    max_connections: usize,
    (health, statistics): (Health, Statistics),
    json: grpc::Service<AnyStore>,
    bound: &Arc<HeldBound>,
    tasks: &mut OwnedTasks,
) {
    let settings = parts.settings;
    let limits = HttpLimits {
        max_connections,
        timeout: HTTP_TIMEOUT,
        bound: bound.clone(),
    };
    let service = Arc::new(json);
    let bodies = BodyLimits {
        max_bytes: settings.bounds.max_message_bytes,
        timeout: settings.bounds.message_timeout,
    };
    let counters = counters(parts, &service, bodies, &statistics);
    let components = parts.backend.components(&parts.metrics);
    let snapshots = Snapshots::new(parts.rules.clone(), statistics.clone(), components.clone());
    let routes = admin::http(
        health,
        components,
        settings.listen.http_json.then(|| service.clone()),
        statistics.blocking.clone(),
        bodies,
    );
    let serving = serve_http(ports.http, routes, limits.clone());
    tasks.start(Task::HttpListener, serving);
    let routes = admin::debug(DebugPages {
        rules: parts.rules.clone(),
        statistics: statistics.clone(),
        talkers: parts.talkers.clone(),
        counters,
        snapshots,
        settings: settings_page(&settings.resolved),
        service,
        bodies,
        hosts: settings.listen.debug_hosts.clone().into(),
    });
    let serving = serve_http(ports.debug, routes, limits.clone());
    tasks.start(Task::DebugListener, serving);
    if let Some(prometheus) = ports.prometheus {
        let routes = admin::prometheus(statistics, &settings.stats.prometheus_path);
        let serving = serve_http(prometheus, routes, limits);
        tasks.start(Task::PrometheusListener, serving);
    }
}

/// The parts that `/counters` of the debug port needs.
fn counters(
    parts: &Parts<'_>,
    service: &grpc::Service<AnyStore>,
    bodies: BodyLimits,
    statistics: &Statistics,
) -> Counters {
    let settings = parts.settings;
    Counters {
        rules: parts.rules.clone(),
        store: service.limiter.store.clone(),
        bounds: service.bounds,
        bodies,
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
