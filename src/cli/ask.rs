//! `tollgate ask`: calls a running server as Envoy would and prints the decision.

use std::fmt::Write as _;

use tonic::Status;

use crate::{
    core::window::Unit,
    net::dial::{self, Dial, DialError},
    service::grpc::{
        json,
        proto::envoy::{
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor, rate_limit_descriptor::Entry,
            },
            service::ratelimit::v3::{
                RateLimitRequest, RateLimitResponse,
                rate_limit_response::{Code, DescriptorStatus, rate_limit},
                rate_limit_service_client::RateLimitServiceClient,
            },
        },
    },
    settings::{self, command_line::Ask},
};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("cannot reach {server}")]
    Unreachable {
        server: String,
        #[source]
        source: DialError,
    },
    #[error("the server answered {:?}: {}", .0.code(), .0.message())]
    Refused(Status),
    #[error("cannot write the answer as JSON")]
    Json(#[from] serde_json::Error),
}

/// Calls the server and returns the text to print.
///
/// # Errors
///
/// If the server cannot be reached or answers with a gRPC status instead of a decision.
pub(super) async fn ask(ask: Ask) -> Result<String, AskError> {
    let unreachable = |source| AskError::Unreachable {
        server: ask.server.clone(),
        source,
    };
    let dial = Dial::new(&dial::Options {
        server: &ask.server,
        tls: ask.tls,
        ca: ask.ca.as_deref(),
        ca_setting: "--ca",
        pair: ask.cert.as_deref().zip(ask.key.as_deref()),
        authority: ask.authority.as_deref(),
        http2: true,
    })
    .map_err(unreachable)?;
    let channel = dial.channel(ask.timeout).await.map_err(unreachable)?;
    let request = request(&ask);
    let response = RateLimitServiceClient::new(channel)
        .should_rate_limit(request)
        .await
        .map_err(AskError::Refused)?
        .into_inner();
    if ask.json {
        let text = json::response(&response, true)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    } else {
        Ok(readable(&ask, &response))
    }
}

fn request(ask: &Ask) -> RateLimitRequest {
    let descriptor =
        |settings::values::Entries(entries): &settings::values::Entries| RateLimitDescriptor {
            entries: entries
                .iter()
                .map(|(key, value)| Entry {
                    key: key.clone().into(),
                    value: value.clone().into(),
                })
                .collect(),
            hits_addend: Some(ask.hits),
            ..RateLimitDescriptor::default()
        };
    RateLimitRequest {
        domain: ask.domain.clone(),
        descriptors: ask.descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// The overall code, then a line for each descriptor. Writing to a string cannot fail.
fn readable(ask: &Ask, response: &RateLimitResponse) -> String {
    let mut text = code(response.overall_code).to_owned();
    for (descriptor, status) in ask.descriptors.iter().zip(&response.statuses) {
        let settings::values::Entries(entries) = descriptor;
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let _ = write!(text, "\n  {}: {}", entries.join(","), code(status.code));
        text.push_str(&explain(status));
    }
    text
}

fn explain(status: &DescriptorStatus) -> String {
    let Some(limit) = &status.current_limit else {
        return ", no limit".to_owned();
    };
    let unit = match limit.unit() {
        rate_limit::Unit::Unknown => "unknown unit",
        rate_limit::Unit::Second => Unit::Second.name(),
        rate_limit::Unit::Minute => Unit::Minute.name(),
        rate_limit::Unit::Hour => Unit::Hour.name(),
        rate_limit::Unit::Day => Unit::Day.name(),
        rate_limit::Unit::Week => Unit::Week.name(),
        rate_limit::Unit::Month => Unit::Month.name(),
        rate_limit::Unit::Year => Unit::Year.name(),
    };
    let per = match limit.unit_multiplier {
        None | Some(1) => unit.to_owned(),
        Some(multiplier) => format!("{multiplier} {unit}s"),
    };
    let name = match limit.name.as_str() {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    let reset = status.duration_until_reset.as_ref();
    format!(
        ", {} of {} per {per}{name} left, resets in {}s",
        status.limit_remaining,
        limit.requests_per_unit,
        reset.map_or(0, |reset| reset.seconds),
    )
}

fn code(number: i32) -> &'static str {
    match Code::try_from(number) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
}
