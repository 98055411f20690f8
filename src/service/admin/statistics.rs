//! `/metrics` and `/stats`: pages of the collected statistics.

use std::sync::Arc;

use axum::{
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};

use super::page::{BlockingQueue, PIECE_BYTES, PageWriter, text_page, texts};
use crate::{
    foundation::sample::{Sample, SampleValue},
    observe::metrics::{
        Metrics, process,
        prometheus::{self, Renderer},
    },
    store::memory::MemoryStore,
};

/// The collected statistics and how to render them.
#[derive(Clone, Debug)]
pub(crate) struct Statistics {
    pub metrics: Arc<Metrics>,
    pub memory: Option<Arc<MemoryStore>>,
    pub renderer: Arc<Renderer>,
    pub blocking: BlockingQueue,
}

impl Statistics {
    /// Passes all statistics at this moment to `take`.
    pub(crate) fn each(&self, take: &mut dyn FnMut(&Sample<'_>)) {
        self.metrics.each_sample(self.memory.as_deref(), take);
    }

    /// The Prometheus page, in text format 0.0.4.
    pub(super) fn prometheus(self) -> Response {
        let blocking = self.blocking.clone();
        let page = blocking.page(move || {
            let memory = self.memory.as_deref();
            let each = |take: &mut dyn FnMut(&Sample<'_>)| {
                self.metrics.each_histogram_sample(memory, take);
            };
            let end = process::render();
            let mut page = self.renderer.page(each).ending_with(&end);
            let writer: PageWriter = Box::new(move |text| page.write_some(text, PIECE_BYTES));
            writer
        });
        ([(CONTENT_TYPE, prometheus::CONTENT_TYPE)], page).into_response()
    }

    /// One line for each statistic, sorted by name.
    pub(super) fn lines(self) -> Response {
        let blocking = self.blocking.clone();
        let page = blocking.page(move || {
            let mut lines = Vec::new();
            self.each(&mut |sample| lines.push(line(sample)));
            lines.sort_unstable();
            texts(lines.into_iter().map(|(name, value)| name + &value))
        });
        text_page(page)
    }
}

/// The name of a statistic, and the rest of its line.
fn line(sample: &Sample<'_>) -> (String, String) {
    let rest = match &sample.value {
        SampleValue::Counter(number) | SampleValue::Gauge(number) => format!(": {number}\n"),
        SampleValue::Timer(times) => {
            let (count, sum) = (times.count(), times.sum_micros());
            format!(": count {count}, sum {sum} us\n")
        }
    };
    (sample.statsd_name(), rest)
}
