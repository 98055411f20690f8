//! `tollgate counters`: shows and changes the counters of a running server, over its debug port.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    cli::debug_port::{CallError, DebugPort},
    core::request::Entries,
    foundation::{ascii_json::ascii_json, printable::on_one_line},
    service::admin::report::{CounterDocument, CountersDocument, EntryDocument, LimitDocument},
    settings::command_line::clients::{CountersAction, Descriptors, GetCounters, ResetCounters},
};

/// Carries out the action, and returns the text to print.
///
/// # Errors
///
/// If the server cannot be reached or refuses.
pub(super) async fn counters(action: CountersAction) -> Result<String, CallError> {
    let (path, of, token, port) = match action {
        CountersAction::Get(GetCounters { of, port }) => ("/counters/get", of, None, port),
        CountersAction::Reset(ResetCounters { of, token, port }) => {
            ("/counters/reset", of, Some(token), port)
        }
    };
    let server = DebugPort::new(&port.server, port.timeout)?;
    let body = request(&of);
    let answer = server.post(path, &body, token.as_ref()).await?;
    if port.json {
        return Ok(ascii_json(&answer));
    }
    let answer = CountersDocument::deserialize(&answer).map_err(CallError::OtherFields)?;
    Ok(descriptors(&answer))
}

/// The body of a request about these descriptors.
fn request(of: &Descriptors) -> Value {
    let entry = |(key, value): &(String, String)| json!({ "key": key, "value": value });
    let descriptor = |Entries(entries): &Entries| -> Value {
        let entries: Vec<_> = entries.iter().map(entry).collect();
        json!({ "entries": entries })
    };
    let descriptors: Vec<_> = of.descriptors.iter().map(descriptor).collect();
    json!({ "domain": of.domain, "descriptors": descriptors })
}

/// Each descriptor with its counters below it.
fn descriptors(all: &CountersDocument) -> String {
    let mut text = String::new();
    for descriptor in &all.descriptors {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&entries(&descriptor.entries));
        if let Some(why) = &descriptor.no_limit {
            let _ = write!(text, ": no counter: {}", on_one_line(why));
        }
        for counter in &descriptor.counters {
            let _ = write!(text, "\n  {}", standing(counter));
        }
    }
    text
}

/// `k=v,k=v`
fn entries(of: &[EntryDocument]) -> String {
    let entry = |entry: &EntryDocument| {
        let [key, value] = [&entry.key, &entry.value].map(|text| on_one_line(text));
        format!("{key}={value}")
    };
    let entries: Vec<_> = of.iter().map(entry).collect();
    entries.join(",")
}

/// `7 of 10 per minute, 3 left, resets in 32s; fixed_window, rule shop.user`
fn standing(counter: &CounterDocument) -> String {
    let mut text = match counter.hits_before {
        Some(before) => format!("{before} -> "),
        None => String::new(),
    };
    match counter.hits {
        Some(hits) => text.push_str(&hits.to_string()),
        None => text.push_str("unknown"),
    }
    text.push_str(&of_limit(&counter.limit));
    if let Some(leased) = counter.leased {
        text.push_str(&slice(leased));
    }
    if let Some(remaining) = counter.remaining {
        text.push_str(&left(remaining));
    }
    if let Some(secs) = counter.oldest_secs {
        let _ = write!(text, ", the oldest for {}", duration(secs));
    }
    if let Some(secs) = counter.reset_secs {
        let _ = write!(text, ", resets in {}", duration(secs));
    }
    if counter.hits_before.is_some() && counter.hits > Some(0) {
        text.push_str(
            " (counted with others, because there is no room for a counter of its own; it cannot be reset)",
        );
    }
    if let Some(algorithm) = &counter.algorithm {
        let _ = write!(text, "; {}", on_one_line(algorithm));
    }
    if let Some(rule) = &counter.rule {
        let _ = write!(text, ", rule {}", on_one_line(rule));
    }
    text
}

/// ` of 10 per minute`
fn of_limit(limit: &LimitDocument) -> String {
    let (requests, name) = (limit.requests_per_unit, limit.name.as_deref());
    let Some(unit) = &limit.unit else {
        let name = name.map_or_else(String::new, |name| format!(" ({})", on_one_line(name)));
        return format!(" of {requests} in flight{name}");
    };
    let multiplier = limit.unit_multiplier.unwrap_or(1);
    let per = named(unit, multiplier.into(), name.unwrap_or_default());
    format!(" of {requests} per {}", on_one_line(&per))
}

/// `, of which 3 are a slice of this process`.
pub(in crate::cli) fn slice(hits: u64) -> String {
    format!(", of which {hits} are a slice of this process")
}

/// `, 3 left`.
pub(in crate::cli) fn left(remaining: u64) -> String {
    format!(", {remaining} left")
}

/// A period, and the name of the limit if it has one.
pub(in crate::cli) fn named(unit: &str, multiplier: u64, name: &str) -> String {
    let period = match multiplier {
        1 => unit.to_owned(),
        multiplier => format!("{multiplier} {unit}s"),
    };
    match name {
        "" => period,
        name => format!("{period} ({name})"),
    }
}

/// Seconds, rounded down to two units: `45s`, `1m 5s`, `19h 38m`, `364d 3h`.
pub(in crate::cli) fn duration(secs: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let Some(largest) = UNITS.iter().position(|(length, _)| secs >= *length) else {
        return "0s".to_owned();
    };
    let (length, name) = UNITS[largest];
    let mut text = format!("{}{name}", secs / length);
    if let Some((next, name)) = UNITS.get(largest + 1) {
        let count = secs % length / next;
        if count > 0 {
            let _ = write!(text, " {count}{name}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_two_units_at_most() {
        for (secs, expected) in [
            (0, "0s"),
            (1, "1s"),
            (60, "1m"),
            (65, "1m 5s"),
            (3_600, "1h"),
            (3_601, "1h"),
            (70_691, "19h 38m"),
            (86_400, "1d"),
            (86_400 + 59, "1d"),
            (31_460_400, "364d 3h"),
        ] {
            assert_eq!(duration(secs), expected, "{secs}");
        }
    }
}
