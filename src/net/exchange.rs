//! One HTTP/1.1 request on a new connection, for commands that ask a running server.

use std::{future::poll_fn, pin::Pin};

use hyper::{Request, StatusCode, body::Body as _};
use hyper_util::rt::TokioIo;

use super::dial::{Dial, DialError};

/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the server does not answer by HTTP/1")]
    Http(#[from] hyper::Error),
    #[error("the answer is longer than {MAX_ANSWER_BYTES} bytes")]
    TooLong,
}

/// Sends `request`, and returns the status and the body of the answer.
///
/// # Errors
///
/// If the server cannot be reached, or does not answer by HTTP/1.
pub(crate) async fn exchange(
    dial: &Dial,
    request: Request<String>,
) -> Result<(StatusCode, Vec<u8>), ExchangeError> {
    let stream = TokioIo::new(dial.stream().await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let answered = async {
        let reply = sender.send_request(request).await?;
        let status = reply.status();
        let mut body = reply.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            if let Ok(data) = frame?.into_data() {
                bytes.extend_from_slice(&data);
            }
            if bytes.len() > MAX_ANSWER_BYTES {
                return Err(ExchangeError::TooLong);
            }
        }
        Ok((status, bytes))
    };
    let mut answered = std::pin::pin!(answered);
    tokio::select! {
        answer = &mut answered => answer,
        ended = connection => {
            ended?;
            answered.await
        }
    }
}
