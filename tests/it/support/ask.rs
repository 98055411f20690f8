//! Short ways to write requests.

use std::net::SocketAddr;

use prost_types::value::Kind;
use serde_json::{Value, json};
pub use tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor,
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};
use tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride},
    service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient,
};
pub use tonic::Status;
use tonic::transport::Channel;

use super::{
    eventually,
    http::post_json,
    redis::Redis,
    tollgate::{Builder, Tollgate},
};

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

/// Starts a server and connects to it.
pub async fn serve(builder: Builder) -> (Tollgate, Client) {
    let server = builder.start();
    let client = connect(server.grpc).await;
    (server, client)
}

/// Whether a request for one descriptor passes; without a decision the test fails.
pub async fn passes(client: &mut Client, domain: &str, entries: &[(&str, &str)]) -> bool {
    is_ok(&ask(client, domain, entries).await)
}

/// The entries of `key=value,key=value`.
pub fn entries(text: &str) -> Vec<(&str, &str)> {
    let entries = text.split(',').map(|entry| entry.split_once('='));
    entries.map(|entry| entry.expect("key=value")).collect()
}

/// A descriptor with its own limit; the unit is the number of the proto.
pub fn with_limit(entries: &[(&str, &str)], limit: u32, unit: i32) -> RateLimitDescriptor {
    let limit = RateLimitOverride {
        requests_per_unit: limit,
        unit,
        unit_multiplier: None,
    };
    RateLimitDescriptor {
        limit: Some(limit),
        ..descriptor(entries)
    }
}

/// The number behind `name` on the page of statistics.
pub fn stat(server: &Tollgate, name: &str) -> Option<u64> {
    let page = server.page("/stats");
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.map(|value| value.parse().expect("a number"))
}

/// The hits that the counters of a descriptor hold; with `reset`, after that. `None` without an answer.
pub fn counters(
    server: &Tollgate,
    act: &str,
    domain: &str,
    entry: (&str, &str),
) -> Option<Vec<u64>> {
    let entry = json!({"key": entry.0, "value": entry.1});
    let asked = json!({"domain": domain, "descriptors": [{"entries": [entry]}]});
    let reply = post_json(
        server.debug,
        &format!("/counters/{act}"),
        &asked.to_string(),
    );
    let reply: Value = serde_json::from_str(&reply.unwrap().body).ok()?;
    let counters = reply["descriptors"][0]["counters"].as_array()?;
    counters
        .iter()
        .map(|counter| counter["hits"].as_u64())
        .collect()
}

/// Waits until one call is on its way to Redis.
pub async fn one_is_in_flight(server: &Tollgate) {
    eventually("one is on its way", async || {
        let stats = server.page("/stats");
        stats.lines().any(|line| line.ends_with(".in_flight: 1"))
    })
    .await;
}

/// Waits until no store is lost.
pub async fn no_store_is_lost(server: &Tollgate) {
    let is_back = async || server.metric("tollgate_stores_lost") == 0;
    eventually("the store counts again", is_back).await;
}

/// Counts limits per second in a Redis of their own.
pub fn with_seconds(server: Builder, redis: &Redis) -> Builder {
    let url = redis.url();
    server.args(["--redis-per-second", "--redis-per-second-url", &url])
}

/// How many of `calls` requests for one descriptor pass.
pub async fn passing(
    client: &mut Client,
    domain: &str,
    entries: &[(&str, &str)],
    calls: usize,
) -> usize {
    let mut passing = 0;
    for _ in 0..calls {
        passing += usize::from(is_ok(&ask(client, domain, entries).await));
    }
    passing
}

/// A client, once a request for one descriptor is answered.
pub async fn answered(address: SocketAddr, domain: &str, entries: &[(&str, &str)]) -> Client {
    let client = connect(address).await;
    is_answered(&client, domain, entries).await;
    client
}

/// Waits until a request for one descriptor is answered.
pub async fn is_answered(client: &Client, domain: &str, entries: &[(&str, &str)]) {
    eventually("calls are answered", async || {
        ask(&mut client.clone(), domain, entries).await.is_ok()
    })
    .await;
}
