//! Limits, and the rules that hold them.

use std::{fmt, sync::Arc, time::Duration};

use crate::core::{
    kind::Algorithm,
    metadata::Metadata,
    refusal::RuleRefusal,
    window::{Period, Timestamp, Unit, Window, window},
};

/// A config node that descriptors can match, with its limits and options.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its index in the matcher's list of rules.
    pub id: RuleId,
    /// The domain and the joined texts of the nodes that lead here; `/rlconfig` and metrics name the
    /// rule by it.
    pub path: Arc<str>,
    /// The number of its path. Two rules can have one number.
    pub number: u32,
    pub allows: Allows,
    /// Names of limits that do not apply when this rule matches in the same request.
    pub replaces: Box<[Arc<str>]>,
    /// Count and report as usual, answer OK.
    pub shadow_mode: bool,
    /// Refuse only if all quota descriptors of the request are over.
    pub quota_mode: bool,
    /// Which hits its limits count.
    pub counts: CountPolicy,
    /// Whether its hits are charged before they are used.
    pub lease: Option<LeasePolicy>,
    /// The answer while the store does not reply.
    pub on_store_loss: OnStoreLoss,
    /// The body that clients get when this rule refuses.
    pub refusal: Option<Arc<RuleRefusal>>,
    /// The key under which its statistics are counted.
    pub metric: Metric,
    /// Data that replies carry when this rule lets a request pass.
    pub metadata: Option<Arc<Metadata>>,
}

#[cfg(test)]
impl Rule {
    /// A rule with limits, and everything else as it is by default.
    pub(crate) fn plain(id: RuleId, path: &str, allows: Allows) -> Self {
        Self {
            id,
            path: path.into(),
            number: 0,
            allows,
            replaces: Box::default(),
            shadow_mode: false,
            quota_mode: false,
            counts: CountPolicy::default(),
            lease: None,
            on_store_loss: OnStoreLoss::default(),
            refusal: None,
            metric: Metric::default(),
            metadata: None,
        }
    }
}

/// The name of a rule's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// Its path.
    #[default]
    Path,
    /// Its path, with the request's values at nodes that have `value_to_metric`.
    SomeValues,
    /// Its path with all values of the request (`detailed_metric`).
    AllValues,
}

impl Rule {
    pub fn is_unlimited(&self) -> bool {
        matches!(self.allows, Allows::Unlimited)
    }

    /// How it reserves hits; `None` if it does not.
    pub fn reserve(&self) -> Option<Reserve> {
        match self.lease {
            Some(LeasePolicy::Reserve(reserve)) => Some(reserve),
            Some(LeasePolicy::Slots | LeasePolicy::Slices) | None => None,
        }
    }

    /// The longest time for which a request holds slots of it.
    pub fn ttl(&self) -> Duration {
        let limits = match &self.allows {
            Allows::Unlimited => &[],
            Allows::Within(limits) => &**limits,
        };
        let slots = limits.iter().filter(|limit| limit.is_concurrency());
        let secs = slots.map(|limit| limit.period.secs()).max();
        Duration::from_secs(secs.unwrap_or(0))
    }

    /// Whether `replaced` names every limit of it.
    pub fn is_replaced(&self, replaced: &[&Arc<str>]) -> bool {
        match &self.allows {
            Allows::Unlimited => false,
            Allows::Within(limits) => limits.iter().all(|limit| limit.is_replaced(replaced)),
        }
    }
}

/// The requests that a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allows {
    /// All requests, without counting.
    Unlimited,
    /// Requests that stay within all of these limits; never empty, and no two share both period and
    /// algorithm.
    Within(Box<[Limit]>),
}

/// The index of a rule in its matcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleId(pub usize);

/// Which hits a rule counts (`count`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountPolicy {
    /// Every hit, refused ones included (as in the reference). Sliding windows, logs and buckets still
    /// skip the hits they refuse.
    #[default]
    All,
    /// Hits of requests that pass: if a limit refuses the request, this rule charges no counter.
    Admitted,
}

/// How a rule leases hits to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePolicy {
    Reserve(Reserve),
    /// One of its limits counts the requests in flight. The hits on its others are used at once.
    Slots,
    /// Not to a request, but to a worker: it may charge hits in advance (`accuracy: exact-leased`).
    Slices,
}

/// How a rule reserves hits at the request, whose cost is known at the end of its stream only (`reserve`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// The hits of a request that brings no addend, at least 1; one hit if it is `None`.
    pub estimate: Option<u64>,
    pub missing: MissingCost,
}

