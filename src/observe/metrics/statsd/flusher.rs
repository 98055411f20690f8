//! Compares snapshots with the values that were sent, and writes the differences as lines.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
};

use crate::foundation::sample::{Sample, SampleKind, SampleValue};

use super::{
    collector::Dialect,
    line::{form, write_timer},
};

/// Turns snapshots into lines with the differences to what was sent.
#[derive(Debug)]
pub(crate) struct Flusher {
    dialect: Dialect,
    /// Sorted, as in the reference's lines.
    extra_tags: BTreeMap<String, String>,
    known: HashMap<String, SentMetric>,
    round: u64,
}

/// A metric of the last snapshot.
#[derive(Debug)]
struct SentMetric {
    /// Number of the last snapshot that contained it.
    round: u64,
    value: SampleValue,
    /// The value as last sent.
    sent: SampleValue,
    /// The text of a line before `:`; `tags` is the text after the type.
    name: Box<str>,
    tags: Box<str>,
}

impl Flusher {
    /// A flusher whose first flush sends everything.
    pub(crate) fn new(dialect: &Dialect, extra_tags: &[(String, String)]) -> Self {
        Self {
            dialect: dialect.clone(),
            extra_tags: extra_tags.iter().cloned().collect(),
            known: HashMap::new(),
            round: 0,
        }
    }

    /// Offers differences to `take`: all lines of one metric at a time, in no particular order. A later flush offers
    /// refused metrics again.
    ///
    /// Counters and timers of equal names are added up. A name that is missing from a snapshot is forgotten, and starts
    /// from zero if it returns.
    pub(crate) fn flush(&mut self, samples: &[Sample], mut take: impl FnMut(&str) -> bool) {
        self.round += 1;
        for sample in samples {
            self.learn(sample);
        }
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
        let mut lines = String::new();
        for known in self.known.values_mut() {
            lines.clear();
            known.write(&mut lines);
            if !lines.is_empty() && take(&lines) {
                known.sent = known.value.clone();
            }
        }
    }

    fn learn(&mut self, sample: &Sample) {
        let round = self.round;
        let Some(known) = self.known.get_mut(&sample.name) else {
            let (name, tags) = form(&self.dialect, &self.extra_tags, &sample.name);
            let known = SentMetric {
                round,
                value: sample.value.clone(),
                sent: nothing(sample.value.kind()),
                name,
                tags,
            };
            self.known.insert(sample.name.clone(), known);
            return;
        };
        let is_second = std::mem::replace(&mut known.round, round) == round;
        match (&mut known.value, &sample.value) {
            (SampleValue::Counter(total), SampleValue::Counter(more)) if is_second => {
                *total += more
            }
            (SampleValue::Timer(values), SampleValue::Timer(more)) if is_second => values.add(more),
            (value, sampled) => *value = sampled.clone(),
        }
        if known.sent.kind() != known.value.kind() {
            known.sent = nothing(known.value.kind());
        }
    }
}

fn nothing(kind: SampleKind) -> SampleValue {
    match kind {
        SampleKind::Counter => SampleValue::Counter(0),
        SampleKind::Gauge => SampleValue::Gauge(0),
        SampleKind::Timer => SampleValue::Timer(Box::default()),
    }
}

impl SentMetric {
    /// Writes the part of the value that has not been sent yet.
    fn write(&self, lines: &mut String) {
        let Self { name, tags, .. } = self;
        match (&self.value, &self.sent) {
            (SampleValue::Counter(total), SampleValue::Counter(sent)) => {
                // A total that shrank was reset.
                let delta = total.checked_sub(*sent).unwrap_or(*total);
                if delta > 0 {
                    let _ = writeln!(lines, "{name}:{delta}|c{tags}");
                }
            }
            (SampleValue::Gauge(now), _) => {
                let _ = writeln!(lines, "{name}:{now}|g{tags}");
            }
            (SampleValue::Timer(values), SampleValue::Timer(sent)) => {
                write_timer(lines, name, &values.since(sent), tags);
            }
            (SampleValue::Counter(_) | SampleValue::Timer(_), _) => {
                unreachable!("what was sent is of the value's kind")
            }
        }
    }
}
