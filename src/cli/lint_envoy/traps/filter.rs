//! Traps in the settings of a filter.

use super::super::{
    document::DocumentValue,
    finding::TrapSeverity,
    trap::{FilterSubject, Subject, Trap},
};

/// No word on what passes while there is no decision.
pub(super) const FAILURE_MODE: Trap = Trap {
    name: "failure-mode",
    look: |subject, report| match subject {
        Subject::HttpFilter(FilterSubject {
            filter,
            is_dump: false,
        }) if filter.get("failure_mode_deny").is_none()
            && filter.get("failure_mode_deny_percent").is_none() =>
        {
            report.add(
                filter,
                TrapSeverity::Warning,
                "`failure_mode_deny` is not set, so every request passes while there is no decision",
                "write `failure_mode_deny: false` if that is meant, or `true` to refuse with 500",
            );
        }
        Subject::TcpFilter(FilterSubject {
            filter,
            is_dump: false,
        }) if filter.get("failure_mode_deny").is_none() => {
            report.add(
                filter,
                TrapSeverity::Warning,
                "`failure_mode_deny` is not set, so every connection passes while there is no \
                 decision",
                "write `failure_mode_deny: false` if that is meant, or `true` to close them",
            );
        }
        _ => {}
    },
};

/// Clients that cannot see their limit.
pub(super) const HEADERS: Trap = Trap {
    name: "headers",
    look: |subject, report| {
        let Subject::HttpFilter(FilterSubject { filter, .. }) = subject else {
            return;
        };
        let headers = filter.get("enable_x_ratelimit_headers");
        let setting = headers.as_ref().and_then(DocumentValue::text);
        if matches!(setting, None | Some("OFF" | "false" | "0")) {
            report.add(
                headers.as_ref().unwrap_or(filter),
                TrapSeverity::Advice,
                "clients cannot see what is left of their limit",
                "write `enable_x_ratelimit_headers: DRAFT_VERSION_03`",
            );
        }
    },
};

/// A filter for 0 % of the requests.
pub(super) const SWITCHED_OFF: Trap = Trap {
    name: "switched-off",
    look: |subject, report| {
        if let Some(share) = share_of_none(subject, "filter_enabled") {
            report.add(
                &share,
                TrapSeverity::Warning,
                "the filter is enabled for 0 % of the requests",
                "remove `filter_enabled`, or give it a numerator",
            );
        }
    },
};

/// Refusals that are not enforced.
pub(super) const NOT_ENFORCED: Trap = Trap {
    name: "not-enforced",
    look: |subject, report| {
        if let Some(share) = share_of_none(subject, "filter_enforced") {
            report.add(
                &share,
                TrapSeverity::Warning,
                "0 % of the refusals are enforced: requests pass, yet their responses carry \
                 `x-envoy-ratelimited: true`",
                "remove `filter_enforced`, or give it a numerator",
            );
        }
    },
};

/// The share of requests that an HTTP filter has at `key`, if it is 0.
fn share_of_none<'d>(subject: &Subject<'_, 'd>, key: &str) -> Option<DocumentValue<'d>> {
    let Subject::HttpFilter(FilterSubject { filter, .. }) = subject else {
        return None;
    };
    let share = filter.get(key)?;
    let default = share.get("default_value");
    let is_none = default.is_none_or(|value| value.number("numerator") == 0);
    is_none.then_some(share)
}

/// A status of refusals that Envoy does not send.
pub(super) const STATUS: Trap = Trap {
    name: "status",
    look: |subject, report| {
        if let Subject::HttpFilter(FilterSubject { filter, .. }) = subject
            && let Some(status) = filter.get("rate_limited_status")
            && let code = status.text_of("code").unwrap_or("Empty")
            && is_below_400(code)
        {
            report.add(
                &status,
                TrapSeverity::Warning,
                format!(
                    "a refusal cannot have the status {code}: Envoy sends 429 for codes below 400"
                ),
                "write a code of at least 400, or remove `rate_limited_status`",
            );
        }
    },
};

/// Whether a status code, a number or a name in Envoy's `StatusCode`, is below 400 and so no refusal.
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

/// Parts of a descriptor that the TCP filter does not send.
pub(super) const TCP_DESCRIPTOR: Trap = Trap {
    name: "tcp-descriptor",
    look: |subject, report| {
        let Subject::TcpFilter(FilterSubject { filter, .. }) = subject else {
            return;
        };
        for descriptor in filter.list("descriptors") {
            for key in ["hits_addend", "limit"] {
                if let Some(dropped) = descriptor.get(key) {
                    report.add(
                        &dropped,
                        TrapSeverity::Error,
                        format!("the TCP filter sends entries only: `{key}` is dropped"),
                        "remove it, and set it in the rules",
                    );
                }
            }
        }
    },
};

/// A filter that speaks another protocol.
pub(super) const QUOTA_SERVICE: Trap = Trap {
    name: "quota-service",
    look: |subject, report| {
        if let Subject::QuotaFilter(filter) = subject {
            report.add(
                filter,
                TrapSeverity::Error,
                "this filter speaks RLQS, which tollgate does not: `no_assignment_behavior` decides \
                 about every request",
                "use `envoy.filters.http.ratelimit`",
            );
        }
    },
};
