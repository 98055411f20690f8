//! A reply as text for people.

use std::fmt::Write as _;

use crate::{
    cli::counters::text::{duration, named},
    core::descriptor_text::Entries,
    foundation::printable::on_one_line,
    service::grpc::{
        proto::envoy::service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit},
        },
        wire,
    },
    settings::command_line::Ask,
};

/// The overall code, then lines for each descriptor, then the headers and the body for the client.
pub(super) fn readable(ask: &Ask, response: &RateLimitResponse) -> String {
    let mut text = code(response.overall_code).to_owned();
    if wire::is_degraded(response) {
        text.push_str(", degraded: true (decided without the store, which does not reply)");
    }
    let asked = ask.of.descriptors.iter().zip(&response.statuses);
    for (descriptor, status) in asked {
        let Entries(entries) = descriptor;
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| on_one_line(&format!("{key}={value}")))
            .collect();
        let _ = write!(text, "\n  {}: {}", entries.join(","), code(status.code));
        if status.current_limit.is_some() {
            let _ = write!(text, ", {}", standing(status));
        } else {
            text.push_str(", no limit");
            if !ask.why {
                text.push_str(" (--why says why)");
            }
        }
    }
    for header in &response.response_headers_to_add {
        let header = format!("{}: {}", header.key, header.value);
        let _ = write!(text, "\n  header {}", on_one_line(&header));
    }
    if !response.raw_body.is_empty() {
        let body = String::from_utf8_lossy(&response.raw_body);
        let _ = write!(text, "\n  body: {}", on_one_line(&body));
    }
    text
}

/// The unit of a limit of the requests in flight, which has none.
const NO_UNIT: &str = "unknown";

/// The count of a status next to its limit.
fn standing(status: &DescriptorStatus) -> String {
    let limit = status.current_limit.as_ref();
    let left = format!(
        "{} of {} {} left",
        status.limit_remaining,
        limit.map_or(0, |limit| limit.requests_per_unit),
        on_one_line(&limit.map_or_else(String::new, per)),
    );
    match &status.duration_until_reset {
        // Slots leave when their requests end.
        _ if limit.is_some_and(|limit| limit.unit() == rate_limit::Unit::Unknown) => left,
        reset => {
            let secs = reset
                .as_ref()
                .map_or(0, |reset| reset.seconds.unsigned_abs());
            format!("{left}, resets in {}", duration(secs))
        }
    }
}

/// The words between a limit and what is left of it.
fn per(limit: &RateLimit) -> String {
    let unit = match limit.unit() {
        rate_limit::Unit::Unknown => NO_UNIT.to_owned(),
        known => known.as_str_name().to_ascii_lowercase(),
    };
    match (&*unit, &*limit.name) {
        (NO_UNIT, "") => "in flight".to_owned(),
        (NO_UNIT, name) => format!("in flight ({name})"),
        (unit, name) => {
            let multiplier = limit.unit_multiplier.unwrap_or(1);
            format!("per {}", named(unit, multiplier.into(), name))
        }
    }
}

fn code(number: i32) -> &'static str {
    match Code::try_from(number) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
}
