//! Collects statistics, and sends them to collectors or shows them to Prometheus.

use std::{path::Path, sync::Arc};

use super::{
    parts::Parts,
    tasks::{OwnedTasks, Task},
};
use crate::{
    foundation::causes::chain,
    observe::metrics::{
        mapper::Mapper,
        prometheus::{MetricNames, Renderer},
        statsd,
    },
    service::admin::{BlockingQueue, Statistics},
    settings::stats::Stats,
};

/// Starts to send statistics to the collectors in `sinks`. Returns the statistics for the HTTP ports.
pub(super) fn start(
    parts: &Parts<'_>,
    sinks: Vec<statsd::Options>,
    tasks: &mut OwnedTasks,
) -> Statistics {
    let metrics = parts.metrics.clone();
    let lines = metrics.statsd.clone();
    let statistics = Statistics {
        metrics,
        memory: parts.backend.memory(),
        renderer: Arc::new(renderer(&parts.settings.stats)),
        blocking: BlockingQueue::default(),
    };
    for sink in sinks {
        let statistics = statistics.clone();
        let sink = statsd::Sink::new(sink, lines.clone());
        tasks.start_sink(Task::Statsd, sink.flusher(), move |flusher| {
            let (sink, statistics) = (sink.clone(), statistics.clone());
            Box::pin(async move { match sink.run(flusher, |take| statistics.each(take)).await {} })
        });
    }
    statistics
}

/// The renderer for Prometheus. An unusable mapping file is logged and ignored, because Envoy Gateway mounts one that
/// can be missing.
fn renderer(stats: &Stats) -> Renderer {
    let mapper = stats.prometheus_mapping.as_deref().and_then(mapping_file);
    let own = MetricNames::Own {
        in_milliseconds: stats.prometheus_milliseconds,
    };
    Renderer::new(mapper.map_or(own, MetricNames::Mapped), &stats.extra_tags)
}

/// The mapping in this file, if it is valid.
fn mapping_file(path: &Path) -> Option<Mapper> {
    if path.as_os_str().is_empty() {
        return None;
    }
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .inspect_err(|error| {
            tracing::warn!("{shown} cannot be read ({error}); the built-in names are used");
        })
        .ok()?;
    match Mapper::parse(&text) {
        Ok(loaded) => {
            for warning in loaded.warnings {
                tracing::warn!("{shown}: {warning}");
            }
            Some(loaded.mapper)
        }
        Err(problems) => {
            for problem in problems {
                tracing::error!("{shown}: {}", chain(&problem));
            }
            tracing::error!("{shown} is not valid; the built-in names are used");
            None
        }
    }
}
