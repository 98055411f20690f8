//! `tollgate explain`: how a request would be decided, and why; by rule files, or by a running server.

use std::time::Duration;

use hyper::{Request, header};

use crate::{
    config::{fault::Problem, files::Files, options::Options, source::Source},
    net::{
        dial::{self, Dial},
        exchange::{ExchangeError, exchange},
    },
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
    #[error(
        "cannot ask {server} (the debug port of tollgate is 6070 unless DEBUG_PORT sets it, on loopback)"
    )]
    Unreachable {
        server: String,
        #[source]
        source: ExchangeError,
    },
    #[error("{0} did not answer within --timeout")]
    TimedOut(String),
    #[error(
        "the server at {server} does not explain; is this the debug port of a tollgate? It answered {status}: {}",
        .text.trim_end().escape_debug()
    )]
    Refused {
        server: String,
        status: u16,
        text: String,
    },
    #[error("the request cannot be sent")]
    Request(#[from] hyper::http::Error),
    #[error("the explanation cannot be read")]
    Json(#[from] serde_json::Error),
}

fn listed(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// The explanation as text, or as JSON if that is asked for.
///
/// # Errors
///
/// If there are no rules, or the server does not explain.
pub(super) async fn explanation(explain: &Explain) -> Result<String, ExplainError> {
    let message = question(&explain.domain, &explain.descriptors, explain.hits);
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
        key_format: explain.key_format.into(),
        ..explain.reading.options()
    };
    let files = Files::read(&Source::Paths(explain.rules.clone()));
    let loaded = files.compile(options).map_err(ExplainError::Rules)?;
    Ok(by_rules(&loaded.matcher, message, now())?)
}

/// The explanation of the server whose debug port has this address, as JSON.
///
/// # Errors
///
/// If it does not answer, or refuses.
pub(super) async fn by_server(
    server: &str,
    timeout: Duration,
    message: &RateLimitRequest,
) -> Result<String, ExplainError> {
    let unreachable = |source: ExchangeError| ExplainError::Unreachable {
        server: server.to_owned(),
        source,
    };
    let dial = Dial::new(&dial::Options {
        server,
        tls: false,
        ca: None,
        ca_setting: "a certificate authority",
        pair: None,
        authority: None,
        http2: false,
    })
    .map_err(|error| unreachable(error.into()))?;
    let request = Request::post("/explain")
        .header(header::HOST, dial.authority())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(json::request_text(message)?)?;
    let answered = tokio::time::timeout(timeout, exchange(&dial, request)).await;
    let answered = answered.map_err(|_elapsed| ExplainError::TimedOut(server.to_owned()))?;
    let (status, body) = answered.map_err(unreachable)?;
    let text = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() && text.starts_with('{') {
        return Ok(text);
    }
    Err(ExplainError::Refused {
        server: server.to_owned(),
        status: status.as_u16(),
        text: text.chars().take(200).collect(),
    })
}

/// An explanation in JSON as text for people.
///
/// # Errors
///
/// If it is not JSON.
pub(super) fn readable(json: &str) -> Result<String, serde_json::Error> {
    Ok(readable::readable(&serde_json::from_str(json)?))
}
