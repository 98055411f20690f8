//! A control plane: Envoy's aggregated discovery service, in a thread of this process. Its cache decides when it
//! answers a request.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Instant,
};

use hyper::{
    body::Incoming,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use prost::Message as _;
use prost_types::Any;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
        version::TLS13,
    },
};
use tollgate::{
    TYPE_URL,
    proto::envoy::service::discovery::v3::{
        DiscoveryRequest, DiscoveryResponse,
        aggregated_discovery_service_server::{
            AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
        },
    },
    rls_conf::RateLimitConfig,
};
use tonic::{
    Request, Response, Status, Streaming,
    codegen::tokio_stream::{self, Stream, StreamExt as _, wrappers::UnboundedReceiverStream},
    metadata::MetadataMap,
    service::Routes,
};

use super::{
    PATIENCE,
    caches::{Answer, Cache, Returned},
    certificates::Secret,
    eventually, free_port,
};

/// A header that carries the `:scheme` of a call to [`Seen::headers`].
pub const SCHEME: &str = "x-seen-scheme";

#[derive(Debug)]
pub struct Ads {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    /// Cuts all connections, and says whether to listen from then on.
    orders: mpsc::UnboundedSender<(bool, Done)>,
}

#[derive(Clone, Debug)]
pub struct Seen {
    /// Number of its call, from 0.
    pub call: usize,
    pub headers: MetadataMap,
    pub request: DiscoveryRequest,
    pub at: Instant,
}

impl Seen {
    /// The client's reason for refusing the last push.
    pub fn refusal(&self) -> Option<&str> {
        let error = self.request.error_detail.as_ref();
        error.map(|error| error.message.as_str())
    }
}

type TlsFiles = [PathBuf; 3];

type Done = std::sync::mpsc::Sender<()>;

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    has_seen: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cache: Cache,
    calls: Vec<Call>,
    seen: VecDeque<Seen>,
    refusal: Option<Status>,
    responses: u64,
}

#[derive(Debug)]
struct Call {
    responses: mpsc::UnboundedSender<Result<DiscoveryResponse, Status>>,
    open: Option<DiscoveryRequest>,
    /// Of the last response; empty if there was none.
    nonce: String,
    returned: Returned,
}

impl State {
    fn answer(&mut self, call: usize, request: DiscoveryRequest, is_new: bool) {
        let Call { returned, open, .. } = &mut self.calls[call];
        match self.cache.answer(&request, returned, is_new) {
            Answer::Wait => *open = Some(request),
            Answer::Send(response) => {
                *open = None;
                returned.add(&response);
                self.send(call, response);
            }
            Answer::End => {
                *open = None;
                self.end(call, Status::unavailable("the watch failed"));
            }
        }
    }

    fn send(&mut self, call: usize, mut response: DiscoveryResponse) {
        self.responses += 1;
        response.nonce = format!("nonce-{}", self.responses);
        let call = &mut self.calls[call];
        call.nonce.clone_from(&response.nonce);
        // The call may have ended.
        let _ = call.responses.send(Ok(response));
    }

    fn end(&mut self, call: usize, status: Status) {
        let _ = self.calls[call].responses.send(Err(status));
    }
}

pub fn snapshot(version: &str, configs: &[RateLimitConfig]) -> DiscoveryResponse {
    let any = |config: &RateLimitConfig| Any {
        type_url: TYPE_URL.to_owned(),
        value: config.encode_to_vec(),
    };
    DiscoveryResponse {
        version_info: version.to_owned(),
        resources: configs.iter().map(any).collect(),
        type_url: TYPE_URL.to_owned(),
        nonce: String::new(),
    }
}

impl Ads {
    pub fn start() -> Self {
        Self::with(Cache::default(), None)
    }

    pub fn of(cache: Cache) -> Self {
        Self::with(cache, None)
    }

    /// With the mounted files: `tls.crt`, `tls.key` and `ca.crt`.
    pub fn with_tls(secret: &Secret) -> Self {
        let files = ["tls.crt", "tls.key", "ca.crt"].map(|name| secret.path(name));
        Self::with(Cache::default(), Some(files))
    }

