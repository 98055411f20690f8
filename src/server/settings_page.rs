//! `/settings` of the debug port: the settings in use, as JSON without secrets.

use serde_json::{Value, json};

use crate::settings::resolved::{ResolvedSetting, ResolvedValue};

/// The text of the page, which is written once because no setting changes while the process runs.
pub(super) fn settings_page(settings: &[ResolvedSetting]) -> String {
    let settings: Vec<_> = settings.iter().map(setting).collect();
    format!("{}\n", json!({ "settings": settings }))
}

fn setting(setting: &ResolvedSetting) -> Value {
    let ResolvedSetting {
        group,
        flag,
        variable,
        value,
        source,
    } = setting;
    let mut fields = json!({
        "group": group,
        "flag": flag,
        "variable": variable,
        "value": null,
        "source": source.name(),
    });
    match value {
        ResolvedValue::Unset => {}
        ResolvedValue::Secret => fields["secret"] = true.into(),
        ResolvedValue::Text(text) => fields["value"] = text.as_str().into(),
    }
    fields
}
