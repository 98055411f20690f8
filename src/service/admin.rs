//! The HTTP services. On the HTTP port: `/healthcheck`, with `?verbose` for reasons, and `/json` unless it is off.
//! On the debug port: `/` (this list), `/metrics`, `/stats` and `/rlconfig`. On the Prometheus port: its page.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt::Write as _,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::RawQuery,
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use hyper::body::{Body as _, Frame};
use tokio::sync::Mutex;

use crate::{
    core::limit::{Algorithm, Allows, CountPolicy, OnStoreLoss, Rule},
    observe::metrics::{
        CutOff, Metrics, process,
        prometheus::Renderer,
        sample::{Sample, SampleValue},
    },
    service::{
        budget::{Account, BudgetExhausted, Reservation},
        grpc::{self, json, proto::envoy::service::ratelimit::v3::rate_limit_response::Code},
        limiter::{RuleSet, Rules},
    },
    store::{
        contract::{Deadline, Store},
        memory::MemoryStore,
    },
};

/// Bounds on the body of a `/json` request.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    pub max_bytes: usize,
    /// Longest time until the whole body has arrived.
    pub timeout: Duration,
}

/// Whether the process wants traffic. Unhealthy until [`set`](Health::set) makes it healthy.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<AtomicBool>);

impl Health {
    pub fn set(&self, is_good: bool) {
        self.0.store(is_good, Relaxed);
    }

    fn is_good(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Runs slow work on the blocking pool, one piece at a time, so that it delays neither probes nor the accepting of
/// gRPC connections.
#[derive(Clone, Debug, Default)]
pub struct BlockingQueue {
    turn: Arc<Mutex<()>>,
    /// Readers of pages, the oldest first.
    readers: Arc<std::sync::Mutex<VecDeque<PageReader>>>,
}

/// Pages that may be under way at a time. One more ends the oldest, whose reader is slow.
const MAX_PAGES: usize = 4;

/// Bytes of a page that are written at a time.
const PIECE_BYTES: usize = 32 << 10;

#[derive(Debug)]
struct PageReader {
    /// Dies with the page.
    reads: Weak<()>,
    account: Weak<Account>,
}

/// Appends the next part of a page to the text; returns whether more follows.
type PageWriter = Box<dyn FnMut(&mut String) -> bool + Send>;

impl BlockingQueue {
    fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + Send + 'static {
        let turn = self.turn.clone();
        async move {
            let turn = turn.lock_owned().await;
            let done = tokio::task::spawn_blocking(move || {
                // Held until the work is done, even if its caller has stopped waiting.
                let _turn = turn;
                work()
            });
            done.await
                .expect("it does not panic, and ends with the process")
        }
    }

    /// A page that the writer from `begin` writes piece by piece, each after the piece before it was sent. `begin`
    /// also returns how many bytes its writer holds.
    fn page(
        &self,
        account: Arc<Account>,
        begin: impl FnOnce() -> (PageWriter, usize) + Send + 'static,
    ) -> Body {
        let reads = Arc::new(());
        self.make_room_for(PageReader {
            reads: Arc::downgrade(&reads),
            account: Arc::downgrade(&account),
        });
        let first = self.work(move || {
            let (mut writer, bytes) = begin();
            let held = Reservation::new(&account, bytes);
            let writer: PageWriter = Box::new(move |text| {
                // Lives as long as the writer.
                let (_held, _reads) = (&held, &reads);
                writer(text)
            });
            piece(writer)
        });
        Body::new(PageBody {
            blocking: self.clone(),
            next: Some(Box::pin(first)),
        })
    }

    fn make_room_for(&self, reader: PageReader) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|reader| reader.reads.strong_count() > 0);
        while readers.len() >= MAX_PAGES {
            let oldest = readers.pop_front();
            if let Some(account) = oldest.and_then(|oldest| oldest.account.upgrade()) {
                account.end();
            }
        }
        readers.push_back(reader);
    }
}

/// The next piece of a page, with the writer unless it was the last.
fn piece(mut writer: PageWriter) -> (String, Option<PageWriter>) {
    let mut text = String::with_capacity(PIECE_BYTES + PIECE_BYTES / 8);
    let goes_on = writer(&mut text);
    (text, goes_on.then_some(writer))
}

/// The body of a page.
struct PageBody {
    blocking: BlockingQueue,
    next: Option<NextPiece>,
}

type NextPiece = Pin<Box<dyn Future<Output = (String, Option<PageWriter>)> + Send>>;

impl hyper::body::Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let (text, writer) = ready!(next.as_mut().poll(context));
        let next = writer.map(|writer| -> NextPiece {
            let next = self.blocking.work(move || piece(writer));
            Box::pin(next)
        });
        self.next = next;
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}

/// Returns the name and the state of each part of the process.
pub type Components = Arc<dyn Fn() -> Vec<(String, String)> + Send + Sync>;

