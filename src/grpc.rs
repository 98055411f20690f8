//! The gRPC door: the service, and the clock that every request is answered by.

use std::{
    cell::Cell,
    mem,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hyper::HeaderMap;
use prost::{Message as _, bytes::Bytes};
use tonic::Status;

use crate::{
    decision::Decision,
    limiter::{Limiter, NoDecision},
    metrics::Recorder,
    request::Request,
    store::{Deadline, Store, StoreError},
    traces::{Call, Tracer, Went},
    window::Timestamp,
};

pub mod codec;
pub mod json;
pub mod proto;
pub mod quick;
mod timeout;
pub mod unary;
pub mod wire;

use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use unary::{Method, arrived, framed};

/// The path of the only method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// `envoy.service.ratelimit.v3.RateLimitService` on one worker.
#[derive(Debug)]
pub struct Service<S> {
    pub limiter: Limiter<S>,
    pub bounds: wire::Bounds,
    pub extras: wire::Extras,
    pub tracer: Tracer,
    pub clock: Clock,
}

/// The clock that requests are answered by: this machine's, put forward or back to that of Redis,
/// so that all replicas find the same window.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// How far the right time is ahead of this machine's, in milliseconds.
    pub ahead_millis: Arc<AtomicI64>,
}

/// How long what was read of this machine's clock is good for, so that no call reads it that does
/// not have to: a request cannot tell times apart that are closer than [`Timestamp`]s are.
const GOOD_FOR: Duration = Duration::from_millis(1);

thread_local! {
    /// When this thread has last read the time of day, and what it was then.
    static LAST_READ: Cell<Option<(Instant, Timestamp)>> = const { Cell::new(None) };
}

impl Clock {
    /// Reads it. A request is answered by one reading, from beginning to end.
    pub fn now(&self) -> Timestamp {
        self.adjust(now())
    }

    /// The time at `moment`, which is the present or was just now. It is a millisecond older at most, also
    /// after the clock was set.
    fn at(&self, moment: Instant) -> Timestamp {
        let read = LAST_READ
            .get()
            .filter(|(at, _)| moment.duration_since(*at) < GOOD_FOR);
        let (_, read) = read.unwrap_or_else(|| {
            let read = (moment, now());
            LAST_READ.set(Some(read));
            read
        });
        self.adjust(read)
    }

    fn adjust(&self, read: Timestamp) -> Timestamp {
        let ahead = self.ahead_millis.load(Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 {
            read.minus(by)
        } else {
            read.plus(by)
        }
    }
}

/// What is kept of a call until it is answered.
#[derive(Debug)]
pub struct Noted {
    began: Instant,
    /// How long after that an answer is of use to the caller, if it said so.
    timeout: Option<Duration>,
    /// If it is traced.
    span: Option<Box<Call>>,
}

impl<S: Store> Method for Service<S> {
    const PATH: &'static str = SHOULD_RATE_LIMIT;

    type Noted = Noted;

    fn note(&self, headers: &HeaderMap, timeout: Option<Duration>) -> Noted {
        let header = |name: &str| headers.get(name)?.to_str().ok();
        Noted {
            began: arrived(),
            timeout,
            span: self.tracer.begin(header).map(Box::new),
        }
    }

    fn message_came(&self, noted: &mut Noted) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(noted.began);
        noted.timeout = noted.timeout.map(|timeout| timeout.saturating_sub(passed));
        noted.began = now;
    }

    fn call_at_once(&self, noted: &Noted, message: &Bytes) -> Option<Result<Bytes, Status>> {
        if noted.span.is_some() || !self.extras.is_none() {
            return None;
        }
        let memory = self.limiter.store.as_memory()?;
        let mut request = Request::default();
        quick::read_into(&mut request, message, self.bounds)?;
        let now = self.clock.at(noted.began);
        let reply = self
            .limiter
            .check_at_once(memory, &request, now, |decision| plain(decision))
            .map_err(status);
        self.record(noted.began.elapsed(), noted.timeout);
        Some(reply)
    }

