//! `tollgate ask`: calls a running server as Envoy would and prints the decision. Slots that the call takes and hits
//! that it reserves are given back at once, because no stream follows whose end would do that.

use std::{fmt::Write as _, process::ExitCode, time::Duration};

use tonic::{Code as GrpcCode, Status, transport::Channel};

use crate::{
    cli::{
        counters::{duration, named},
        explain::{self, ExplainError},
    },
    core::{lease::token::LeaseToken, request::Entries},
    foundation::printable::{CountOf, on_one_line},
    net::dial::{self, Dial, DialError, Symptom},
    service::{
        explain::question,
        grpc::{
            proto::{
                self,
                envoy::service::ratelimit::v3::{
                    RateLimitResponse,
                    rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit},
                    rate_limit_service_client::RateLimitServiceClient,
                },
            },
            wire,
        },
    },
    settings::command_line::Ask,
};

/// The exit code if the overall code is OVER_LIMIT.
const OVER_LIMIT: u8 = 3;

/// Longest time to look for the reason why there is no answer.
const DIAGNOSIS: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("cannot reach {server}{}", hint(.symptom))]
    Unreachable {
        server: String,
        symptom: Option<Symptom>,
        #[source]
        source: DialError,
    },
    #[error("{server} did not answer the call{}: {}", hint(.symptom), .status.message())]
    Unanswered {
        server: String,
        symptom: Option<Symptom>,
        status: Status,
    },
    #[error("{0} did not answer within --timeout")]
    TimedOut(String),
    #[error("the server answered {:?}: {}", .0.code(), .0.message())]
    Refused(Status),
    #[error("the decision cannot be explained")]
    Unexplained(#[from] ExplainError),
    #[error("cannot write the answer as JSON")]
    Json(#[from] serde_json::Error),
}

fn hint(symptom: &Option<Symptom>) -> String {
    symptom.map_or_else(String::new, |symptom| format!(" ({symptom})"))
}

/// The text to print, and the exit code for the decision.
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) code: ExitCode,
}

/// Asks the server for a decision.
///
/// # Errors
///
/// If the server cannot be reached or answers with a gRPC status instead of a decision.
pub(super) async fn ask(ask: Ask) -> Result<Answer, AskError> {
    let unreachable = |source, symptom| AskError::Unreachable {
        server: ask.server.clone(),
        symptom,
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
    .map_err(|error| unreachable(error, None))?;
    let channel = dial.channel(ask.timeout).await.map_err(|error| {
        let symptom = dial.symptom(&error);
        unreachable(error, symptom)
    })?;
    // This precedes the call, because the call changes the counters.
    let explained = if ask.why {
        Some(explained(&ask).await?)
    } else {
        None
    };
    let request = question(&ask.of.domain, &ask.of.descriptors, ask.hits);
    let mut client = RateLimitServiceClient::new(channel);
    let response = match client.should_rate_limit(request).await {
        Ok(response) => response,
        Err(status) => return Err(failure(&ask, &dial, status).await),
    };
    let lease = match wire::lease(response.get_ref()) {
        None => None,
        Some(token) if ask.keep => Some((token, LeaseEnd::Kept)),
        Some(token) => {
            let end = give_back(&mut client, &ask, &token).await;
            Some((token, end))
        }
    };
    answer(
        &ask,
        response.get_ref(),
        explained.as_deref(),
        lease.as_ref(),
    )
}

/// The end of the slots or the reservation of the request.
enum LeaseEnd {
    GivenBack,
    Kept,
    NotGivenBack(Status),
}

impl LeaseEnd {
    const fn name(&self) -> &'static str {
        match self {
            Self::GivenBack => "given_back",
            Self::Kept => "kept",
            Self::NotGivenBack(_) => "not_given_back",
        }
    }
}

