//! The short form of a limit, such as `5000/day`.

use super::mirror::{LocatedNumber, RateLimit};
use crate::core::window::Unit;

/// The limit that `5000/day` or `300/30m` stands for; `None` for any other text.
pub(super) fn short_form(text: &str, at: Option<usize>) -> Option<RateLimit> {
    let (requests, period) = text.split_once('/')?;
    let digits = period.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = period.split_at(digits);
    let unit = match unit.trim() {
        "s" => "second",
        "m" => "minute",
        "h" => "hour",
        "d" => "day",
        "w" => "week",
        "mo" => "month",
        "y" => "year",
        name => name.strip_suffix('s').unwrap_or(name),
    };
    unit.parse::<Unit>().ok()?;
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
        unit: unit.to_owned(),
        unit_multiplier: multiplier,
        requests_per_unit: requests.trim().parse().ok()?,
        ..RateLimit::default()
    })
}
