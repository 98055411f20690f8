//! The export of spans: a thread of its own, whose runtime carries connections to the collector.
//!
//! It needs both: the SDK blocks the thread that ends it until the last spans are sent, and decisions do not wait for
//! the collector's connections.

use std::{pin::Pin, time::Duration};

use tokio::{sync::oneshot, time::timeout};

use super::{error::ServerError, tasks::on_thread, workers::runtime};
use crate::{
    foundation::lock::blocking,
    observe::{
        metrics::Metrics,
        traces::{Tracer, export},
    },
    settings::traces,
};

/// Longest time for the last spans. A collector that does not answer would only delay the end of the process.
const LAST: Duration = Duration::from_secs(1);

/// The export of spans, if tracing is on.
pub(super) struct SpanExport(Option<SpanThread>);

struct SpanThread {
    end: oneshot::Sender<()>,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Creates the tracer, and starts the export of its spans if tracing is on.
///
/// # Errors
///
/// If the settings of the export are invalid, or its thread cannot be started.
pub(super) fn start(metrics: &Metrics) -> Result<(Tracer, SpanExport), ServerError> {
    let Some(options) = traces::from_environment()? else {
        return Ok((Tracer::default(), SpanExport(None)));
    };
    let runtime = runtime()?;
    let started = {
        let _in_runtime = runtime.enter();
        export::start(options, metrics.traces.clone())
    };
    let (tracer, provider) = match started {
        Ok(started) => started,
        Err(error) => {
            // The runtime that this runs on forbids to wait for the end of another.
            runtime.shutdown_background();
            return Err(error.into());
        }
    };
    let (end, ends) = oneshot::channel();
    let ended = on_thread("spans".to_owned(), move || {
        runtime.block_on(async {
            // A dropped sender is the end, too.
            let _: Result<(), _> = ends.await;
            let sent = blocking(move || provider.shutdown_with_timeout(LAST)).await;
            if sent.is_err() {
                tracing::warn!("some spans could not be sent before the exit");
            }
        });
        runtime.shutdown_background();
    })?;
    let ended = Box::pin(ended);
    Ok((tracer, SpanExport(Some(SpanThread { end, ended }))))
}

impl SpanExport {
    /// Sends the last spans.
    pub(super) async fn finish(self) {
        if let Some(SpanThread { end, ended }) = self.0 {
            let _ = end.send(());
            let _ = timeout(2 * LAST, ended).await;
        }
    }
}
