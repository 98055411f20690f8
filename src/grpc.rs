//! The gRPC door: the service, and the clock that every request is answered by.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tonic::{Request, Response, Status};

use crate::{
    limiter::{Limiter, NoDecision},
    store::Store,
    traces::{Tracer, Went},
    window::Timestamp,
};

pub mod codec;
pub mod json;
pub mod proto;
pub mod wire;

use proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
};

/// `envoy.service.ratelimit.v3.RateLimitService` on one worker.
#[derive(Debug)]
pub struct Service<S> {
    pub limiter: Limiter<S>,
    pub bounds: wire::Bounds,
    pub extras: wire::Extras,
    pub tracer: Tracer,
}

#[tonic::async_trait]
impl<S: Store> RateLimitService for Service<S> {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let began = Instant::now();
        let metadata = request.metadata();
        let span = self
            .tracer
            .begin(|name| metadata.get(name)?.to_str().ok())
            .map(|span| (span, nanos()));
        let message = request.into_inner();
        let reply = self.answer(&message).await;
        let took = began.elapsed();
        self.limiter.metrics.record_call(took);
        if let Some((span, began_nanos)) = span {
            span.end(Went {
                began_nanos,
                took,
                domain: message.domain,
                descriptors: message.descriptors.len(),
                answer: match &reply {
                    Ok(reply) => Ok(reply.overall_code().as_str_name()),
                    Err(status) => Err((status.message().to_owned(), status.code().into())),
                },
            });
        }
        reply.map(Response::new)
    }
}

impl<S: Store> Service<S> {
    /// Answers one message, by whatever way it came.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if it asks nothing that can be answered, UNAVAILABLE if there is no
    /// decision.
    pub async fn answer(&self, message: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let request = wire::request(message, self.bounds).map_err(|error| {
            self.limiter.metrics.record_bad_request();
            Status::invalid_argument(error.to_string())
        })?;
        let decision = self.limiter.check(&request, now()).await.map_err(status)?;
        Ok(wire::response(decision, message, &self.extras))
    }
}

/// Envoy's `failure_mode_deny` decides what becomes of a request without a decision; all codes
/// are alike to it.
fn status(error: NoDecision) -> Status {
    Status::unavailable(error.to_string())
}

/// Reads the clock. A request is answered by one reading, from beginning to end.
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
