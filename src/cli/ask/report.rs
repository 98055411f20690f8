//! The report of a server that was asked for it: why a descriptor has no limit, and all limits of one that has some.

use serde_json::Value;

/// A report, as JSON.
pub(super) struct AnswerReport {
    text: String,
    descriptors: Vec<Value>,
}

/// A limit with its count.
pub(super) struct ReportedLimit {
    pub(super) requests_per_unit: u64,
    pub(super) unit: String,
    pub(super) unit_multiplier: u64,
    pub(super) name: String,
    pub(super) remaining: u64,
    pub(super) reset_secs: u64,
    pub(super) is_over: bool,
}

impl AnswerReport {
    /// The report in `text`; `None` if this is none that `ask` understands.
    pub(super) fn read(text: String) -> Option<Self> {
        let mut json: Value = serde_json::from_str(&text).ok()?;
        let Value::Array(descriptors) = json.get_mut("descriptors")?.take() else {
            return None;
        };
        Some(Self { text, descriptors })
    }

    /// The report as it came.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Why the descriptor of this index has no limit.
    pub(super) fn why(&self, index: usize) -> Option<&str> {
        self.descriptors.get(index)?.get("why")?.as_str()
    }

    /// The limits of the descriptor of this index.
    pub(super) fn limits(&self, index: usize) -> Vec<ReportedLimit> {
        let limits = self.descriptors.get(index).map(|found| &found["limits"]);
        let limits = limits.and_then(Value::as_array);
        limits.into_iter().flatten().map(limit).collect()
    }
}

fn limit(json: &Value) -> ReportedLimit {
    let number = |name: &str| json[name].as_u64();
    let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
    ReportedLimit {
        requests_per_unit: number("requestsPerUnit").unwrap_or(0),
        unit: text("unit"),
        unit_multiplier: number("unitMultiplier").unwrap_or(1),
        name: text("name"),
        remaining: number("remaining").unwrap_or(0),
        reset_secs: number("resetSecs").unwrap_or(0),
        is_over: json["over"] == true,
    }
}