/// Settles what the request leased with a cost of 0, as Envoy does for an answer that costs nothing. That frees slots,
/// too, and gives hits back whatever the rule does with streams without a cost.
async fn give_back(
    client: &mut RateLimitServiceClient<Channel>,
    ask: &Ask,
    token: &LeaseToken,
) -> LeaseEnd {
    let order = ("tollgate.reservation".to_owned(), token.to_string());
    let descriptors = ask.of.descriptors.iter().map(|Entries(entries)| {
        let entries = entries.iter().chain([&order]);
        Entries(entries.cloned().collect())
    });
    let descriptors: Vec<_> = descriptors.collect();
    let request = question(&ask.of.domain, &descriptors, Some(0));
    match client.should_rate_limit(request).await {
        Ok(_) => LeaseEnd::GivenBack,
        Err(status) => LeaseEnd::NotGivenBack(status),
    }
}

/// The explanation of the decision to come, as JSON.
async fn explained(ask: &Ask) -> Result<String, ExplainError> {
    let message = question(&ask.of.domain, &ask.of.descriptors, ask.hits);
    explain::by_server(&ask.debug_server, ask.timeout, &message).await
}

/// The error for a call that returned no decision. A status without a source is one that the server itself answered.
async fn failure(ask: &Ask, dial: &Dial, status: Status) -> AskError {
    if std::error::Error::source(&status).is_none() {
        return AskError::Refused(status);
    }
    if status.code() == GrpcCode::Cancelled {
        return AskError::TimedOut(ask.server.clone());
    }
    AskError::Unanswered {
        server: ask.server.clone(),
        symptom: dial.diagnose(ask.timeout.min(DIAGNOSIS)).await,
        status,
    }
}

fn answer(
    ask: &Ask,
    response: &RateLimitResponse,
    explained: Option<&str>,
    lease: Option<&(LeaseToken, LeaseEnd)>,
) -> Result<Answer, AskError> {
    let text = if ask.json {
        let mut text = String::from_utf8_lossy(&proto::response(response, true)?).into_owned();
        let mut add = |name: &str, json: Option<&str>| {
            if let (Some(json), Some(fields)) = (json, text.strip_suffix('}')) {
                text = format!("{fields},\"{name}\":{json}}}");
            }
        };
        add("explanation", explained);
        let lease = lease.map(|(_, end)| format!("\"{}\"", end.name()));
        add("lease", lease.as_deref());
        text
    } else {
        let mut text = readable(ask, response);
        if let Some((token, end)) = lease {
            text = format!("{text}\n{}", lease_line(token, end));
        }
        match explained {
            Some(json) => format!("{text}\n\nexplained: {}", explain::readable(json)?),
            None => text,
        }
    };
    let is_over = response.overall_code() == Code::OverLimit;
    let code = if is_over && !ask.any_decision {
        ExitCode::from(OVER_LIMIT)
    } else {
        ExitCode::SUCCESS
    };
    Ok(Answer { text, code })
}

/// The line on the end of the slots or the reservation of the request.
fn lease_line(token: &LeaseToken, end: &LeaseEnd) -> String {
    let hits = token
        .parts()
        .iter()
        .fold(0, |sum: u64, part| sum.saturating_add(part.hits));
    let (took, lasts) = match hits {
        0 => ("took slots".to_owned(), "ttl"),
        hits => (
            format!(
                "reserved {}",
                CountOf(usize::try_from(hits).unwrap_or(usize::MAX), "hit")
            ),
            "window",
        ),
    };
    match end {
        LeaseEnd::GivenBack => format!("it {took}, and gave them back at once; --keep leaves them"),
        LeaseEnd::Kept => {
            format!(
                "it {took}, and keeps them until their {lasts} ends, or the end of {token} is sent"
            )
        }
        LeaseEnd::NotGivenBack(status) => {
            let why = on_one_line(status.message());
            format!("it {took}, and could not give them back: {why}")
        }
    }
}

/// The overall code, then lines for each descriptor, then the headers and the body for the client.
fn readable(ask: &Ask, response: &RateLimitResponse) -> String {
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
