//! One request, sent again and again.

use std::net::SocketAddr;

use super::{
    ask::{Client, ask, connect, is_ok},
    eventually,
};

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
