//! What the operator allows.

use std::sync::Arc;

use crate::{metadata::Map, window::Period};

/// A config node that a descriptor can match, and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its place in the matcher's list of rules.
    pub id: RuleId,
    /// The domain and the joined texts of the nodes that lead here, as `/rlconfig` and metrics
    /// name the rule.
    pub path: Arc<str>,
    pub allows: Allows,
    /// Names of limits that do not count when this rule matches in the same request.
    pub replaces: Box<[Arc<str>]>,
    /// Count and report as usual, answer OK.
    pub shadow_mode: bool,
    /// Refuse only if all quota descriptors of the request are over.
    pub quota_mode: bool,
    /// What its statistics are counted under.
    pub metric: Metric,
    /// What replies carry along when this rule lets a request pass.
    pub metadata: Map,
}

/// The name of a rule's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// Its path.
    #[default]
    Path,
    /// Its path, with the request's values where a node says so (`value_to_metric`).
    SomeValues,
    /// Its path with all values of the request (`detailed_metric`).
    AllValues,
}

/// What a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allows {
    /// Everything, without counting.
    Unlimited,
    /// What stays within every one of these; never empty, and each of another period.
    Within(Box<[Limit]>),
}

/// The index of a rule in its matcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleId(pub usize);

/// So many requests in every window of a period. 0 is legal and blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub requests_per_unit: u32,
    pub period: Period,
    /// What replies call this limit, and what `replaces` refers to.
    pub name: Option<Arc<str>>,
}

impl Limit {
    /// The hits that are near the limit: above the threshold, not yet over.
    pub fn near(&self, ratio: NearRatio) -> Span {
        Span {
            low: ratio.threshold(self.requests_per_unit).into(),
            high: self.requests_per_unit.into(),
        }
    }

    /// The hits that are over the limit.
    pub fn over(&self) -> Span {
        Span {
            low: self.requests_per_unit.into(),
            high: u64::MAX,
        }
    }
}

/// The share of a limit above which hits are near it (`NEAR_LIMIT_RATIO`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NearRatio(pub f32);

impl Default for NearRatio {
    fn default() -> Self {
        Self(0.8)
    }
}

impl NearRatio {
    /// Computed in single precision and cut, as the reference does, so that both warn at the same
    /// hit; never above the limit itself.
    fn threshold(self, requests_per_unit: u32) -> u32 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the reference's own arithmetic; a float cast saturates and NaN becomes 0"
        )]
        let threshold = (requests_per_unit as f32 * self.0).floor() as u32;
        threshold.min(requests_per_unit)
    }
}

/// Hits numbered as they arrive in a window: those in `(low, high]`. A counter that an increment
/// moved from 7 to 12 took the hits `(7, 12]`; all above a limit of 10 are `(10, u64::MAX]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub low: u64,
    pub high: u64,
}

impl Span {
    /// How many hits lie in both.
    pub fn overlap(self, other: Self) -> u64 {
        let high = self.high.min(other.high);
        high.saturating_sub(self.low.max(other.low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_thresholds_are_those_of_the_reference() {
        let threshold = |limit| NearRatio::default().threshold(limit);
        assert_eq!([1, 5, 8, 10, 15, 20].map(threshold), [0, 4, 6, 8, 12, 16]);
    }

    #[test]
    fn an_odd_ratio_neither_wraps_nor_passes_the_limit() {
        for ratio in [f32::NAN, f32::INFINITY, -1.0, 0.0, 2.0] {
            assert!(NearRatio(ratio).threshold(10) <= 10);
        }
    }

    #[test]
    fn spans_that_only_touch_do_not_overlap() {
        let low = Span { low: 0, high: 5 };
        let high = Span { low: 5, high: 9 };
        assert_eq!(low.overlap(high), 0);
        assert_eq!(low.overlap(Span { low: 3, high: 9 }), 2);
    }
}
