//! An explanation as text for people. It is read from JSON, so that another version of the server can have made it.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    cli::{counters::text::left, durations::duration},
    foundation::printable::on_one_line,
};

/// The overall code, then lines for each descriptor: its way to the rule, and its limits. Writing to a string cannot
/// fail.
pub(super) fn readable(explanation: &Value) -> String {
    let code = match explanation["code"].as_str() {
        Some(code) => on_one_line(code),
        None => "no decision".to_owned(),
    };
    let mut text = format!("{code}: {}", of(explanation, "why"));
    if let Some(secs) = explanation["retrySecs"].as_u64() {
        let _ = write!(text, "; would pass in {}", duration(secs));
    }
    let descriptors = list(explanation, "descriptors");
    for (index, one) in descriptors.iter().enumerate() {
        let number = index + 1;
        let _ = write!(text, "\n\ndescriptor {number}: {}", entries(one));
        match one["hits"].as_i64() {
            None | Some(1) => {}
            Some(hits) => {
                let _ = write!(text, " (hits {hits})");
            }
        }
        descriptor(one, &mut text);
    }
    match explanation["omitted"].as_u64() {
        None | Some(0) => {}
        Some(more) => {
            let _ = write!(text, "\n\n… {more} more descriptors");
        }
    }
    text
}

/// Writes the lines of one descriptor.
fn descriptor(one: &Value, text: &mut String) {
    let code = one["code"]
        .as_str()
        .map_or_else(|| "undecided,".to_owned(), on_one_line);
    let has_limit = one["result"] != "no_limit";
    let _ = match one["result"].as_str() {
        Some("limited") => write!(text, "\n  {code} by {}{}", rule(&one["rule"]), modes(one)),
        Some("own_limit") => write!(text, "\n  {code} by the limit that the request brings"),
        _ => write!(text, "\n  {code}, no limit: {}", of(one, "why")),
    };
    if !has_limit {
        if one["rule"].is_object() {
            let _ = write!(text, "\n  rule: {}", rule(&one["rule"]));
        }
        if one["suggestion"].is_string() {
            let _ = write!(text, "\n  suggestion: {}", of(one, "suggestion"));
        }
        if one["nearest"].is_object() {
            let _ = write!(text, "\n  nearest rule: {}", rule(&one["nearest"]));
        }
    }
    for step in list(one, "path") {
        self::step(step, has_limit, text);
    }
    for limit in list(one, "limits") {
        self::limit(limit, text);
    }
}

/// The modes of a rule that change the effect of its limits.
fn modes(one: &Value) -> String {
    let mut modes = String::new();
    if one["rule"]["shadowMode"] == true {
        modes.push_str(", in shadow mode");
    }
    if one["quota"] == true {
        modes.push_str(", as a quota");
    }
    if one["over"] == true && one["code"] == "OK" {
        modes.push_str(", although it is over");
    }
    modes
}

/// Writes the lines of one level.
fn step(step: &Value, has_limit: bool, text: &mut String) {
    let entry = step["entry"].as_u64().unwrap_or(0);
    let entry = format!("entry {entry} {}={}", of(step, "key"), of(step, "value"));
    let node = &step["node"];
    let way = match step["match"].as_str() {
        Some("exact") => "exactly",
        Some("joined") => "as the joined text of key and value",
        Some("wildcard") => "by its wildcard",
        Some("key") => "for every value",
        Some("joined_key") => "for every value, as the joined text of another key and value",
        _ => "",
    };
    let _ = if node.is_object() {
        let place = place(node);
        write!(text, "\n  {entry}: `{}`{place} matches {way}", name(node))
    } else {
        write!(text, "\n  {entry}: no rule of this level matches")
    };
    // Nodes in a row that have one reason share a line.
    let is_alike = |one: &Value, next: &Value| {
        one["why"] == next["why"] && one["wouldReach"] == next["wouldReach"]
    };
    for others in list(step, "others").chunk_by(is_alike) {
        let names = others
            .iter()
            .map(|other| format!("`{}`{}", name(other), place(other)));
        let names = names.collect::<Vec<_>>().join(", ");
        let _ = write!(text, "\n    not {names}: {}", of(&others[0], "why"));
        if !has_limit && others[0]["wouldReach"] == true {
            text.push_str("; its limit would apply, but matching never goes back");
        }
    }
    match step["omitted"].as_u64() {
        None | Some(0) => {}
        Some(more) => {
            let _ = write!(text, "\n    and {more} more of this level");
        }
    }
}

