//! The history of the last hour: calls, latency, store and memory of the process, and the hits on each rule and limit.
//!
//! A task samples the counters that workers keep anyway, so decisions pay nothing for it. A step is the difference
//! between two samples. [Steps are short for the last minutes and longer before](mod@track). The histories of rules are
//! bounded in bytes.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use crate::{
    core::matcher::Matcher,
    observe::metrics::{RuleSetStats, RuleTotals},
};

mod process;
mod rule;
#[cfg(test)]
mod tests;
mod track;

pub(crate) use process::{ProcessStep, ProcessTotals, STEP_VALUES, SampleTime};
pub(crate) use rule::{LimitStep, RuleStep};

use rule::RuleHistory;
use track::{Total, Track};

/// Interval between samples.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// Most bytes of the histories of all rules.
const MAX_BYTES: usize = 4 << 20;

/// After this many samples without a hit (ten minutes), a rule's history can be dropped to make room for another one.
const IDLE_SAMPLES: u64 = 120;

/// The last hour.
#[derive(Clone, Debug)]
pub(crate) struct History {
    max_bytes: usize,
    /// How many samples have been added.
    samples: u64,
    process: Track<ProcessTotals>,
    rules: BTreeMap<Arc<str>, RuleHistory>,
    /// Most bytes that `rules` can grow to.
    rule_bytes: usize,
    /// How many rules with hits had no room in the last sample.
    omitted: usize,
    /// The number of the last sample in which idle rules were forgotten.
    swept: u64,
    /// Whether some rule had no room once, so that later histories can miss hits before they begin.
    is_lossy: bool,
}

impl Default for History {
    fn default() -> Self {
        Self::bounded(MAX_BYTES)
    }
}

impl History {
    /// An empty history whose rules take at most `max_bytes`.
    fn bounded(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            samples: 0,
            process: Track::new(&ProcessTotals::default()),
            rules: BTreeMap::new(),
            rule_bytes: 0,
            omitted: 0,
            swept: 0,
            is_lossy: false,
        }
    }

    /// Adds a sample: the process, and the rules in use with their counters.
    pub(crate) fn sample(
        &mut self,
        process: &ProcessTotals,
        rules: Option<(&Matcher, &RuleSetStats)>,
    ) {
        self.samples += 1;
        self.process.advance(self.samples, process);
        self.omitted = 0;
        if let Some((matcher, stats)) = rules {
            self.sample_rules(matcher, stats);
        }
        let sample = self.samples;
        let absent = self.rules.values_mut().filter(|rule| rule.sampled < sample);
        absent.for_each(|rule| rule.rest(sample));
    }

    fn sample_rules(&mut self, matcher: &Matcher, stats: &RuleSetStats) {
        for rule in matcher.rules() {
            let Some(totals) = stats.totals(rule.id) else {
                continue;
            };
            let limits = || stats.limits(rule.id);
            let labels = || limits().map(|(label, _)| label);
            self.take_place(&rule.path, &totals, labels);
            // With strict matching, two rules can have one path. They share their counters, so the path is sampled
            // once.
            if let Some(known) = self.rules.get_mut(&rule.path)
                && known.sampled < self.samples
            {
                known.advance(self.samples, &totals, limits());
            }
        }
    }

    /// Creates the history of the rule at `path`, or replaces its limits if their labels have changed, if there is
    /// room.
    fn take_place<'l, L: Iterator<Item = &'l str>>(
        &mut self,
        path: &Arc<str>,
        totals: &RuleTotals,
        labels: impl Fn() -> L,
    ) {
        let known = self.rules.get(path);
        if known.is_some_and(|known| known.has_limits(labels())) {
            return;
        }
        let known = self.rules.remove(path);
        if let Some(known) = &known {
            self.rule_bytes -= known.bytes(path);
        }
        let bytes = RuleHistory::max_bytes(path, labels());
        if self.rule_bytes + bytes > self.max_bytes {
            self.forget_idle_rules();
        }
        if self.rule_bytes + bytes > self.max_bytes {
            self.omitted += 1;
            self.is_lossy = true;
            return;
        }
        self.rule_bytes += bytes;
        let placed = match known {
            Some(mut known) => {
                known.set_limits(labels());
                known
            }
            // If every rule has always had a history, all hits of this one are new.
            None if self.is_lossy => RuleHistory::new(totals, labels()),
            None => RuleHistory::new(&RuleTotals::default(), labels()),
        };
        self.rules.insert(path.clone(), placed);
    }

    /// Makes room, at most once per sample.
    fn forget_idle_rules(&mut self) {
        if self.swept == self.samples {
            return;
        }
        self.swept = self.samples;
        let active_since = self.samples.saturating_sub(IDLE_SAMPLES);
        let idle = self
            .rules
            .extract_if(.., |_, rule| rule.active <= active_since);
        for (path, rule) in idle {
            self.rule_bytes -= rule.bytes(&path);
            self.is_lossy = true;
        }
    }
}

