//! The HTTP doors. On the HTTP port: `/healthcheck`, with `?verbose` for reasons, and `/json` unless it is off. On the debug port: `/` (this
//! list), `/metrics`, `/stats` and `/rlconfig`. On the port for Prometheus: its page.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::RawQuery,
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use tokio::sync::{Mutex, Semaphore};

use crate::{
    grpc::{self, json, proto::envoy::service::ratelimit::v3::rate_limit_response::Code},
    limit::{Algorithm, Allows, Counts, OnStoreLoss, Rule},
    limiter::Rules,
    metrics::{
        Metrics, process,
        prometheus::Renderer,
        sample::{Sample, Value},
    },
    store::{Deadline, Store, memory::MemoryStore},
};

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the process wants to be asked. Bad until told otherwise.
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

/// Where the work is done that takes long: one piece after the other, on a thread of its own, so that it
/// holds up neither probes nor gRPC connections that are to be accepted.
#[derive(Clone, Debug)]
pub struct Desk {
    turn: Arc<Mutex<()>>,
    /// Bodies that may be read at a time.
    bodies: Arc<Semaphore>,
}

/// So many clients of `/json` may be sending at a time; each has [`BODY_TIMEOUT`] for it.
const MAX_BODIES: usize = 8;

impl Default for Desk {
    fn default() -> Self {
        Self {
            turn: Arc::default(),
            bodies: Arc::new(Semaphore::new(MAX_BODIES)),
        }
    }
}

impl Desk {
    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let turn = self.turn.clone().lock_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            // Kept until the work is done, also if nobody waits for it any longer.
            let _turn = turn;
            work()
        });
        done.await
            .expect("it does not panic, and ends with the process")
    }
}

/// Tells how each part of the process is doing, by name.
pub type Components = Arc<dyn Fn() -> Vec<(String, String)> + Send + Sync>;

/// The HTTP port. Without a service there is no `/json`.
pub fn http<S: Store>(
    health: Health,
    components: Components,
    service: Option<grpc::Service<S>>,
    desk: Desk,
    max_body_bytes: usize,
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
        let json = move |headers: HeaderMap, body: Body| async move {
            if is_json(&headers) {
                answer_json(&service, &desk, body, max_body_bytes).await
            } else {
                let text = "Unsupported Media Type: send application/json\n";
                plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)
            }
        };
        routes = routes.route("/json", post(json));
    }
    routes.fallback(|| async { plain(StatusCode::NOT_FOUND, "404 page not found\n") })
}

/// Whether a body says that it is JSON. Browsers send that to another origin only with its consent, so no page
/// counts in the name of who looks at it.
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

/// A request in proto3 JSON, answered as the reference does: 200 or 429 with the reply as JSON,
/// 400 for whatever else.
async fn answer_json<S: Store>(
    service: &grpc::Service<S>,
    desk: &Desk,
    body: Body,
    max_body_bytes: usize,
) -> Response {
    let bad = || plain(StatusCode::BAD_REQUEST, "Bad Request\n");
    // Bodies of those that wait stay where they are, in the sockets.
    let _place = desk.bodies.acquire().await;
    let read = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, max_body_bytes));
    let body = match read.await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return plain(StatusCode::PAYLOAD_TOO_LARGE, "Payload Too Large\n"),
        Err(_elapsed) => return plain(StatusCode::REQUEST_TIMEOUT, "Request Timeout\n"),
    };
    let Ok(message) = desk.work(move || json::request(&body)).await else {
        return bad();
    };
    let Ok(reply) = service.answer(&message, Deadline::of_store()).await else {
        return bad();
    };
    let status = match reply.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    match desk.work(move || json::response(&reply, false)).await {
        Ok(text) => (status, [(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            tracing::warn!(%error, "a reply cannot be written as JSON");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error\n")
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, text).into_response()
}

/// What was counted, and how it is shown.
#[derive(Clone, Debug)]
pub struct Statistics {
    pub metrics: Arc<Metrics>,
    pub memory: Option<Arc<MemoryStore>>,
    pub renderer: Arc<Renderer>,
    pub desk: Desk,
}

impl Statistics {
    pub fn samples(&self) -> Vec<Sample> {
        self.metrics.samples(self.memory.as_deref())
    }

    /// The page for Prometheus, in text format 0.0.4.
    async fn prometheus(self) -> Response {
        let desk = self.desk.clone();
        let render = move || self.renderer.render(&self.samples()) + &process::render();
        let page = desk.work(render).await;
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
    }

    /// One line for each, by name. Writing to a string cannot fail.
    fn lines(&self) -> String {
        let mut samples = self.samples();
        samples.sort_by(|a, b| a.name.cmp(&b.name));
        let mut page = String::new();
        for Sample { name, value } in samples {
            let _ = match value {
                Value::Counter(number) | Value::Gauge(number) => writeln!(page, "{name}: {number}"),
                Value::Timer(times) => writeln!(
                    page,
                    "{name}: count {}, sum {} us",
                    times.count(),
                    times.sum_micros()
                ),
            };
        }
        page
    }
}

/// The port for Prometheus.
pub fn prometheus(statistics: Statistics, path: &str) -> Router {
    Router::new().route(path, get(move || statistics.prometheus()))
}

const INDEX: &str = "\
/: this list
/metrics: statistics for Prometheus
/stats: statistics under their statsd names, one a line
/rlconfig: the rules in use, one limit a line
";

/// The debug port.
pub fn debug(rules: Rules, statistics: Statistics) -> Router {
    let desk = statistics.desk.clone();
    let lines = statistics.clone();
    let lines = move || async move { lines.desk.clone().work(move || lines.lines()).await };
    let rlconfig = move || async move { desk.work(move || rlconfig(&rules)).await };
    Router::new()
        // As in the reference, whatever is not there leads here.
        .fallback(|| async { INDEX })
        .route("/metrics", get(move || statistics.prometheus()))
        .route("/stats", get(lines))
        .route("/rlconfig", get(rlconfig))
}

/// One line for each limit, as the reference prints them, with our own additions behind.
fn rlconfig(rules: &Rules) -> String {
    let mut page = String::new();
    if let Some(rules) = rules.current() {
        for rule in rules.matcher.rules() {
            describe(rule, &mut page);
        }
    }
    page
}

/// Writing to a string cannot fail.
fn describe(rule: &Rule, page: &mut String) {
    // A value of a rule can be any text; a line must stay one.
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
        if rule.counts == Counts::Admitted {
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
