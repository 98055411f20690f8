//! How statistics are shown to Prometheus.

use std::path::Path;

use crate::{
    foundation::causes::chain,
    observe::metrics::{
        mapper::{Mapper, ResponseTime},
        prometheus::Renderer,
    },
    settings::stats::Stats,
};

/// The renderer for Prometheus. An invalid mapping file is logged and ignored: Envoy Gateway mounts one that may be
/// missing.
pub(super) fn renderer(stats: &Stats) -> Renderer {
    let response_time = if stats.prometheus_milliseconds {
        ResponseTime::Milliseconds
    } else {
        ResponseTime::Seconds
    };
    let mapper = stats.prometheus_mapping.as_deref().and_then(mapping_file);
    let mapper = mapper.unwrap_or_else(|| Mapper::built_in(response_time));
    Renderer::new(mapper, &stats.extra_tags)
}

pub(super) fn mapping_file(path: &Path) -> Option<Mapper> {
    if path.as_os_str().is_empty() {
        return None;
    }
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .inspect_err(|error| {
            tracing::warn!("{shown} cannot be read ({error}); the built-in mapping is used");
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
            tracing::error!("{shown} is not valid; the built-in mapping is used");
            None
        }
    }
}
