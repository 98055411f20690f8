//! Traps in the settings of a filter, and fields of limits that Envoy does not know.

use crate::{
    cli::lint_envoy::{
        document::{DocumentValue, camel},
        finding::{Findings, Trap, TrapSeverity},
    },
    config::keys::closest,
};

/// Reports a rate limit filter that comes after the router. `at` is its item in the list of filters, or the operation
/// of the patch that puts it there.
pub(crate) fn behind_router(at: &DocumentValue<'_>, found: &mut Findings) {
    found.error(
        Trap::BehindRouter,
        at,
        "the rate limit filter comes after the router, which ends the chain: Envoy refuses it",
        "put it before envoy.filters.http.router; in an EnvoyFilter, by `operation: INSERT_BEFORE`",
    );
}

/// Checks an `envoy.filters.http.ratelimit`. The dump of a running Envoy leaves out values that are false or 0.
pub(crate) fn http_filter(filter: &DocumentValue<'_>, is_dump: bool, found: &mut Findings) {
    timeout(filter, found);
    if !is_dump {
        let keys = ["failure_mode_deny", "failure_mode_deny_percent"];
        failure_mode(filter, &keys, ("request", "refuse with 500"), found);
    }
    let headers = filter.get("enable_x_ratelimit_headers");
    let setting = headers.as_ref().and_then(DocumentValue::text);
    if matches!(setting, None | Some("OFF" | "false" | "0")) {
        found.advice(
            Trap::Headers,
            headers.as_ref().unwrap_or(filter),
            "clients cannot see what is left of their limit",
            "write `enable_x_ratelimit_headers: DRAFT_VERSION_03`",
        );
    }
    if let Some(share) = share_of_none(filter, "filter_enabled") {
        found.warning(
            Trap::SwitchedOff,
            &share,
            "the filter is enabled for 0 % of the requests",
            "remove `filter_enabled`, or give it a numerator",
        );
    }
    if let Some(share) = share_of_none(filter, "filter_enforced") {
        found.warning(
            Trap::NotEnforced,
            &share,
            "0 % of the refusals are enforced: requests pass, yet their responses carry \
             `x-envoy-ratelimited: true`",
            "remove `filter_enforced`, or give it a numerator",
        );
    }
    if let Some(status) = filter.get("rate_limited_status")
        && let code = status.text_of("code").unwrap_or("Empty")
        && is_below_400(code)
    {
        found.warning(
            Trap::Status,
            &status,
            format!("a refusal cannot have the status {code}: Envoy sends 429 for codes below 400"),
            "write a code of at least 400, or remove `rate_limited_status`",
        );
    }
}

/// Checks an `envoy.filters.network.ratelimit`.
pub(crate) fn tcp_filter(filter: &DocumentValue<'_>, is_dump: bool, found: &mut Findings) {
    timeout(filter, found);
    if !is_dump {
        let keys = ["failure_mode_deny"];
        failure_mode(filter, &keys, ("connection", "close them"), found);
    }
    for descriptor in filter.list("descriptors") {
        unknown_entries(&descriptor, found);
        for key in ["hits_addend", "limit"] {
            if let Some(dropped) = descriptor.get(key) {
                found.error(
                    Trap::TcpDescriptor,
                    &dropped,
                    format!("the TCP filter sends entries only: `{key}` is dropped"),
                    "remove it, and set it in the rules",
                );
            }
        }
    }
}

/// Checks an `envoy.filters.http.rate_limit_quota`.
pub(crate) fn quota_filter(filter: &DocumentValue<'_>, found: &mut Findings) {
    found.error(
        Trap::QuotaService,
        filter,
        "this filter speaks RLQS, which tollgate does not: `no_assignment_behavior` decides about every request",
        "use `envoy.filters.http.ratelimit`",
    );
}

/// Checks how long Envoy waits for a decision.
fn timeout(filter: &DocumentValue<'_>, found: &mut Findings) {
    let unused = filter.at(&["rate_limit_service", "grpc_service", "timeout"]);
    let Some(timeout) = filter.get("timeout") else {
        match unused {
            None => found.warning(
                Trap::Timeout,
                filter,
                "no timeout is set, so Envoy discards answers after 20 ms, its default",
                "write `timeout: 0.25s`; fast answers are not delayed",
            ),
            Some(unused) => found.warning(
                Trap::ServiceTimeout,
                &unused,
                "`timeout` under `grpc_service` is not used here, so Envoy discards answers after 20 ms, its default",
                "move it up to the filter, next to `domain`",
            ),
        }
        return;
    };
    if let Some(unused) = unused {
        found.advice(
            Trap::ServiceTimeout,
            &unused,
            "`timeout` under `grpc_service` is not used here: the `timeout` of the filter applies",
            "remove it",
        );
    }
    let text = timeout.text().unwrap_or_default();
    let secs = text
        .strip_suffix('s')
        .and_then(|secs| secs.parse::<f64>().ok());
    let (severity, problem) = match secs {
        None => (
            TrapSeverity::Error,
            format!("`{text}` is not a valid duration"),
        ),
        Some(secs) if secs <= 0.0 => (
            TrapSeverity::Warning,
            "without a timeout, requests wait forever for a service that does not answer"
                .to_owned(),
        ),
        Some(secs) if secs <= 0.02 => (
            TrapSeverity::Warning,
            format!("a pause of a busy machine can be longer than {text}"),
        ),
        Some(_) => return,
    };
    let fix = "write `timeout: 0.25s`";
    found.add(severity, Trap::Timeout, &timeout, problem, fix);
}

