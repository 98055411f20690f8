//! Checks that a request is a gRPC call, and reads its headers.

use std::time::Duration;

use hyper::{
    Method as HttpMethod, Request, Response, StatusCode,
    header::{HeaderName, HeaderValue},
};
use tonic::Status;

use super::{
    encoding::{self, Encoding},
    reply::{Reply, refusal},
};
use crate::service::grpc::timeout;

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
            "grpc-timeout" => timeout = timeout::parse(value.as_bytes()),
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
        let text = format!("unknown encoding; supported are: {}", encoding::ALL);
        let mut response = refusal(&Status::unimplemented(text));
        let all = HeaderValue::from_static(encoding::ALL);
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
