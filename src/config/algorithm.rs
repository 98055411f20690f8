//! The settings of a limit → its [`Algorithm`], with every error.

use std::sync::Arc;

use jiff::{civil::Weekday, fmt::strtime};

use crate::{
    config::{
        fault::Fault,
        hints::unrendered,
        keys::words_of,
        mirror::{BoxedOption, LocatedNumber, LocatedText, RateLimit},
        short_form::period,
    },
    core::{
        calendar::{Calendar, NoCalendar, Starts},
        kind::Algorithm,
        window::Period,
    },
};

/// Largest product of tokens and milliseconds that a bucket in Redis counts exactly: Lua scripts have no larger whole
/// numbers.
const MAX_TOKEN_MILLIS: u64 = 1 << 53;

/// A longer ttl than this, an hour, is probably a mistake.
const LONG_TTL_SECS: u64 = 3_600;

/// Errors and their positions; `None` means the position of the limit.
pub(super) type Faults = Vec<(Option<usize>, Fault)>;

/// The algorithm of `limit`, valid only if no fault was added.
pub(super) fn algorithm(limit: &RateLimit, period: Period, faults: &mut Faults) -> Algorithm {
    let name = limit.algorithm.as_ref();
    let algorithm = match name.map_or("fixed_window", |word| &word.text) {
        "fixed_window" => fixed_window(limit, period, faults),
        "token_bucket" => Algorithm::TokenBucket {
            burst: burst(limit, period, faults),
        },
        word => {
            let mut without_settings = Algorithm::one_of_each(0);
            let Some(algorithm) = without_settings.find(|known| known.name() == word) else {
                faults.extend(name.map(|word| unknown("algorithm", word)));
                return Algorithm::FixedWindow;
            };
            algorithm
        }
    };
    check_requests(limit, &algorithm, faults);
    check_company(limit, &algorithm, faults);
    algorithm
}

/// Reports a number of requests that `algorithm` does not count.
fn check_requests(limit: &RateLimit, algorithm: &Algorithm, faults: &mut Faults) {
    let (requests, most) = (limit.requests_per_unit, algorithm.max_requests());
    if requests > most {
        let fault = match algorithm {
            Algorithm::SlidingLog => Fault::LogTooLong(requests),
            _ => Fault::OutOfRange {
                key: "requests_per_unit",
                low: 0,
                high: most,
                text: format!("{requests} with `{}`", algorithm.name()),
            },
        };
        faults.push((limit.at, fault));
    }
}

/// The longest time for which a request in flight counts, in place of a unit; `None` if `limit` counts something else,
/// and an error if it cannot be read.
pub(super) fn ttl(limit: &RateLimit, faults: &mut Faults) -> Option<Result<Period, ()>> {
    let algorithm = limit.algorithm.as_ref()?;
    if algorithm.text != "concurrency" {
        return None;
    }
    let mut reject = |key, at: Option<usize>| {
        let (with, fix) = (
            "`concurrency`",
            "it limits no rate: `ttl` says how long a request counts at the longest",
        );
        faults.push((at, Fault::DoesNotGo { key, with, fix }));
    };
    if !limit.unit.is_empty() {
        reject("unit", limit.at);
    }
    if let Some(number) = &limit.unit_multiplier {
        reject("unit_multiplier", number.at);
    }
    let Some(word) = &limit.ttl else {
        faults.push((limit.at, Fault::NoTtl));
        return Some(Err(()));
    };
    let Some(period) = period(&word.text) else {
        faults.push((word.at, Fault::UnreadableTtl(word.text.clone())));
        return Some(Err(()));
    };
    if period.secs() > LONG_TTL_SECS {
        faults.push((word.at, Fault::LongTtl(word.text.clone())));
    }
    Some(Ok(period))
}

/// The fault of a word that a key does not know.
pub(super) fn unknown(key: &'static str, word: &LocatedText) -> (Option<usize>, Fault) {
    let unknown = || Fault::UnknownWord {
        key,
        text: word.text.clone(),
        expected: words_of(key),
    };
    (
        word.at,
        unrendered(&word.text, false).unwrap_or_else(unknown),
    )
}

fn fixed_window(limit: &RateLimit, period: Period, faults: &mut Faults) -> Algorithm {
    let begins_with_hit = match limit.window.as_ref().map(|word| (word, &*word.text)) {
        None | Some((_, "aligned")) => false,
        Some((_, "first_hit")) => true,
        Some((word, _)) => {
            faults.push(unknown("window", word));
            false
        }
    };
    match (begins_with_hit, limit.calendar) {
        (false, false) => Algorithm::FixedWindow,
        (true, false) => Algorithm::FirstHit,
        (false, true) => calendar(limit, period, faults),
        (true, true) => {
            let (key, with, fix) = ("window", "`calendar`", "remove one of them");
            let at = limit.window.as_ref().and_then(|word| word.at);
            faults.push((at, Fault::DoesNotGo { key, with, fix }));
            Algorithm::FirstHit
        }
    }
}