/// Reports that none of `keys` says whether requests pass while there is no decision.
fn failure_mode(
    filter: &DocumentValue<'_>,
    keys: &[&str],
    (passing, refusal): (&str, &str),
    found: &mut Findings,
) {
    if keys.iter().all(|key| filter.get(key).is_none()) {
        found.warning(
            Trap::FailureMode,
            filter,
            format!("`failure_mode_deny` is not set, so every {passing} passes while there is no decision"),
            format!("write `failure_mode_deny: false` if that is meant, or `true` to {refusal}"),
        );
    }
}

/// The share of requests that a filter names at `key`, if it is 0.
fn share_of_none<'d>(filter: &DocumentValue<'d>, key: &str) -> Option<DocumentValue<'d>> {
    let share = filter.get(key)?;
    let default = share.get("default_value");
    let is_none = default.is_none_or(|value| value.number("numerator") == 0);
    is_none.then_some(share)
}

/// Whether a status code is below 400, so that it is not a refusal. It is a number, or a name in Envoy's `StatusCode`.
fn is_below_400(code: &str) -> bool {
    const NAMES: [&str; 19] = [
        "Empty",
        "Continue",
        "OK",
        "Created",
        "Accepted",
        "NonAuthoritativeInformation",
        "NoContent",
        "ResetContent",
        "PartialContent",
        "MultiStatus",
        "AlreadyReported",
        "IMUsed",
        "MultipleChoices",
        "MovedPermanently",
        "Found",
        "SeeOther",
        "NotModified",
        "TemporaryRedirect",
        "PermanentRedirect",
    ];
    match code.parse::<u32>() {
        Ok(number) => number < 400,
        Err(_) => NAMES.contains(&code),
    }
}

/// The actions that Envoy knows.
const ACTIONS: [&str; 13] = [
    "source_cluster",
    "destination_cluster",
    "request_headers",
    "query_parameters",
    "remote_address",
    "generic_key",
    "header_value_match",
    "dynamic_metadata",
    "metadata",
    "extension",
    "masked_remote_address",
    "query_parameter_value_match",
    "remote_address_match",
];

/// The fields of an item of `rate_limits`.
const ITEM: [&str; 7] = [
    "actions",
    "stage",
    "disable_key",
    "limit",
    "hits_addend",
    "apply_on_stream_done",
    "x_ratelimit_option",
];

/// Checks an item of `rate_limits`, even without `actions`.
pub(crate) fn unknown_actions(item: &DocumentValue<'_>, found: &mut Findings) {
    let has_actions = item.get("actions").is_some();
    let is_misspelt = |name: &str| closest(name, ["actions"].into_iter()).is_some();
    // Other messages than Envoy's have lists of this name too.
    if has_actions || item.entries().iter().any(|(name, _)| is_misspelt(name)) {
        unknown_fields(item, "field of `rate_limits`", &ITEM, found);
    }
    for action in item.list("actions") {
        let kinds = ACTIONS.iter().filter(|kind| action.get(kind).is_some());
        let kinds = kinds.count();
        if !unknown_fields(&action, "action", &ACTIONS, found) && kinds != 1 {
            found.error(
                Trap::UnknownField,
                item,
                format!(
                    "an item of `actions` is one action, and this has {kinds}: Envoy refuses it"
                ),
                "write one in each item, such as `- remote_address: {}`",
            );
        }
    }
}

/// Checks a descriptor of the TCP filter.
pub(super) fn unknown_entries(descriptor: &DocumentValue<'_>, found: &mut Findings) {
    let fields = ["entries", "limit", "hits_addend", "is_negative_hits"];
    unknown_fields(descriptor, "field of a descriptor", &fields, found);
    for entry in descriptor.list("entries") {
        unknown_fields(&entry, "field of an entry", &["key", "value"], found);
    }
}

/// Reports the fields of a map that are not in `known`. Returns whether there are any.
fn unknown_fields(
    value: &DocumentValue<'_>,
    what: &str,
    known: &[&str],
    found: &mut Findings,
) -> bool {
    let mut unknown = value.entries();
    unknown.retain(|(name, _)| {
        !known
            .iter()
            .any(|known| name == known || *name == camel(known))
    });
    for (name, _) in &unknown {
        let fix = match closest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("write one of {}", known.join(", ")),
        };
        let text = format!("Envoy has no {what} `{name}`, and refuses it");
        // The value of the field could be an empty map, which has no position.
        found.error(Trap::UnknownField, value, text, fix);
    }
    !unknown.is_empty()
}
