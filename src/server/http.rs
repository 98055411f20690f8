//! Serves the HTTP ports.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, Id, JoinSet},
    time::Instant,
};

use super::ports::accept_next;

/// Headers of a request, and replies that a client does not read before it sends more.
const MAX_BUFFER_BYTES: usize = 64 << 10;

/// The connections of one HTTP port.
struct Connections {
    /// How many there may be.
    places: usize,
    running: JoinSet<()>,
    handles: HashMap<Id, (AbortHandle, Began)>,
}

/// When the last request of a connection began, or the connection itself.
#[derive(Clone)]
struct Began(Arc<Mutex<Instant>>);

impl Began {
    fn now() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn renew(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn get(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves HTTP/1 until dropped, on so many connections; for one more that goes which has been at its request,
/// or without any, for the longest time. A connection may take `timeout` for a request, its reply and the wait
/// for the next request. What goes wrong with it is its own.
pub(super) async fn serve_http(
    listener: TcpListener,
    router: axum::Router,
    places: usize,
    timeout: Duration,
) {
    let mut connections = Connections {
        places,
        running: JoinSet::new(),
        handles: HashMap::new(),
    };
    loop {
        let stream = accept_next(&listener).await;
        connections.make_room();
        let began = Began::now();
        let served = serve(stream, router.clone(), began.clone(), timeout);
        let handle = connections.running.spawn(served);
        connections.handles.insert(handle.id(), (handle, began));
    }
}

impl Connections {
    fn make_room(&mut self) {
        // Those that have ended are forgotten.
        while let Some(ended) = self.running.try_join_next_with_id() {
            let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
            self.handles.remove(&id);
        }
        if self.handles.len() < self.places {
            return;
        }
        let oldest = self
            .handles
            .iter()
            .min_by_key(|(_, (_, began))| began.get());
        if let Some((&id, (handle, _))) = oldest {
            handle.abort();
            self.handles.remove(&id);
        }
    }
}

async fn serve(stream: TcpStream, router: axum::Router, began: Began, timeout: Duration) {
    let service = TowerToHyperService::new(router);
    let call = |request: Request<Incoming>| {
        began.renew();
        hyper::service::Service::call(&service, request)
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
