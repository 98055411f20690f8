//! Calls whose bytes no generated client would send.

use std::net::SocketAddr;

use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service as _, http},
    transport::{Channel, Endpoint},
};

/// Sends messages to `ShouldRateLimit` as they stand.
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

    /// Sends `body`, frames and all; returns how the call ended.
    pub async fn send(&mut self, body: Vec<u8>) -> Status {
        let request =
            http::Request::post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Body::new(axum::body::Body::from(body)))
                .unwrap();
        std::future::poll_fn(|context| self.channel.poll_ready(context))
            .await
            .expect("the connection stands");
        let reply = self.channel.call(request).await.expect("a reply");
        // What fails has its status in the head: there is no message that trailers could follow.
        Status::from_header_map(reply.headers()).unwrap_or_else(|| Status::new(Code::Ok, ""))
    }
}