/// The cost of a stream that ends without one (`missing`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingCost {
    /// As much as was reserved.
    #[default]
    Estimate,
    Zero,
}

impl crate::foundation::named::Named for MissingCost {
    const NAMES: &'static [(&'static str, Self)] =
        &[("estimate", Self::Estimate), ("zero", Self::Zero)];
}

/// The answer of a rule while the store does not reply (`on_store_loss`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreLoss {
    /// No answer: the call fails, and Envoy's `failure_mode_deny` decides.
    #[default]
    Error,
    /// Within its limits.
    Allow,
    /// Over its limits.
    Deny,
    /// The result of counting in this process, against this replica's share of the limits.
    Local,
}

impl crate::foundation::named::Named for OnStoreLoss {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("error", Self::Error),
        ("allow", Self::Allow),
        ("deny", Self::Deny),
        ("local", Self::Local),
    ];
}

/// Settings that hold for all rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Answer OK regardless of the statuses (`SHADOW_MODE`).
    pub shadow: bool,
    /// Treat every descriptor as one with `quota_mode` (`QUOTA_MODE`).
    pub quota: bool,
    /// Put the rules' metadata together (`RESPONSE_DYNAMIC_METADATA`).
    pub metadata: bool,
    /// If one counter of a request would pass its limit, do not charge those that would not
    /// (`STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`).
    pub stops_when_over: bool,
    /// The answer for a limit that a request brings, while the store does not reply.
    pub on_store_loss: OnStoreLoss,
}

/// A number of requests per period; 0 is legal and blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub requests_per_unit: u64,
    pub period: Period,
    pub algorithm: Algorithm,
    /// Its name in replies, and the name that `replaces` refers to.
    pub name: Option<Arc<str>>,
}

impl Limit {
    /// The most hits that a rule may admit in a period, 2^53 − 1: scripts of Redis and readers of JSON have no
    /// larger whole numbers.
    pub const MAX_REQUESTS: u64 = (1 << 53) - 1;

    /// A nameless limit in fixed windows.
    pub fn fixed(requests_per_unit: u64, period: impl Into<Period>) -> Self {
        Self {
            requests_per_unit,
            period: period.into(),
            algorithm: Algorithm::FixedWindow,
            name: None,
        }
    }

