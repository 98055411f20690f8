//! The tracer, and the task that exports its spans.

use std::time::Duration;

use tokio::sync::oneshot;

use super::tasks::{OwnedTasks, Task, TaskError};
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

/// Ends the task that exports spans, if tracing is on.
pub(super) struct SpanExport {
    stop: oneshot::Sender<()>,
}

/// Makes the tracer, and starts the export of its spans if tracing is on.
///
/// # Errors
///
/// If the settings of the export are invalid.
pub(super) fn start(
    settings: &Traces,
    metrics: &Metrics,
    tasks: &mut OwnedTasks,
) -> Result<(Tracer, SpanExport), TracesError> {
    let (stop, stopped) = oneshot::channel();
    let tracer = if settings.tracing {
        let stats = metrics.traces.clone();
        let options = settings.export(random::uuid)?;
        let (tracer, spans) = Tracer::new(&settings.sampling(), stats.clone());
        let exporter = Exporter {
            spans,
            options,
            stats,
        };
        tasks.start(Task::Otlp, exporter.run(stopped));
        tracer
    } else {
        Tracer::default()
    };
    Ok((tracer, SpanExport { stop }))
}

impl SpanExport {
    /// Sends the last spans.
    ///
    /// # Errors
    ///
    /// If a task ends badly that the process needs.
    pub(super) async fn finish(self, tasks: &mut OwnedTasks) -> Result<(), TaskError> {
        // Without tracing there is no receiver.
        let _ = self.stop.send(());
        let sent = tokio::time::timeout(FLUSH, tasks.all_end(Task::Otlp)).await;
        sent.unwrap_or_else(|_elapsed| {
            tracing::warn!("some spans could not be sent before the exit");
            Ok(())
        })
    }
}
