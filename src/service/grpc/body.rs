//! The bodies of calls: a request that counts as held once its call has to wait for it, and a reply that counts until
//! it is sent.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::{
    Request, Response,
    body::{Body, Frame, Incoming},
};
use prost::bytes::Bytes;
use tokio::time::Sleep;
use tonic::Status;

use crate::{observe::metrics::CutOff, service::held::OpenConnection};

/// The longest time until a message and the end of its stream have arrived. Envoy sends both with the headers.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a request. A call whose message is there when it is first polled holds nothing. One that has to wait
/// holds its headers and each piece of its body, until the body is dropped.
pub(crate) struct RequestBody {
    body: Incoming,
    connection: Arc<OpenConnection>,
    /// The bytes of the headers, and of the body as far as it was read.
    bytes: usize,
    /// How long the call may wait, and the end of that time once it waits.
    longest: Duration,
    wait: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    /// Gives `request` such a body, for which the call waits for `longest` at most.
    pub(crate) fn of(
        request: Request<Incoming>,
        connection: &Arc<OpenConnection>,
        longest: Duration,
    ) -> Request<Self> {
        let headers = request.headers().iter();
        let bytes = headers.map(|(name, value)| name.as_str().len() + value.len());
        let bytes = bytes.sum();
        request.map(|body| Self {
            body,
            connection: connection.clone(),
            bytes,
            longest,
            wait: None,
        })
    }

    /// Holds `bytes` more.
    fn hold(&mut self, bytes: usize) -> Result<(), Status> {
        let has_room = self.connection.take(bytes);
        has_room
            .then_some(())
            .ok_or_else(|| no_room(&self.connection))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            if this.wait.is_none() {
                this.wait = Some(Box::pin(tokio::time::sleep(this.longest)));
                this.hold(this.bytes)?;
            }
            if let Some(end) = &mut this.wait {
                ready!(end.as_mut().poll(context));
            }
            this.connection.refused(CutOff::MessageLate);
            let text = format!("the message did not arrive within {:?}", this.longest);
            return Poll::Ready(Some(Err(Status::deadline_exceeded(text))));
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => {
                return Poll::Ready(Some(Err(Status::cancelled("the request ended early"))));
            }
            None => return Poll::Ready(None),
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        this.bytes += bytes;
        if this.wait.is_some() {
            this.hold(bytes)?;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// Refuses a call because its connection would hold too much.
pub(super) fn no_room(connection: &OpenConnection) -> Status {
    connection.refused(CutOff::MessageNoRoom);
    Status::resource_exhausted("clients hold too much memory")
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if self.wait.is_some() {
            self.connection.give_back(self.bytes);
        }
    }
}

/// The body of a reply.
pub(crate) struct ReplyBody {
    /// Data that was taken from the body.
    first: Option<Frame<Bytes>>,
    body: tonic::body::Body,
    connection: Arc<OpenConnection>,
}

impl ReplyBody {
    /// Gives `response` such a body.
    pub(crate) fn of(
        response: Response<tonic::body::Body>,
        connection: Arc<OpenConnection>,
    ) -> Response<Self> {
        response.map(|body| Self {
            first: None,
            body,
            connection,
        })
    }

    /// Takes what there is of the reply from its source, so that it counts from now on.
    ///
    /// # Errors
    ///
    /// RESOURCE_EXHAUSTED if there is no room for it.
    pub(super) async fn begin(&mut self) -> Result<(), Status> {
        let first = poll_fn(|context| Poll::Ready(Pin::new(&mut *self).poll_frame(context))).await;
        if let Poll::Ready(Some(frame)) = first {
            self.first = Some(frame?);
        }
        Ok(())
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let connection = &self.connection;
        Poll::Ready(frame.map(|frame| {
            match frame?.into_data() {
                Ok(data) => connection
                    .hold(data)
                    .map(Frame::data)
                    .ok_or_else(|| no_room(connection)),
                Err(trailers) => Ok(trailers),
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }
}
