//! Serves connections like [`run`](super::run::run), but with another method: without rules, store and metrics.
//! Benchmarks
//! measure the cost of the transport with it.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};
use tonic::service::Routes;

use super::{
    authority::AuthorityLog,
    ports::GrpcListener,
    runtime::runtime,
    worker::{Keepalive, Phase, Serving, Worker, Workers, accept},
};
use crate::{
    core::limit::NearRatio,
    observe::metrics::Metrics,
    service::{
        budget::Budget,
        grpc::unary::{Dispatcher, UnaryMethod},
    },
    settings::serve::Settings,
};

/// Serves `method` on `workers` threads, until one of them ends.
///
/// # Errors
///
/// If a thread or a runtime cannot be started.
pub fn serve_method<M: UnaryMethod>(
    listener: std::net::TcpListener,
    workers: usize,
    method: M,
) -> io::Result<()> {
    let method = Arc::new(method);
    let metrics = Arc::new(Metrics::new(NearRatio::default(), 0));
    let settings = Settings::from_environment();
    let authority_log = AuthorityLog::new(metrics.clone());
    let budget = Budget::new(settings.bounds.max_held_bytes, metrics);
    runtime()?.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = GrpcListener::Tcp(TcpListener::from_std(listener)?);
        // This server never drains.
        let (_phase, phases) = watch::channel(Phase::Serving);
        let mut all = Workers::default();
        for _ in 0..workers {
            let serving = Serving {
                dispatcher: Dispatcher {
                    method: method.clone(),
                    max_message_bytes: settings.bounds.max_message_bytes,
                    message_timeout: settings.bounds.message_timeout,
                    max_header_bytes: settings.bounds.max_header_bytes,
                    others: Routes::default().prepare(),
                },
                tls: None,
                bounds: settings.bounds,
                authority_log: authority_log.clone(),
                budget: budget.clone(),
                keepalive: Keepalive::new(&settings.listen),
                first_call: settings.listen.first_call_timeout,
                max_age: Duration::ZERO,
                grace: Duration::ZERO,
                phases: phases.clone(),
            };
            all.start(Worker {
                serving,
                batchers: Vec::new(),
            })?;
        }
        let max_connections = Arc::new(Semaphore::new(settings.bounds.max_connections));
        let senders = all.senders();
        tokio::select! {
            () = accept(listener, senders, max_connections, budget) => {}
            () = all.first_end() => {}
        }
        Ok(())
    })
}