/// Routes of the HTTP port. Without a service there is no `/json`.
pub fn http<S: Store>(
    health: Health,
    components: Components,
    service: Option<grpc::Service<S>>,
    blocking: BlockingQueue,
    bodies: BodyLimits,
) -> Router {
    let healthcheck = move |RawQuery(query): RawQuery| async move {
        let (status, text) = if health.is_good() {
            (StatusCode::OK, "OK")
        } else {
            // As in the reference: 500, and nothing to read.
            (StatusCode::INTERNAL_SERVER_ERROR, "")
        };
        if is_verbose(query.as_deref()) {
            (status, describe_health(status, &components()))
        } else {
            (status, text.to_owned())
        }
    };
    let mut routes = Router::new().route("/healthcheck", any(healthcheck));
    if let Some(service) = service {
        let service = Arc::new(service);
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

/// Whether the request declares its body as JSON. A browser sends that to another origin only with the origin's
/// consent, so a foreign page cannot count in its visitor's name.
fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(|value| value.to_str());
    let Some(Ok(content_type)) = content_type else {
        return false;
    };
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}

fn is_verbose(query: Option<&str>) -> bool {
    let mut parameters = query.unwrap_or_default().split('&');
    parameters.any(|parameter| parameter.split('=').next() == Some("verbose"))
}

/// One line for the process and one for each of its parts. Writing to a string cannot fail.
fn describe_health(status: StatusCode, components: &[(String, String)]) -> String {
    let is_good = status == StatusCode::OK;
    let mut page = format!("health: {}\n", if is_good { "good" } else { "bad" });
    for (name, text) in components {
        let _ = writeln!(page, "{name}: {text}");
    }
    page
}

/// Answers a request in proto3 JSON as the reference does: 200 or 429 with the reply as JSON, 400 for anything else.
async fn answer_json<S: Store>(
    service: &grpc::Service<S>,
    blocking: &BlockingQueue,
    account: &Arc<Account>,
    body: Body,
    bodies: BodyLimits,
) -> Response {
    let bad = || plain(StatusCode::BAD_REQUEST, "Bad Request\n");
    let mut held = Reservation::new(account, 0);
    let read = read(body, bodies.max_bytes, &mut held);
    let body = match tokio::time::timeout(bodies.timeout, read).await {
        Ok(Ok(body)) => body,
        Ok(Err(BodyError::TooLarge)) => {
            return plain(StatusCode::PAYLOAD_TOO_LARGE, "Payload Too Large\n");
        }
        Ok(Err(BodyError::Gone)) => return bad(),
        Ok(Err(BodyError::NoRoom)) => {
            account.budget().note(CutOff::JSON_NO_ROOM);
            return plain(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable\n");
        }
        Err(_elapsed) => {
            account.budget().note(CutOff::JSON_LATE);
            return plain(StatusCode::REQUEST_TIMEOUT, "Request Timeout\n");
        }
    };
    let Ok(message) = blocking.work(move || json::request(&body)).await else {
        return bad();
    };
    let Ok(reply) = service.answer(&message, &Deadline::of_store()).await else {
        return bad();
    };
    let status = match reply.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    match blocking.work(move || json::response(&reply, false)).await {
        Ok(text) => {
            let text = Reservation::new(account, text.len()).with(text);
            (status, [(CONTENT_TYPE, "application/json")], text).into_response()
        }
        Err(error) => {
            tracing::warn!(%error, "a reply cannot be written as JSON");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error\n")
        }
    }
}

/// Why a body was not read.
enum BodyError {
    TooLarge,
    NoRoom,
    /// The client closed the connection.
    Gone,
}

impl From<BudgetExhausted> for BodyError {
    fn from(_: BudgetExhausted) -> Self {
        Self::NoRoom
    }
}

/// Reads all of `body`, charging its memory to `held`.
async fn read(
    mut body: Body,
    max_bytes: usize,
    held: &mut Reservation,
) -> Result<Vec<u8>, BodyError> {
    let mut all = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| BodyError::Gone)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.len() > max_bytes - all.len() {
            return Err(BodyError::TooLarge);
        }
        let before = all.capacity();
        all.extend_from_slice(&data);
        held.add(all.capacity() - before)?;
    }
    Ok(all)
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, text).into_response()
}

/// The collected statistics and how to render them.
#[derive(Clone, Debug)]
pub struct Statistics {
    pub metrics: Arc<Metrics>,
    pub memory: Option<Arc<MemoryStore>>,
    pub renderer: Arc<Renderer>,
    pub blocking: BlockingQueue,
}

impl Statistics {
    pub fn samples(&self) -> Vec<Sample> {
        self.metrics.samples(self.memory.as_deref())
    }

