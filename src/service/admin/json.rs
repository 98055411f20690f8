//! `/json`: a request in proto3 JSON, and its reply in proto3 JSON. Also how all pages read queries and bodies, and
//! build replies.

use std::{future::poll_fn, pin::Pin};

use axum::{
    body::Body,
    http::{
        HeaderMap, HeaderName, StatusCode,
        header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};
use hyper::body::Body as _;
use percent_encoding::percent_decode;

use super::page::BlockingQueue;
use crate::{
    foundation::printable::on_one_line,
    service::grpc::{
        self, MAX_MESSAGE_BYTES,
        body::MESSAGE_TIMEOUT,
        proto::{self, envoy::service::ratelimit::v3::rate_limit_response::Code},
    },
    store::contract::{Deadline, Store},
};

/// Whether the request declares its body as JSON. Browsers send such a request to another origin only with that
/// origin's consent, so a foreign page cannot make its visitors count hits.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(|value| value.to_str());
    let Some(Ok(content_type)) = content_type else {
        return false;
    };
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}

/// Answers a request in proto3 JSON as the reference does: 200 or 429 with the reply as JSON, 400 with the reason for
/// anything else.
pub(super) async fn answer_json<S: Store + Clone>(
    service: &grpc::Service<S>,
    blocking: &BlockingQueue,
    body: Body,
) -> Response {
    let bad = |reason: &str| refused(StatusCode::BAD_REQUEST, &format!("Bad Request: {reason}"));
    let message = match read_json(blocking, body, proto::request).await {
        Ok(Ok(message)) => message,
        Ok(Err(error)) => return bad(&error.to_string()),
        Err(refusal) => return refusal,
    };
    let reply = match service.answer(&message, &Deadline::of_store()).await {
        Ok(reply) => reply,
        Err(status) => return bad(status.message()),
    };
    let status = match reply.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    match blocking.work(move || proto::response(&reply, false)).await {
        Ok(text) => (status, [(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            tracing::warn!(%error, "a reply cannot be written as JSON");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error\n")
        }
    }
}

/// Reads all of `body`.
///
/// # Errors
///
/// The reply to a body that is too large, too late or cut off.
pub(super) async fn read_whole(body: Body) -> Result<Vec<u8>, Response> {
    let read = tokio::time::timeout(MESSAGE_TIMEOUT, read(body)).await;
    let refusal = match read {
        Ok(Ok(body)) => return Ok(body),
        Ok(Err(BodyError::TooLarge)) => plain(StatusCode::PAYLOAD_TOO_LARGE, "Payload Too Large\n"),
        Ok(Err(BodyError::Gone)) => plain(StatusCode::BAD_REQUEST, "Bad Request\n"),
        Err(_elapsed) => plain(StatusCode::REQUEST_TIMEOUT, "Request Timeout\n"),
    };
    Err(refusal)
}

/// Reads a body, and parses it on the blocking pool.
///
/// # Errors
///
/// The reply to a body that cannot be read.
pub(super) async fn read_json<T: Send + 'static>(
    blocking: &BlockingQueue,
    body: Body,
    parse: fn(&[u8]) -> T,
) -> Result<T, Response> {
    let body = read_whole(body).await?;
    Ok(blocking.work(move || parse(&body)).await)
}

/// Why a body was not read.
enum BodyError {
    TooLarge,
    /// The client closed the connection.
    Gone,
}

async fn read(mut body: Body) -> Result<Vec<u8>, BodyError> {
    let mut all = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| BodyError::Gone)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.len() > MAX_MESSAGE_BYTES - all.len() {
            return Err(BodyError::TooLarge);
        }
        all.extend_from_slice(&data);
    }
    Ok(all)
}

/// The headers of a JSON reply. Its texts can come from clients, so browsers must not take it for HTML.
pub(super) fn json_headers() -> [(HeaderName, &'static str); 2] {
    [
        (CONTENT_TYPE, "application/json"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ]
}

/// A reply of one line.
pub(super) fn plain(status: StatusCode, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, text).into_response()
}

/// A refusal with its reason, on one line whatever the reason contains.
pub(super) fn refused(status: StatusCode, reason: &str) -> Response {
    const MAX_LETTERS: usize = 300;
    let mut reply = plain(status, "");
    let reason: String = reason.chars().take(MAX_LETTERS).collect();
    *reply.body_mut() = format!("{}\n", on_one_line(&reason)).into();
    reply
}

/// The parameters of `query`, in order. Names are left as they are; values are decoded (`%41` is `A`, `+` is a space).
pub(super) fn parameters(query: &str) -> impl Iterator<Item = (&str, Vec<u8>)> {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    parameters.map(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = value.replace('+', " ");
        (name, percent_decode(value.as_bytes()).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_names_are_not() {
        let read = |query| parameters(query).collect::<Vec<_>>();
        assert_eq!(
            read("a=%41+b&&c&%61=d=e"),
            [
                ("a", b"A b".to_vec()),
                ("c", b"".to_vec()),
                ("%61", b"d=e".to_vec())
            ]
        );
    }

    #[test]
    fn nonsense_stays_as_it_is() {
        for (value, decoded) in [
            ("%", &b"%"[..]),
            ("%4", b"%4"),
            ("%+5", b"% 5"),
            ("%zz", b"%zz"),
            ("%ff", b"\xff"),
        ] {
            let query = format!("a={value}");
            assert_eq!(
                parameters(&query).collect::<Vec<_>>(),
                [("a", decoded.to_vec())]
            );
        }
    }
}
