//! One call of a control plane.

use std::{pin::Pin, time::Duration};

use tokio::{sync::mpsc, time::Instant};
use tonic::{
    Request, Response, Status, Streaming,
    codegen::tokio_stream::{self, StreamExt as _, wrappers::ReceiverStream},
    metadata::MetadataMap,
    transport::Channel,
};

use crate::{
    control::xds::lost::StreamEnd,
    foundation::backoff::{Backoff, BackoffWaits},
    service::grpc::proto::envoy::service::discovery::v3::{
        DiscoveryRequest, DiscoveryResponse,
        aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
    },
};

/// Waits before a push is refused once more. Some control planes answer a refusal with the refused push at once, and
/// send another push only after the refusal, so a wait is short.
const REPEATED_REFUSALS: Backoff = Backoff {
    initial: Duration::from_millis(100),
    max: Duration::from_secs(1),
    factor: 2.0,
    jitter: false,
};

/// A refused push that comes again after this time is no answer to the refusal.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// One call of a control plane.
pub(super) struct DiscoveryStream {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Responses,
    /// Whether the last request named no version although one is in use, and no response has come since.
    pub asked_for_all: bool,
    last_refusal: Option<LastRefusal>,
    held_back: Option<HeldRequest>,
}

/// The last refusal in this call.
struct LastRefusal {
    /// Of the push.
    digest: [u8; 32],
    at: Instant,
    waits: BackoffWaits,
}

/// A request for later.
struct HeldRequest {
    request: DiscoveryRequest,
    until: Instant,
}

/// Progress of a call.
pub(super) enum StreamEvent {
    /// The server has accepted the call. Some do so with the first push only.
    Opened,
    Push(DiscoveryResponse),
}

enum Responses {
    /// The call has no header yet: servers may send none before the first push.
    Opening(Opening),
    Open(Box<Streaming<DiscoveryResponse>>),
}

type Opening =
    Pin<Box<dyn Future<Output = Result<Response<Streaming<DiscoveryResponse>>, Status>> + Send>>;

impl DiscoveryStream {
    /// Begins a call with its first request.
    pub(super) fn new(
        channel: Channel,
        headers: MetadataMap,
        max_message_bytes: usize,
        first: DiscoveryRequest,
    ) -> Self {
        // Room for one: a request is sent only after a response was read.
        let (requests, queue) = mpsc::channel(1);
        let first = tokio_stream::once(first);
        let mut request = Request::new(first.chain(ReceiverStream::new(queue)));
        *request.metadata_mut() = headers;
        let mut service = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(max_message_bytes);
        let opening = async move { service.stream_aggregated_resources(request).await };
        Self {
            requests,
            responses: Responses::Opening(Box::pin(opening)),
            asked_for_all: false,
            last_refusal: None,
            held_back: None,
        }
    }

    /// The next event, without a time limit. Dropping the future loses no event.
    pub(super) async fn next(&mut self) -> Result<StreamEvent, StreamEnd> {
        loop {
            let Some(until) = self.held_back.as_ref().map(|held| held.until) else {
                return self.responses.next().await;
            };
            tokio::select! {
                event = self.responses.next() => {
                    // The answer to this push takes the place of the request.
                    self.held_back = None;
                    return event;
                }
                () = tokio::time::sleep_until(until) => {
                    if let Some(HeldRequest { request, .. }) = self.held_back.take() {
                        self.send(request).await;
                    }
                }
            }
        }
    }

    /// Sends a request. If the call has ended, the next event says why.
    pub(super) async fn send(&mut self, request: DiscoveryRequest) {
        let _ = self.requests.send(request).await;
    }

    /// Sends the refusal of a push: at once, or after a wait if the push only answers its last refusal.
    pub(super) async fn refuse(&mut self, digest: [u8; 32], request: DiscoveryRequest) {
        let now = Instant::now();
        match &mut self.last_refusal {
            Some(last) if last.digest == digest && now < last.at + ANSWERED_WITHIN => {
                let until = now + last.waits.next_wait();
                last.at = until;
                self.held_back = Some(HeldRequest { request, until });
            }
            _ => {
                self.last_refusal = Some(LastRefusal {
                    digest,
                    at: now,
                    waits: BackoffWaits::new(REPEATED_REFUSALS),
                });
                self.send(request).await;
            }
        }
    }
}

impl Responses {
    async fn next(&mut self) -> Result<StreamEvent, StreamEnd> {
        match self {
            Self::Opening(opening) => {
                let opened = opening.await.map_err(StreamEnd::unanswered)?;
                *self = Self::Open(Box::new(opened.into_inner()));
                Ok(StreamEvent::Opened)
            }
            Self::Open(responses) => {
                let next = responses.message().await.map_err(StreamEnd::answered)?;
                next.map(StreamEvent::Push).ok_or(StreamEnd::Ended)
            }
        }
    }
}