    /// The Prometheus page, in text format 0.0.4.
    fn prometheus(self, account: Arc<Account>) -> Response {
        let blocking = self.blocking.clone();
        let page = blocking.page(account, move || {
            let memory = self.memory.as_deref();
            let each = |take: &mut dyn FnMut(Sample)| self.metrics.each_sample(memory, take);
            let mut page = self.renderer.page(each).ending_with(&process::render());
            let bytes = page.bytes();
            let writer: PageWriter = Box::new(move |text| page.write_some(text, PIECE_BYTES));
            (writer, bytes)
        });
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
    }

    /// One line for each statistic, sorted by name.
    fn lines(self, account: Arc<Account>) -> Response {
        let blocking = self.blocking.clone();
        let page = blocking.page(account, move || {
            let mut samples = self.samples();
            samples.sort_by(|a, b| a.name.cmp(&b.name));
            let each = |sample: &Sample| size_of::<Sample>() + sample.name.capacity();
            let bytes = samples.iter().map(each).sum();
            (each_of(samples.into_iter(), line), bytes)
        });
        text_page(page)
    }
}

/// Writes each of `things` with `write` and frees it right after.
fn each_of<T: 'static>(
    mut things: impl Iterator<Item = T> + Send + 'static,
    write: fn(&T, &mut String),
) -> PageWriter {
    Box::new(move |text| {
        while text.len() < PIECE_BYTES {
            match things.next() {
                Some(thing) => write(&thing, text),
                None => return false,
            }
        }
        true
    })
}

/// Writing to a string cannot fail.
fn line(Sample { name, value }: &Sample, page: &mut String) {
    let _ = match value {
        SampleValue::Counter(number) | SampleValue::Gauge(number) => {
            writeln!(page, "{name}: {number}")
        }
        SampleValue::Timer(times) => writeln!(
            page,
            "{name}: count {}, sum {} us",
            times.count(),
            times.sum_micros()
        ),
    };
}

fn text_page(page: Body) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response()
}

/// Routes of the Prometheus port.
pub fn prometheus(statistics: Statistics, path: &str) -> Router {
    let page = move |Extension(account)| async move { statistics.prometheus(account) };
    Router::new().route(path, get(page))
}

const INDEX: &str = "\
/: this list
/metrics: statistics for Prometheus
/stats: statistics under their statsd names, one a line
/rlconfig: the rules in use, one limit a line
";

/// Routes of the debug port.
pub fn debug(rules: Rules, statistics: Statistics) -> Router {
    let blocking = statistics.blocking.clone();
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
}

/// One line for each limit, in the reference's form, with our own fields appended.
fn rlconfig(rules: &Rules) -> PageWriter {
    let rules = rules.current();
    let count = rules
        .as_ref()
        .map_or(0, |rules| rules.matcher.rules().len());
    let nth = (0..count).map(move |nth| (rules.clone(), nth));
    each_of(nth, |(rules, nth): &(Option<Arc<RuleSet>>, usize), page| {
        if let Some(rules) = rules {
            describe(&rules.matcher.rules()[*nth], page);
        }
    })
}

/// Writing to a string cannot fail.
fn describe(rule: &Rule, page: &mut String) {
    // A rule's value can be any text; a line must stay one line.
    let path = rule.path.replace(char::is_control, "?");
    let mut line = |unit: &str, requests_per_unit: u32, more: &str| {
        let _ = writeln!(
            page,
            "{}: unit={} requests_per_unit={requests_per_unit}, shadow_mode: {}, quota_mode: {}{more}",
            path,
            unit.to_uppercase(),
            rule.shadow_mode,
            rule.quota_mode
        );
    };
    let limits = match &rule.allows {
        Allows::Unlimited => return line("unknown", 0, ""),
        Allows::Within(limits) => limits,
    };
    for limit in limits {
        let mut more = String::new();
        let multiplier = limit.period.multiplier().get();
        if multiplier > 1 {
            let _ = write!(more, ", unit_multiplier: {multiplier}");
        }
        match &limit.algorithm {
            Algorithm::FixedWindow => {}
            Algorithm::FirstHit => more.push_str(", window: first_hit"),
            Algorithm::Calendar(calendar) => {
                let _ = write!(more, ", calendar: {}", calendar.zone_name());
            }
            other => {
                let _ = write!(more, ", algorithm: {}", other.name());
            }
        }
        if let Algorithm::TokenBucket { burst } = limit.algorithm {
            let _ = write!(more, ", burst: {burst}");
        }
        if rule.counts == CountPolicy::Admitted {
            more.push_str(", count: admitted");
        }
        match rule.on_store_loss {
            OnStoreLoss::Error => {}
            OnStoreLoss::Allow => more.push_str(", on_store_loss: allow"),
            OnStoreLoss::Deny => more.push_str(", on_store_loss: deny"),
            OnStoreLoss::Local => more.push_str(", on_store_loss: local"),
        }
        line(limit.period.unit().name(), limit.requests_per_unit, &more);
    }
}
