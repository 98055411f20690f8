//! `tollgate counters`: lists and changes the counters of a running server, over its debug port.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::debug_port::{CallError, DebugPort};
use crate::{
    core::descriptor_text::Entries,
    foundation::ascii_json::ascii_json,
    settings::command_line::counters::{
        CountersAction, Descriptors, GetCounters, GrantCounters, ListCounters, ResetCounters,
    },
};

pub(super) mod text;

/// Most counters on one page of a server.
const MOST_ON_A_PAGE: usize = 1_000;

/// Carries out the action, and returns the text to print.
///
/// # Errors
///
/// If the server cannot be reached or refuses.
pub(super) async fn counters(action: CountersAction) -> Result<String, CallError> {
    let (path, of, hits, token, port) = match action {
        CountersAction::List(list) => return list_counters(list).await,
        CountersAction::Get(GetCounters { of, port }) => ("/counters/get", of, None, None, port),
        CountersAction::Reset(ResetCounters { of, token, port }) => {
            ("/counters/reset", of, None, Some(token), port)
        }
        CountersAction::Grant(GrantCounters {
            of,
            hits,
            token,
            port,
        }) => ("/counters/grant", of, Some(hits), Some(token), port),
    };
    let server = DebugPort::new(&port.server, port.timeout)?;
    let body = request(&of, hits);
    let answer = server.post(path, &body, token.as_ref()).await?;
    shown(&answer, port.json, text::descriptors)
}

fn shown<'a, T: Deserialize<'a>>(
    answer: &'a Value,
    is_json: bool,
    text: fn(&T) -> String,
) -> Result<String, CallError> {
    if is_json {
        return Ok(ascii_json(answer));
    }
    let answer = T::deserialize(answer).map_err(CallError::OtherFields)?;
    Ok(text(&answer))
}

/// Requests pages until there are enough counters, or no more pages.
async fn list_counters(list: ListCounters) -> Result<String, CallError> {
    let server = DebugPort::new(&list.port.server, list.port.timeout)?;
    let domain = encoded(&list.domain);
    let mut cursor = list.cursor;
    let mut found: Vec<Value> = Vec::new();
    loop {
        let limit = (list.limit - found.len()).min(MOST_ON_A_PAGE);
        let mut path = format!("/counters?domain={domain}&limit={limit}");
        if list.digests {
            path.push_str("&digests=true");
        }
        if let Some(cursor) = &cursor {
            path.push_str("&cursor=");
            path.push_str(&encoded(cursor));
        }
        let mut page = server.get(&path).await?;
        if let Value::Array(more) = page["counters"].take() {
            found.extend(more);
        }
        cursor = page["cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || found.len() >= list.limit {
            break;
        }
    }
    let all = json!({ "domain": list.domain, "counters": found, "cursor": cursor });
    shown(&all, list.port.json, text::list)
}

/// The body of a request about these descriptors, with `hits` for each.
fn request(of: &Descriptors, hits: Option<u32>) -> Value {
    let entry = |(key, value): &(String, String)| json!({ "key": key, "value": value });
    let descriptor = |Entries(entries): &Entries| -> Value {
        let entries: Vec<_> = entries.iter().map(entry).collect();
        json!({ "entries": entries, "hitsAddend": hits.map(|hits| hits.to_string()) })
    };
    let descriptors: Vec<_> = of.descriptors.iter().map(descriptor).collect();
    json!({ "domain": of.domain, "descriptors": descriptors })
}

/// Encodes a text as a value in a query string.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
