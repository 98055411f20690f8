//! The floor: connections served as in [`serve`](super::run), but without rules, store and
//! metrics. Benchmarks measure everything else against it.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};
use tonic::{Request, Response, Status};

use super::{
    ports::GrpcListener,
    runtime,
    worker::{Phase, Serving, Worker, Workers, accept},
};
use crate::grpc::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 10_000;

/// Calls at a time on one connection.
const MAX_STREAMS: u32 = 1024;

/// Answers OK to everything on `workers` threads, until one of them ends.
///
/// # Errors
///
/// If there is no thread or runtime to be had.
pub fn serve_floor(listener: std::net::TcpListener, workers: usize) -> io::Result<()> {
    runtime()?.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = GrpcListener::Tcp(TcpListener::from_std(listener)?);
        // Nobody asks it to drain.
        let (_phase, phases) = watch::channel(Phase::Serving);
        let mut all = Workers::default();
        for _ in 0..workers {
            let serving = Serving {
                routes: tonic::service::Routes::new(RateLimitServiceServer::new(Floor)).prepare(),
                tls: None,
                max_streams: MAX_STREAMS,
                max_age: Duration::ZERO,
                grace: Duration::ZERO,
                phases: phases.clone(),
            };
            all.start(Worker {
                serving,
                batchers: Vec::new(),
            })?;
        }
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let doors = all.doors();
        tokio::select! {
            () = accept(listener, doors, places) => {}
            () = all.first_end() => {}
        }
        Ok(())
    })
}

/// OK to everything, without a look at what is asked.
#[derive(Debug)]
pub struct Floor;

#[tonic::async_trait]
impl RateLimitService for Floor {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![DescriptorStatus {
                code: Code::Ok.into(),
                ..DescriptorStatus::default()
            }],
            ..RateLimitResponse::default()
        }))
    }
}
