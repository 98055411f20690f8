//! The gRPC service, and the clock that dates every request.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hyper::{
    HeaderMap, Request as HttpRequest, Response as HttpResponse, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
};
use prost::{Message as _, bytes::Bytes};
use tonic::{
    Request as Call, Response, Status,
    body::Body,
    codec::CompressionEncoding::{Deflate, Gzip},
    server::{Grpc, UnaryService},
};

use crate::{
    core::{
        decision::Decision,
        lease::{order::SETTLE, token::LeaseToken},
        request::{Entry, Hits, Request},
        window::Timestamp,
    },
    observe::{
        metrics::Recorder,
        traces::{CallSummary, TracedCall, Tracer},
    },
    service::{
        answered_leases::{AnsweredLease, CallStream, ConnectionLeases, EndLeases},
        held::OpenConnection,
        limiter::{Basis, Limiter, NoDecision},
    },
    store::{
        contract::{Deadline, Store, StoreError},
        redis::clock::RedisClock,
    },
};

pub(crate) mod body;
mod codec;
pub mod fast_path;
mod limit_fields;
pub mod proto;
mod refusal_body;
pub mod wire;

use body::{MESSAGE_TIMEOUT, ReplyBody, RequestBody, no_room};
use codec::EncodedMessages;
use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use wire::RefusalText;

/// The path of the service's only method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// `envoy.service.ratelimit.v3.RateLimitService` on one worker.
#[derive(Debug)]
pub struct Service<S> {
    pub limiter: Limiter<S>,
    pub extras: wire::Extras,
    pub tracer: Tracer,
    pub clock: RequestClock,
}

/// The clock of requests: that of Redis, so that all replicas find the same window, or that of this machine.
#[derive(Clone, Debug, Default)]
pub struct RequestClock {
    redis: Option<RedisClock>,
}

impl RequestClock {
    /// The clock of Redis. Until Redis has returned its time, the clock of this machine.
    pub(crate) fn of_redis(redis: RedisClock) -> Self {
        Self { redis: Some(redis) }
    }

    /// The current time. One reading serves a request from beginning to end.
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// The time at `moment`, which must be now or very recent.
    fn at(&self, moment: Instant) -> Timestamp {
        let redis = self.redis.as_ref();
        let read = redis.and_then(|clock| clock.at(moment.into()));
        read.unwrap_or_else(now)
    }
}

/// The largest message, in bytes: four times the headers that Envoy accepts.
pub(crate) const MAX_MESSAGE_BYTES: usize = 256 << 10;

/// The connection of a call.
#[derive(Clone)]
pub(crate) struct CallConnection {
    pub(crate) open: Arc<OpenConnection>,
    pub(crate) leases: Arc<ConnectionLeases>,
    /// Each running decision owns a part of this.
    pub(crate) running: Weak<()>,
}

/// Answers a call of the service's method. Failures are answers too.
pub(crate) async fn respond<S: Store + Clone>(
    service: Arc<Service<S>>,
    connection: CallConnection,
    request: HttpRequest<Incoming>,
) -> HttpResponse<ReplyBody> {
    let arrived = Instant::now();
    let open = connection.open.clone();
    if !is_grpc(request.headers()) {
        let mut refusal = HttpResponse::new(Body::empty());
        *refusal.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return ReplyBody::of(refusal, open);
    }
    if open.is_greedy() {
        return ReplyBody::of(no_room(&open).into_http(), open);
    }
    let request = RequestBody::of(request, &open, MESSAGE_TIMEOUT);
    let mut grpc = Grpc::new(EncodedMessages)
        .accept_compressed(Gzip)
        .accept_compressed(Deflate)
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let method = ShouldRateLimit {
        service,
        connection,
        arrived,
    };
    let mut response = ReplyBody::of(grpc.unary(method, request).await, open.clone());
    match response.body_mut().begin().await {
        Ok(()) => response,
        Err(status) => ReplyBody::of(status.into_http(), open),
    }
}