    fn with(cache: Cache, tls: Option<TlsFiles>) -> Self {
        let shared = Arc::new(Shared::default());
        shared.state.lock().unwrap().cache = cache;
        let (orders, received) = mpsc::unbounded_channel();
        let (tell, address) = std::sync::mpsc::channel();
        let service = Double(shared.clone());
        std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().unwrap();
            runtime.block_on(async {
                // It listens there again after it was away.
                let address = (Ipv4Addr::LOCALHOST, free_port());
                let listener = TcpListener::bind(address).await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                let routes = Routes::new(AggregatedDiscoveryServiceServer::new(service));
                serve(listener, &routes, tls.as_ref(), received).await;
            });
        });
        Self {
            address: address.recv().unwrap(),
            shared,
            orders,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    /// Sets the response for all clients; waiting ones get it now.
    pub fn set(&self, newest: DiscoveryResponse) {
        self.change(|cache| *cache = Cache::Newest(Some(newest)));
    }

    /// Puts rules into the cache; waiting clients get them as the cache decides.
    pub fn fill(&self, configs: &[RateLimitConfig]) {
        self.change(|cache| cache.fill(configs));
    }

    fn change(&self, change: impl FnOnce(&mut Cache)) {
        let mut state = self.state();
        change(&mut state.cache);
        for call in 0..state.calls.len() {
            if let Some(request) = state.calls[call].open.take() {
                state.answer(call, request, false);
            }
        }
    }

    /// Starts anew like another process, with its own cache.
    pub fn restart(&self, cache: Cache) {
        self.leave();
        self.state().cache = cache;
        self.come_back();
    }

    pub fn send(&self, call: usize, response: DiscoveryResponse) {
        self.state().send(call, response);
    }

    /// Ends all calls with this status; connections stay.
    pub fn end_calls(&self, status: &Status) {
        let mut state = self.state();
        for call in 0..state.calls.len() {
            state.end(call, status.clone());
        }
    }

    /// Answers new calls with this error; `None` ends that.
    pub fn refuse_calls(&self, status: Option<Status>) {
        self.state().refusal = status;
    }

    /// Cuts all connections, without a GOAWAY.
    pub fn hang_up(&self) {
        self.order(true);
    }

    /// Goes away like a killed process.
    pub fn leave(&self) {
        self.order(false);
    }

    pub fn come_back(&self) {
        self.order(true);
    }

    /// Returns when the order is carried out: a change that follows meets no connection from before it.
    fn order(&self, listens: bool) {
        let (done, is_done) = std::sync::mpsc::channel();
        self.orders.send((listens, done)).expect("it runs");
        is_done.recv().expect("it runs");
    }

    #[track_caller]
    pub fn next(&self) -> Seen {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state();
        loop {
            if let Some(seen) = state.seen.pop_front() {
                return seen;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no request came");
            state = self.shared.has_seen.wait_timeout(state, left).unwrap().0;
        }
    }

    #[track_caller]
    pub fn find(&self, is_it: impl Fn(&Seen) -> bool) -> Seen {
        // A client that answers wrongly, and is answered, sends requests for ever.
        for _ in 0..100 {
            let seen = self.next();
            if is_it(&seen) {
                return seen;
            }
        }
        panic!("a hundred requests came, and none was the expected one");
    }

    #[track_caller]
    pub fn wait_for_ack(&self, version: &str) -> Seen {
        let seen = self.find(|Seen { request, .. }| {
            request.version_info == version && !request.response_nonce.is_empty()
        });
        assert_eq!(seen.refusal(), None);
        seen
    }

    #[track_caller]
    pub fn wait_for_refusal(&self) -> Seen {
        self.find(|seen| seen.refusal().is_some())
    }
}

async fn serve(
    listener: TcpListener,
    routes: &Routes,
    tls: Option<&TlsFiles>,
    mut orders: mpsc::UnboundedReceiver<(bool, Done)>,
) {
    let address = listener.local_addr().unwrap();
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = orders.recv() => {
                let Some((listens, done)) = order else { return };
                listener = listener.filter(|_| listens);
                connections.shutdown().await;
                // A program that another test starts may have the old one for a moment.
                eventually("the port is free again", async || {
                    if listens && listener.is_none() {
                        listener = TcpListener::bind(address).await.ok();
                    }
                    listener.is_some() == listens
                })
                .await;
                // A test that has failed waits no longer.
                let _ = done.send(());
            }
            accepted = accepted => {
                let (stream, _) = accepted.unwrap();
                let (routes, tls) = (routes.clone(), tls.cloned());
                connections.spawn(connection(stream, routes, tls));
            }
        }
    }
}

/// Errors are ignored: the client will notice the end.
async fn connection(stream: TcpStream, routes: Routes, tls: Option<TlsFiles>) {
    match tls {
        None => http2(stream, routes).await,
        Some(files) => {
            let acceptor = TlsAcceptor::from(Arc::new(config(&files)));
            if let Ok(stream) = acceptor.accept(stream).await {
                http2(stream, routes).await;
            }
        }
    }
}

async fn http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, routes: Routes) {
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        let scheme = request.uri().scheme_str().unwrap_or_default().parse();
        request.headers_mut().insert(SCHEME, scheme.unwrap());
        routes.call(request)
    });
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = builder
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// As in Envoy Gateway: clients must have a certificate of the authority, and TLS is 1.3.
fn config([certificate, key, ca]: &TlsFiles) -> ServerConfig {
    let read = |file| CertificateDer::from_pem_file(file).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(read(ca)).unwrap();
    let provider = Arc::new(ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(
            vec![read(certificate)],
            PrivateKeyDer::from_pem_file(key).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

#[derive(Debug)]
struct Double(Arc<Shared>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Double {
    type StreamAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let headers = request.metadata().clone();
        let mut requests = request.into_inner();
        let (responses, stream) = mpsc::unbounded_channel();
        let shared = self.0.clone();
        let call = {
            let mut state = shared.state.lock().unwrap();
            if let Some(status) = state.refusal.clone() {
                return Err(status);
            }
            state.calls.push(Call {
                responses,
                open: None,
                nonce: String::new(),
                returned: Returned::default(),
            });
            state.calls.len() - 1
        };
        #[expect(clippy::disallowed_methods, reason = "it ends with its connection")]
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                shared.receive(call, &headers, request);
            }
        });
        // As in Go, the header of the response is sent with the first message.
        let mut stream = UnboundedReceiverStream::new(stream);
        let first = stream.next().await.transpose()?;
        let responses = tokio_stream::iter(first.map(Ok)).chain(stream);
        Ok(Response::new(Box::pin(responses)))
    }
}

impl Shared {
    fn receive(&self, call: usize, headers: &MetadataMap, request: DiscoveryRequest) {
        let mut state = self.state.lock().unwrap();
        let last = &state.calls[call].nonce;
        // The answer to an older response changes nothing.
        if last.is_empty() || *last == request.response_nonce {
            state.answer(call, request.clone(), true);
        }
        state.seen.push_back(Seen {
            call,
            headers: headers.clone(),
            request,
            at: Instant::now(),
        });
        self.has_seen.notify_all();
    }
}
