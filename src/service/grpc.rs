//! The gRPC service, and the clock that dates every request.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hyper::HeaderMap;
use prost::{Message as _, bytes::Bytes};
use tonic::Status;

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
        answered_leases::{AnsweredLease, CallStream, ConnectionLeases, EndLeases, WorkerLeases},
        limiter::{Basis, Limiter, NoDecision},
    },
    store::{
        contract::{Deadline, Store, StoreError},
        redis::clock::RedisClock,
    },
};

pub(crate) mod codec;
pub mod fast_path;
mod limit_fields;
pub mod proto;
mod refusal_body;
pub(crate) mod unary;
pub mod wire;

use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use unary::{UnaryMethod, arrived, framed};
use wire::RefusalText;

/// The path of the service's only method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// `envoy.service.ratelimit.v3.RateLimitService` on one worker.
#[derive(Debug)]
pub struct Service<S> {
    pub limiter: Limiter<S>,
    pub bounds: wire::RequestBounds,
    pub extras: wire::Extras,
    pub tracer: Tracer,
    pub clock: RequestClock,
}

/// The clock of requests: that of Redis, so that all replicas find the same window, or that of this machine.
#[derive(Clone, Debug, Default)]
pub struct RequestClock {
    redis: Option<RedisClock>,
}

/// How long a reading of this machine's clock is reused, to save reads: a request cannot distinguish times closer
/// than the resolution of a [`Timestamp`].
const GOOD_FOR: Duration = Duration::from_millis(1);

thread_local! {
    /// This thread's last reading of the time of day, and when it was taken.
    static LAST_READ: Cell<Option<(Instant, Timestamp)>> = const { Cell::new(None) };
}

impl RequestClock {
    /// The clock of Redis. Until Redis has returned its time, the clock of this machine.
    pub(crate) fn of_redis(redis: RedisClock) -> Self {
        Self { redis: Some(redis) }
    }

    /// The current time. One reading serves a request from beginning to end.
    pub fn now(&self) -> Timestamp {
        let redis = self.redis.as_ref();
        let read = redis.and_then(|clock| clock.at(Instant::now().into()));
        read.unwrap_or_else(now)
    }

    /// The time at `moment`, which must be now or very recent. The result is at most a millisecond old, also after
    /// this machine's clock was set.
    fn at(&self, moment: Instant) -> Timestamp {
        let redis = self.redis.as_ref();
        let read = redis.and_then(|clock| clock.at(moment.into()));
        read.unwrap_or_else(|| of_machine(moment))
    }
}

/// This machine's time of day at `moment`.
fn of_machine(moment: Instant) -> Timestamp {
    let read = LAST_READ
        .get()
        .filter(|(at, _)| moment.duration_since(*at) < GOOD_FOR);
    let (_, read) = read.unwrap_or_else(|| {
        let read = (moment, now());
        LAST_READ.set(Some(read));
        read
    });
    read
}

/// Data of a call, kept until it is answered.
#[derive(Debug)]
pub struct CallStart {
    began: Instant,
    /// How long after `began` an answer is useful to the caller, if the caller sent a timeout.
    timeout: Option<Duration>,
    /// `None` if the call is not traced.
    span: Option<Box<TracedCall>>,
    /// `None` while no rule leases.
    stream: Option<CallStream>,
}

impl<S: Store + Clone> UnaryMethod for Service<S> {
    const PATH: &'static str = SHOULD_RATE_LIMIT;

    type CallStart = CallStart;

    fn note(
        &self,
        headers: &HeaderMap,
        timeout: Option<Duration>,
        leases: &Arc<ConnectionLeases>,
    ) -> CallStart {
        let header = |name: &str| headers.get(name)?.to_str().ok();
        CallStart {
            began: arrived(),
            timeout,
            span: self.tracer.begin(header).map(Box::new),
            stream: leases.stream(headers),
        }
    }

    fn leases(self: &Arc<Self>) -> WorkerLeases {
        WorkerLeases::new(self.clone())
    }

