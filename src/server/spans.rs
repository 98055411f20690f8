//! The tracer, and the task that exports its spans.

use std::time::Duration;

use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    foundation::random,
    observe::{
        metrics::Metrics,
        traces::{Tracer, export::Exporter},
    },
    settings::traces::{Traces, TracesError},
};

/// Longest time for sending the last spans.
const FLUSH: Duration = Duration::from_secs(5);

/// The task that exports spans, if tracing is on.
pub(super) struct SpanExport {
    stop: oneshot::Sender<()>,
    exporting: JoinSet<()>,
}

/// Makes the tracer, and starts the export of its spans if tracing is on.
///
/// # Errors
///
/// If the settings of the export are invalid.
pub(super) fn start(
    settings: &Traces,
    metrics: &Metrics,
) -> Result<(Tracer, SpanExport), TracesError> {
    let (stop, stopped) = oneshot::channel();
    let mut exporting = JoinSet::new();
    let tracer = if settings.tracing {
        let stats = metrics.traces.clone();
        let options = settings.export(random::uuid)?;
        let (tracer, spans) = Tracer::new(&settings.sampling(), stats.clone());
        let exporter = Exporter {
            spans,
            options,
            stats,
        };
        exporting.spawn(exporter.run(stopped));
        tracer
    } else {
        Tracer::default()
    };
    Ok((tracer, SpanExport { stop, exporting }))
}

impl SpanExport {
    /// Sends the last spans.
    pub(super) async fn finish(mut self) {
        // Without tracing there is no receiver.
        let _ = self.stop.send(());
        let flushed = tokio::time::timeout(FLUSH, self.exporting.join_next());
        if flushed.await.is_err() {
            tracing::warn!("some spans could not be sent before the exit");
        }
    }
}
