//! `tollgate explain`: how rule files or a running server would decide a request, and why.

use std::time::Duration;

use super::debug_port::{CallError, DebugPort};
use crate::{
    config::{fault::Problem, files::Files, options::Options, source::Source},
    service::{
        explain::{Unexplained, by_rules, question},
        grpc::{json, now, proto::envoy::service::ratelimit::v3::RateLimitRequest},
    },
    settings::command_line::Explain,
};

mod readable;

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExplainError {
    #[error("the rules cannot be used:\n{}", listed(.0))]
    Rules(Vec<Problem>),
    #[error(transparent)]
    Unexplained(#[from] Unexplained),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the explanation cannot be read")]
    Json(#[from] serde_json::Error),
}

fn listed(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// The explanation as text, or as JSON if `--json` is set.
///
/// # Errors
///
/// If there are no rules, or the server does not explain.
pub(super) async fn explanation(explain: &Explain) -> Result<String, ExplainError> {
    let message = question(&explain.of.domain, &explain.of.descriptors, explain.hits);
    let json = if explain.rules.is_empty() {
        by_server(&explain.server, explain.timeout, &message).await?
    } else {
        by_files(explain, &message)?
    };
    if explain.json {
        Ok(json)
    } else {
        Ok(readable(&json)?)
    }
}

fn by_files(explain: &Explain, message: &RateLimitRequest) -> Result<String, ExplainError> {
    let options = Options {
        key_format: explain.key_format,
        ..explain.reading.options()
    };
    let files = Files::read(&Source::Paths(explain.rules.clone()));
    let loaded = files.compile(options).map_err(ExplainError::Rules)?;
    Ok(by_rules(&loaded.matcher, message, now())?)
}

/// Gets the explanation of a running server from its debug port, as JSON.
///
/// # Errors
///
/// If the server does not answer, or refuses.
pub(super) async fn by_server(
    server: &str,
    timeout: Duration,
    message: &RateLimitRequest,
) -> Result<String, ExplainError> {
    let port = DebugPort::new(server, timeout)?;
    Ok(port.ask("/explain", json::request_text(message)?).await?)
}

/// Turns an explanation from JSON into text for people.
///
/// # Errors
///
/// If it is not JSON.
pub(super) fn readable(json: &str) -> Result<String, serde_json::Error> {
    Ok(readable::readable(&serde_json::from_str(json)?))
}
