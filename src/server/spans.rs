//! The tracer, and the task that exports its spans.

use tokio::sync::watch;

use super::tasks::{OwnedTasks, Task, TaskError};
use crate::{
    foundation::random,
    observe::{
        metrics::Metrics,
        traces::{
            Tracer,
            export::{Exporter, LAST, Urgency},
        },
    },
    settings::traces::{Traces, TracesError},
};

/// Ends the export of spans.
pub(super) struct SpanExport(watch::Sender<Urgency>);

/// Creates the tracer, and starts the export of its spans if tracing is on.
///
/// # Errors
///
/// If the settings of the export are invalid.
pub(super) fn start(
    settings: &Traces,
    metrics: &Metrics,
    tasks: &mut OwnedTasks,
) -> Result<(Tracer, SpanExport), TracesError> {
    let (urgency, how_urgent) = watch::channel(Urgency::None);
    let tracer = if settings.tracing {
        let stats = metrics.traces.clone();
        let options = settings.export(random::uuid)?;
        let (tracer, spans) = Tracer::new(&settings.sampling(), stats.clone());
        let exporter = Exporter {
            spans,
            options,
            stats,
        };
        tasks.start_sink(Task::Otlp, exporter, move |exporter| {
            Box::pin(exporter.run(how_urgent.clone()))
        });
        tracer
    } else {
        Tracer::default()
    };
    Ok((tracer, SpanExport(urgency)))
}

impl SpanExport {
    /// Sends spans without delay from now on, because the process will end soon.
    pub(super) fn hurry(&self) {
        self.0.send_replace(Urgency::AtOnce);
    }

    /// Sends the last spans.
    ///
    /// # Errors
    ///
    /// If a task ends unexpectedly.
    pub(super) async fn finish(self, tasks: &mut OwnedTasks) -> Result<(), TaskError> {
        self.0.send_replace(Urgency::Last);
        let sent = tokio::time::timeout(LAST, tasks.all_end(Task::Otlp)).await;
        sent.unwrap_or_else(|_elapsed| {
            tracing::warn!("some spans could not be sent before the exit");
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, time::Duration};

    use clap::Parser as _;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::{
        observe::traces::CallSummary,
        settings::command_line::{Cli, Command},
    };

    /// The export ends within a second, however long connections of callers stay open or the collector takes.
    #[tokio::test(start_paused = true)]
    async fn a_silent_collector_holds_up_the_end_no_longer_than_an_idle_connection() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        for protocol in ["http", "grpc"] {
            let Command::Serve(settings) = Cli::parse_from([
                "tollgate",
                "serve",
                "--tracing",
                "--tracing-protocol",
                protocol,
                "--otlp-endpoint",
                &endpoint,
                "--otlp-timeout",
                "3600000",
            ])
            .command
            else {
                panic!("it is `serve`");
            };
            for connections_stay in [0, 300, 1000] {
                let mut tasks = OwnedTasks::default();
                let (tracer, spans) =
                    start(&settings.traces, &Metrics::default(), &mut tasks).unwrap();
                tracer.begin(|_| None).unwrap().end(CallSummary {
                    began_nanos: 0,
                    took: Duration::ZERO,
                    domain: String::new(),
                    descriptors: 1,
                    answer: Ok("OK"),
                });
                tasks.start_draining();
                let drains = Instant::now();
                spans.hurry();
                sleep(Duration::from_millis(connections_stay)).await;
                spans.finish(&mut tasks).await.unwrap();
                let took = drains.elapsed();
                assert!(took <= LAST, "{protocol:?} {connections_stay}: {took:?}");
            }
        }
    }
}
