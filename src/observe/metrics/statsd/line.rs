//! Writes one metric as lines of text: its name and tags in a dialect, and its value.

use std::{collections::BTreeMap, fmt::Write as _};

use super::collector::Dialect;
use crate::{
    foundation::{histogram::TimerValues, metric_name::breaks_line},
    observe::metrics::mogrifier::{Mogrified, mogrify},
};

/// A name in the collector's dialect: the texts before `:` and after the type.
pub(super) fn form(
    dialect: &Dialect,
    extra_tags: &BTreeMap<String, String>,
    name: &str,
) -> (Box<str>, Box<str>) {
    match dialect {
        Dialect::Statsd => {
            let mut name = clean(name, breaks_line);
            for (key, value) in extra_tags {
                let (key, value) = (clean(key, breaks_line), clean(value, breaks_line));
                let _ = write!(name, ".__{key}={value}");
            }
            (name.into(), Box::default())
        }
        Dialect::DogStatsd(rules) => {
            let (name, own) = split_tags(name);
            let Mogrified { name, tags: found } =
                mogrify(rules, &name).unwrap_or_else(|| Mogrified {
                    name,
                    tags: Vec::new(),
                });
            let mut tags = extra_tags.clone();
            tags.extend(own);
            tags.extend(found);
            let mut text = String::new();
            for (key, value) in &tags {
                let separator = if text.is_empty() { "|#" } else { "," };
                let key = clean(key, |found| found == ',' || breaks_line(found));
                // The first colon ends the key; later ones belong to the value.
                let value = clean(value, |found| {
                    found == ',' || found != ':' && breaks_line(found)
                });
                let _ = write!(text, "{separator}{key}:{value}");
            }
            (clean(&name, breaks_line).into(), text.into())
        }
    }
}

fn clean(text: &str, is_unfit: impl Fn(char) -> bool) -> String {
    text.chars()
        .map(|found| if is_unfit(found) { '_' } else { found })
        .collect()
}

/// Extracts the tags from a name of the form `name.__tag=value`.
fn split_tags(name: &str) -> (String, Vec<(String, String)>) {
    let mut parts = name.split(".__");
    let mut bare = parts.next().unwrap_or_default().to_owned();
    let mut tags = Vec::new();
    for part in parts {
        match part.split_once('=') {
            Some((key, value)) if !key.is_empty() => tags.push((key.to_owned(), value.to_owned())),
            _ => {
                bare.push_str(".__");
                bare.push_str(part);
            }
        }
    }
    (bare, tags)
}

/// Writes one line for each bucket that contains durations: the middle of the bucket, with a sample rate that makes the
/// line stand for all of them.
///
/// The reference sends every duration on a line of its own. Collectors that apply the rate, as all the usual ones do,
/// arrive at an equal count and sum and nearly equal percentiles. A single mean per flush would look like one call of
/// average length. Values are fractions of milliseconds, which the protocol allows and fast replies need.
pub(super) fn write_timer(lines: &mut String, name: &str, values: &TimerValues, tags: &str) {
    let middles: f64 = values
        .middles()
        .map(|(middle, count)| middle * count as f64)
        .sum();
    // Scaling all values by one factor makes the sum exact, and also a single value.
    let stretch = values.sum_micros() as f64 / middles;
    for (middle, count) in values.middles() {
        let millis = middle * stretch / 1_000.0;
        // Rounded to the nanosecond, because further digits are noise.
        let millis = (millis * 1e6).round() / 1e6;
        let _ = write!(lines, "{name}:{millis}|ms");
        if count > 1 {
            let _ = write!(lines, "|@{}", rate(count));
        }
        lines.push_str(tags);
        lines.push('\n');
    }
}

/// The sample rate of a line that stands for `count` durations. It is never above 1 / `count`, because a collector that
/// divides and truncates would then count one too few.
pub(super) fn rate(count: u64) -> f64 {
    let rate = 1.0 / count as f64;
    if 1.0 / rate < count as f64 {
        rate.next_down()
    } else {
        rate
    }
}
