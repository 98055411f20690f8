//! What was counted, in words that every sink understands.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// One number of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its statsd name, such as `ratelimit.service.rate_limit.domain.key.over_limit`. Without
    /// EXTRA_TAGS, which each sink adds in its own form.
    pub name: String,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The total since the start, never a difference.
    Counter(u64),
    Gauge(u64),
    Timer(Box<TimerValues>),
}

/// What a [`Value`] is, without the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Counter,
    Gauge,
    Timer,
}

impl Value {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Counter(_) => Kind::Counter,
            Self::Gauge(_) => Kind::Gauge,
            Self::Timer(_) => Kind::Timer,
        }
    }
}

/// Nine steps a decade: what a timer is told is known to a fifth, and the buckets that dashboards
/// ask for (1, 2.5, 5 and their like) are among them.
const STEPS: [u64; 9] = [10, 15, 20, 25, 30, 40, 50, 60, 75];

/// From 10 µs to 75 s, and every whole microsecond below.
const DECADES: usize = 7;

const BOUND_COUNT: usize = STEPS.len() * (DECADES + 1);

/// The upper bounds of a timer's buckets in microseconds, ascending; each is in its bucket.
pub const BOUNDS_MICROS: [u64; BOUND_COUNT] = bounds();

const fn bounds() -> [u64; BOUND_COUNT] {
    let mut bounds = [0; BOUND_COUNT];
    let mut at = 0;
    while at < STEPS.len() {
        bounds[at] = at as u64 + 1;
        at += 1;
    }
    let mut decade = 1;
    while at < BOUND_COUNT {
        bounds[at] = STEPS[at % STEPS.len()] * decade;
        at += 1;
        if at % STEPS.len() == 0 {
            decade *= 10;
        }
    }
    bounds
}

/// One for each bound and one for what is above all of them.
const SLOT_COUNT: usize = BOUND_COUNT + 1;

/// Collects durations, which one thread tells it. What it was told is read with [`Timer::values`].
#[derive(Debug)]
pub struct Timer {
    counts: [AtomicU64; SLOT_COUNT],
    sum_micros: AtomicU64,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; SLOT_COUNT],
            sum_micros: AtomicU64::new(0),
        }
    }
}

impl Timer {
    pub fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let add = |total: &AtomicU64, more| {
            total.store(total.load(Relaxed).wrapping_add(more), Relaxed);
        };
        add(&self.counts[slot(micros)], 1);
        add(&self.sum_micros, micros);
    }

    pub fn values(&self) -> TimerValues {
        TimerValues {
            counts: self.counts.each_ref().map(|count| count.load(Relaxed)),
            sum_micros: self.sum_micros.load(Relaxed),
        }
    }
}

/// The durations since the start, by [`BOUNDS_MICROS`]. Microseconds, because most replies take
/// less than the whole milliseconds of the reference, whose sums therefore stay 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerValues {
    counts: [u64; SLOT_COUNT],
    sum_micros: u64,
}

impl Default for TimerValues {
    fn default() -> Self {
        Self {
            counts: [0; SLOT_COUNT],
            sum_micros: 0,
        }
    }
}

impl TimerValues {
    /// Adds what another timer was told.
    pub fn absorb(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
    }

    pub fn observe(&mut self, micros: u64) {
        self.counts[slot(micros)] += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
    }

    /// How many durations there were. Counted from the buckets, so it always agrees with them.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum_micros(&self) -> u64 {
        self.sum_micros
    }

    /// How many durations are known to be no longer than this: exact where `micros` is one of
    /// [`BOUNDS_MICROS`], too few by the rest of a bucket elsewhere.
    pub fn at_most(&self, micros: u64) -> u64 {
        let whole = BOUNDS_MICROS.partition_point(|&bound| bound <= micros);
        self.counts[..whole].iter().sum()
    }

    /// The buckets that hold something: the microseconds in their middle, and the count.
    pub fn middles(&self) -> impl Iterator<Item = (f64, u64)> {
        let last = BOUNDS_MICROS[BOUND_COUNT - 1];
        let counts = self.counts.into_iter().enumerate();
        counts
            .filter(|(_, count)| *count > 0)
            .map(move |(at, count)| {
                let low = if at == 0 { 0 } else { BOUNDS_MICROS[at - 1] };
                let high = BOUNDS_MICROS.get(at).copied().unwrap_or(2 * last);
                ((low + high) as f64 / 2.0, count)
            })
    }

    /// Puts other durations to these.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
    }

    /// The durations that came after `earlier`; all of them if `earlier` is not of the same run.
    pub fn since(&self, earlier: &Self) -> Self {
        let is_same_run = self
            .counts
            .iter()
            .zip(earlier.counts)
            .all(|(now, then)| *now >= then);
        if !is_same_run {
            return self.clone();
        }
        let mut since = self.clone();
        for (count, then) in since.counts.iter_mut().zip(earlier.counts) {
            *count -= then;
        }
        since.sum_micros = since.sum_micros.saturating_sub(earlier.sum_micros);
        since
    }
}

