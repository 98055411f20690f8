//! The short form of a limit, such as `5000/day`.

use super::{
    fault::Fault,
    mirror::{LocatedNumber, RateLimit},
    suggest::closest,
};
use crate::core::window::Unit;

/// The limit that `5000/day`, `300/30min` or `5 per second` stands for; `None` for any other text.
pub(super) fn short_form(text: &str, at: Option<usize>) -> Option<RateLimit> {
    let (requests, period) = text.split_once('/').or_else(|| text.split_once(" per "))?;
    let period = period.trim();
    let digits = period.bytes().take_while(u8::is_ascii_digit).count();
    let (count, word) = period.split_at(digits);
    let multiplier = match count {
        "" => None,
        count => Some(Box::new(LocatedNumber {
            value: Some(count.parse().ok()?),
            text: count.to_owned(),
            at,
        })),
    };
    Some(RateLimit {
        at,
        unit: unit(word.trim())?.name().to_owned(),
        unit_multiplier: multiplier,
        requests_per_unit: requests.trim().parse().ok()?,
        ..RateLimit::default()
    })
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

/// The fault of a `unit` that is none; only short forms accept other words for units.
pub(super) fn unit_fault(word: &str) -> Fault {
    if word.is_empty() {
        return Fault::NoUnit;
    }
    let names = Unit::ALL.iter().map(|unit| unit.name());
    let meant = unit(word).map(Unit::name).or_else(|| closest(word, names));
    Fault::InvalidUnit {
        unit: word.to_owned(),
        meant: meant.map(str::to_owned),
    }
}
