//! Bodies of refusals: over gRPC, in the replies of `/json`, and as `ask` prints them. `envoy` has what clients get.

use serde_json::{Value, json};

use crate::support::{
    ask::*,
    finish,
    json::send as send_json,
    redis::Redis,
    tollgate::{self, Builder, program},
};

const RULES: &str = r#"
domain: d
refusal: { body: problem+json }
descriptors:
  - key: problem
    rate_limits: [{ name: 'of "one"', unit: year, requests_per_unit: 1 }]
  - key: text
    rate_limits: [1/year]
    refusal: { body: "{limit}\n{requests} of {period}", headers: { x-should-retry: "false" } }
  - key: none
    rate_limits: [1/year]
    refusal: { body: none }
  - key: shadow
    rate_limits: [0/year]
    shadow_mode: true
"#;

/// A value that would end any text it was put into.
const HOSTILE: &str = "\"}]\r\nx: y\r\n\r\n<script>\0{limit}";

/// The replies to two requests, the second of which is refused.
async fn replies(client: &mut Client, key: &str) -> [RateLimitResponse; 2] {
    let descriptors = [
        descriptor(&[("shadow", "x")]),
        descriptor(&[(key, HOSTILE)]),
    ];
    let request = request("d", descriptors.into());
    let first = send(client, request.clone()).await.unwrap();
    [first, send(client, request).await.unwrap()]
}

#[track_caller]
fn body(reply: &RateLimitResponse) -> (&str, &str) {
    let headers = &reply.response_headers_to_add;
    let mut types = headers.iter().filter(|header| header.key == "content-type");
    let content_type = types.next().map_or("", |header| &header.value);
    assert_eq!(types.next(), None);
    (content_type, std::str::from_utf8(&reply.raw_body).unwrap())
}

async fn check(server: Builder) -> RateLimitResponse {
    let (_server, mut client) = serve(server).await;
    let [first, refused] = replies(&mut client, "problem").await;
    assert_eq!((first.overall_code, body(&first)), (1, ("", "")));
    let (content_type, text) = body(&refused);
    assert_eq!(content_type, "application/problem+json");
    let problem: Value = serde_json::from_str(text).unwrap();
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], json!(["of \"one\""]));
    assert!(!text.contains("script"), "{text}");
    let [_, refused] = replies(&mut client, "none").await;
    assert_eq!((refused.overall_code, body(&refused)), (2, ("", "")));
    let [_, passed] = replies(&mut client, "unknown").await;
    assert_eq!((passed.overall_code, body(&passed)), (1, ("", "")));
    let [first, refused] = replies(&mut client, "text").await;
    assert_eq!((first.overall_code, body(&first)), (1, ("", "")));
    let expected = ("text/plain; charset=utf-8", "1/year\n1 of 31536000");
    assert_eq!(body(&refused), expected);
    refused
}

#[tokio::test]
async fn only_refusals_have_the_body_of_their_rule_and_other_headers_do_not_change_it() {
    check(tollgate::with_rules(RULES)).await;
    let server = tollgate::with_rules(RULES).env("TOLLGATE_RETRY_AFTER", "true");
    let refused = check(server.args(["--ratelimit-fields", "all"])).await;
    let headers = refused.response_headers_to_add.iter();
    let names: Vec<_> = headers.map(|header| &*header.key).collect();
    let expected = "Retry-After RateLimit-Policy RateLimit x-should-retry content-type";
    assert_eq!(names.join(" "), expected);
}

#[tokio::test]
async fn a_rule_that_denies_without_its_store_sends_its_body() {
    let mut redis = Redis::start();
    let rules = format!("{RULES}on_store_loss: deny\n");
    let (_server, mut client) = serve(tollgate::with_rules(&rules).redis(&redis)).await;
    redis.kill();
    let [_, refused] = replies(&mut client, "text").await;
    assert_eq!(refused.overall_code, 2);
    assert!(is_degraded(&refused));
    assert_eq!(body(&refused).0, "text/plain; charset=utf-8");
}

#[test]
fn json_and_ask_show_the_body() {
    let server = tollgate::with_rules(RULES).start();
    let body = br#"{"domain":"d","descriptors":[{"entries":[{"key":"text","value":"v"}]}]}"#;
    let reply = || send_json(server.http, "POST", "/json", body);
    assert_eq!(reply().json().get("rawBody"), None);
    let refused = reply();
    assert_eq!(refused.status, 429);
    // `1/year`, a line break, `1 of 31536000`.
    assert_eq!(refused.json()["rawBody"], "MS95ZWFyCjEgb2YgMzE1MzYwMDA=");
    let headers = json!([
        {"key": "x-should-retry", "value": "false"},
        {"key": "content-type", "value": "text/plain; charset=utf-8"},
    ]);
    assert_eq!(refused.json()["responseHeadersToAdd"], headers);
    let url = format!("http://{}", server.grpc);
    let ask = ["ask", "--server", &url, "--domain", "d", "-d", "text=v"];
    let output = finish(program().args(ask));
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = "\n  header x-should-retry: false\n  header content-type: text/plain; charset=utf-8\n  \
                    body: 1/year\\n1 of 31536000\n";
    assert!(text.ends_with(expected), "{text}");
}
