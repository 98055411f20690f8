//! grpcurl as a user sees it who has no schemas: services and messages by reflection, and health.

use std::process::{Command, Output};

use tonic::transport::Endpoint;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::support::{
    tollgate::{self, Tollgate},
    tool,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: remote_address
    rate_limits:
      - { unit: year, unit_multiplier: 3, requests_per_unit: 2, name: patience }
      - { unit: year, requests_per_unit: 100 }
";

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

#[test]
fn every_service_is_listed() {
    let server = tollgate::with_rules(RULES).start();
    let listed = said(&server, &[], &["list"]);
    let expected = [
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    ];
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_call_is_written_and_answered_in_json() {
    let server = tollgate::with_rules(RULES).start();
    let request = r#"{
        "domain": "shop",
        "descriptors": [
            { "entries": [{ "key": "remote_address", "value": "10.0.0.1" }], "hitsAddend": 3 },
            { "entries": [{ "key": "path", "value": "/" }] }
        ]
    }"#;
    let call = format!("{SERVICE}/ShouldRateLimit");
    let text = said(&server, &["-d", request], &[&call]);
    let mut answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let reset = answer["statuses"][0]["durationUntilReset"].take();
    let reset = reset.as_str().and_then(|reset| reset.strip_suffix('s'));
    let reset: u64 = reset.unwrap().parse().unwrap();
    assert!((1..=3 * 365 * 86_400).contains(&reset), "{reset}");
    let limit = serde_json::json!({
        "name": "patience",
        "requestsPerUnit": 2,
        "unit": "YEAR",
        "unitMultiplier": 3,
    });
    let expected = serde_json::json!({
        "overallCode": "OVER_LIMIT",
        "statuses": [
            { "code": "OVER_LIMIT", "currentLimit": limit, "durationUntilReset": null },
            { "code": "OK" },
        ],
    });
    assert_eq!(answer, expected);
}

#[test]
fn health_is_known_under_two_names() {
    let server = tollgate::with_rules(RULES).start();
    let check = |name: &str| {
        let request = serde_json::json!({ "service": name }).to_string();
        grpcurl(&server, &["-d", &request], &["grpc.health.v1.Health/Check"])
    };
    for name in ["", "ratelimit"] {
        let output = check(name);
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said, serde_json::json!({ "status": "SERVING" }), "{name}");
    }
    for name in [SERVICE, "Ratelimit", "nothing"] {
        let output = check(name);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("Code: NotFound"), "{name}: {said}");
        assert!(!output.status.success());
    }
}

/// grpcurl does not use this version yet; newer tools prefer it.
#[tokio::test]
async fn reflection_is_there_in_its_later_version_too() {
    let server = tollgate::with_rules(RULES).start();
    let channel = Endpoint::from_shared(format!("http://{}", server.grpc))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tonic::codegen::tokio_stream::once(request))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("not a list: {answer:?}");
    };
    let names: Vec<_> = list.service.into_iter().map(|found| found.name).collect();
    let expected = [
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ];
    assert_eq!(names, expected);
}

/// grpcurl's output for `what`.
#[track_caller]
fn said(server: &Tollgate, options: &[&str], what: &[&str]) -> String {
    let output = grpcurl(server, options, what);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn grpcurl(server: &Tollgate, options: &[&str], what: &[&str]) -> Output {
    Command::new(tool("grpcurl"))
        .args(["-plaintext", "-connect-timeout", "30", "-max-time", "30"])
        .args(options)
        .arg(server.grpc.to_string())
        .args(what)
        .output()
        .unwrap()
}