    async fn call(&self, noted: Noted, message: Bytes) -> Result<Bytes, Status> {
        let Noted {
            began,
            timeout,
            span,
        } = noted;
        let deadline = Deadline {
            began,
            timeout: timeout.map(timeout::for_decision),
        };
        let in_vain = InVain(Some(&self.limiter.metrics));
        let reply = match span {
            None => self.answer_bytes(message, &deadline).await,
            Some(span) => Box::pin(self.answer_traced(*span, &deadline, message)).await,
        };
        in_vain.answered();
        self.record(began.elapsed(), timeout);
        reply
    }
}

/// A call that waits. Its caller has given up if this is dropped before it is over: Envoy resets the stream
/// when its timeout has passed.
struct InVain<'a>(Option<&'a Recorder>);

impl InVain<'_> {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for InVain<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.record_late_call();
        }
    }
}

impl<S: Store> Service<S> {
    /// A call was answered, which had `timeout`.
    fn record(&self, took: Duration, timeout: Option<Duration>) {
        if timeout.is_some_and(|timeout| took > timeout) {
            self.limiter.metrics.record_late_call();
        }
        self.limiter.metrics.record_call(took);
    }

    /// Answers one message, with the reply as it is sent.
    async fn answer_bytes(&self, message: Bytes, deadline: &Deadline) -> Result<Bytes, Status> {
        let mut request = Request::default();
        if self.extras.is_none() && quick::read_into(&mut request, &message, self.bounds).is_some()
        {
            let tell = |decision: &mut Decision| {
                if !decision.is_degraded {
                    return Ok(plain(decision));
                }
                let message: RateLimitRequest = codec::decode(message.clone())?;
                let reply = wire::response(mem::take(decision), &message, &self.extras);
                Ok(encoded(&reply))
            };
            let now = self.clock.at(deadline.began);
            let check = self.limiter.check(&request, now, deadline, tell);
            return check.await.map_err(status)?;
        }
        // Boxed, or every call would have room for what unusual ones need.
        let message = codec::decode(message.clone())?;
        let reply = Box::pin(self.answer(&message, deadline)).await?;
        Ok(encoded(&reply))
    }

    /// The same, and tells of it.
    async fn answer_traced(
        &self,
        span: Call,
        deadline: &Deadline,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        let began_nanos = nanos();
        let message: RateLimitRequest = codec::decode(message)?;
        let reply = self.answer(&message, deadline).await;
        span.end(Went {
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

    /// Answers one message, by whatever way it came.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if it asks nothing that can be answered, RESOURCE_EXHAUSTED if too many others
    /// wait, UNAVAILABLE if there is no decision for another reason.
    pub async fn answer(
        &self,
        message: &RateLimitRequest,
        deadline: &Deadline,
    ) -> Result<RateLimitResponse, Status> {
        let request = wire::request(message, self.bounds).map_err(|error| {
            self.limiter.metrics.record_bad_request();
            Status::invalid_argument(error.to_string())
        })?;
        let tell =
            |decision: &mut Decision| wire::response(mem::take(decision), message, &self.extras);
        let now = self.clock.now();
        let check = self.limiter.check(&request, now, deadline, tell);
        check.await.map_err(status)
    }
}

/// A reply without headers and metadata.
fn plain(decision: &Decision) -> Bytes {
    framed(quick::length(decision), |buffer| {
        quick::write(decision, buffer)
    })
}

fn encoded(reply: &RateLimitResponse) -> Bytes {
    framed(reply.encoded_len(), |buffer| reply.encode_raw(buffer))
}

/// Envoy's `failure_mode_deny` decides what becomes of a request without a decision; all codes
/// are alike to it. To operators they are not: too much work is another matter than a lost store.
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

/// The same for a span, in nanoseconds since 1970.
fn nanos() -> u64 {
    u64::try_from(since_epoch().as_nanos()).unwrap_or(u64::MAX)
}

fn since_epoch() -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the door at which time comes in"
    )]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_put_forward_and_back() {
        let clock = Clock::default();
        for millis in [-3_600_000, 0, 3_600_000] {
            clock.ahead_millis.store(millis, Relaxed);
            let read = i64::try_from(clock.now().millis()).unwrap();
            let ahead = read - i64::try_from(now().millis()).unwrap();
            assert!((ahead - millis).abs() < 60_000, "{ahead} and not {millis}");
        }
    }
}
