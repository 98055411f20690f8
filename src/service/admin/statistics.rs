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
    /// All statistics at this moment.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.metrics.samples(self.memory.as_deref())
    }

    /// The Prometheus page, in text format 0.0.4.
    pub(super) fn prometheus(self) -> Response {
        let blocking = self.blocking.clone();
        let page = blocking.page(move || {
            let memory = self.memory.as_deref();
            let each =
                |take: &mut dyn FnMut(Sample)| self.metrics.each_histogram_sample(memory, take);
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
            let mut samples = self.samples();
            samples.sort_by(|a, b| a.name.cmp(&b.name));
            texts(samples.into_iter().map(line))
        });
        text_page(page)
    }
}

fn line(Sample { name, value }: Sample) -> String {
    match value {
        SampleValue::Counter(number) | SampleValue::Gauge(number) => format!("{name}: {number}\n"),
        SampleValue::Timer(times) => {
            let (count, sum) = (times.count(), times.sum_micros());
            format!("{name}: count {count}, sum {sum} us\n")
        }
    }
}
