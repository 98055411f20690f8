//! The timer of gRPC connections.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use hyper::rt::{Sleep, Timer};
use hyper_util::rt::TokioTimer;

use crate::service::grpc::unary::arrived;

/// A timer whose "now" is the time of the current poll of a connection.
///
/// For its keepalive, hyper asks for the time with every frame that it reads, which would be three readings of the
/// clock for each call. The time of the poll that found the frame is exact enough for that.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollTimer;

impl Timer for PollTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep(duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep_until(deadline)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        TokioTimer::new().reset(sleep, new_deadline);
    }

    fn now(&self) -> Instant {
        arrived()
    }
}