/// The steps, for readers.
impl History {
    /// How many rules with hits had no room in the last sample.
    pub(crate) fn omitted(&self) -> usize {
        self.omitted
    }

    /// Most bytes that a copy takes.
    pub(crate) fn bytes(&self) -> usize {
        self.rule_bytes + track::max_bytes::<ProcessTotals>()
    }

    /// The steps of the process, oldest first. Steps of rules and limits have these times too.
    pub(crate) fn process_steps(&self) -> impl Iterator<Item = &ProcessStep> {
        // The process has a step for each sample.
        self.in_order(&self.process).flatten()
    }

    /// The paths of the rules that have a history.
    pub(crate) fn rule_paths(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.keys()
    }

    /// The steps of the rule at `path`.
    pub(crate) fn rule_steps(&self, path: &str) -> impl Iterator<Item = RuleStep> {
        let rule = self.rules.get(path).into_iter();
        let steps = rule.flat_map(|rule| self.in_order(&rule.track));
        steps.map(|step| step.copied().unwrap_or_default())
    }

    /// The label and the steps of each limit of the rule at `path`.
    pub(crate) fn limit_steps(
        &self,
        path: &str,
    ) -> impl Iterator<Item = (&str, impl Iterator<Item = LimitStep>)> {
        let rule = self.rules.get(path).into_iter();
        let limits = rule.flat_map(|rule| &rule.limits);
        limits.map(|(label, track)| {
            let steps = self.in_order(track);
            (
                &**label,
                steps.map(|step| step.copied().unwrap_or_default()),
            )
        })
    }

    /// The steps of a track, oldest first: coarse ones, then, from where those begin, fine ones. `None` for steps
    /// before the track began.
    fn in_order<'t, T: Total>(
        &self,
        track: &'t Track<T>,
    ) -> impl Iterator<Item = Option<&'t T::Step>> {
        let [fine, coarse] = self.process.steps();
        let [own_fine, own_coarse] = track.steps();
        let (coarse_end, fine_start) = cut(fine, coarse);
        // A track that began later than the process has only the last steps.
        let part = |own: &'t VecDeque<T::Step>, all: usize, range: Range<usize>| {
            let absent = all - own.len();
            range.map(move |index| own.get(index.checked_sub(absent)?))
        };
        part(own_coarse, coarse.len(), 0..coarse_end).chain(part(
            own_fine,
            fine.len(),
            fine_start..fine.len(),
        ))
    }
}

/// How many coarse steps to show, and the index of the first fine step after them.
fn cut(fine: &VecDeque<ProcessStep>, coarse: &VecDeque<ProcessStep>) -> (usize, usize) {
    let Some(oldest) = fine.front() else {
        return (0, 0);
    };
    let start = oldest.ends.saturating_sub(oldest.lasted);
    // The first coarse step that ends within the span of the fine ones replaces the fine ones before its end.
    let last = coarse.iter().position(|step| step.ends >= start);
    match last {
        Some(last) if start > Duration::ZERO => {
            let end = coarse[last].ends;
            (last + 1, fine.partition_point(|step| step.ends <= end))
        }
        _ => (0, 0),
    }
}
