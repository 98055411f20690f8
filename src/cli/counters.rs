//! `tollgate counters`: shows and changes the counters of a running server, over its debug port.

use serde::Deserialize;
use serde_json::{Value, json};

use super::debug_port::{CallError, DebugPort};
use crate::{
    core::descriptor_text::Entries,
    foundation::ascii_json::ascii_json,
    service::admin::document::CountersDocument,
    settings::command_line::clients::{CountersAction, Descriptors, GetCounters, ResetCounters},
};

pub(super) mod text;

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
    Ok(text::descriptors(&answer))
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
