//! Short ways to write requests.

use std::net::SocketAddr;

use prost_types::value::Kind;
use tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use tonic::{Status, transport::Channel};

pub type Client = RateLimitServiceClient<Channel>;

pub async fn connect(address: SocketAddr) -> Client {
    RateLimitServiceClient::connect(format!("http://{address}"))
        .await
        .expect("the server accepts")
}

pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned().into(),
        value: (*value).to_owned().into(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

pub fn with_hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(hits),
        ..descriptor(entries)
    }
}

pub fn give_back(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        is_negative_hits: true,
        ..with_hits(entries, hits)
    }
}

pub fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        hits_addend: 0,
    }
}

pub async fn ask(
    client: &mut Client,
    domain: &str,
    entries: &[(&str, &str)],
) -> Result<RateLimitResponse, Status> {
    send(client, request(domain, vec![descriptor(entries)])).await
}

pub async fn send(
    client: &mut Client,
    request: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let response = client.should_rate_limit(request).await?;
    Ok(response.into_inner())
}

pub fn token(reply: &RateLimitResponse) -> Option<String> {
    let metadata = reply.dynamic_metadata.as_ref()?;
    match metadata.fields.get("reservation")?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text.clone()),
        other => panic!("{other:?}"),
    }
}

/// Whether the reply is marked as made without the store.
pub fn is_degraded(reply: &RateLimitResponse) -> bool {
    let metadata = reply.dynamic_metadata.as_ref();
    metadata.is_some_and(|metadata| metadata.fields.contains_key("degraded"))
}

/// Whether the decision was OK; without a decision the test fails.
#[track_caller]
pub fn is_ok(response: &Result<RateLimitResponse, Status>) -> bool {
    match response.as_ref().expect("a decision").overall_code() {
        Code::Ok => true,
        Code::OverLimit => false,
        Code::Unknown => panic!("a decision without a code"),
    }
}
