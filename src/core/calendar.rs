//! Days, weeks, months and years in a time zone.

use jiff::{
    ToSpan as _,
    civil::{Date, DateTime, Weekday},
    tz::TimeZone,
};

use crate::core::window::{Timestamp, Unit, Window};

/// A moment as RFC 3339 writes it, in UTC and to the second.
pub(crate) fn utc(moment: Timestamp) -> String {
    let secs = i64::try_from(moment.secs()).unwrap_or(i64::MAX);
    let moment = jiff::Timestamp::from_second(secs).unwrap_or(jiff::Timestamp::MAX);
    moment.to_string()
}

/// Windows of one calendar unit in one time zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
    zone_name: Box<str>,
    starts: Starts,
}

/// The units that calendars have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CalendarUnit {
    Day,
    Week,
    Month,
    Year,
}

/// When a window begins within its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Starts {
    /// 1 to 12, for years.
    pub month: i8,
    /// 1 to 31, for months and years. In a month that is shorter, its last day.
    pub day: i8,
    /// 0 to 23.
    pub hour: i8,
    /// For weeks.
    pub weekday: Weekday,
}

impl Default for Starts {
    fn default() -> Self {
        Self {
            month: 1,
            day: 1,
            hour: 0,
            weekday: Weekday::Monday,
        }
    }
}

/// Why a calendar cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCalendar {
    #[error("a second, a minute or an hour is the same in every calendar")]
    Unit,
    #[error("no such time zone")]
    Zone,
}

impl Eq for Calendar {}

impl Calendar {
    /// `starts` is not checked: a day or hour that does not exist is moved to one that does.
    ///
    /// # Errors
    ///
    /// If `unit` is shorter than a day, or the IANA time zone database has no `zone`.
    pub fn new(unit: Unit, zone: &str, starts: Starts) -> Result<Self, NoCalendar> {
        let unit = match unit {
            Unit::Second | Unit::Minute | Unit::Hour => return Err(NoCalendar::Unit),
            Unit::Day => CalendarUnit::Day,
            Unit::Week => CalendarUnit::Week,
            Unit::Month => CalendarUnit::Month,
            Unit::Year => CalendarUnit::Year,
        };
        Ok(Self {
            unit,
            zone: TimeZone::get(zone).map_err(|_| NoCalendar::Zone)?,
            zone_name: zone.into(),
            starts,
        })
    }

    pub fn zone_name(&self) -> &str {
        &self.zone_name
    }

    pub fn starts(&self) -> Starts {
        self.starts
    }

    /// The window that `now` falls in. A day on which the clocks change has 23 or 25 hours. A start in
    /// the skipped hour moves to an hour later; a start in the repeated hour means the first of the two.
    ///
    /// From the year 9999 on, where calendars end, one window holds all time.
    pub fn window(&self, now: Timestamp) -> Window {
        self.try_window(now).unwrap_or(Window {
            start: Timestamp::from_millis(0),
            end: Timestamp::from_millis(u64::MAX),
        })
    }

    fn try_window(&self, now: Timestamp) -> Option<Window> {
        let millis = i64::try_from(now.millis()).ok()?;
        let moment = jiff::Timestamp::from_millisecond(millis).ok()?;
        let civil = self.zone.to_datetime(moment);
        let mut at = self.first_of(civil.date())?;
        // It takes at most one step each way: for the hour of the start, a short month, or a change of
        // clocks.
        while self.start(at)? > now {
            at = self.step(at, -1)?;
        }
        loop {
            let next = self.step(at, 1)?;
            let end = self.start(next)?;
            if now < end {
                let start = self.start(at)?;
                return Some(Window { start, end });
            }
            at = next;
        }
    }

    /// The first day of the unit that `date` falls in, not yet moved to the day of the start.
    fn first_of(&self, date: Date) -> Option<Date> {
        match self.unit {
            CalendarUnit::Day => Some(date),
            CalendarUnit::Week => {
                let days = self.starts.weekday.until(date.weekday());
                date.checked_sub(i64::from(days).days()).ok()
            }
            CalendarUnit::Month => Some(date.first_of_month()),
            CalendarUnit::Year => Some(date.first_of_year()),
        }
    }

    fn step(&self, at: Date, by: i64) -> Option<Date> {
        let span = match self.unit {
            CalendarUnit::Day => by.days(),
            CalendarUnit::Week => (by * 7).days(),
            CalendarUnit::Month => by.months(),
            CalendarUnit::Year => by.years(),
        };
        at.checked_add(span).ok()
    }

