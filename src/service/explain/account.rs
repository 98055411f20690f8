//! The types of an explanation in JSON, written by the server and read by the command line. docs/openapi.yaml
//! describes the fields.

use serde::{Deserialize, Serialize};

use crate::{
    core::limit::Reserve,
    foundation::{ascii_json::ascii_json, named::Named as _},
};

/// Most bytes of a key, a value or a name that are shown.
const MAX_TEXT_BYTES: usize = 256;

/// How a request would be decided, and why.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    pub(crate) version: u32,
    pub(crate) domain: String,
    /// `None` if there would be no decision; then `error` says why.
    pub(crate) code: Option<String>,
    pub(crate) why: String,
    pub(crate) settled_by: Option<String>,
    pub(crate) degraded: bool,
    pub(crate) counters: String,
    /// The first descriptors of the request, in order.
    pub(crate) descriptors: Vec<ExplainedDescriptor>,
    /// How many descriptors follow.
    pub(crate) omitted: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// `Some(None)` if the request would never pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_secs: Option<Option<u64>>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExplainedDescriptor {
    pub(crate) entries: Vec<ExplainedEntry>,
    pub(crate) hits: i64,
    pub(crate) code: Option<String>,
    /// Whether the descriptor is over a limit. In shadow mode the code is OK all the same.
    pub(crate) over: Option<bool>,
    pub(crate) quota: bool,
    #[serde(flatten)]
    pub(crate) result: MatchResult,
    pub(crate) path: Vec<ExplainedStep>,
    /// The limits of the rule, or the limit that the request brings.
    pub(crate) limits: Vec<ExplainedLimit>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExplainedEntry {
    pub(crate) key: String,
    pub(crate) value: String,
}

/// Where a descriptor gets its limits from.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub(crate) enum MatchResult {
    Limited {
        rule: ExplainedRule,
    },
    /// The limit that the request brings.
    OwnLimit,
    /// It orders the end of a reservation.
    Order,
    NoLimit(ExplainedCause),
}

/// Why a descriptor has no limit.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExplainedCause {
    pub(crate) cause: String,
    pub(crate) matched: usize,
    pub(crate) why: String,
    /// The rule that matches, although it has no limit that applies.
    pub(crate) rule: Option<ExplainedRule>,
    #[serde(flatten)]
    pub(crate) advice: Option<Advice>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Advice {
    pub(crate) suggestion: String,
    pub(crate) nearest: Option<ExplainedRule>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplainedRule {
    pub(crate) path: String,
    #[serde(flatten)]
    pub(crate) place: SourcePlace,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    pub(crate) replaces: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reserve: Option<Box<ExplainedReserve>>,
}

/// How a rule reserves hits.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExplainedReserve {
    pub(crate) estimate: Option<u64>,
    pub(crate) missing: String,
}

impl From<Reserve> for ExplainedReserve {
    fn from(reserve: Reserve) -> Self {
        Self {
            estimate: reserve.estimate,
            missing: reserve.missing.name().to_owned(),
        }
    }
}

/// Where a rule is written, as far as known.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SourcePlace {
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

/// One entry, and the level of the rule tree that it is compared with.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExplainedStep {
    /// The number of the entry, from 1.
    pub(crate) entry: usize,
    pub(crate) key: String,
    pub(crate) value: String,
    #[serde(rename = "match")]
    pub(crate) form: String,
    pub(crate) node: Option<ExplainedNode>,
    pub(crate) others: Vec<ExplainedSibling>,
    pub(crate) omitted: usize,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExplainedNode {
    pub(crate) key: String,
    /// `None` if the node matches every value.
    pub(crate) value: Option<String>,
    #[serde(flatten)]
    pub(crate) place: SourcePlace,
}

/// A node that the entry does not match.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplainedSibling {
    #[serde(flatten)]
    pub(crate) node: ExplainedNode,
    pub(crate) reason: String,
    pub(crate) why: String,
    pub(crate) would_reach: bool,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplainedLimit {
    pub(crate) name: Option<String>,
    pub(crate) requests_per_unit: u64,
    /// `None` for a limit of the requests in flight.
    pub(crate) unit: Option<String>,
    pub(crate) unit_multiplier: u32,
    pub(crate) rate: String,
    pub(crate) algorithm: String,
    pub(crate) period_secs: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) window_begins: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calendar: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) burst: Option<u64>,
    /// The current window, if the algorithm aligns windows to the clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) window: Option<ExplainedWindow>,
    #[serde(flatten)]
    pub(crate) effect: LimitEffect,
}

/// The times of a window, in RFC 3339.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExplainedWindow {
    pub(crate) begins: String,
    pub(crate) ends: String,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub(crate) enum LimitEffect {
    Counted(ExplainedCounter),
    /// The rule of another descriptor replaces this limit. The descriptor is named by its number.
    Replaced {
        replaced: bool,
        replaced_by: Option<usize>,
    },
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExplainedCounter {
    pub(crate) counter: String,
    pub(crate) charge: String,
    /// `None` if the store does not answer.
    #[serde(flatten)]
    pub(crate) hits: Option<HitsEffect>,
    /// `None` if no store was asked, or it does not answer.
    #[serde(flatten)]
    pub(crate) before: Option<CountBefore>,
}

/// The effect of the request's hits on a counter.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct HitsEffect {
    pub(crate) charged: bool,
    pub(crate) over: bool,
}

/// A counter before the request.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CountBefore {
    pub(crate) count: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_secs: u64,
    pub(crate) retry_secs: Option<u64>,
    /// How long the oldest request in flight has held its slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_secs: Option<u64>,
    /// The hits that this process has charged in advance and not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leased: Option<u64>,
}

impl Explanation {
    /// ASCII JSON without control characters and without the characters that have a meaning in HTML.
    pub(super) fn json(&self) -> String {
        let mut json = ascii_json(&serde_json::json!(self));
        for (char, escape) in [
            ('<', "\\u003c"),
            ('>', "\\u003e"),
            ('&', "\\u0026"),
            ('\'', "\\u0027"),
        ] {
            // These characters can only occur within texts.
            json = json.replace(char, escape);
        }
        json
    }
}

/// The first [`MAX_TEXT_BYTES`] of `bytes`, as text.
pub(super) fn text(bytes: &[u8]) -> String {
    let mut end = bytes.len().min(MAX_TEXT_BYTES);
    // Characters are not split.
    while end < bytes.len() && end > 0 && bytes[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let mut text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    if end < bytes.len() {
        text.push_str(&format!("… {} bytes more", bytes.len() - end));
    }
    text
}
