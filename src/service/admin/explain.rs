//! `/explain`: how a request would be decided, and why. The request is in the query, as
//! `domain=D&descriptor=K=V,K=V&hits=N`, or in the body, as for `/json`.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::{
    json::{json_headers, parameters, refused},
    page::BlockingQueue,
};
use crate::{
    core::request::Entries,
    service::{
        explain::{Unexplained, look, question},
        grpc::{
            self,
            proto::{self, envoy::service::ratelimit::v3::RateLimitRequest},
        },
    },
    store::contract::Store,
};

/// The reply to a call that names no request to explain.
pub(super) const USAGE: &str = "\
Explains how a request would be decided, without counting it. Ask by
  /explain?domain=D&descriptor=K=V,K=V&descriptor=K=V&hits=N
with values percent-encoded, and hits only if Envoy sends a number, or POST the JSON that /json takes.
";

/// A request to explain.
pub(super) enum Question {
    Message(RateLimitRequest),
    /// A body of proto3 JSON.
    Body(Vec<u8>),
}

/// Parses the request in a query.
///
/// # Errors
///
/// The parameter that cannot be read.
pub(super) fn url_question(query: &str) -> Result<Question, String> {
    let (mut domain, mut descriptors, mut hits) = (None, Vec::new(), None);
    for (name, value) in parameters(query) {
        let value = String::from_utf8(value);
        let value = value.map_err(|_| format!("the value of {name} is not UTF-8"))?;
        match name {
            "domain" => domain = Some(value),
            "descriptor" => {
                let entries = value.parse::<Entries>();
                descriptors.push(entries.map_err(|error| format!("descriptor: {error}"))?);
            }
            "hits" => {
                let number = value.parse();
                hits = Some(number.map_err(|_| "hits: expected a whole number".to_owned())?);
            }
            _ => return Err("expected domain, descriptor and hits".to_owned()),
        }
    }
    let domain = domain.ok_or("expected domain=NAME")?;
    Ok(Question::Message(question(&domain, &descriptors, hits)))
}

/// Answers 200 with the explanation as JSON, or 400 if the request cannot be read.
pub(super) async fn answer_question<S: Store + Clone>(
    service: &grpc::Service<S>,
    blocking: &BlockingQueue,
    question: Result<Question, String>,
) -> Response {
    let message = match question {
        Ok(Question::Message(message)) => Ok(message),
        Ok(Question::Body(body)) => {
            let read = blocking.work(move || proto::request(&body)).await;
            read.map_err(|error| error.to_string())
        }
        Err(error) => Err(error),
    };
    let message = match message {
        Ok(message) => message,
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
    };
    let looked = match look(service, &message).await {
        Ok(looked) => looked,
        Err(error) => return unexplained(error),
    };
    match blocking.work(move || looked.explain(&message)).await {
        Ok(text) => (json_headers(), text).into_response(),
        Err(error) => unexplained(error),
    }
}

fn unexplained(error: Unexplained) -> Response {
    let status = match error {
        Unexplained::BadRequest(_) => StatusCode::BAD_REQUEST,
        Unexplained::NoRules(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    refused(status, &error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(query: &str, expected: Result<&str, &str>) {
        let shown = url_question(query).map(|question| match question {
            Question::Message(message) => proto::request_text(&message).unwrap(),
            Question::Body(_) => unreachable!("a query has no body"),
        });
        assert_eq!(
            shown.as_deref().map_err(String::as_str),
            expected,
            "{query}"
        );
    }

    #[test]
    fn a_question_is_read_from_a_query() {
        let two = r#"{"domain":"a b","descriptors":[{"entries":[{"key":"k","value":"v=1"},{"key":"l","value":"é"}]},{"entries":[{"key":"m"}]}]}"#;
        let query = "domain=a+b&descriptor=k%3Dv%3D1,l=%C3%A9&descriptor=m=";
        check(query, Ok(two));
        let hits = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"%"}],"hitsAddend":"7"}]}"#;
        check("hits=7&domain=d&descriptor=k=%", Ok(hits));
        check("domain=%ff", Err("the value of domain is not UTF-8"));
        check("descriptor=k=v", Err("expected domain=NAME"));
        check(
            "domain=d&descriptor=k",
            Err("descriptor: `k` is not KEY=VALUE"),
        );
        let back = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":"7","isNegativeHits":true}]}"#;
        check("hits=-7&domain=d&descriptor=k=v", Ok(back));
        check("domain=d&hits=x", Err("hits: expected a whole number"));
        check("domain=d&x=y", Err("expected domain, descriptor and hits"));
    }
}
