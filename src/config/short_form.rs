//! The short form of a limit, such as `5000/day`.

use std::num::NonZeroU32;

use crate::{
    config::mirror::{LocatedNumber, RateLimit},
    core::{
        limit::Limit,
        window::{Period, Unit},
    },
};

/// The limit that `5000/day`, `300/30min` or `5 per second` stands for; `None` for any other text.
pub(super) fn short_form(text: &str, at: Option<usize>) -> Option<RateLimit> {
    let (requests, period) = text.split_once('/').or_else(|| text.split_once(" per "))?;
    let (unit, units) = period_parts(period)?;
    let located = |units: NonZeroU32| LocatedNumber {
        value: Some(units.get().into()),
        text: units.to_string(),
        at,
    };
    Some(RateLimit {
        at,
        unit: unit.name().to_owned(),
        unit_multiplier: units.map(|units| Box::new(located(units))),
        requests_per_unit: number(requests.trim())?,
        ..RateLimit::default()
    })
}

/// The period of a text such as `30m` or `90 seconds`.
pub(super) fn period(text: &str) -> Option<Period> {
    let (unit, units) = period_parts(text)?;
    Period::new(unit, units?)
}

/// The unit in a text such as `30m`, and how many there are if it says so.
fn period_parts(text: &str) -> Option<(Unit, Option<NonZeroU32>)> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, word) = text.split_at(digits);
    let units = match count {
        "" => None,
        count => Some(count.parse::<NonZeroU32>().ok()?),
    };
    Some((unit(word.trim())?, units))
}

/// The whole number that `5000`, `20k`, `1.5M` or `25G` stands for, at most [`Limit::MAX_REQUESTS`].
fn number(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, zeros) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 3),
        b'M' => (&text[..text.len() - 1], 6),
        b'G' => (&text[..text.len() - 1], 9),
        _ => (text, 0),
    };
    let (whole, part) = match digits.split_once('.') {
        Some((whole, part)) if (1..=zeros).contains(&part.len()) => (whole, part),
        Some(_) => return None,
        None => (digits, ""),
    };
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(part) {
        return None;
    }
    let number = format!("{whole}{part:0<zeros$}").parse().ok();
    number.filter(|number| *number <= Limit::MAX_REQUESTS)
}

/// The unit that a word of the short form stands for.
pub(super) fn unit(word: &str) -> Option<Unit> {
    // It means months in other notations, so it is safer to ask.
    if word == "M" {
        return None;
    }
    let word = word.to_ascii_lowercase();
    Some(match word.as_str() {
        "s" | "sec" | "secs" => Unit::Second,
        "m" | "min" | "mins" => Unit::Minute,
        "h" | "hr" | "hrs" => Unit::Hour,
        "d" => Unit::Day,
        "w" | "wk" | "wks" => Unit::Week,
        "mo" => Unit::Month,
        "y" | "yr" | "yrs" => Unit::Year,
        name => name.strip_suffix('s').unwrap_or(name).parse().ok()?,
    })
}
