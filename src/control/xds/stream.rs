//! One call of a control plane.

use std::pin::Pin;

use tokio::sync::mpsc;
use tonic::{
    Request, Response, Status, Streaming,
    codegen::tokio_stream::{self, StreamExt as _, wrappers::ReceiverStream},
    metadata::MetadataMap,
    transport::Channel,
};

use super::end::StreamEnd;
use crate::{
    foundation::backoff::{Backoff, BackoffWaits},
    service::grpc::proto::envoy::service::discovery::v3::{
        DiscoveryRequest, DiscoveryResponse,
        aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
    },
};

/// One call of a control plane.
pub(super) struct DiscoveryStream {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Responses,
    /// Whether the last push was refused.
    pub is_refusing: bool,
    /// The waits before further refusals.
    pub refusals: BackoffWaits,
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
        backoff: Backoff,
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
            is_refusing: false,
            refusals: BackoffWaits::new(backoff),
        }
    }

    /// The next response, without a time limit. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<DiscoveryResponse, StreamEnd> {
        loop {
            match &mut self.responses {
                Responses::Opening(opening) => {
                    let opened = opening.await.map_err(StreamEnd::unanswered)?;
                    self.responses = Responses::Open(Box::new(opened.into_inner()));
                }
                Responses::Open(responses) => {
                    let next = responses.message().await.map_err(StreamEnd::Broken)?;
                    return next.ok_or(StreamEnd::Ended);
                }
            }
        }
    }

    pub(super) async fn send(&mut self, request: DiscoveryRequest) -> Result<(), StreamEnd> {
        let sent = self.requests.send(request).await;
        sent.map_err(|_| StreamEnd::Ended)
    }
}
