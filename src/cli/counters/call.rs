//! Calls of the debug port: one request on one connection.

use std::{fs, io, path::PathBuf, time::Duration};

use hyper::{Method, Request, StatusCode, header};
use serde_json::Value;

use crate::{
    net::{
        dial::{self, Dial, DialError},
        exchange::{ExchangeError, exchange},
    },
    settings::command_line::counters::{DebugPort, Token},
};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum CallError {
    #[error("cannot reach {server}")]
    Unreachable {
        server: String,
        #[source]
        source: DialError,
    },
    #[error("{0} did not answer within --timeout")]
    TimedOut(String),
    #[error("{0} is no debug port of tollgate")]
    Broken(String, #[source] ExchangeError),
    #[error("the server refused ({status}): {text}")]
    Refused { status: StatusCode, text: String },
    #[error("the answer of {0} is not JSON")]
    NotJson(String, #[source] serde_json::Error),
    #[error("cannot read the token in {}", .0.display())]
    Token(PathBuf, #[source] io::Error),
    #[error("the request cannot be sent")]
    Request(#[from] hyper::http::Error),
}

/// Most characters of a refusal that are shown.
const MAX_SHOWN: usize = 512;

/// A debug port.
pub(super) struct Port {
    server: String,
    dial: Dial,
    timeout: Duration,
}

impl Port {
    /// # Errors
    ///
    /// If the address cannot be read.
    pub(super) fn new(port: DebugPort) -> Result<Self, CallError> {
        let dial = Dial::new(&dial::Options {
            server: &port.server,
            tls: false,
            ca: None,
            ca_setting: "an http:// URL instead of https:// (the debug port has no TLS)",
            pair: None,
            authority: None,
            http2: false,
        });
        let dial = dial.map_err(|source| unreachable(&port.server, source))?;
        Ok(Self {
            server: port.server,
            dial,
            timeout: port.timeout,
        })
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, CallError> {
        self.call(Method::GET, path, String::new(), None).await
    }

    /// Sends `body`, with the token if there is one.
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
        self.call(Method::POST, path, body.to_string(), token).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: String,
        token: Option<String>,
    ) -> Result<Value, CallError> {
        let mut request = Request::builder()
            .method(method)
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
        let (status, body) = answered.map_err(|error| match error {
            ExchangeError::Dial(source) => unreachable(&self.server, source),
            error => CallError::Broken(self.server.clone(), error),
        })?;
        if status != StatusCode::OK {
            let text = String::from_utf8_lossy(&body);
            let text = text.trim_end().chars().take(MAX_SHOWN);
            let text = text.flat_map(shown).collect();
            return Err(CallError::Refused { status, text });
        }
        let not_json = |error| CallError::NotJson(self.server.clone(), error);
        serde_json::from_slice(&body).map_err(not_json)
    }
}

fn unreachable(server: &str, source: DialError) -> CallError {
    CallError::Unreachable {
        server: server.to_owned(),
        source,
    }
}

/// A character as a terminal may show it.
pub(super) fn shown(char: char) -> impl Iterator<Item = char> {
    let (plain, escaped) = match char.is_control() {
        true => (None, Some(char.escape_default())),
        false => (Some(char), None),
    };
    plain.into_iter().chain(escaped.into_iter().flatten())
}
