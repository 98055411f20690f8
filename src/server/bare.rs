//! Connections served as in [`serve`](super::run), but to another method: without rules, store and
//! metrics. Benchmarks find out in this way what of a decision is not their own.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};
use tonic::service::Routes;

use super::{
    authority::Notes,
    ports::GrpcListener,
    runtime,
    worker::{Keepalive, Phase, Serving, Worker, Workers, accept},
};
use crate::{
    grpc::unary::{Door, Method},
    held::Budget,
    limit::NearRatio,
    metrics::Metrics,
    settings::Settings,
};

/// Serves `method` on `workers` threads, until one of them ends.
///
/// # Errors
///
/// If there is no thread or runtime to be had.
pub fn serve_method<M: Method>(
    listener: std::net::TcpListener,
    workers: usize,
    method: M,
) -> io::Result<()> {
    let method = Arc::new(method);
    let metrics = Arc::new(Metrics::new(NearRatio::default(), 0));
    let settings = Settings::from_environment();
    let notes = Notes::new(metrics.clone());
    let budget = Budget::new(settings.bounds.max_held_bytes, metrics);
    runtime()?.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = GrpcListener::Tcp(TcpListener::from_std(listener)?);
        // Nobody asks it to drain.
        let (_phase, phases) = watch::channel(Phase::Serving);
        let mut all = Workers::default();
        for _ in 0..workers {
            let serving = Serving {
                door: Door {
                    method: method.clone(),
                    max_message_bytes: settings.bounds.max_message_bytes,
                    message_timeout: settings.bounds.message_timeout,
                    max_header_bytes: settings.bounds.max_header_bytes,
                    others: Routes::default().prepare(),
                },
                tls: None,
                bounds: settings.bounds,
                notes: notes.clone(),
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
        let places = Arc::new(Semaphore::new(settings.bounds.max_connections));
        let doors = all.doors();
        tokio::select! {
            () = accept(listener, doors, places, budget) => {}
            () = all.first_end() => {}
        }
        Ok(())
    })
}