    /// The moment at which the window begins whose unit begins on `first`.
    fn start(&self, first: Date) -> Option<Timestamp> {
        let Starts {
            month, day, hour, ..
        } = self.starts;
        let in_month = |month: Date| {
            Date::new(month.year(), month.month(), day.min(month.days_in_month())).ok()
        };
        let date = match self.unit {
            CalendarUnit::Day | CalendarUnit::Week => first,
            CalendarUnit::Month => in_month(first)?,
            CalendarUnit::Year => in_month(Date::new(first.year(), month, 1).ok()?)?,
        };
        let civil: DateTime = date.at(hour, 0, 0, 0);
        let start = self.zone.to_timestamp(civil).ok()?;
        // A window that began before 1970 begins in 1970.
        let millis = u64::try_from(start.as_millisecond()).unwrap_or(0);
        Some(Timestamp::from_millis(millis))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MADRID: &str = "Europe/Madrid";

    fn moment(text: &str) -> Timestamp {
        let moment: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_millis(moment.as_millisecond().try_into().unwrap())
    }

    /// Asserts that `at` falls in the window from `start` to `end`; all are instants in UTC.
    #[test]
    fn a_moment_is_written_in_utc_without_its_milliseconds() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_795_262_465_999, "2026-11-21T12:01:05Z"),
        ] {
            assert_eq!(utc(Timestamp::from_millis(millis)), text);
        }
    }

    #[track_caller]
    fn check(unit: Unit, zone: &str, starts: Starts, at: &str, start: &str, end: &str) {
        let calendar = Calendar::new(unit, zone, starts).unwrap();
        let found = calendar.window(moment(at));
        assert_eq!((found.start, found.end), (moment(start), moment(end)));
    }

    #[test]
    fn a_day_has_23_or_25_hours_where_the_clocks_change() {
        let day = |at, start, end| check(Unit::Day, MADRID, Starts::default(), at, start, end);
        day(
            "2026-03-29T12:00:00Z",
            "2026-03-28T23:00:00Z",
            "2026-03-29T22:00:00Z",
        );
        day(
            "2026-10-25T12:00:00Z",
            "2026-10-24T22:00:00Z",
            "2026-10-25T23:00:00Z",
        );
    }

    #[test]
    fn a_window_begins_at_its_start_and_ends_before_the_next() {
        let starts = Starts {
            hour: 6,
            ..Starts::default()
        };
        let calendar = Calendar::new(Unit::Day, "UTC", starts).unwrap();
        assert_eq!((calendar.zone_name(), calendar.starts()), ("UTC", starts));
        let [before, at, next] = [
            "2026-05-02T05:59:59.999Z",
            "2026-05-02T06:00:00Z",
            "2026-05-03T06:00:00Z",
        ]
        .map(moment);
        assert_eq!(calendar.window(before).end, at);
        let window = calendar.window(at);
        assert_eq!((window.start, window.end), (at, next));
    }

    #[test]
    fn a_start_that_the_clocks_skip_is_an_hour_later() {
        let starts = Starts {
            hour: 2,
            ..Starts::default()
        };
        let day = |at, start, end| check(Unit::Day, MADRID, starts, at, start, end);
        day(
            "2026-03-29T05:00:00Z",
            "2026-03-29T01:00:00Z",
            "2026-03-30T00:00:00Z",
        );
        // 02:00 comes twice; the first one counts.
        day(
            "2026-10-25T01:30:00Z",
            "2026-10-25T00:00:00Z",
            "2026-10-26T01:00:00Z",
        );
    }

    #[test]
    fn billing_months_begin_on_their_day_and_hour() {
        let starts = Starts {
            day: 17,
            hour: 6,
            ..Starts::default()
        };
        let month = |at, start, end| check(Unit::Month, MADRID, starts, at, start, end);
        month(
            "2026-07-17T03:59:59Z",
            "2026-06-17T04:00:00Z",
            "2026-07-17T04:00:00Z",
        );
        month(
            "2026-07-17T04:00:00Z",
            "2026-07-17T04:00:00Z",
            "2026-08-17T04:00:00Z",
        );
        month(
            "2026-01-01T00:00:00Z",
            "2025-12-17T05:00:00Z",
            "2026-01-17T05:00:00Z",
        );
    }

    #[test]
    fn the_31st_is_the_last_day_of_a_shorter_month() {
        let starts = Starts {
            day: 31,
            ..Starts::default()
        };
        let month = |at, start, end| check(Unit::Month, "UTC", starts, at, start, end);
        month(
            "2026-02-15T00:00:00Z",
            "2026-01-31T00:00:00Z",
            "2026-02-28T00:00:00Z",
        );
        month(
            "2026-03-15T00:00:00Z",
            "2026-02-28T00:00:00Z",
            "2026-03-31T00:00:00Z",
        );
        // A leap year.
        month(
            "2028-02-29T00:00:00Z",
            "2028-02-29T00:00:00Z",
            "2028-03-31T00:00:00Z",
        );
        month(
            "2026-05-30T23:59:59Z",
            "2026-04-30T00:00:00Z",
            "2026-05-31T00:00:00Z",
        );
    }

    #[test]
    fn weeks_begin_on_their_day() {
        let week = |weekday, at, start, end| {
            let starts = Starts {
                weekday,
                ..Starts::default()
            };
            check(Unit::Week, "UTC", starts, at, start, end);
        };
        // A Saturday.
        let at = "2026-11-21T08:00:00Z";
        week(
            Weekday::Monday,
            at,
            "2026-11-16T00:00:00Z",
            "2026-11-23T00:00:00Z",
        );
        week(
            Weekday::Sunday,
            at,
            "2026-11-15T00:00:00Z",
            "2026-11-22T00:00:00Z",
        );
        week(
            Weekday::Saturday,
            at,
            "2026-11-21T00:00:00Z",
            "2026-11-28T00:00:00Z",
        );
    }

    #[test]
    fn years_may_begin_on_a_leap_day() {
        let starts = Starts {
            month: 2,
            day: 29,
            ..Starts::default()
        };
        let year = |at, start, end| check(Unit::Year, "UTC", starts, at, start, end);
        year(
            "2027-06-01T00:00:00Z",
            "2027-02-28T00:00:00Z",
            "2028-02-29T00:00:00Z",
        );
        year(
            "2028-02-28T12:00:00Z",
            "2027-02-28T00:00:00Z",
            "2028-02-29T00:00:00Z",
        );
    }

    #[test]
    fn what_is_no_calendar_is_refused() {
        let new = |unit, zone| Calendar::new(unit, zone, Starts::default()).map(|_| ());
        assert_eq!(new(Unit::Hour, "UTC"), Err(NoCalendar::Unit));
        assert_eq!(new(Unit::Day, "Europe/Nowhere"), Err(NoCalendar::Zone));
        assert_eq!(new(Unit::Day, ""), Err(NoCalendar::Zone));
    }

    proptest! {
        #[test]
        fn every_moment_lies_in_its_window_and_the_next_one_begins_where_it_ends(
            unit in proptest::sample::select(vec![Unit::Day, Unit::Week, Unit::Month, Unit::Year]),
            zone in proptest::sample::select(vec![
                "UTC", "Europe/Madrid", "America/Sao_Paulo", "Australia/Lord_Howe",
                "Pacific/Apia", "Asia/Kathmandu", "Africa/Casablanca",
            ]),
            (month, day, hour) in (1_i8..=12, 1_i8..=31, 0_i8..24),
            weekday in 1_i8..=7,
            // Until the year 2200.
            millis in 0_u64..7_258_118_400_000,
        ) {
            let weekday = Weekday::from_monday_one_offset(weekday).unwrap();
            let starts = Starts { month, day, hour, weekday };
            let calendar = Calendar::new(unit, zone, starts).unwrap();
            let now = Timestamp::from_millis(millis);
            let window = calendar.window(now);
            prop_assert!(window.start <= now && now < window.end);
            prop_assert_eq!(calendar.window(window.start), window);
            let last = Timestamp::from_millis(window.end.millis() - 1);
            prop_assert_eq!(calendar.window(last), window);
            prop_assert_eq!(calendar.window(window.end).start, window.end);
        }

        #[test]
        fn no_moment_is_too_far_away(millis in 0..=u64::MAX) {
            let calendar = Calendar::new(Unit::Year, MADRID, Starts::default()).unwrap();
            let now = Timestamp::from_millis(millis);
            let window = calendar.window(now);
            prop_assert!(window.start <= now);
        }
    }
}
