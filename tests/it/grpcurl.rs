//! grpcurl as a user sees it who has no schemas: services and messages by reflection, and health.

use std::process::{Command, Output};

use serde_json::json;
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

/// grpcurl does not use the later version of reflection yet; newer tools prefer it.
#[tokio::test]
async fn every_service_is_listed() {
    let server = tollgate::with_rules(RULES).start();
    let names = |reflection| [SERVICE, "grpc.health.v1.Health", reflection];
    let listed = said(&server, &[], &["list"]);
    let listed: Vec<_> = listed.lines().collect();
    assert_eq!(listed, names("grpc.reflection.v1alpha.ServerReflection"));

    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc));
    let channel = endpoint.unwrap().connect().await.unwrap();
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let answers = client.server_reflection_info(tonic::codegen::tokio_stream::once(request));
    let answer = answers.await.unwrap().into_inner().message().await;
    let answer = answer.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else {
        panic!("not a list: {answer:?}");
    };
    let listed: Vec<_> = list.service.into_iter().map(|found| found.name).collect();
    assert_eq!(listed, names("grpc.reflection.v1.ServerReflection"));
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
    let limit =
        json!({ "name": "patience", "requestsPerUnit": 2, "unit": "YEAR", "unitMultiplier": 3 });
    let over = json!({ "code": "OVER_LIMIT", "currentLimit": limit, "durationUntilReset": null });
    let expected = json!({ "overallCode": "OVER_LIMIT", "statuses": [over, { "code": "OK" }] });
    assert_eq!(answer, expected);
}

#[test]
fn health_is_known_under_two_names() {
    let server = tollgate::with_rules(RULES).start();
    let check = |name: &str| {
        let request = json!({ "service": name }).to_string();
        grpcurl(&server, &["-d", &request], &["grpc.health.v1.Health/Check"])
    };
    for name in ["", "ratelimit"] {
        let output = check(name);
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said, json!({ "status": "SERVING" }), "{name}");
    }
    for name in [SERVICE, "Ratelimit", "nothing"] {
        let output = check(name);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("Code: NotFound"), "{name}: {said}");
        assert!(!output.status.success());
    }
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
