//! Steps of one rule and of each of its limits.

use std::array;

use super::track::{Total, Track, difference, max_bytes};
use crate::observe::metrics::{LimitTotals, RuleTotals};

/// The hits on a rule during one step, by its binding limit: all hits; those within, near and over the limit; those
/// over it that shadow mode let pass; and those decided without the store.
pub(crate) type RuleStep = [u32; 6];

/// The hits near and over one limit during one step.
pub(crate) type LimitStep = [u32; 2];

impl Total for RuleTotals {
    type Step = RuleStep;

    fn since(&self, earlier: &Self) -> RuleStep {
        array::from_fn(|index| difference(self[index], earlier[index]))
    }
}

impl Total for LimitTotals {
    type Step = LimitStep;

    fn since(&self, earlier: &Self) -> LimitStep {
        array::from_fn(|index| difference(self[index], earlier[index]))
    }
}

/// The history of one rule.
#[derive(Clone, Debug)]
pub(super) struct RuleHistory {
    pub(super) track: Track<RuleTotals>,
    /// The limits by their labels, in the rule's order.
    pub(super) limits: Vec<(Box<str>, Track<LimitTotals>)>,
    /// The number of the last sample that included this rule.
    pub(super) sampled: u64,
    /// The number of the last sample with new hits.
    pub(super) active: u64,
}

impl RuleHistory {
    /// A history that begins at these totals of the rule. Its limits begin at zero.
    pub(super) fn new<'l>(start: &RuleTotals, labels: impl Iterator<Item = &'l str>) -> Self {
        let mut new = Self {
            track: Track::new(start),
            limits: Vec::new(),
            sampled: 0,
            active: 0,
        };
        new.set_limits(labels);
        new
    }

    /// Restarts the histories of all limits, because one of them has changed.
    pub(super) fn set_limits<'l>(&mut self, labels: impl Iterator<Item = &'l str>) {
        let track = Track::new(&LimitTotals::default());
        self.limits = labels.map(|label| (label.into(), track.clone())).collect();
    }

    /// Most bytes of the history of a rule with this path and these limits.
    pub(super) fn max_bytes<'l>(path: &str, labels: impl Iterator<Item = &'l str>) -> usize {
        let each = |label: &str| {
            max_bytes::<LimitTotals>() + size_of::<(Box<str>, Track<LimitTotals>)>() + label.len()
        };
        // Counted twice, because the nodes of the map are half empty in the worst case.
        2 * size_of::<Self>()
            + path.len()
            + max_bytes::<RuleTotals>()
            + labels.map(each).sum::<usize>()
    }

    /// [`Self::max_bytes`] of this history, which belongs to the rule at `path`.
    pub(super) fn bytes(&self, path: &str) -> usize {
        Self::max_bytes(path, self.limits.iter().map(|(label, _)| &**label))
    }

    /// Whether its limits have these labels.
    pub(super) fn has_limits<'l>(&self, labels: impl Iterator<Item = &'l str>) -> bool {
        self.limits.iter().map(|(label, _)| &**label).eq(labels)
    }

    /// Adds sample number `sample`.
    pub(super) fn advance<'l>(
        &mut self,
        sample: u64,
        totals: &RuleTotals,
        limits: impl Iterator<Item = (&'l str, LimitTotals)>,
    ) {
        self.sampled = sample;
        let mut is_active = self.track.advance(sample, totals);
        for ((_, track), (_, totals)) in self.limits.iter_mut().zip(limits) {
            is_active |= track.advance(sample, &totals);
        }
        if is_active {
            self.active = sample;
        }
    }

    /// Adds sample number `sample` without hits, because the rule is not in use.
    pub(super) fn rest(&mut self, sample: u64) {
        self.sampled = sample;
        self.track.rest(sample);
        for (_, track) in &mut self.limits {
            track.rest(sample);
        }
    }
}
