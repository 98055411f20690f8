//! A reply as text for people.

use std::fmt::{self, Write as _};

use crate::{
    cli::counters::text::{duration, named},
    core::descriptor_text::Entries,
    foundation::printable::on_one_line,
    service::grpc::{
        proto::envoy::service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit},
        },
        report::{AnswerReport, ReportedLimit},
        wire,
    },
    settings::command_line::Ask,
};

/// The overall code, then lines for each descriptor, then the headers and the body for the client.
pub(super) fn readable(
    ask: &Ask,
    response: &RateLimitResponse,
    report: Option<&AnswerReport>,
) -> String {
    let mut text = code(response.overall_code).to_owned();
    if wire::is_degraded(response) {
        text.push_str(", degraded: true (decided without the store, which does not reply)");
    }
    let asked = ask.of.descriptors.iter().zip(&response.statuses);
    for (index, (descriptor, status)) in asked.enumerate() {
        let Entries(entries) = descriptor;
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| on_one_line(&format!("{key}={value}")))
            .collect();
        let _ = write!(text, "\n  {}: {}", entries.join(","), code(status.code));
        let report = report.and_then(|report| report.descriptors.get(index));
        let limits = report.map_or(&[][..], |report| &report.limits);
        if status.current_limit.is_some() {
            let _ = write!(text, ", {}", Standing::of_status(status, limits));
        } else {
            text.push_str(", no limit");
            if let Some(no_limit) = report.and_then(|report| report.no_limit.as_ref()) {
                let _ = write!(text, ": {}", on_one_line(&no_limit.why));
            }
        }
        // If there is only one limit, the line above shows it.
        for limit in limits.iter().filter(|_| limits.len() > 1) {
            let over = if limit.over { "over, " } else { "" };
            let _ = write!(text, "\n    {over}{}", Standing::from(limit));
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

/// A count next to its limit.
struct Standing {
    requests: u64,
    /// `per minute`, or `in flight` for a limit without a unit; with the name of the limit if it has one.
    per: String,
    left: u64,
    change: NextChange,
}

/// The next change of a count by itself, in seconds from now.
enum NextChange {
    ResetsIn(u64),
    /// Slots that the request needs leave in this time, if their requests do not free them before.
    PassesIn(u64),
    Unknown,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requests,
            per,
            left,
            change,
        } = self;
        write!(f, "{left} of {requests} {} left", on_one_line(per))?;
        match change {
            NextChange::ResetsIn(secs) => write!(f, ", resets in {}", duration(*secs)),
            NextChange::PassesIn(secs) => {
                write!(f, ", would pass at the latest in {}", duration(*secs))
            }
            NextChange::Unknown => Ok(()),
        }
    }
}

impl Standing {
    /// That of a status; `limits` are those of its descriptor in the report.
    fn of_status(status: &DescriptorStatus, limits: &[ReportedLimit]) -> Self {
        let limit = status.current_limit.as_ref();
        let is_slots = limit.is_some_and(|limit| limit.unit() == rate_limit::Unit::Unknown);
        let reset = status.duration_until_reset.as_ref();
        let slots = || limits.iter().find(|limit| limit.over && limit.has_slots());
        Self {
            requests: limit.map_or(0, |limit| limit.requests_per_unit.into()),
            per: limit.map_or_else(String::new, period),
            left: status.limit_remaining.into(),
            change: match is_slots {
                true => slots().map_or(NextChange::Unknown, |limit| Self::from(limit).change),
                false => {
                    NextChange::ResetsIn(reset.map_or(0, |reset| reset.seconds.unsigned_abs()))
                }
            },
        }
    }
}

impl From<&ReportedLimit> for Standing {
    fn from(limit: &ReportedLimit) -> Self {
        let unit = limit.unit.to_ascii_lowercase();
        Self {
            requests: limit.requests_per_unit,
            per: per(
                &unit,
                limit.unit_multiplier.into(),
                limit.name.as_deref().unwrap_or_default(),
            ),
            left: limit.remaining,
            change: match limit.retry_secs {
                _ if !limit.has_slots() => NextChange::ResetsIn(limit.reset_secs),
                Some(secs) if limit.over => NextChange::PassesIn(secs),
                _ => NextChange::Unknown,
            },
        }
    }
}

fn period(limit: &RateLimit) -> String {
    let unit = match limit.unit() {
        rate_limit::Unit::Unknown => NO_UNIT.to_owned(),
        known => known.as_str_name().to_ascii_lowercase(),
    };
    let multiplier = limit.unit_multiplier.unwrap_or(1);
    per(&unit, multiplier.into(), &limit.name)
}

/// The words between a limit and what is left of it.
fn per(unit: &str, multiplier: u64, name: &str) -> String {
    match (unit, name) {
        (NO_UNIT, "") => "in flight".to_owned(),
        (NO_UNIT, name) => format!("in flight ({name})"),
        _ => format!("per {}", named(unit, multiplier, name)),
    }
}

fn code(number: i32) -> &'static str {
    match Code::try_from(number) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::settings::command_line::{Cli, Command};

    /// The reference service ignores the metadata that asks for a report.
    #[test]
    fn without_a_report_there_is_no_limit_and_no_cause() {
        let cli = Cli::parse_from(["tollgate", "ask", "--domain", "d", "-d", "a=b,c=d"]);
        let Command::Ask(ask) = cli.command else {
            panic!("{cli:?}");
        };
        let response = RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![DescriptorStatus {
                code: Code::Ok.into(),
                ..DescriptorStatus::default()
            }],
            ..RateLimitResponse::default()
        };
        let text = readable(&ask, &response, None);
        assert_eq!(text, "OK\n  a=b,c=d: OK, no limit");
        assert!(serde_json::from_str::<AnswerReport>("{}").is_err());
        let report = serde_json::from_str(r#"{"descriptors":[{}],"omitted":0}"#).unwrap();
        let text = readable(&ask, &response, Some(&report));
        assert_eq!(text, "OK\n  a=b,c=d: OK, no limit");
    }
}