/// Whether the content type is one of gRPC. A page in a browser can send some others without being asked.
fn is_grpc(headers: &HeaderMap) -> bool {
    const TYPE: &str = "application/grpc";
    let value = headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    matches!(value.split_at_checked(TYPE.len()), Some((start, [] | [b'+' | b';', ..]))
        if start.eq_ignore_ascii_case(TYPE.as_bytes()))
}

/// The method for one call.
struct ShouldRateLimit<S> {
    service: Arc<Service<S>>,
    connection: CallConnection,
    /// When its headers arrived: the time that its caller gives it begins then.
    arrived: Instant,
}

impl<S: Store + Clone> UnaryService<Bytes> for ShouldRateLimit<S> {
    type Response = Vec<u8>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Vec<u8>>, Status>> + Send>>;

    fn call(&mut self, call: Call<Bytes>) -> Self::Future {
        let (service, connection) = (self.service.clone(), self.connection.clone());
        let arrived = self.arrived;
        Box::pin(async move {
            let _running = connection.running.upgrade();
            let (headers, _, message) = call.into_parts();
            let reply = service.answer_call(arrived, headers.into_headers(), message, &connection);
            reply.await.map(Response::new)
        })
    }
}

/// A tenth of the time is left for the network.
const MARGIN: u32 = 10;

/// The part of `timeout` that a decision may use.
fn for_decision(timeout: Duration) -> Duration {
    timeout - timeout / MARGIN
}

/// How long after its arrival an answer is of use to the caller (gRPC over HTTP/2, "Timeout"). `None` if `text` is no
/// timeout. Envoy sends milliseconds, 20 unless it is configured otherwise.
fn timeout(text: &[u8]) -> Option<Duration> {
    const MAX_DIGITS: usize = 8;
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(number * 3600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

impl<S: Store + Clone> EndLeases for Service<S> {
    fn has_leases(&self) -> bool {
        self.limiter.rules.has_leases()
    }

    fn end(self: Arc<Self>, lease: AnsweredLease) {
        self.limiter.metrics.record_unused_answer();
        let service = self.clone();
        self.limiter
            .returns
            .take(async move { service.end_lease(&lease).await });
    }
}

/// Guards a waiting call. A drop before the end means that its caller has given up: Envoy resets the stream when its
/// timeout has passed.
struct AbandonedCall<'a>(Option<&'a Recorder>);

impl AbandonedCall<'_> {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for AbandonedCall<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.record_late_call();
        }
    }
}

impl<S: Store + Clone> Service<S> {
    /// Answers a call whose message has arrived just now, and whose headers `arrived` before. If its time is over,
    /// nothing is computed and nothing is charged.
    async fn answer_call(
        &self,
        arrived: Instant,
        headers: HeaderMap,
        message: Bytes,
        connection: &CallConnection,
    ) -> Result<Vec<u8>, Status> {
        let began = Instant::now();
        let header = |name: &str| headers.get(name)?.to_str().ok();
        let timeout = header("grpc-timeout").and_then(|text| timeout(text.as_bytes()));
        let left = timeout.map(|timeout| timeout.saturating_sub(began - arrived));
        if left == Some(Duration::ZERO) {
            self.limiter.metrics.record_late_call();
            return Err(Status::deadline_exceeded("the time of the call is over"));
        }
        let deadline = Deadline::of_call(began, left.map(for_decision));
        let span = self.tracer.begin(header);
        let stream = connection.leases.stream(&headers);
        let stream = stream.as_ref();
        // A call that waits for the store needs them no more.
        drop(headers);
        let abandoned = AbandonedCall(Some(&self.limiter.metrics));
        let reply = match span {
            None => self.answer_bytes(message, &deadline, stream).await,
            Some(span) => Box::pin(self.answer_traced(span, &deadline, message, stream)).await,
        };
        abandoned.answered();
        let (took, metrics) = (began.elapsed(), &self.limiter.metrics);
        if left.is_some_and(|left| took > left) {
            metrics.record_late_call();
        }
        metrics.record_call(took);
        reply
    }

