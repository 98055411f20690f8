//! Time: moments, units, periods and the aligned windows they cut.

use std::{
    fmt,
    num::NonZeroU32,
    str::FromStr,
    time::{Duration, Instant},
};

/// The window of `period` that `now` falls in.
///
/// Windows are aligned to the Unix epoch. Months and years are 30 and 365 days long, as in
/// envoyproxy/ratelimit (`UnitToDivider`), so that every replica finds the same window without a
/// calendar.
pub(crate) fn window(period: Period, now: Timestamp) -> Window {
    let length = period.secs();
    let start = now.secs() - now.secs() % length;
    Window {
        start: Timestamp::from_secs(start),
        end: Timestamp::from_secs(start.saturating_add(length)),
    }
}

/// A slice of time `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub start: Timestamp,
    pub end: Timestamp,
}

/// A moment, in milliseconds since the Unix epoch. A clock before 1970 reads as the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub const fn secs(self) -> u64 {
        self.0 / 1000
    }

    pub const fn millis(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn plus(self, span: Duration) -> Self {
        let millis = span.as_millis();
        if millis > u64::MAX as u128 {
            return Self(u64::MAX);
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounded one line above")]
        Self(self.0.saturating_add(millis as u64))
    }

    /// This moment, so many milliseconds later, or earlier if they are negative.
    #[must_use]
    pub(crate) fn shifted(self, millis: i64) -> Self {
        Self(self.0.saturating_add_signed(millis))
    }

    /// Saturates at the epoch.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(millis))
    }
}

/// A moment by a clock that cannot be set, which is handed in beside [`Timestamp`].
///
/// The time of day names windows and lives inside one request, because it can step: after NTP, a pause of the virtual
/// machine or a failover of Redis. A fact that outlives a request is kept for a while of this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SteadyTime(Instant);

impl SteadyTime {
    /// The moment `span` later. A moment that the clock cannot express is the present one.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.checked_add(span).unwrap_or(self.0))
    }

    /// The time that passed since `earlier`; none if that is a later moment.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

impl From<Instant> for SteadyTime {
    fn from(instant: Instant) -> Self {
        Self(instant)
    }
}

/// The length of a limit's window: a number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Period {
    unit: Unit,
    multiplier: NonZeroU32,
}

impl Period {
    /// The longest period in seconds: 10,000 years, the bound of `google.protobuf.Duration`.
    pub const MAX_SECS: u64 = 315_576_000_000;

    /// One second.
    pub const SECOND: Self = Self {
        unit: Unit::Second,
        multiplier: NonZeroU32::MIN,
    };

    /// `multiplier` units, or `None` if that is longer than [`Period::MAX_SECS`].
    pub fn new(unit: Unit, multiplier: NonZeroU32) -> Option<Self> {
        let period = Self { unit, multiplier };
        (period.secs() <= Self::MAX_SECS).then_some(period)
    }

    pub const fn unit(self) -> Unit {
        self.unit
    }

    pub const fn multiplier(self) -> NonZeroU32 {
        self.multiplier
    }

    /// Its length; never 0, and never wraps: a year times `u32::MAX` fits.
    pub const fn secs(self) -> u64 {
        self.unit.secs() * self.multiplier.get() as u64
    }
}

impl From<Unit> for Period {
    fn from(unit: Unit) -> Self {
        Self {
            unit,
            multiplier: NonZeroU32::MIN,
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.multiplier.get() {
            1 => write!(f, "{}", self.unit),
            n => write!(f, "{n} {}s", self.unit),
        }
    }
}

/// The units of the reference's YAML and of `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// The length of one unit, in seconds.
    pub const fn secs(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 604_800,
            Self::Month => 2_592_000,
            Self::Year => 31_536_000,
        }
    }

    /// Its lower-case name, as YAML spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a unit.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownUnit;

impl FromStr for Unit {
    type Err = UnknownUnit;

