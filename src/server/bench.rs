//! Serves any method as [`run`](super::run::run) does, but without rules and store. Benchmarks use it to measure the
//! cost of the transport.
//!
//! It is part of the library because it needs the server's own workers and connections. They are not public, so a
//! benchmark could only copy them.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};
use tonic::service::Routes;

use crate::{
    core::limit::NearRatio,
    observe::metrics::Metrics,
    server::{
        authority::AuthorityLog,
        connection::{ConnectionOptions, ConnectionParts, ConnectionServer},
        ports::GrpcListener,
        tasks::OwnedTasks,
        workers::{Worker, Workers, accept, runtime},
    },
    service::{
        grpc::unary::{Phase, UnaryMethod},
        held_bytes::HeldBound,
    },
    settings::serve::Settings,
};

/// Serves `method` on `workers` threads until one of them ends.
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
    let mut options = ConnectionOptions::new(&settings);
    options.max_age = Duration::ZERO;
    let memory = settings.memory_shares(None).map_err(io::Error::other)?;
    let bound = HeldBound::new(memory.held_bytes, metrics.clone());
    // This server never drains.
    let (_phase, phases) = watch::channel(Phase::Serving);
    let connections = ConnectionParts {
        tls: None,
        authority_log: AuthorityLog::new(metrics),
        bound: bound.clone(),
        phases,
    };
    runtime()?.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = GrpcListener::Tcp(TcpListener::from_std(listener)?);
        let (mut all, mut tasks) = (Workers::default(), OwnedTasks::default());
        for _ in 0..workers {
            let (method, others) = (method.clone(), Routes::default());
            let server = ConnectionServer::new(method, others, options, connections.clone());
            let worker = Worker {
                server,
                of_store: Vec::new(),
                at_drain: Vec::new(),
                at_end: Vec::new(),
            };
            all.start(worker, &mut tasks)?;
        }
        let max_connections = Arc::new(Semaphore::new(memory.connections));
        let senders = all.senders();
        tokio::select! {
            () = accept(listener, senders, max_connections, bound) => {}
            _ = tasks.unexpected_end() => {}
        }
        Ok(())
    })
}