    /// Answers one message with the bytes of the reply.
    async fn answer_bytes(
        &self,
        message: Bytes,
        deadline: &Deadline,
        stream: Option<&CallStream>,
    ) -> Result<Vec<u8>, Status> {
        let mut request = Request::default();
        if self.extras.is_none() && fast_path::read_into(&mut request, &message).is_some() {
            let now = self.clock.at(deadline.began);
            let render = |decision: &mut Decision, basis: &Basis<'_, '_>| {
                self.keep(stream, decision, now, || message[..].into());
                if !decision.is_degraded {
                    return Ok(self.plain(decision, basis, now));
                }
                let message: RateLimitRequest = codec::decode(message.clone())?;
                Ok(self.reply(decision, basis, &message, now).encode_to_vec())
            };
            let check = self.limiter.check(&request, now, deadline, render);
            return check.await.map_err(status)?;
        }
        // Boxed, or the future of every call would reserve the space that unusual calls need.
        let message = codec::decode(message.clone())?;
        let reply = Box::pin(self.answer_on(&message, deadline, stream)).await?;
        Ok(reply.encode_to_vec())
    }

    /// Like [`answer_bytes`](Self::answer_bytes), and makes the spans of the call.
    async fn answer_traced(
        &self,
        span: TracedCall,
        deadline: &Deadline,
        message: Bytes,
        stream: Option<&CallStream>,
    ) -> Result<Vec<u8>, Status> {
        let began_nanos = u64::try_from(since_epoch().as_nanos()).unwrap_or(u64::MAX);
        let message: RateLimitRequest = codec::decode(message)?;
        let reply = self.answer_on(&message, deadline, stream).await;
        span.end(CallSummary {
            began_nanos,
            took: deadline.began.elapsed(),
            domain: message.domain,
            descriptors: message.descriptors.len(),
            answer: match &reply {
                Ok(reply) => Ok(reply.overall_code().as_str_name()),
                Err(status) => Err((status.message().to_owned(), status.code().into())),
            },
        });
        reply.map(|reply| reply.encode_to_vec())
    }

    /// Answers one message, from gRPC or from `/json`.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if the request is invalid, RESOURCE_EXHAUSTED if too many others wait, UNAVAILABLE if there
    /// is no decision for another reason.
    pub async fn answer(
        &self,
        message: &RateLimitRequest,
        deadline: &Deadline,
    ) -> Result<RateLimitResponse, Status> {
        self.answer_on(message, deadline, None).await
    }

    /// [`Self::answer`] for a call of gRPC, whose stream may have a name.
    async fn answer_on(
        &self,
        message: &RateLimitRequest,
        deadline: &Deadline,
        stream: Option<&CallStream>,
    ) -> Result<RateLimitResponse, Status> {
        let request = self.request(message)?;
        let now = self.clock.now();
        let render = |decision: &mut Decision, basis: &Basis<'_, '_>| {
            self.keep(stream, decision, now, || message.encode_to_vec().into());
            self.reply(decision, basis, message, now)
        };
        let check = self.limiter.check(&request, now, deadline, render);
        check.await.map_err(status)
    }

    /// The reply to `message`, with all that the settings add to it.
    fn reply(
        &self,
        decision: &mut Decision,
        basis: &Basis<'_, '_>,
        message: &RateLimitRequest,
        now: Timestamp,
    ) -> RateLimitResponse {
        let fields = limit_fields::headers(self.extras.fields, decision, basis, now);
        let body = refusal_body::body(decision, basis, now);
        let lease = self.token(decision, now);
        let mut reply = wire::response(decision, message, &self.extras);
        wire::add_headers(&mut reply, fields);
        if let Some(body) = body {
            wire::add_body(&mut reply, body);
        }
        if let Some(lease) = lease {
            wire::add_lease(&mut reply, &lease);
        }
        reply
    }

    /// The token of the hits that a decision leases.
    fn token(&self, decision: &Decision, now: Timestamp) -> Option<LeaseToken> {
        let leased = decision.leased.as_deref()?;
        self.limiter.leases.token(leased, decision.is_degraded, now)
    }

