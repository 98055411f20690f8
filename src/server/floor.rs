//! The floor: connections served as in [`serve`](super::run), but without rules, store and
//! metrics. Benchmarks measure everything else against it.

use std::{io, sync::Arc, time::Duration};

use hyper::HeaderMap;
use prost::bytes::Bytes;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};
use tonic::{Status, service::Routes};

use super::{
    authority::Notes,
    ports::GrpcListener,
    runtime,
    worker::{Keepalive, Phase, Serving, Worker, Workers, accept},
};
use crate::{
    decision::{self, Code, Decision},
    grpc::{
        SHOULD_RATE_LIMIT, quick,
        unary::{Door, Method, framed},
        wire,
    },
    limit::NearRatio,
    metadata::Map,
    metrics::Metrics,
    request::Few,
    settings::Settings,
};

/// As many as the settings' defaults admit, and more than one call sends.
const BOUNDS: wire::Bounds = wire::Bounds {
    descriptors: 100,
    entries: 100,
    text_bytes: 65_536,
};

/// Answers OK to everything on `workers` threads, until one of them ends.
///
/// # Errors
///
/// If there is no thread or runtime to be had.
pub fn serve_floor(listener: std::net::TcpListener, workers: usize) -> io::Result<()> {
    let metrics = Arc::new(Metrics::new(NearRatio::default(), 0));
    let settings = Settings::from_environment();
    let notes = Notes::new(metrics);
    runtime()?.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = GrpcListener::Tcp(TcpListener::from_std(listener)?);
        // Nobody asks it to drain.
        let (_phase, phases) = watch::channel(Phase::Serving);
        let mut all = Workers::default();
        for _ in 0..workers {
            let serving = Serving {
                door: Door {
                    method: Arc::new(Floor),
                    max_message_bytes: settings.bounds.max_message_bytes,
                    others: Routes::default().prepare(),
                },
                tls: None,
                bounds: settings.bounds,
                notes: notes.clone(),
                keepalive: Keepalive::new(&settings.listen),
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
            () = accept(listener, doors, places) => {}
            () = all.first_end() => {}
        }
        Ok(())
    })
}

/// Reads what is asked, and answers OK whatever it is.
struct Floor;

impl Method for Floor {
    const PATH: &'static str = SHOULD_RATE_LIMIT;

    type Noted = ();

    fn note(&self, _headers: &HeaderMap) {}

    async fn call(&self, (): (), message: Bytes) -> Result<Bytes, Status> {
        if quick::read(&message, BOUNDS).is_none() {
            return Err(Status::invalid_argument(
                "the floor knows plain requests only",
            ));
        }
        let decision = Decision {
            overall: Code::Ok,
            statuses: Few::from_iter([decision::Status {
                code: Code::Ok,
                binding: None,
                remaining: 0,
                retry_secs: Some(0),
            }]),
            retry_secs: None,
            is_degraded: false,
            is_shadowed: false,
            headline: None,
            metadata: Map::new(),
        };
        Ok(framed(quick::length(&decision), |buffer| {
            quick::write(&decision, buffer);
        }))
    }
}
