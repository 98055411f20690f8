//! `/top`: the descriptors that come nearest to the limits of each rule, or are refused most, as JSON.

use std::time::Instant;

use serde::Serialize;

use super::{
    counters::text,
    page::{PageWriter, json_list},
};
use crate::{
    foundation::ascii_json::{ascii_json, json_without_nulls},
    observe::talkers::{Talker, TalkerEntry, Talkers},
    service::grpc::now,
};

#[derive(Serialize)]
struct TopRule<'a> {
    rule: &'a str,
    /// At least so many hits of these talkers were refused.
    hits: u64,
    talkers: Vec<TopTalker>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TopTalker {
    at_least: u64,
    at_most: u64,
    used_percent: u8,
    entries: Vec<TopEntry>,
    omitted_entries: Option<usize>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TopEntry {
    key: String,
    value: String,
    /// The value in hexadecimal, if it is not valid text.
    hex: Option<String>,
    omitted_bytes: Option<usize>,
}

/// The writer of the page.
pub(super) fn top(talkers: &Talkers) -> PageWriter {
    let steady = Instant::now().into();
    // People compare this with the start of the server, so it is not the clock of Redis.
    let since = now().minus(talkers.counted_for(steady));
    let head = format!("{{\"sinceMillis\":{},\"rules\":[", since.millis());
    let rules = talkers.top(steady);
    let rules = rules.into_iter().map(|(rule, talkers)| {
        let hits = talkers.iter().map(|talker| talker.at_least);
        let rule = TopRule {
            rule: &rule,
            hits: hits.fold(0, u64::saturating_add),
            talkers: talkers.iter().map(TopTalker::new).collect(),
        };
        ascii_json(&json_without_nulls(&rule))
    });
    json_list(head, rules, "]}\n".to_owned())
}

impl TopTalker {
    fn new(talker: &Talker) -> Self {
        let omitted = talker.omitted_entries;
        Self {
            at_least: talker.at_least,
            at_most: talker.at_most,
            used_percent: talker.used,
            entries: talker.entries.iter().map(TopEntry::new).collect(),
            omitted_entries: (omitted > 0).then_some(omitted),
        }
    }
}

impl TopEntry {
    fn new(entry: &TalkerEntry) -> Self {
        let shown = whole_characters(entry);
        let hex = || shown.iter().map(|byte| format!("{byte:02x}")).collect();
        let omitted = entry.value.len() - shown.len() + entry.cut;
        Self {
            key: text(&entry.key),
            value: text(shown),
            hex: str::from_utf8(shown).is_err().then(hex),
            omitted_bytes: (entry.cut > 0).then_some(omitted),
        }
    }
}

/// The value without its last character if that was cut.
fn whole_characters(entry: &TalkerEntry) -> &[u8] {
    match str::from_utf8(&entry.value) {
        Err(error) if error.error_len().is_none() && entry.cut > 0 => {
            &entry.value[..error.valid_up_to()]
        }
        _ => &entry.value,
    }
}