    /// Keeps the lease that an answer carries for as long as its stream may be reset.
    #[inline]
    fn keep(
        &self,
        stream: Option<&CallStream>,
        decision: &Decision,
        now: Timestamp,
        message: impl FnOnce() -> Box<[u8]>,
    ) {
        if let (Some(stream), Some(leased)) = (stream, decision.leased.as_deref())
            && let Some(token) = self.token(decision, now)
        {
            let reserved = leased.reserved.iter().map(|(index, _)| *index);
            stream.keep(AnsweredLease {
                message: message(),
                token,
                descriptors: reserved.chain(leased.slots.iter().copied()).collect(),
            });
        }
    }

    /// Ends a lease as an order would that settles it without a cost.
    async fn end_lease(&self, lease: &AnsweredLease) {
        let Ok(message) = RateLimitRequest::decode(&*lease.message) else {
            return;
        };
        let Ok(sent) = wire::request(&message) else {
            return;
        };
        let token = lease.token.to_string();
        let mut orders = Request::new(sent.domain);
        for &index in &lease.descriptors {
            let entries = sent.descriptors().nth(index).map(|sent| sent.entries);
            for entry in entries.into_iter().flatten() {
                orders.push_entry(*entry);
            }
            orders.push_entry(Entry {
                key: SETTLE,
                value: token.as_bytes(),
            });
            orders.push_descriptor(Hits::add(0), None);
        }
        let (deadline, now) = (Deadline::of_store(), self.clock.now());
        let ended = self.limiter.check(&orders, now, &deadline, |_, _| ());
        // The store may be away: then slots wait for it, and hits stay charged until their window ends.
        let _ = ended.await;
    }

    /// Encodes a reply without metadata but those of a lease, and without headers unless it has a body.
    fn plain(&self, decision: &Decision, basis: &Basis<'_, '_>, now: Timestamp) -> Vec<u8> {
        let mut reply = fast_path::reply(decision);
        let body = refusal_body::body(decision, basis, now);
        if body.is_some() || decision.leased.is_some() {
            append(&mut reply, body, self.token(decision, now));
        }
        reply
    }

    fn request<'m>(&self, message: &'m RateLimitRequest) -> Result<Request<'m>, Status> {
        wire::request(message).map_err(|error| {
            self.limiter.metrics.record_bad_request();
            Status::invalid_argument(error.to_string())
        })
    }
}

/// Appends the encoded body and lease, because the fields of a message can follow each other in any order.
#[cold]
fn append(reply: &mut Vec<u8>, body: Option<RefusalText>, lease: Option<LeaseToken>) {
    let mut more = RateLimitResponse::default();
    if let Some(body) = body {
        wire::add_body(&mut more, body);
    }
    if let Some(lease) = lease {
        wire::add_lease(&mut more, &lease);
    }
    reply.extend(more.encode_to_vec());
}

/// Converts a missing decision to a status. Envoy's `failure_mode_deny` handles all codes alike, but operators must
/// be able to distinguish overload from a lost store.
fn status(error: NoDecision) -> Status {
    match error {
        NoDecision::Store(StoreError::Overloaded) => Status::resource_exhausted(error.to_string()),
        NoDecision::NoRules | NoDecision::Store(_) => Status::unavailable(error.to_string()),
    }
}

/// Reads the clock of this machine.
pub fn now() -> Timestamp {
    Timestamp::from_millis(0).plus(since_epoch())
}

fn since_epoch() -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "time is read here, once a request"
    )]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_in_every_unit_and_a_tenth_is_left_for_the_way() {
        for (text, expected) in [
            ("20m", Some(Duration::from_millis(20))),
            ("0m", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("2S", Some(Duration::from_secs(2))),
            ("7u", Some(Duration::from_micros(7))),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("m", None),
            ("20", None),
            ("-1m", None),
            ("1.5S", None),
            ("123456789m", None),
            (" 20m", None),
        ] {
            assert_eq!(timeout(text.as_bytes()), expected, "{text}");
        }
        let of_envoy = Duration::from_millis(20);
        assert_eq!(for_decision(of_envoy), Duration::from_millis(18));
    }
}