/// Reports settings that have no meaning for `algorithm`.
fn check_company(limit: &RateLimit, algorithm: &Algorithm, faults: &mut Faults) {
    let mut report = |key, at: Option<Option<usize>>, with, fix| {
        if let Some(at) = at {
            faults.push((at, Fault::DoesNotGo { key, with, fix }));
        }
    };
    let word = |word: &BoxedOption<LocatedText>| word.as_ref().map(|word| word.at);
    let number = |number: &BoxedOption<LocatedNumber>| number.as_ref().map(|number| number.at);
    if !matches!(algorithm, Algorithm::TokenBucket { .. }) {
        let fix = "write `algorithm: token_bucket`";
        report("burst", number(&limit.burst), "this algorithm", fix);
    }
    if *algorithm != Algorithm::Concurrency {
        let fix = "it is for `algorithm: concurrency`";
        report("ttl", word(&limit.ttl), "this algorithm", fix);
    }
    if algorithm.looks_first() {
        let fix = "it is for `fixed_window`";
        let calendar = limit.calendar.then_some(None);
        report("window", word(&limit.window), "this algorithm", fix);
        report("calendar", calendar, "this algorithm", fix);
    } else if !limit.calendar {
        let with = "a limit without `calendar`";
        let fix = "write `calendar: true`";
        let starts = &limit.starts;
        report("time_zone", word(&limit.time_zone), with, fix);
        report("week_starts", word(&limit.week_starts), with, fix);
        report("starts", number(&starts.month), with, fix);
        report("starts", number(&starts.day), with, fix);
        report("starts", number(&starts.hour), with, fix);
    }
}

/// The capacity of a token bucket; by default the tokens of one period.
fn burst(limit: &RateLimit, period: Period, faults: &mut Faults) -> u64 {
    let most = MAX_TOKEN_MILLIS / (period.secs() * 1000);
    let fault = |text: String| Fault::OutOfRange {
        key: "burst",
        low: 1,
        high: most,
        text,
    };
    let Some(number) = &limit.burst else {
        if limit.requests_per_unit > most {
            let requests = limit.requests_per_unit;
            let text = format!("{requests} (its default, `requests_per_unit`); set `burst`");
            faults.push((limit.at, fault(text)));
        }
        return limit.requests_per_unit;
    };
    let Some(value) = number.value else {
        return 0;
    };
    let value = u64::try_from(value).ok();
    match value.filter(|&value| value > 0 && value <= most) {
        Some(value) => value,
        None => {
            faults.push((number.at, fault(number.text.clone())));
            0
        }
    }
}

fn calendar(limit: &RateLimit, period: Period, faults: &mut Faults) -> Algorithm {
    if period.multiplier().get() > 1 {
        let at = limit.unit_multiplier.as_ref().and_then(|number| number.at);
        let (key, with) = ("unit_multiplier", "`calendar`");
        let fix = "a calendar has single days, weeks, months and years";
        faults.push((at, Fault::DoesNotGo { key, with, fix }));
    }
    let mut in_range =
        |key, number: &BoxedOption<LocatedNumber>, high: i8, otherwise: i8, low: i8| {
            let Some((value, number)) = number.as_ref().and_then(|n| Some((n.value?, n))) else {
                return otherwise;
            };
            let value = i8::try_from(value).ok();
            match value.filter(|value| (low..=high).contains(value)) {
                Some(value) => value,
                None => {
                    let fault = Fault::OutOfRange {
                        key,
                        low: low.unsigned_abs().into(),
                        high: high.unsigned_abs().into(),
                        text: number.text.clone(),
                    };
                    faults.push((number.at, fault));
                    otherwise
                }
            }
        };
    let starts = Starts {
        month: in_range("month", &limit.starts.month, 12, 1, 1),
        day: in_range("day", &limit.starts.day, 31, 1, 1),
        hour: in_range("hour", &limit.starts.hour, 23, 0, 0),
        weekday: weekday(limit.week_starts.as_deref(), faults),
    };
    let Some(zone) = &limit.time_zone else {
        faults.push((limit.at, Fault::NoZone));
        return Algorithm::FixedWindow;
    };
    check_starts(limit, period, faults);
    match Calendar::new(period.unit(), &zone.text, starts) {
        Ok(calendar) => return Algorithm::Calendar(Arc::new(calendar)),
        Err(NoCalendar::Zone) => {
            let unknown = || Fault::UnknownZone(zone.text.clone());
            let fault = unrendered(&zone.text, false).unwrap_or_else(unknown);
            faults.push((zone.at, fault));
        }
        Err(NoCalendar::Unit) => {
            let (key, with) = ("calendar", "seconds, minutes and hours");
            let fix = "remove it: they are the same in every time zone";
            faults.push((limit.at, Fault::DoesNotGo { key, with, fix }));
        }
    }
    Algorithm::FixedWindow
}

fn weekday(word: Option<&LocatedText>, faults: &mut Faults) -> Weekday {
    let Some(word) = word else {
        return Weekday::Monday;
    };
    let parsed = strtime::parse("%A", &word.text);
    let named = parsed.ok().and_then(|parsed| parsed.weekday());
    named.unwrap_or_else(|| {
        faults.push(unknown("week_starts", word));
        Weekday::Monday
    })
}

/// Reports starts that do not fit the unit, such as a day of the month for a week.
fn check_starts(limit: &RateLimit, period: Period, faults: &mut Faults) {
    use crate::core::window::Unit;
    let unit = period.unit();
    let mut report = |key, at: Option<Option<usize>>, is_meant: bool, fix| {
        if let (Some(at), false) = (at, is_meant) {
            let with = "this unit";
            faults.push((at, Fault::DoesNotGo { key, with, fix }));
        }
    };
    let at = |number: &BoxedOption<LocatedNumber>| number.as_ref().map(|number| number.at);
    let is_month = matches!(unit, Unit::Month | Unit::Year);
    let starts = &limit.starts;
    let (month, day) = (at(&starts.month), at(&starts.day));
    let week = limit.week_starts.as_ref().map(|word| word.at);
    report("month", month, unit == Unit::Year, "it is for years");
    report("day", day, is_month, "it is for months and years");
    report("week_starts", week, unit == Unit::Week, "it is for weeks");
}
