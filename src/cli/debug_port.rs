//! Calls a server's debug port, with one request per connection.

use std::{fs, io, path::PathBuf, time::Duration};

use hyper::{Method, Request, StatusCode, header};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use crate::{
    foundation::printable::on_one_line,
    net::dial::{self, Dial, ExchangeError, exchange},
    settings::command_line::clients::Token,
};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
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
        "the server at {server} has no such page; is this the debug port of a tollgate? It answered 404: {text}"
    )]
    Unknown { server: String, text: String },
    #[error("the server refused ({status}): {text}")]
    Refused { status: StatusCode, text: String },
    #[error("the answer of {0} is not JSON; is this the debug port of a tollgate?")]
    NotJson(String, #[source] serde_json::Error),
    #[error("this program cannot read the answer; is the server a tollgate of another version?")]
    OtherFields(#[source] serde_json::Error),
    #[error("cannot read the token in {}", .0.display())]
    Token(PathBuf, #[source] io::Error),
    #[error("the request cannot be sent")]
    Request(#[from] hyper::http::Error),
}

/// Most characters of a refusal to show.
const MAX_SHOWN: usize = 512;

pub(super) struct DebugPort {
    server: String,
    dial: Dial,
    timeout: Duration,
}

impl DebugPort {
    /// # Errors
    ///
    /// If the address cannot be read.
    pub(super) fn new(server: &str, timeout: Duration) -> Result<Self, CallError> {
        let dial = Dial::new(&dial::Options {
            server,
            tls: false,
            ca: None,
            ca_setting: "an http:// URL instead of https:// (the debug port has no TLS)",
            pair: None,
            authority: None,
            http2: false,
        });
        let dial = dial.map_err(|source| CallError::Unreachable {
            server: server.to_owned(),
            source: source.into(),
        })?;
        Ok(Self {
            server: server.to_owned(),
            dial,
            timeout,
        })
    }

    /// Posts JSON without a token, and returns the answer.
    pub(super) async fn ask(&self, path: &str, body: String) -> Result<String, CallError> {
        let answer = self.call(path, body, None).await?;
        self.json::<IgnoredAny>(&answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Posts JSON, with the token if there is one, and returns the answer.
    pub(super) async fn post(
        &self,
        path: &str,
        body: &Value,
        token: Option<&Token>,
    ) -> Result<Value, CallError> {
        let token_file = token.and_then(|token| token.token_file.as_ref());
        let read = |path: &PathBuf| {
            let text = fs::read_to_string(path);
            text.map_err(|error| CallError::Token(path.clone(), error))
        };
        let token = token_file.map(read).transpose()?;
        let answer = self.call(path, body.to_string(), token);
        self.json(&answer.await?)
    }

    async fn call(
        &self,
        path: &str,
        body: String,
        token: Option<String>,
    ) -> Result<Vec<u8>, CallError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, self.dial.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close");
        if let Some(token) = token {
            let token = format!("Bearer {}", token.trim_end_matches(['\r', '\n']));
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(body)?;
        let answered = tokio::time::timeout(self.timeout, exchange(&self.dial, request)).await;
        let answered = answered.map_err(|_elapsed| CallError::TimedOut(self.server.clone()))?;
        let (status, body) = answered.map_err(|source| CallError::Unreachable {
            server: self.server.clone(),
            source,
        })?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        let text = String::from_utf8_lossy(&body);
        let text: String = text.trim_end().chars().take(MAX_SHOWN).collect();
        let text = on_one_line(&text);
        Err(match status {
            StatusCode::NOT_FOUND => CallError::Unknown {
                server: self.server.clone(),
                text,
            },
            status => CallError::Refused { status, text },
        })
    }

    fn json<'a, T: Deserialize<'a>>(&self, answer: &'a [u8]) -> Result<T, CallError> {
        serde_json::from_slice(answer)
            .map_err(|error| CallError::NotJson(self.server.clone(), error))
    }
}
