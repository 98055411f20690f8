//! The gRPC door: the service, and the clock that every request is answered by.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

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
    pub clock: Clock,
}

/// The clock that requests are answered by: this machine's, put forward or back to that of Redis,
/// so that all replicas find the same window.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// How far the right time is ahead of this machine's, in milliseconds.
    pub ahead_millis: Arc<AtomicI64>,
}

impl Clock {
    /// Reads it. A request is answered by one reading, from beginning to end.
    pub fn now(&self) -> Timestamp {
        let ahead = self.ahead_millis.load(Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 {
            now().minus(by)
        } else {
            now().plus(by)
        }
    }
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
        let decision = self
            .limiter
            .check(&request, self.clock.now())
            .await
            .map_err(status)?;
        Ok(wire::response(decision, message, &self.extras))
    }
}

/// Envoy's `failure_mode_deny` decides what becomes of a request without a decision; all codes
/// are alike to it.
fn status(error: NoDecision) -> Status {
    Status::unavailable(error.to_string())
}

/// Reads the clock of this machine.
pub fn now() -> Timestamp {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the door at which time comes in"
    )]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp::from_millis(0).plus(since_epoch.unwrap_or_default())
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