    /// Whether it counts the requests in flight. Then its period is the longest time for which one holds a slot.
    pub fn is_concurrency(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrency)
    }

    /// The unit of its period; `None` if it limits no rate.
    pub fn unit(&self) -> Option<Unit> {
        (!self.is_concurrency()).then(|| self.period.unit())
    }

    /// How many units its period has; 1 if it limits no rate.
    pub fn unit_multiplier(&self) -> u32 {
        match self.unit() {
            Some(_) => self.period.multiplier().get(),
            None => 1,
        }
    }

    /// Its rate as text, such as `3/second` or `300/30minutes`, or `5 in flight`.
    pub fn rate(&self) -> impl fmt::Display {
        let (requests, unit) = (self.requests_per_unit, self.period.unit());
        let is_concurrency = self.is_concurrency();
        let units = self.period.multiplier().get();
        fmt::from_fn(move |f| match units {
            _ if is_concurrency => write!(f, "{requests} in flight"),
            1 => write!(f, "{requests}/{unit}"),
            units => write!(f, "{requests}/{units}{unit}s"),
        })
    }

    /// The most hits that can pass at once.
    pub fn capacity(&self) -> u64 {
        self.algorithm.capacity(self.requests_per_unit)
    }

    /// The window that `now` falls in, or, for a limit without windows of its own, the period that
    /// begins at `now`.
    pub fn window(&self, now: Timestamp) -> Window {
        match &self.algorithm {
            Algorithm::FixedWindow => window(self.period, now),
            Algorithm::Calendar(calendar) => calendar.window(now),
            _ => Window {
                start: now,
                end: now.plus(Duration::from_secs(self.period.secs())),
            },
        }
    }

    /// Whether its name is one of `replaced`.
    pub fn is_replaced(&self, replaced: &[&Arc<str>]) -> bool {
        self.name
            .as_ref()
            .is_some_and(|name| replaced.contains(&name))
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
    /// The most hits that are not near the limit. Computed in single precision and cut, as the reference does, so that
    /// both warn at the same hit; never above the limit itself.
    pub(crate) fn threshold(self, requests_per_unit: u64) -> u64 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "the reference's own arithmetic; a float cast cuts, saturates and makes NaN 0"
        )]
        // Signed numbers are cast in half as many instructions, and no limit needs the highest bit.
        let threshold = (requests_per_unit.cast_signed() as f32 * self.0) as i64;
        threshold.max(0).cast_unsigned().min(requests_per_unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::calendar::Calendar;

    #[test]
    fn the_largest_limit_is_the_largest_whole_number_of_json() {
        assert_eq!(Limit::MAX_REQUESTS, 9_007_199_254_740_991);
    }

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
    fn a_rule_is_replaced_when_all_of_its_limits_are() {
        let named = |name: &str| Limit {
            name: Some(name.into()),
            ..Limit::fixed(1, Unit::Day)
        };
        let rule = |allows| Rule::plain(RuleId(0), "k", allows);
        let two = rule(Allows::Within([named("a"), named("b")].into()));
        let [a, b]: [Arc<str>; 2] = ["a", "b"].map(Into::into);
        assert!(two.is_replaced(&[&b, &a]));
        assert!(!two.is_replaced(&[&a]));
        assert!(!two.is_unlimited());
        let unlimited = rule(Allows::Unlimited);
        assert!(unlimited.is_unlimited() && !unlimited.is_replaced(&[&a, &b]));
    }

    #[test]
    fn a_bucket_holds_its_burst_unless_nothing_flows_in() {
        let bucket = |requests_per_unit| Limit {
            algorithm: Algorithm::TokenBucket { burst: 9 },
            ..Limit::fixed(requests_per_unit, Unit::Day)
        };
        assert_eq!([bucket(4).capacity(), bucket(0).capacity()], [9, 0]);
        assert_eq!(Limit::fixed(4, Unit::Day).capacity(), 4);
    }

    #[test]
    fn a_limit_of_requests_in_flight_has_no_unit() {
        let two_hours = Period::new(Unit::Hour, 2.try_into().unwrap()).unwrap();
        for (algorithm, unit, units, rate) in [
            (Algorithm::FixedWindow, Some(Unit::Hour), 2, "5/2hours"),
            (Algorithm::Concurrency, None, 1, "5 in flight"),
        ] {
            let limit = Limit {
                algorithm,
                ..Limit::fixed(5, two_hours)
            };
            assert_eq!((limit.unit(), limit.unit_multiplier()), (unit, units));
            assert_eq!(limit.rate().to_string(), rate);
        }
        assert_eq!(Limit::fixed(5, Unit::Hour).rate().to_string(), "5/hour");
    }

    #[test]
    fn slots_are_held_for_the_longest_period_of_the_limits_that_count_them() {
        let slots = |unit| Limit {
            algorithm: Algorithm::Concurrency,
            ..Limit::fixed(5, unit)
        };
        let hour = Limit::fixed(5, Unit::Hour);
        let two = [slots(Unit::Second), slots(Unit::Minute), hour.clone()];
        for (allows, secs) in [
            (Allows::Unlimited, 0),
            (Allows::Within([hour].into()), 0),
            (Allows::Within(two.into()), 60),
        ] {
            assert_eq!(Rule::plain(RuleId(0), "k", allows).ttl().as_secs(), secs);
        }
    }

    #[test]
    fn only_a_reserving_rule_reserves() {
        let reserve = Reserve {
            estimate: Some(3),
            missing: MissingCost::Zero,
        };
        for (lease, expected) in [
            (None, None),
            (Some(LeasePolicy::Slots), None),
            (Some(LeasePolicy::Slices), None),
            (Some(LeasePolicy::Reserve(reserve)), Some(reserve)),
        ] {
            let rule = Rule {
                lease,
                ..Rule::plain(RuleId(0), "k", Allows::Unlimited)
            };
            assert_eq!(rule.reserve(), expected);
        }
    }

    #[test]
    fn a_window_is_cut_by_the_epoch_by_a_calendar_or_begins_now() {
        let zone = Calendar::new(Unit::Day, "Asia/Tokyo", Default::default()).unwrap();
        let now = Timestamp::from_secs(100_000);
        let window = |algorithm| {
            let limit = Limit {
                algorithm,
                ..Limit::fixed(1, Unit::Day)
            };
            let Window { start, end } = limit.window(now);
            (start.secs(), end.secs())
        };
        assert_eq!(window(Algorithm::FixedWindow), (86_400, 172_800));
        // Midnight in Tokyo is nine hours before midnight in UTC.
        assert_eq!(window(Algorithm::Calendar(zone.into())), (54_000, 140_400));
        assert_eq!(window(Algorithm::SlidingLog), (100_000, 186_400));
    }
}
