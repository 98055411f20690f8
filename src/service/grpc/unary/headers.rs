//! Checks that a request is a gRPC call, and reads its headers and the deadline that its caller sets.

use std::time::Duration;

use hyper::{
    Method as HttpMethod, Request, Response, StatusCode,
    header::{HeaderName, HeaderValue},
};
use tonic::Status;

use crate::service::grpc::unary::{
    message::{self, Encoding},
    reply::{Reply, refusal},
};

const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The encoding of a valid call, and the size of its headers.
pub(super) struct CheckedHeaders {
    pub(super) encoding: Encoding,
    pub(super) timeout: Option<Duration>,
    pub(super) header_bytes: usize,
}

/// Largest header list of a call in bytes, as HTTP/2 counts them: each header adds 32 to the lengths of its name and
/// its value.
pub(crate) const MAX_HEADER_BYTES: u32 = 64 << 10;

/// Refuses requests that are not gRPC calls, as grpc-go does, and determines the encoding of messages.
pub(super) fn check<B>(request: &Request<B>) -> Result<CheckedHeaders, Box<Response<Reply>>> {
    let refuse = |http, status: Status| {
        let mut response = refusal(&status);
        *response.status_mut() = http;
        Err(Box::new(response))
    };
    if request.method() != HttpMethod::POST {
        let status = Status::internal(format!("the method must be POST, not {}", request.method()));
        return refuse(StatusCode::METHOD_NOT_ALLOWED, status);
    }
    let (mut is_grpc, mut encoding, mut timeout, mut bytes) = (false, None, None, 0);
    // Callers send a handful of headers: a linear search takes a third of the time of a hash lookup.
    for (name, value) in request.headers() {
        const OF_EACH: usize = 32;
        let name = name.as_str();
        bytes += OF_EACH + name.len() + value.len();
        match name {
            "content-type" => is_grpc |= is_grpc_type(value.as_bytes()),
            "grpc-encoding" => encoding = Some(value),
            "grpc-timeout" => timeout = parse(value.as_bytes()),
            _ => {}
        }
    }
    if bytes > MAX_HEADER_BYTES as usize {
        let status = Status::resource_exhausted(format!(
            "headers too large: {bytes} bytes, the limit is: {MAX_HEADER_BYTES} bytes"
        ));
        return refuse(StatusCode::OK, status);
    }
    if !is_grpc {
        let status = Status::invalid_argument("the content type must be application/grpc");
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, status);
    }
    let encoding = match encoding {
        None => Some(Encoding::Identity),
        Some(name) => Encoding::named(name.as_bytes()),
    };
    let checked = |encoding| CheckedHeaders {
        encoding,
        timeout,
        header_bytes: bytes,
    };
    encoding.map(checked).ok_or_else(|| {
        let text = format!("unknown encoding; supported are: {}", message::ALL);
        let mut response = refusal(&Status::unimplemented(text));
        let all = HeaderValue::from_static(message::ALL);
        response.headers_mut().insert(GRPC_ACCEPT_ENCODING, all);
        Box::new(response)
    })
}

/// Matches `application/grpc`, also followed by a message format or parameters.
fn is_grpc_type(value: &[u8]) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    if value == TYPE {
        return true;
    }
    match value.split_at_checked(TYPE.len()) {
        Some((start, rest)) => {
            start.eq_ignore_ascii_case(TYPE) && matches!(rest.first(), None | Some(b'+' | b';'))
        }
        None => false,
    }
}

/// Most digits of a timeout (gRPC over HTTP/2, "TimeoutValue").
const MAX_DIGITS: usize = 8;

/// A tenth of the time is reserved for the network.
const MARGIN: u32 = 10;

/// The part of `timeout` that a decision may use.
pub(crate) fn for_decision(timeout: Duration) -> Duration {
    timeout - timeout / MARGIN
}

/// How long after its arrival an answer is of use to the caller (gRPC over HTTP/2, "Timeout"). `None` if `text`
/// is no timeout. Envoy sends milliseconds, 20 unless it is configured otherwise.
pub(crate) fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > MAX_DIGITS {
        return None;
    }
    let number = digits.iter().try_fold(0, |number: u64, digit| {
        digit
            .is_ascii_digit()
            .then(|| number * 10 + u64::from(digit - b'0'))
    })?;
    match unit {
        b'H' => Some(Duration::from_secs(number * 3600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<Duration>) {
        assert_eq!(parse(text.as_bytes()), expected, "{text}");
    }

    #[test]
    fn timeouts_are_read_in_every_unit() {
        check("20m", Some(Duration::from_millis(20)));
        check("0m", Some(Duration::ZERO));
        check("99999999H", Some(Duration::from_secs(99_999_999 * 3600)));
        check("2M", Some(Duration::from_secs(120)));
        check("2S", Some(Duration::from_secs(2)));
        check("7u", Some(Duration::from_micros(7)));
        check("7n", Some(Duration::from_nanos(7)));
    }

    #[test]
    fn what_is_no_timeout_is_none() {
        for text in ["", "m", "20", "20x", "-1m", "1.5S", "123456789m", " 20m"] {
            check(text, None);
        }
    }

    #[test]
    fn a_tenth_is_left_for_the_way() {
        let of_envoy = Duration::from_millis(20);
        assert_eq!(for_decision(of_envoy), Duration::from_millis(18));
        assert_eq!(for_decision(Duration::ZERO), Duration::ZERO);
    }
}