    fn message_came(&self, start: &mut CallStart) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(start.began);
        start.timeout = start.timeout.map(|timeout| timeout.saturating_sub(passed));
        start.began = now;
    }

    async fn call(&self, start: CallStart, message: Bytes) -> Result<Bytes, Status> {
        let CallStart {
            began,
            timeout,
            span,
            stream,
        } = start;
        let deadline = Deadline::of_call(began, timeout.map(unary::for_decision));
        let abandoned = AbandonedCall(Some(&self.limiter.metrics));
        let stream = stream.as_ref();
        let reply = match span {
            None => self.answer_bytes(message, &deadline, stream).await,
            Some(span) => Box::pin(self.answer_traced(*span, &deadline, message, stream)).await,
        };
        abandoned.answered();
        self.record(began.elapsed(), timeout);
        reply
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
    /// Records an answered call, whose caller allowed `timeout`.
    fn record(&self, took: Duration, timeout: Option<Duration>) {
        if timeout.is_some_and(|timeout| took > timeout) {
            self.limiter.metrics.record_late_call();
        }
        self.limiter.metrics.record_call(took);
    }

    /// Answers one message with the bytes of the reply.
    async fn answer_bytes(
        &self,
        message: Bytes,
        deadline: &Deadline,
        stream: Option<&CallStream>,
    ) -> Result<Bytes, Status> {
        let mut request = Request::default();
        if self.extras.is_none()
            && fast_path::read_into(&mut request, &message, self.bounds).is_some()
        {
            let now = self.clock.at(deadline.began);
            let render = |decision: &mut Decision, basis: &Basis<'_, '_>| {
                self.keep(stream, decision, now, || message[..].into());
                if !decision.is_degraded {
                    return Ok(self.plain(decision, basis, now));
                }
                let message: RateLimitRequest = codec::decode(message.clone())?;
                Ok(encoded(&self.reply(decision, basis, &message, now)))
            };
            let check = self.limiter.check(&request, now, deadline, render);
            return check.await.map_err(status)?;
        }
        // Boxed, or the future of every call would reserve the space that unusual calls need.
        let message = codec::decode(message.clone())?;
        let reply = Box::pin(self.answer_on(&message, deadline, stream)).await?;
        Ok(encoded(&reply))
    }

    /// Like [`answer_bytes`](Self::answer_bytes), and makes the spans of the call.
    async fn answer_traced(
        &self,
        span: TracedCall,
        deadline: &Deadline,
        message: Bytes,
        stream: Option<&CallStream>,
    ) -> Result<Bytes, Status> {
        let began_nanos = nanos();
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
        reply.map(|reply| encoded(&reply))
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
        let Ok(sent) = wire::request(&message, self.bounds) else {
            return;
        };
        let token = lease.token.to_string();
        let mut orders = Request::new(sent.domain);
        for &index in &lease.descriptors {
            for entry in sent
                .descriptors()
                .nth(index)
                .into_iter()
                .flat_map(|sent| sent.entries)
            {
                orders.push_entry(*entry);
            }
            orders.push_entry(Entry {
                key: SETTLE,
                value: token.as_bytes(),
            });
            orders.push_descriptor(Hits::add(0), None);
        }
        let deadline = Deadline::of_store();
        let ended = self
            .limiter
            .check(&orders, self.clock.now(), &deadline, |_, _| ());
        // The store may be away: then slots wait for it, and hits stay charged until their window ends.
        let _ = ended.await;
    }

    /// Encodes a reply without metadata but those of a lease, and without headers unless it has a body.
    fn plain(&self, decision: &Decision, basis: &Basis<'_, '_>, now: Timestamp) -> Bytes {
        match refusal_body::body(decision, basis, now) {
            None if decision.leased.is_none() => framed(fast_path::room(decision), |room| {
                fast_path::write(decision, room)
            }),
            body => plain_with(decision, body, self.token(decision, now)),
        }
    }

    fn request<'m>(&self, message: &'m RateLimitRequest) -> Result<Request<'m>, Status> {
        wire::request(message, self.bounds).map_err(|error| {
            self.limiter.metrics.record_bad_request();
            Status::invalid_argument(error.to_string())
        })
    }
}

/// Appends the encoded body and lease, because the fields of a message can follow each other in any order.
#[cold]
fn plain_with(decision: &Decision, body: Option<RefusalText>, lease: Option<LeaseToken>) -> Bytes {
    let mut more = RateLimitResponse::default();
    if let Some(body) = body {
        wire::add_body(&mut more, body);
    }
    if let Some(lease) = lease {
        wire::add_lease(&mut more, &lease);
    }
    let length = more.encoded_len();
    framed(fast_path::room(decision) + length, |room| {
        let (room, mut end) = room.split_at_mut(room.len() - length);
        more.encode_raw(&mut end);
        fast_path::write(decision, room)
    })
}

fn encoded(reply: &RateLimitResponse) -> Bytes {
    framed(reply.encoded_len(), |mut room| {
        reply.encode_raw(&mut room);
        0
    })
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

/// The time of day for a span, in nanoseconds since 1970.
fn nanos() -> u64 {
    u64::try_from(since_epoch().as_nanos()).unwrap_or(u64::MAX)
}

fn since_epoch() -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "time is read here, once a request"
    )]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.unwrap_or_default()
}