    /// Takes a name in any letter case, as the reference does.
    fn from_str(text: &str) -> Result<Self, UnknownUnit> {
        Self::ALL
            .into_iter()
            .find(|unit| unit.name().eq_ignore_ascii_case(text))
            .ok_or(UnknownUnit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(unit: Unit, now_secs: u64, start_secs: u64, reset_secs: u64) {
        let now = Timestamp::from_secs(now_secs);
        let window = window(unit.into(), now);
        assert_eq!(window.start.secs(), start_secs);
        assert_eq!(window.end.secs() - now_secs, reset_secs);
    }

    #[test]
    fn windows_lie_where_the_reference_puts_them() {
        check(Unit::Second, 1234, 1234, 1);
        check(Unit::Minute, 1234, 1200, 26);
        check(Unit::Hour, 1234, 0, 2366);
        check(Unit::Day, 1234, 0, 85_166);
        check(Unit::Week, 1234, 0, 603_566);
        check(Unit::Month, 1234, 0, 2_590_766);
        check(Unit::Year, 1234, 0, 31_534_766);
        check(Unit::Second, 1_000_000, 1_000_000, 1);
        check(Unit::Minute, 1_000_000, 999_960, 20);
        check(Unit::Hour, 1_000_000, 997_200, 800);
        check(Unit::Day, 1_000_000, 950_400, 36_800);
        check(Unit::Week, 1_000_000, 604_800, 209_600);
        check(Unit::Month, 1_000_000, 0, 1_592_000);
        check(Unit::Year, 1_000_000, 0, 30_536_000);
    }

    #[test]
    fn a_window_that_just_began_lasts_a_whole_period() {
        check(Unit::Minute, 60, 60, 60);
    }

    #[test]
    fn the_year_that_holds_late_2026_began_in_december_2025() {
        // 2026-11-21 and 2025-12-18, both at midnight.
        check(Unit::Year, 1_795_219_200, 1_766_016_000, 2_332_800);
    }

    #[test]
    fn periods_above_the_bound_are_refused() {
        let many = NonZeroU32::MAX;
        assert_eq!(Period::new(Unit::Year, many), None);
        assert!(Period::new(Unit::Second, many).is_some());
    }

    #[test]
    fn units_are_named_in_any_case() {
        assert_eq!("MiNuTe".parse(), Ok(Unit::Minute));
        assert_eq!("fortnight".parse::<Unit>(), Err(UnknownUnit));
    }

    #[test]
    fn a_period_reads_as_its_multiplier_and_its_unit() {
        for (unit, multiplier, text) in [
            (Unit::Minute, 1, "minute"),
            (Unit::Minute, 30, "30 minutes"),
            (Unit::Year, 2, "2 years"),
        ] {
            let period = Period::new(unit, NonZeroU32::new(multiplier).unwrap()).unwrap();
            assert_eq!(period.to_string(), text);
            assert_eq!(
                (period.unit(), period.multiplier().get()),
                (unit, multiplier)
            );
        }
    }

    #[test]
    fn moments_stay_between_the_epoch_and_the_end_of_time() {
        let millis = Duration::from_millis;
        let longest = millis(u64::MAX);
        for (now, span, later, earlier) in [
            (5, millis(3), 8, 2),
            (5, millis(8), 13, 0),
            (0, longest, u64::MAX, 0),
            (5, longest, u64::MAX, 0),
            (5, longest + millis(1), u64::MAX, 0),
            (5, Duration::MAX, u64::MAX, 0),
        ] {
            let now = Timestamp::from_millis(now);
            let around = (now.plus(span).millis(), now.minus(span).millis());
            assert_eq!(around, (later, earlier), "{span:?}");
        }
    }

    #[test]
    fn the_time_since_a_later_moment_is_none() {
        let millis = Duration::from_millis;
        let before = SteadyTime::from(Instant::now());
        let steady = before.plus(millis(3));
        let spans = [steady.since(before), before.since(steady)];
        assert_eq!(spans, [millis(3), millis(0)]);
    }

    fn any_unit() -> impl Strategy<Value = Unit> {
        proptest::sample::select(Unit::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn every_moment_lies_in_its_window(
            unit in any_unit(),
            multiplier in 1_u32..10_000,
            millis in 0..=u64::MAX,
        ) {
            let Some(period) = Period::new(unit, NonZeroU32::new(multiplier).unwrap()) else {
                return Ok(());
            };
            let now = Timestamp::from_millis(millis);
            let window = window(period, now);
            prop_assert!(window.start <= now);
            // The end of the last window of all does not fit into a `Timestamp`.
            prop_assert!(now < window.end || window.end.millis() == u64::MAX);
            prop_assert_eq!(window.start.secs() % period.secs(), 0);
            if window.end.millis() < u64::MAX {
                prop_assert_eq!(window.end.secs() - window.start.secs(), period.secs());
            }
        }
    }
}
