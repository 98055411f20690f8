//! Counts of samples that could not be shown, as a family of their own.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::foundation::sample::SampleKind;

/// Counts of samples that could not be shown, since the start, by [`SampleKind`].
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    counters: AtomicU64,
    gauges: AtomicU64,
    timers: AtomicU64,
}

pub(super) const CONFLICTS: &str = "statsd_exporter_events_conflict_total";

impl Conflicts {
    pub(super) fn of(&self, kind: SampleKind) -> &AtomicU64 {
        match kind {
            SampleKind::Counter => &self.counters,
            SampleKind::Gauge => &self.gauges,
            SampleKind::Timer => &self.timers,
        }
    }

    pub(super) fn write(&self, text: &mut String) {
        let by_type = [
            ("counter", self.counters.load(Relaxed)),
            ("gauge", self.gauges.load(Relaxed)),
            ("observer", self.timers.load(Relaxed)),
        ];
        if by_type.iter().all(|(_, count)| *count == 0) {
            return;
        }
        let help = "Samples that were not shown because their family is of another type.";
        let _ = writeln!(
            text,
            "# HELP {CONFLICTS} {help}\n# TYPE {CONFLICTS} counter"
        );
        for (kind, count) in by_type.iter().filter(|(_, count)| *count > 0) {
            let _ = writeln!(text, "{CONFLICTS}{{type=\"{kind}\"}} {count}");
        }
    }
}
