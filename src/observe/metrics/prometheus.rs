//! Samples → a page in Prometheus' text format, version 0.0.4.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    foundation::sample::Sample,
    observe::metrics::{
        mapper::{Mapper, MappingOutcome, is_label},
        prometheus::page::{Labels, escape_name},
    },
};

mod draft;
mod page;
#[cfg(test)]
mod tests;

pub(crate) use page::MetricsPage;

use draft::{PageDraft, conflict_family};

/// The `Content-Type` of a page.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// Renders pages. All work happens during a scrape; between scrapes it costs nothing.
#[derive(Debug)]
pub struct Renderer {
    mapper: Mapper,
    /// EXTRA_TAGS, which every series gets. A mapping's label of equal name takes precedence.
    extra_labels: Labels,
    /// Counts of samples that could not be shown, by their kind.
    conflicts: [AtomicU64; 3],
}

impl Renderer {
    /// A renderer that maps names with `mapper`.
    pub fn new(mapper: Mapper, extra_tags: &[(String, String)]) -> Self {
        let mut extra_labels = Labels::new();
        for (tag, value) in extra_tags {
            insert_label(&mut extra_labels, tag, value);
        }
        Self {
            mapper,
            extra_labels,
            conflicts: Default::default(),
        }
    }

    /// Renders the samples that `each` passes on.
    ///
    /// Samples of one series are added up, except that the last sample of a gauge is shown. If samples need one family
    /// to have different types, the first one decides, and the others count as conflicts.
    pub fn page(&self, each: impl FnOnce(&mut dyn FnMut(Sample))) -> MetricsPage {
        let mut draft = PageDraft::new();
        each(&mut |sample| {
            let shown = match self.mapper.map(&sample.name, sample.value.kind()) {
                MappingOutcome::Dropped => return,
                MappingOutcome::Mapped {
                    name,
                    labels,
                    target,
                } => {
                    let labels = self.labels(labels);
                    let observer = &target.observer;
                    draft.add(&name, &labels, &sample.value, observer, Some(target))
                }
                MappingOutcome::Unmapped => {
                    let observer = self.mapper.unmapped_observer();
                    let labels = &self.extra_labels;
                    draft.add(&sample.name, labels, &sample.value, observer, None)
                }
            };
            if shown.is_err() {
                self.conflicts[sample.value.kind() as usize].fetch_add(1, Relaxed);
            }
        });
        draft.finish(conflict_family(&self.conflicts))
    }

    fn labels(&self, mapped: Vec<(&str, String)>) -> Labels {
        let mut labels = Labels::new();
        for (label, value) in &mapped {
            insert_label(&mut labels, label, value);
        }
        for (label, value) in &self.extra_labels {
            labels.entry(label.clone()).or_insert_with(|| value.clone());
        }
        labels
    }
}

/// Inserts a label under a name that Prometheus accepts, unless the name is taken.
fn insert_label(labels: &mut Labels, name: &str, value: &str) {
    // Histograms and summaries use these two labels for their own lines.
    let name = match name {
        "le" | "quantile" => Cow::Owned(format!("exported_{name}")),
        name if is_label(name) => Cow::Borrowed(name),
        name => escape_name(name),
    };
    if !value.is_empty() && !name.is_empty() {
        labels
            .entry(name.into_owned())
            .or_insert_with(|| value.to_owned());
    }
}
