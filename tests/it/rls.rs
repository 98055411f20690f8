//! Requests and replies over gRPC.

use tonic::Code;

use crate::support::{
    ask::{ask, connect, descriptor, is_ok, request, send},
    tollgate,
};

const RULES: &str = "
domain: d
descriptors:
  - key: one
    rate_limit: { unit: year, requests_per_unit: 2 }
";

#[tokio::test]
async fn a_limit_of_two_admits_two() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let mut codes = Vec::new();
    for _ in 0..3 {
        codes.push(is_ok(&ask(&mut client, "d", &[("one", "v")]).await));
    }
    assert_eq!(codes, [true, true, false]);
}

#[tokio::test]
async fn statuses_come_in_the_order_of_the_descriptors() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let descriptors = vec![
        descriptor(&[("other", "v")]),
        descriptor(&[("one", "v")]),
        descriptor(&[]),
        descriptor(&[("one", "v")]),
    ];
    let response = send(&mut client, request("d", descriptors)).await.unwrap();
    let shown: Vec<_> = response
        .statuses
        .iter()
        .map(|status| (status.current_limit.is_some(), status.limit_remaining))
        .collect();
    assert_eq!(shown, [(false, 0), (true, 1), (false, 0), (true, 0)]);
}

#[tokio::test]
async fn a_request_that_asks_nothing_is_invalid() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let error = send(&mut client, request("", vec![descriptor(&[])]))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(error.message(), "rate limit domain must not be empty");
    let error = send(&mut client, request("d", vec![])).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(
        error.message(),
        "rate limit descriptor list must not be empty"
    );
}
