//! `/top`: the values that hit each rule most, as JSON, or as text with `?text`.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    iter,
    sync::Arc,
    time::Instant,
};

use axum::{
    http::{
        HeaderMap,
        header::{ACCEPT, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer};

use super::{
    counters::text,
    page::{BlockingQueue, PageWriter, json_list, texts},
};
use crate::{
    core::{
        calendar::utc,
        window::{SteadyTime, Timestamp},
    },
    foundation::{
        ascii_json::{ascii_json, json_without_nulls},
        named::Named as _,
        printable::Shown,
    },
    observe::talkers::{EntryValue, RuleTop, TalkerChoice, TalkerEntry, Talkers, ValueForm},
    service::{grpc::now, held_bytes::Account},
};

/// The form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageForm {
    Json,
    Text,
}

impl PageForm {
    /// The form that a caller asks for: JSON, unless the query asks for text or the Accept header begins with it.
    fn new(query: Option<&str>, headers: &HeaderMap) -> Self {
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let is_text = query == Some("text")
            || accept.is_some_and(|accept| accept.trim_start().starts_with("text/plain"));
        if is_text { Self::Text } else { Self::Json }
    }
}

/// Answers `/top`. The sketches of a rule are merged only when the rule is written.
pub(super) fn top(
    talkers: Arc<Talkers>,
    blocking: &BlockingQueue,
    account: Arc<Account>,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Response {
    let form = PageForm::new(query, headers);
    let page = blocking.page(account, move || {
        let paths = talkers.paths();
        let bytes = paths
            .iter()
            .map(|path| path.len() + size_of_val(path))
            .sum();
        let moment = PageMoment {
            // People compare this with the start of the server, so it is not the clock of Redis.
            now: now(),
            steady: Instant::now().into(),
        };
        (writer(talkers, paths, moment, form), bytes)
    });
    let content_type = match form {
        PageForm::Json => "application/json",
        PageForm::Text => "text/plain; charset=utf-8",
    };
    let headers = [
        (CONTENT_TYPE, content_type),
        // Values come from clients, so browsers must not take them for HTML.
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, page).into_response()
}

/// The moment of an answer, by the time of day and by the monotonic clock.
struct PageMoment {
    now: Timestamp,
    steady: SteadyTime,
}

impl PageMoment {
    /// The time of day at which counting began, as far as hits are still counted.
    fn counted_since(&self, talkers: &Talkers) -> Timestamp {
        self.now.minus(talkers.counted_for(self.steady))
    }
}

fn writer(
    talkers: Arc<Talkers>,
    paths: BTreeSet<Arc<str>>,
    moment: PageMoment,
    form: PageForm,
) -> PageWriter {
    let head = match form {
        PageForm::Json => json_head(&talkers, &moment),
        PageForm::Text => text_head(&talkers, &moment),
    };
    let tops = paths.into_iter().map(move |path| {
        let top = talkers.top(&path, moment.steady);
        (path, top)
    });
    // Some rules have only hits that are too old to count.
    let tops = tops.filter(|(_, top)| !top.talkers.is_empty());
    match form {
        PageForm::Json => {
            let rules = tops.map(|(path, top)| {
                ascii_json(&TopRule {
                    rule: &path,
                    top: &top,
                })
            });
            json_list(head, rules, "]}\n".to_owned())
        }
        PageForm::Text => {
            let rules = tops.map(|(path, top)| text_rule(&path, &top));
            texts(iter::once(head).chain(rules))
        }
    }
}

fn json_head(talkers: &Talkers, moment: &PageMoment) -> String {
    format!(
        "{{\"counts\":\"{}\",\"values\":\"{}\",\"sinceMillis\":{},\"omittedHits\":{},\"rules\":[",
        talkers.choice().name(),
        talkers.form().name(),
        moment.counted_since(talkers).millis(),
        talkers.omitted(),
    )
}

#[derive(Serialize)]
struct TopRule<'a> {
    rule: &'a str,
    #[serde(flatten)]
    top: &'a RuleTop,
}

/// A key, and its value unless values are hidden.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TopEntry {
    key: String,
    value: Option<String>,
    /// The value in hexadecimal, if it is not valid text.
    hex: Option<String>,
    omitted_bytes: Option<usize>,
}

impl Serialize for TalkerEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = self.value.as_ref().map(whole_characters);
        let hex = shown.filter(|shown| str::from_utf8(shown).is_err());
        let omitted = |value: &EntryValue| {
            let omitted = value.shown.len() - whole_characters(value).len() + value.cut;
            (value.cut > 0).then_some(omitted)
        };
        let entry = TopEntry {
            key: text(&self.key),
            value: shown.map(text),
            hex: hex.map(|hex| hex.iter().map(|byte| format!("{byte:02x}")).collect()),
            omitted_bytes: self.value.as_ref().and_then(omitted),
        };
        json_without_nulls(&entry).serialize(serializer)
    }
}

/// The value without its last character if that was cut.
fn whole_characters(value: &EntryValue) -> &[u8] {
    match std::str::from_utf8(&value.shown) {
        Err(error) if error.error_len().is_none() && value.cut > 0 => {
            &value.shown[..error.valid_up_to()]
        }
        _ => &value.shown,
    }
}

fn text_head(talkers: &Talkers, moment: &PageMoment) -> String {
    let since = utc(moment.counted_since(talkers));
    let mut page = match talkers.choice() {
        TalkerChoice::Off => "top talkers are off; --top-talkers refused counts them\n".to_owned(),
        TalkerChoice::Refused => format!("# hits over a limit since {since}, by rule and value\n"),
        TalkerChoice::All => {
            format!("# hits since {since}, by rule and value, and those over a limit\n")
        }
    };
    match talkers.omitted() {
        0 => {}
        omitted => {
            let _ = writeln!(page, "# {omitted} hits since the start had no room");
        }
    }
    if talkers.form() == ValueForm::Hash {
        page.push_str("# values are the first 16 digits of their SHA-256\n");
    }
    page
}

/// A rule and a line for each of its values. Writing to a string cannot fail.
fn text_rule(path: &str, top: &RuleTop) -> String {
    let mut page = format!("{}: {} hits\n", Shown(path.as_bytes()), top.total);
    for talker in &top.talkers {
        let hits = fmt::from_fn(|f| match talker.at_most - talker.at_least {
            0 => write!(f, "{}", talker.at_most),
            _ => write!(f, "{}-{}", talker.at_least, talker.at_most),
        });
        let _ = write!(page, "  {:>12} ", hits.to_string());
        if talker.refused > 0 && talker.refused != talker.at_least {
            let _ = write!(page, " ({} over) ", talker.refused);
        }
        for (index, entry) in talker.entries.iter().enumerate() {
            page.push_str(if index == 0 { " " } else { ", " });
            text_entry(entry, &mut page);
        }
        match talker.omitted_entries {
            None => page.push('\n'),
            Some(more) => {
                let _ = writeln!(page, ", … {more} more");
            }
        }
    }
    page
}

fn text_entry(entry: &TalkerEntry, page: &mut String) {
    let _ = write!(page, "{}", Shown(&entry.key));
    if let Some(value) = &entry.value {
        let shown = whole_characters(value);
        let _ = write!(page, "=\"{}\"", Shown(shown));
        if value.cut > 0 {
            let more = value.shown.len() - shown.len() + value.cut;
            let _ = write!(page, " … {more} bytes more");
        }
    }
}