/// Writes the lines of one limit.
fn limit(limit: &Value, text: &mut String) {
    let over = if limit["over"] == true { ", over" } else { "" };
    let named = limit["name"].as_str().map(on_one_line);
    let named = named.map_or_else(String::new, |name| format!(" `{name}`"));
    let _ = write!(
        text,
        "\n  limit {}{named}{over}: {}",
        of(limit, "rate"),
        algorithm(limit)
    );
    if limit["replaced"] == true {
        let _ = match limit["replacedBy"].as_u64() {
            Some(number) => write!(text, "\n    replaced by the rule of descriptor {number}"),
            None => write!(text, "\n    replaced by another rule"),
        };
        return;
    }
    if let Some(count) = limit["count"].as_u64() {
        let left = left(limit).unwrap_or_default();
        let resets = duration(limit["resetSecs"].as_u64().unwrap_or(0));
        let _ = write!(text, "\n    count {count}{left}, resets in {resets}");
        if limit["over"] == true {
            let _ = match limit["retrySecs"].as_u64() {
                Some(secs) => write!(text, ", would pass in {}", duration(secs)),
                None => write!(text, ", would never pass"),
            };
        }
    }
    let _ = write!(
        text,
        "\n    counter {} takes {}",
        of(limit, "counter"),
        of(limit, "charge")
    );
    text.push_str(match limit["charged"].as_bool() {
        Some(true) => ", and would take these",
        Some(false) => ", and would not take these",
        None => "",
    });
}

fn algorithm(limit: &Value) -> String {
    let mut words = of(limit, "algorithm");
    if limit["windowBegins"] == "first_hit" {
        words.push_str(" from the first hit");
    }
    if let Some(zone) = limit["calendar"].as_str() {
        let _ = write!(words, " of the calendar in {}", on_one_line(zone));
    }
    if let Some(burst) = limit["burst"].as_u64() {
        let _ = write!(words, " with a burst of {burst}");
    }
    if limit["window"].is_object() {
        let window = &limit["window"];
        let _ = write!(
            words,
            " from {} to {}",
            of(window, "begins"),
            of(window, "ends")
        );
    }
    words
}

fn entries(descriptor: &Value) -> String {
    let entries = list(descriptor, "entries").iter();
    let pairs: Vec<_> = entries
        .map(|entry| format!("{}={}", of(entry, "key"), of(entry, "value")))
        .collect();
    if pairs.is_empty() {
        return "without entries".to_owned();
    }
    pairs.join(",")
}

fn rule(rule: &Value) -> String {
    format!("{}{}", of(rule, "path"), place(rule))
}

/// ` at FILE:LINE`, if both or the first are known.
fn place(value: &Value) -> String {
    let Some(file) = value["file"].as_str() else {
        return String::new();
    };
    let line = value["line"].as_u64();
    let line = line.map_or_else(String::new, |line| format!(":{line}"));
    format!(" at {}{line}", on_one_line(file))
}

/// `key` or `key=value` of a node.
fn name(node: &Value) -> String {
    let key = of(node, "key");
    match node["value"].as_str() {
        Some(value) => format!("{key}={}", on_one_line(value)),
        None => key,
    }
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// The text of a field.
fn of(value: &Value, name: &str) -> String {
    on_one_line(value[name].as_str().unwrap_or_default())
}
