//! Serves the HTTP ports.

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
use tokio::{
    net::{TcpListener, TcpStream},
    task::{Id, JoinSet},
    time::Instant,
};

use super::ports::accept_next;
use crate::{
    foundation::lock::lock,
    service::{
        admin::Peer,
        held_bytes::{Account, HeldBound},
    },
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
