//! Calls with bytes that no generated client would send.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use tokio::sync::mpsc;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service as _, http, tokio_stream::wrappers::UnboundedReceiverStream},
    transport::{Channel, Endpoint},
};

pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const HEADERS: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

#[derive(Clone, Debug)]
pub struct RawClient {
    channel: Channel,
}

impl RawClient {
    pub async fn connect(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self {
            channel: endpoint.connect().await.expect("the server accepts"),
        }
    }

    /// Sends `body` including its gRPC frames; returns the status of the call.
    pub async fn send(&mut self, body: Vec<u8>) -> Status {
        self.send_as("POST", PATH, &HEADERS, body).await.1
    }

    /// Sends `start`, and `end` after this `pause`; returns the status of the call.
    pub async fn send_in_two(&mut self, start: Vec<u8>, pause: Duration, end: Vec<u8>) -> Status {
        let (sender, pieces) = mpsc::unbounded_channel();
        let body = axum::body::Body::from_stream(UnboundedReceiverStream::new(pieces));
        let send = async {
            sender.send(Ok::<_, Infallible>(start)).unwrap();
            tokio::time::sleep(pause).await;
            sender.send(Ok(end)).unwrap();
            drop(sender);
        };
        let (_, (_, status)) = tokio::join!(send, self.send_body("POST", PATH, &HEADERS, body));
        status
    }

    /// Sends any request; returns its status in HTTP and in gRPC.
    pub async fn send_as(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> (u16, Status) {
        self.send_body(method, path, headers, body.into()).await
    }

    async fn send_body(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: axum::body::Body,
    ) -> (u16, Status) {
        let mut request = http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Body::new(body);
        let request = request.body(body).unwrap();
        std::future::poll_fn(|context| self.channel.poll_ready(context))
            .await
            .expect("the connection stands");
        let reply = self.channel.call(request).await.expect("a reply");
        let code = reply.status().as_u16();
        // A failed call has its status in the header: without a message there are no trailers.
        let status = Status::from_header_map(reply.headers());
        (code, status.unwrap_or_else(|| Status::new(Code::Ok, "")))
    }
}
