//! The gRPC door: the service, and the clock that every request is answered by.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tonic::{Request, Response, Status};

use crate::{
    limiter::{Limiter, NoDecision},
    store::Store,
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
}

#[tonic::async_trait]
impl<S: Store> RateLimitService for Service<S> {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let began = Instant::now();
        let reply = self.answer(&request.into_inner()).await;
        self.limiter.metrics.record_call(began.elapsed());
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
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the door at which time comes in"
    )]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp::from_millis(0).plus(since_epoch.unwrap_or_default())
}
