//! `tollgate ask`: calls a running server as Envoy would and prints the decision.

use std::{process::ExitCode, time::Duration};

use tonic::{Code as GrpcCode, Status};

use crate::{
    cli::explain::{self, ExplainError},
    net::dial::{self, Dial, DialError, Symptom},
    service::{
        explain::question,
        grpc::{
            json,
            proto::envoy::service::ratelimit::v3::{
                RateLimitResponse, rate_limit_response::Code,
                rate_limit_service_client::RateLimitServiceClient,
            },
        },
    },
    settings::command_line::Ask,
};

pub(super) mod readable;

use readable::readable;

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
    answer(&ask, response.get_ref(), explained.as_deref())
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
) -> Result<Answer, AskError> {
    let text = if ask.json {
        let mut text = String::from_utf8_lossy(&json::response(response, true)?).into_owned();
        if let (Some(json), Some(fields)) = (explained, text.strip_suffix('}')) {
            text = format!("{fields},\"explanation\":{json}}}");
        }
        text
    } else {
        let text = readable(ask, response);
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
