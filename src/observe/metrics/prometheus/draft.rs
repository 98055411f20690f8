//! Sorts the samples of one page into families and series.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    foundation::sample::SampleValue,
    observe::metrics::{
        mapper::{MappingTarget, Observer},
        process,
        prometheus::page::{
            FamilyType, Labels, MetricFamily, MetricsPage, Series, SeriesValue, escape_name,
            label_text,
        },
    },
};

/// The family that [`conflict_family`] writes.
pub(super) const CONFLICTS: &str = "statsd_exporter_events_conflict_total";

/// Counts of samples that could not be shown, by [`SampleKind`], as a family of their own; empty if there are none.
///
/// [`SampleKind`]: crate::foundation::sample::SampleKind
pub(super) fn conflict_family(counts: &[AtomicU64; 3]) -> String {
    let counts = counts.iter().map(|count| count.load(Relaxed));
    let by_type = ["counter", "gauge", "observer"].into_iter().zip(counts);
    let lines: String = by_type
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| format!("{CONFLICTS}{{type=\"{kind}\"}} {count}\n"))
        .collect();
    if lines.is_empty() {
        return lines;
    }
    let help = "Samples that were not shown because their family is of another type.";
    format!("# HELP {CONFLICTS} {help}\n# TYPE {CONFLICTS} counter\n{lines}")
}

/// A sample that would make the page invalid.
pub(super) struct Conflict;

/// The samples so far. A page can have tens of thousands of series, so each is kept small: its labels are stored as
/// rendered text, which the series of a rule share.
pub(super) struct PageDraft {
    families: Vec<MetricFamily>,
    /// The family that owns a name at the beginning of a line; histograms and summaries own several names. `None`
    /// marks names that other code writes on the page.
    owners: HashMap<Arc<str>, Option<usize>>,
    series: Vec<Series>,
}

impl PageDraft {
    /// An empty draft.
    pub(super) fn new() -> Self {
        // These names are written by other code.
        let others = process::FAMILIES.iter().map(|(name, ..)| *name);
        let others = others.chain([process::BUILD_INFO, CONFLICTS]);
        Self {
            families: Vec::new(),
            owners: others.map(|name| (name.into(), None)).collect(),
            series: Vec::new(),
        }
    }

    /// Adds a sample to the series with this name and these labels.
    pub(super) fn add(
        &mut self,
        name: &str,
        labels: &Labels,
        value: &SampleValue,
        observer: &Observer,
        target: Option<&MappingTarget>,
    ) -> Result<(), Conflict> {
        let name = escape_name(name);
        let shape = FamilyType::of(value, observer);
        if name.is_empty() {
            return Err(Conflict);
        }
        let known = self.owners.get(name.as_ref()).copied();
        let at = match known {
            // Otherwise another family has a line of this name, which can end in `_count`, for example.
            Some(Some(at)) if self.families[at].is(&name, &shape) => at,
            Some(_) => return Err(Conflict),
            None => self.found(&name, shape.clone())?,
        };
        let family = &mut self.families[at];
        if family.help.is_none() {
            family.help = target.and_then(|target| target.help.clone());
        }
        let number = SeriesValue::new(value, &shape, target.map_or(1.0, |target| target.scale));
        let labels = label_text(labels);
        let labels = match self.series.last() {
            Some(last) if *last.labels == *labels => last.labels.clone(),
            _ => labels.into(),
        };
        self.series.push(Series {
            family: at,
            labels,
            number,
        });
        Ok(())
    }

    /// Creates a family, unless another family owns one of its lines' names.
    fn found(&mut self, name: &str, shape: FamilyType) -> Result<usize, Conflict> {
        let at = self.families.len();
        let own: Arc<str> = name.into();
        let names = shape.suffixes().iter().map(|suffix| match *suffix {
            "" => own.clone(),
            suffix => format!("{name}{suffix}").into(),
        });
        let names: Vec<Arc<str>> = names.collect();
        if names.iter().any(|name| self.owners.contains_key(name)) {
            return Err(Conflict);
        }
        self.owners
            .extend(names.into_iter().map(|line| (line, Some(at))));
        self.families.push(MetricFamily {
            name: own,
            shape,
            help: None,
        });
        Ok(at)
    }

    /// The page of all series in order, followed by `end`.
    pub(super) fn finish(self, end: String) -> MetricsPage {
        let Self {
            families,
            owners,
            mut series,
        } = self;
        drop(owners);
        let name_and_labels =
            |series: &Series| (&*families[series.family].name, series.labels.clone());
        series.sort_by(|a, b| {
            let names = families[a.family].name.cmp(&families[b.family].name);
            names.then_with(|| a.labels.cmp(&b.labels))
        });
        series.dedup_by(|next, kept| {
            let is_same = name_and_labels(next) == name_and_labels(kept);
            if is_same {
                let next = std::mem::replace(&mut next.number, SeriesValue::Plain(0.0));
                match families[kept.family].shape {
                    FamilyType::Gauge => kept.number = next,
                    _ => kept.number.add(&next),
                }
            }
            is_same
        });
        let mut bytes = families.iter().map(MetricFamily::bytes).sum::<usize>() + end.len();
        let mut before: Option<&Arc<str>> = None;
        for one in &series {
            bytes += size_of::<Series>();
            if before.is_none_or(|before| !Arc::ptr_eq(before, &one.labels)) {
                bytes += one.labels.len();
            }
            before = Some(&one.labels);
        }
        MetricsPage::new(families, series, end, bytes)
    }
}
