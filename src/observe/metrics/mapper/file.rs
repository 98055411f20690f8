//! A mapping file as written.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};

/// The file as written.
#[derive(Debug, Default, Deserialize)]
pub(super) struct MappingFile {
    pub(super) defaults: Option<MappingDefaults>,
    pub(super) mappings: Option<Vec<MappingEntry>>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

pub(super) type Unknown = BTreeMap<String, IgnoredAny>;

/// Keys of defaults and rules that have no effect here: totals do not expire, and summaries have no quantiles.
pub(super) const IGNORED: [&str; 3] = ["ttl", "quantiles", "summary_options"];

#[derive(Debug, Default, Deserialize)]
pub(super) struct MappingDefaults {
    pub(super) observer_type: Option<ObserverType>,
    pub(super) timer_type: Option<ObserverType>,
    pub(super) buckets: Option<Vec<f64>>,
    pub(super) histogram_options: Option<HistogramOptions>,
    pub(super) match_type: Option<MatchType>,
    pub(super) glob_disable_ordering: Option<bool>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Debug, Deserialize)]
pub(super) struct MappingEntry {
    #[serde(rename = "match")]
    pub(super) matches: Option<String>,
    pub(super) match_type: Option<MatchType>,
    pub(super) match_metric_type: Option<MetricType>,
    pub(super) action: Option<Action>,
    pub(super) name: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) help: Option<String>,
    pub(super) observer_type: Option<ObserverType>,
    pub(super) timer_type: Option<ObserverType>,
    pub(super) buckets: Option<Vec<f64>>,
    pub(super) histogram_options: Option<HistogramOptions>,
    pub(super) scale: Option<f64>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Debug, Deserialize)]
pub(super) struct HistogramOptions {
    pub(super) buckets: Option<Vec<f64>>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ObserverType {
    Histogram,
    Summary,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MatchType {
    Glob,
    Regex,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MetricType {
    Counter,
    Gauge,
    #[serde(alias = "timer")]
    Observer,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Map,
    Drop,
}
