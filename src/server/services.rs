//! The gRPC services of one thread: decisions and reflection.

use tonic::service::Routes;

use super::{
    backend::{StoreTasks, WorkerStore},
    parts::Parts,
};
use crate::{
    core::limit::Modes,
    observe::traces::Tracer,
    service::{
        grpc::{self, proto::DESCRIPTORS, wire},
        limiter::Limiter,
    },
    settings::{
        listen::{MAX_DESCRIPTORS, MAX_ENTRIES},
        serve::Settings,
    },
    store::{any::AnyStore, returns::Returns},
};

/// Creates the service of thread number `thread`, and the tasks of its store. The first threads are the workers; the
/// last one serves `/json`.
pub(super) fn thread_service(
    parts: &Parts<'_>,
    thread: usize,
    tracer: &Tracer,
) -> (grpc::Service<AnyStore>, StoreTasks) {
    let Parts {
        settings, metrics, ..
    } = parts;
    let WorkerStore {
        store,
        returns,
        tasks,
    } = parts.backend.worker_store(settings, metrics);
    (service(parts, store, returns, thread, tracer), tasks)
}

fn service(
    parts: &Parts<'_>,
    store: AnyStore,
    returns: Returns,
    thread: usize,
    tracer: &Tracer,
) -> grpc::Service<AnyStore> {
    let settings = parts.settings;
    let Settings {
        bounds, decisions, ..
    } = settings;
    let headers = [
        &decisions.limit_header,
        &decisions.remaining_header,
        &decisions.reset_header,
    ];
    grpc::Service {
        limiter: Limiter {
            rules: parts.rules.clone(),
            store,
            modes: Modes {
                shadow: decisions.shadow_mode,
                quota: decisions.quota_mode,
                metadata: decisions.dynamic_metadata,
                stops_when_over: decisions.stop_when_over,
                on_store_loss: settings.loss.on_store_loss,
            },
            metrics: parts.metrics.clone().recorder(thread),
            decision_log: parts.decision_log,
            talkers: parts.talkers.recorder(thread),
            leases: parts.leases.clone(),
            returns,
        },
        bounds: wire::RequestBounds {
            descriptors: MAX_DESCRIPTORS,
            entries: MAX_ENTRIES,
            text_bytes: bounds.max_text_bytes,
        },
        extras: wire::Extras {
            headers: decisions
                .response_headers
                .then(|| headers.map(Clone::clone)),
            fields: decisions.ratelimit_fields,
            retry_after: decisions.retry_after,
            dynamic_metadata: decisions.dynamic_metadata,
        },
        tracer: tracer.clone(),
        clock: parts.backend.clock(settings),
    }
}

/// The services of a worker besides decisions and health.
pub(super) fn others() -> Routes {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    const COMPILED: &str = "the schemas were compiled with the program";
    Routes::new(reflection().build_v1().expect(COMPILED))
        .add_service(reflection().build_v1alpha().expect(COMPILED))
}
