//! The types of counters in JSON, written by the server and read by the command line. docs/run/counters.md describes
//! the fields. Those that are `None` are not written.

use serde::{Deserialize, Serialize};

/// A counter.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CounterDocument {
    pub(crate) key: String,
    pub(crate) rule: Option<String>,
    pub(crate) limit: LimitDocument,
    pub(crate) algorithm: Option<String>,
    pub(crate) period_secs: Option<u64>,
    pub(crate) hits_before: Option<u64>,
    pub(crate) hits: Option<u64>,
    pub(crate) remaining: Option<u64>,
    pub(crate) leased: Option<u64>,
    pub(crate) oldest_secs: Option<u64>,
    pub(crate) reset_secs: Option<u64>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct EntryDocument {
    pub(crate) key: String,
    pub(crate) value: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LimitDocument {
    pub(crate) name: Option<String>,
    pub(crate) requests_per_unit: u64,
    pub(crate) unit: Option<String>,
    pub(crate) unit_multiplier: Option<u32>,
    /// In place of a unit, for requests in flight.
    pub(crate) ttl_secs: Option<u64>,
    pub(crate) burst: Option<u64>,
}

/// The counters of the descriptors of a request.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct CountersDocument {
    pub(crate) domain: String,
    pub(crate) descriptors: Vec<DescriptorDocument>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DescriptorDocument {
    pub(crate) entries: Vec<EntryDocument>,
    /// Why it has no counters.
    pub(crate) no_limit: Option<String>,
    pub(crate) counters: Vec<CounterDocument>,
}