/// The bucket of a duration.
fn slot(micros: u64) -> usize {
    BOUNDS_MICROS.partition_point(|&bound| bound < micros)
}

/// A segment of a rule's key, fit to stand in a name.
///
/// As in the reference, `:` and `|`, which end a name on a statsd line, and the dots of what looks
/// like an IPv4 address become `_`. Unlike there, so do control characters, since a line feed
/// would start a metric of the sender's choice, and the dot of `.__`, which would start a tag.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|found| found == '.' || breaks_line(found)) {
        return Cow::Borrowed(text);
    }
    let dots = address_dots(text.as_bytes());
    // From the end, because a tag may only come to be by what is replaced after its dot.
    let mut fit: Vec<char> = Vec::with_capacity(text.len());
    for (at, found) in text.char_indices().rev() {
        let starts_tag = || fit.ends_with(&['_', '_']);
        let is_unfit =
            breaks_line(found) || found == '.' && (dots.binary_search(&at).is_ok() || starts_tag());
        fit.push(if is_unfit { '_' } else { found });
    }
    Cow::Owned(fit.into_iter().rev().collect())
}

/// Whether a character cannot stand in a name on a statsd line.
pub(super) fn breaks_line(found: char) -> bool {
    matches!(found, ':' | '|') || found.is_control()
}

/// Where the dots of what looks like IPv4 addresses are: four groups of one to three digits,
/// whatever is around them.
fn address_dots(bytes: &[u8]) -> Vec<usize> {
    let mut dots = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match address(bytes, at) {
            Some((three, end)) => {
                dots.extend(three);
                at = end;
            }
            None => at += 1,
        }
    }
    dots
}

/// The dots and the end of the address that starts here.
fn address(bytes: &[u8], start: usize) -> Option<([usize; 3], usize)> {
    let group_end = |from: usize| {
        let rest = bytes.get(from..)?;
        let digits = rest
            .iter()
            .take(3)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        (digits > 0).then_some(from + digits)
    };
    let mut dots = [0; 3];
    let mut end = group_end(start)?;
    for dot in &mut dots {
        if bytes.get(end) != Some(&b'.') {
            return None;
        }
        *dot = end;
        end = group_end(end + 1)?;
    }
    Some((dots, end))
}

/// Samples for the tests of the sinks.
#[cfg(test)]
pub(super) mod make {
    use super::{Sample, TimerValues, Value};

    fn sample(name: &str, value: Value) -> Sample {
        Sample {
            name: name.to_owned(),
            value,
        }
    }

    pub(in crate::metrics) fn counter(name: &str, total: u64) -> Sample {
        sample(name, Value::Counter(total))
    }

    pub(in crate::metrics) fn gauge(name: &str, now: u64) -> Sample {
        sample(name, Value::Gauge(now))
    }

