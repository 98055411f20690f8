//! The services of one thread: decisions, spans, reflection.

use tonic::service::Routes;

use crate::{
    core::limit::Modes,
    observe::{
        metrics::{Metrics, Recorder},
        traces::{self, Tracer, export::Exporter},
    },
    service::{
        grpc::{self, proto::DESCRIPTORS, wire},
        limiter::{Limiter, Rules},
    },
    settings::{self, serve::Settings, traces::TracesError},
    store::any::AnyStore,
};

/// The gRPC service of one thread.
pub(super) fn service(
    store: AnyStore,
    rules: &Rules,
    metrics: Recorder,
    tracer: &Tracer,
    clock: grpc::RequestClock,
    settings: &Settings,
) -> grpc::Service<AnyStore> {
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
            rules: rules.clone(),
            immediate: store.immediate(),
            store,
            modes: Modes {
                shadow: decisions.shadow_mode,
                quota: decisions.quota_mode,
                metadata: decisions.dynamic_metadata,
                stops_when_over: decisions.stop_when_over,
                on_store_loss: settings.loss.on_store_loss.into(),
            },
            metrics,
        },
        bounds: wire::RequestBounds {
            descriptors: bounds.max_descriptors,
            entries: bounds.max_entries,
            text_bytes: bounds.max_text_bytes,
        },
        extras: wire::Extras {
            headers: decisions
                .response_headers
                .then(|| headers.map(Clone::clone)),
            retry_after: decisions.retry_after,
            dynamic_metadata: decisions.dynamic_metadata,
        },
        tracer: tracer.clone(),
        clock,
    }
}

/// The tracer and the exporter of its spans, if tracing is on.
pub(super) fn traces(
    settings: &settings::traces::Traces,
    metrics: &Metrics,
) -> Result<(Tracer, Option<Exporter>), TracesError> {
    if !settings.tracing {
        return Ok((Tracer::default(), None));
    }
    let stats = metrics.traces.clone();
    let options = settings.export(traces::random_uuid)?;
    let (tracer, spans) = Tracer::new(&settings.sampling(), stats.clone());
    let exporter = Exporter {
        spans,
        options,
        stats,
    };
    Ok((tracer, Some(exporter)))
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