    pub(in crate::metrics) fn timer(name: &str, micros: &[u64]) -> Sample {
        let mut values = TimerValues::default();
        micros.iter().for_each(|&took| values.observe(took));
        sample(name, Value::Timer(Box::new(values)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(sanitize(text), expected);
    }

    #[test]
    fn separators_of_a_line_become_underscores() {
        check("foo", "foo");
        check("path_/a b.c", "path_/a b.c");
        check("a:b|c", "a_b_c");
        check("a\nb\r\0c\u{85}d\u{7f}", "a_b__c_d_");
        check("é:ü", "é_ü");
    }

    #[test]
    fn dots_of_addresses_become_underscores() {
        check("remote_address_10.0.0.1", "remote_address_10_0_0_1");
        check("10.0.0.1:80", "10_0_0_1_80");
        check("1.2.3", "1.2.3");
        check("1.2.3.x", "1.2.3.x");
        check("1.2345.3.4", "1.2345.3.4");
        check("a.1.2.3.4.b", "a.1_2_3_4.b");
        check("1.2.3.4.5.6.7.8", "1_2_3_4.5_6_7_8");
        check("12345.1.1.12345", "12345_1_1_12345");
        check("1..2.3.4", "1..2.3.4");
    }

    #[test]
    fn a_value_cannot_start_a_tag() {
        check("x.__env=prod", "x___env=prod");
        check("x.|\n", "x___");
        check("x..__", "x____");
        check("x._y", "x._y");
        check("x.", "x.");
    }

    #[test]
    fn what_is_fit_is_not_copied() {
        assert!(matches!(sanitize("a_b_c/d e"), Cow::Borrowed(_)));
    }

    #[test]
    fn bounds_ascend_and_hold_the_usual_buckets() {
        assert!(BOUNDS_MICROS.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(BOUNDS_MICROS[..10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(BOUNDS_MICROS[BOUND_COUNT - 1], 75_000_000);
        for usual in [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000] {
            assert!(BOUNDS_MICROS.contains(&usual), "{usual}");
            assert!(BOUNDS_MICROS.contains(&(usual * 1_000)), "{usual} thousand");
        }
    }

    #[test]
    fn a_timer_says_what_it_was_told() {
        let timer = Timer::default();
        for micros in [0, 1, 400, 2_500, 2_501, 100_000_000] {
            timer.record(Duration::from_micros(micros));
        }
        let values = timer.values();
        assert_eq!(values.count(), 6);
        assert_eq!(values.sum_micros(), 100_005_402);
        assert_eq!(values.at_most(0), 0);
        assert_eq!(values.at_most(1), 2);
        assert_eq!(values.at_most(2_499), 3);
        assert_eq!(values.at_most(2_500), 4);
        assert_eq!(values.at_most(u64::MAX), 5);
    }

    #[test]
    fn nanoseconds_are_cut_and_ages_saturate() {
        let timer = Timer::default();
        timer.record(Duration::from_nanos(1_999));
        assert_eq!(timer.values().sum_micros(), 1);
        Timer::default().record(Duration::MAX);
    }

    #[test]
    fn a_timer_that_began_anew_counts_from_nothing() {
        let (mut old, mut new) = (TimerValues::default(), TimerValues::default());
        old.observe(5);
        old.observe(5);
        new.observe(5);
        assert_eq!(new.since(&old), new);
    }

    proptest! {
        #[test]
        fn earlier_and_since_are_now(
            early in prop::collection::vec(0..200_000_000u64, 0..20),
            late in prop::collection::vec(0..200_000_000u64, 0..20),
        ) {
            let mut then = TimerValues::default();
            early.iter().for_each(|&micros| then.observe(micros));
            let mut now = then.clone();
            late.iter().for_each(|&micros| now.observe(micros));
            let since = now.since(&then);
            prop_assert_eq!(since.count(), late.len() as u64);
            then.add(&since);
            prop_assert_eq!(then, now);
        }

        #[test]
        fn what_is_at_most_a_bound_is_exact(
            all in prop::collection::vec(0..200_000_000u64, 0..50),
            at in 0..BOUND_COUNT,
        ) {
            let mut values = TimerValues::default();
            all.iter().for_each(|&micros| values.observe(micros));
            let bound = BOUNDS_MICROS[at];
            let naive = all.iter().filter(|&&micros| micros <= bound).count();
            prop_assert_eq!(values.at_most(bound), naive as u64);
        }

        #[test]
        fn what_is_sanitized_stays_so(text in "[0-9.:|_a\n]{0,24}") {
            let once = sanitize(&text).into_owned();
            prop_assert_eq!(sanitize(&once), once.as_str());
            prop_assert_eq!(once.chars().count(), text.chars().count());
        }
    }
}
