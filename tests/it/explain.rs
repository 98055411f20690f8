//! `tollgate explain`, offline and with a server: its account and the decision agree, and asking costs nothing.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use ::tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor,
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::{
    papers,
    support::{
        ask::{ask, connect, descriptor, is_ok, request, send},
        eventually, finish, free_port,
        http::get,
        json,
        redis::Redis,
        tollgate::{self, Tollgate, program},
    },
};

const RULES: &str = "
domain: d
descriptors:
  - key: few
    rate_limits: [{ unit: year, requests_per_unit: 2 }, { unit: year, unit_multiplier: 3, requests_per_unit: 100 }]
  - key: log
    rate_limit: { unit: year, requests_per_unit: 2, algorithm: sliding_log }
  - key: sliding
    rate_limit: { unit: year, requests_per_unit: 2, algorithm: sliding_window }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 1, algorithm: token_bucket, burst: 2 }
  - key: first
    rate_limit: { unit: year, requests_per_unit: 2, window: first_hit }
  - key: strict
    count: admitted
    rate_limit: { unit: year, requests_per_unit: 2 }
";

/// Keys of [`RULES`], one of each algorithm; each lets two hits pass.
const KEYS: [&str; 6] = ["few", "log", "sliding", "bucket", "first", "strict"];

/// Runs `explain` with these arguments; returns its exit code, its output and its errors.
#[track_caller]
fn run(folder: &TempDir, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = program();
    command.current_dir(folder.path()).arg("explain").args(args);
    let Output {
        status,
        stdout,
        stderr,
    } = finish(&mut command);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// The server's account of a request in JSON.
#[track_caller]
fn explain(debug: SocketAddr, request: &RateLimitRequest) -> Value {
    let reply = json::send(debug, "POST", "/explain", body(request).as_bytes());
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// A request in proto3 JSON.
fn body(request: &RateLimitRequest) -> String {
    let descriptor = |descriptor: &RateLimitDescriptor| {
        let entries = descriptor.entries.iter().map(|entry| {
            let text = String::from_utf8_lossy;
            json!({ "key": text(&entry.key), "value": text(&entry.value) })
        });
        let mut fields = json!({
            "entries": entries.collect::<Vec<_>>(),
            "isNegativeHits": descriptor.is_negative_hits,
        });
        if let Some(hits) = descriptor.hits_addend {
            fields["hitsAddend"] = hits.into();
        }
        if let Some(limit) = &descriptor.limit {
            fields["limit"] = json!({
                "requestsPerUnit": limit.requests_per_unit,
                "unit": limit.unit,
            });
            if let Some(multiplier) = limit.unit_multiplier {
                fields["limit"]["unitMultiplier"] = multiplier.into();
            }
        }
        fields
    };
    let descriptors = request.descriptors.iter().map(descriptor);
    json!({
        "domain": request.domain,
        "hitsAddend": request.hits_addend,
        "descriptors": descriptors.collect::<Vec<_>>(),
    })
    .to_string()
}

/// Explains a request that is asked afterwards.
pub(crate) struct Explained(json::Reply);

impl Explained {
    pub(crate) fn of(debug: SocketAddr, request: &RateLimitRequest) -> Self {
        Self(json::send(
            debug,
            "POST",
            "/explain",
            body(request).as_bytes(),
        ))
    }

    /// Compares with the decision.
    pub(crate) fn agrees(
        &self,
        reply: &Result<RateLimitResponse, tonic::Status>,
    ) -> Result<(), String> {
        let Ok(reply) = reply else {
            return match self.0.status {
                400 => Ok(()),
                _ => Err(format!("explained as {:?}, and refused", self.0)),
            };
        };
        let account = self.0.json();
        let seen = |code: i32| if code == 2 { "OVER_LIMIT" } else { "OK" };
        let mut expected = vec![seen(reply.overall_code).to_owned()];
        let mut found = vec![account["code"].as_str().unwrap_or("none").to_owned()];
        for status in &reply.statuses {
            let limited = status.current_limit.is_some();
            expected.push(format!("{} limited: {limited}", seen(status.code)));
        }
        for one in account["descriptors"].as_array().unwrap() {
            let limited = one["result"] != "no_limit";
            found.push(format!(
                "{} limited: {limited}",
                one["code"].as_str().unwrap()
            ));
        }
        if found == expected {
            return Ok(());
        }
        Err(format!(
            "explained as {account:#}\n  decided as {expected:?}"
        ))
    }
}

// --- a server ------------------------------------------------------------------------------------

/// Explains each request before it is sent, until all limits have refused.
async fn check_agreement(server: &Tollgate) {
    let mut client = connect(server.grpc).await;
    for round in 0..4_u64 {
        for key in KEYS {
            let request = request("d", vec![descriptor(&[(key, "x")])]);
            for _ in 0..2 {
                let limit = &explain(server.debug, &request)["descriptors"][0]["limits"][0];
                assert_eq!(limit["count"], round.min(held(key)), "{key} {limit}");
                assert_eq!(limit["over"], round >= 2, "{key} {limit}");
                let charged = round < 2 || ["few", "first"].contains(&key);
                assert_eq!(limit["charged"], charged, "{key} {limit}");
            }
            let explained = Explained::of(server.debug, &request);
            let reply = send(&mut client, request).await;
            explained.agrees(&reply).unwrap();
        }
    }
}

/// The most hits that a counter of this key takes.
fn held(key: &str) -> u64 {
    match key {
        "few" | "first" => u64::MAX,
        _ => 2,
    }
}

#[tokio::test]
async fn an_explanation_in_memory_agrees_with_the_decision() {
    let server = tollgate::with_rules(RULES).start();
    check_agreement(&server).await;
}

#[tokio::test]
async fn an_explanation_in_redis_agrees_with_the_decision_and_writes_nothing() {
    let redis = Redis::start();
    let server = tollgate::with_rules(RULES)
        .args(["--local-cache-bytes", "0"])
        .redis(&redis)
        .start();
    for key in KEYS {
        let account = explain(server.debug, &request("d", vec![descriptor(&[(key, "x")])]));
        assert_eq!(account["counters"], "known", "{account}");
    }
    assert_eq!(redis.keys(), [""; 0]);
    check_agreement(&server).await;
}

#[test]
fn without_the_store_there_is_no_decision_but_a_path() {
    let redis = format!("redis://127.0.0.1:{}", free_port());
    let server = tollgate::with_rules(RULES)
        .args(["--redis-url", &redis])
        .start();
    let account = explain(
        server.debug,
        &request("d", vec![descriptor(&[("few", "x")])]),
    );
    assert_eq!(
        (&account["code"], &account["counters"]),
        (&Value::Null, &"unknown".into())
    );
    assert!(
        account["error"].as_str().unwrap().contains("not reachable"),
        "{account}"
    );
    let one = &account["descriptors"][0];
    assert_eq!(one["rule"]["path"], "d.few");
    assert_eq!(
        (&one["code"], &one["limits"][0]["charged"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn a_question_is_asked_by_a_query_or_by_json() {
    let server = tollgate::with_rules(RULES).start();
    let debug = server.debug;
    let reply = get(debug, "/explain?domain=d&descriptor=few=a%2Bb&hits=3");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    let account: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(account["code"], "OVER_LIMIT");
    assert_eq!(account["descriptors"][0]["entries"][0]["value"], "a+b");
    assert!(get(debug, "/explain").body.contains("/explain?domain=D"));
    for query in [
        "domain=",
        "domain=d",
        "domain=d&descriptor=x",
        "descriptor=a=b",
        "x=%0a",
    ] {
        let reply = get(debug, &format!("/explain?{query}"));
        assert_eq!(
            (reply.status, reply.body.lines().count()),
            (400, 1),
            "{query}"
        );
    }
    for (headers, body, status) in [
        ("", "{}", 415),
        ("content-type: application/json\r\n", "{", 400),
        ("content-type: application/json\r\n", "{\"domain\":5}", 400),
    ] {
        let reply = json::send_with(debug, "POST", "/explain", headers, body.as_bytes());
        assert_eq!(reply.status, status, "{body}");
    }
    assert_eq!(json::send(debug, "PUT", "/explain", b"").status, 405);
}

/// Rules whose requests hold something until their end.
const LEASES: &str = "
domain: d
descriptors:
  - key: budget
    reserve: { estimate: 200 }
    rate_limit: { unit: year, requests_per_unit: 1000 }
  - key: slots
    rate_limits: [{ algorithm: concurrency, requests_per_unit: 3, ttl: 1h }]
  - key: hot
    accuracy: exact-leased
    rate_limit: { unit: hour, requests_per_unit: 20000 }
";

/// A request of one descriptor with this number of hits.
fn with_hits(key: &str, hits: u64) -> RateLimitRequest {
    let mut one = descriptor(&[(key, "x")]);
    one.hits_addend = Some(hits);
    request("d", vec![one])
}

/// Envoy sends no number of hits, unless it is told to.
#[tokio::test]
async fn without_a_number_of_hits_the_estimate_of_the_rule_counts() {
    let server = tollgate::with_rules(LEASES).start();
    let mut client = connect(server.grpc).await;
    let used = send(&mut client, with_hits("budget", 900)).await;
    assert!(is_ok(&used));
    let folder = TempDir::new().unwrap();
    let (debug, grpc) = (
        format!("http://{}", server.debug),
        format!("http://{}", server.grpc),
    );
    let of = ["--domain", "d", "-d", "budget=x"];
    let explained = |more: &[&str]| {
        let (code, said, errors) = run(&folder, &[&of[..], more].concat());
        assert_eq!(code, Some(0), "{errors}");
        said
    };
    let said = explained(&["--server", &debug]);
    assert!(said.starts_with("would be refused: "), "{said}");
    assert!(said.contains("budget=x (hits 200)\n"), "{said}");
    let said = explained(&["--server", &debug, "--hits", "1"]);
    assert!(said.starts_with("would pass: "), "{said}");
    let rules = server.rules().display().to_string();
    let said = explained(&["--rules", &rules]);
    assert!(said.contains("budget=x (hits 200)\n"), "{said}");
    for (query, code) in [("", "OVER_LIMIT"), ("&hits=100", "OK")] {
        let path = format!("/explain?domain=d&descriptor=budget=x{query}");
        let account: Value = serde_json::from_str(&get(server.debug, &path).body).unwrap();
        assert_eq!(account["code"], code, "{account}");
    }
    let asked = |more: &[&str]| {
        let what = [&["ask", "--server", &grpc], &of[..], more].concat();
        finish(program().args(what)).status.code()
    };
    assert_eq!(asked(&[]), Some(3));
    assert_eq!(asked(&["--hits", "1"]), Some(0));
    let reply = ask(&mut client, "d", &[("budget", "x")]).await;
    assert!(!is_ok(&reply));
}

/// Requests free most slots before these leave by themselves.
#[tokio::test]
async fn a_slot_is_said_to_be_free_at_the_latest_when_it_leaves_by_itself() {
    let redis = Redis::start();
    let started = [
        tollgate::with_rules(LEASES),
        tollgate::with_rules(LEASES).redis(&redis),
    ];
    for builder in started {
        let server = builder.args(["--retry-after"]).start();
        let mut client = connect(server.grpc).await;
        for hits in [1, 2] {
            assert!(is_ok(&send(&mut client, with_hits("slots", hits)).await));
        }
        let folder = TempDir::new().unwrap();
        let (debug, grpc) = (
            format!("http://{}", server.debug),
            format!("http://{}", server.grpc),
        );
        let of = ["--domain", "d", "-d", "slots=x"];
        let (_, said, errors) = run(&folder, &[&["--server", &debug], &of[..]].concat());
        assert_eq!(
            said.matches("would pass at the latest in ").count(),
            2,
            "{said}{errors}"
        );
        assert!(!said.contains("would pass at the latest in 1s"), "{said}");
        let why = ["--why", "--debug-server", &debug];
        let asking = ["ask", "--server", &grpc];
        let output = finish(program().args(asking).args(why).args(of));
        let said = String::from_utf8(output.stdout).unwrap();
        let expected = "OVER_LIMIT, 0 of 3 in flight left";
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("would pass at the latest in "), "{said}");
        for hits in [1, 3] {
            let account = explain(server.debug, &with_hits("slots", hits));
            let reply = send(&mut client, with_hits("slots", hits)).await.unwrap();
            let headers = &reply.response_headers_to_add;
            let retry = headers.iter().find(|header| header.key == "Retry-After");
            let retry: u64 = retry.unwrap().value.parse().unwrap();
            assert!((1_800..=3_600).contains(&retry), "{retry}");
            let explained = account["retrySecs"].as_u64().unwrap();
            assert!(retry <= explained && explained <= 3_600, "{account}");
        }
    }
}

/// A process that has charged hits in advance admits requests however full the counter is.
#[tokio::test]
async fn hits_that_this_process_has_charged_in_advance_let_a_request_pass() {
    let redis = Redis::start();
    let server = tollgate::with_rules(LEASES)
        .args(["--workers", "1"])
        .redis(&redis)
        .start();
    let mut clients = JoinSet::new();
    let has_enough = Arc::new(AtomicBool::new(false));
    for _ in 0..8 {
        let (grpc, has_enough) = (server.grpc, has_enough.clone());
        clients.spawn(async move {
            let mut client = connect(grpc).await;
            while !has_enough.load(SeqCst) {
                let _ = ask(&mut client, "d", &[("hot", "x")]).await;
            }
        });
    }
    eventually("enough hits are free", async || {
        server.metric("tollgate_slice_free_hits") >= 12
    })
    .await;
    has_enough.store(true, SeqCst);
    clients.join_all().await;
    // Others use up the rest.
    let key = redis.keys().pop().unwrap();
    let counted: u64 = redis.cli(&["GET", &key]).trim().parse().unwrap();
    redis.cli(&["INCRBY", &key, &(20_000 - counted).to_string()]);
    let asked = with_hits("hot", 3);
    let explained = Explained::of(server.debug, &asked);
    let mut client = connect(server.grpc).await;
    let reply = send(&mut client, asked).await;
    explained.agrees(&reply).unwrap();
    assert!(is_ok(&reply));
    let all = with_hits("hot", 20_000);
    let explained = Explained::of(server.debug, &all);
    let reply = send(&mut client, all).await;
    explained.agrees(&reply).unwrap();
    assert!(!is_ok(&reply));
}

// --- the commands --------------------------------------------------------------------------------

#[tokio::test]
async fn ask_explains_the_decision_that_it_gets() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for _ in 0..2 {
        ask(&mut client, "d", &[("few", "x")]).await.unwrap();
    }
    let (grpc, debug) = (
        format!("http://{}", server.grpc),
        format!("http://{}", server.debug),
    );
    let asked = |more: &[&str]| {
        let what = ["ask", "--server", &grpc, "--debug-server", &debug, "--why"];
        let what = [&what[..], &["--domain", "d", "-d", "few=x"], more].concat();
        String::from_utf8(finish(program().args(what)).stdout).unwrap()
    };
    let said = asked(&[]);
    assert!(
        said.starts_with("OVER_LIMIT\n  few=x: OVER_LIMIT, 0 of 2 per year left"),
        "{said}"
    );
    assert!(
        said.contains("\n\nexplained: would be refused: descriptor 1 is over the limit; would"),
        "{said}"
    );
    assert!(said.contains("\n    count 2, 0 left, resets in "), "{said}");
    let said: Value = serde_json::from_str(&asked(&["--json"])).unwrap();
    assert_eq!(said["overallCode"], "OVER_LIMIT");
    assert_eq!(
        said["explanation"]["descriptors"][0]["limits"][0]["count"],
        3
    );
}

#[test]
fn the_account_of_a_server_is_that_of_its_files() {
    let server = tollgate::with_rules(RULES).start();
    let folder = TempDir::new().unwrap();
    let url = format!("http://{}", server.debug);
    let rules = server.rules().display().to_string();
    let what = ["--domain", "d", "-d", "few=x", "-d", "fwe=y", "--json"];
    let account = |from: [&str; 2]| -> Value {
        let (code, said, errors) = run(&folder, &[&from[..], &what].concat());
        assert_eq!(code, Some(0), "{errors}");
        serde_json::from_str(&said).unwrap()
    };
    let (online, offline) = (account(["--server", &url]), account(["--rules", &rules]));
    assert_eq!(online["counters"], "known");
    assert_eq!(offline["counters"], "empty");
    for at in [0, 1] {
        let [online, offline] = [&online, &offline].map(|account| &account["descriptors"][at]);
        assert_eq!(online["path"], offline["path"]);
        assert_eq!(online["rule"], offline["rule"]);
        assert_eq!(
            online["limits"][0]["counter"],
            offline["limits"][0]["counter"]
        );
    }
    assert_eq!(online["descriptors"][1]["nearest"]["path"], "d.few");
}

#[test]
fn without_an_explanation_the_reason_is_given() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("bad.yaml"), "domain: d\nnonsense: 1\n").unwrap();
    let server = tollgate::with_rules(RULES).start();
    let health = format!("http://{}", server.http);
    let none = format!("http://127.0.0.1:{}", free_port());
    for (from, expected) in [
        (["--rules", "bad.yaml"], "bad.yaml:2:1: "),
        (["--rules", "missing"], "missing: "),
        (["--server", &none], "cannot ask http://127.0.0.1:"),
        (
            ["--server", &health],
            "is this the debug port of a tollgate? It answered 404",
        ),
    ] {
        let (code, said, errors) = run(
            &folder,
            &[&from[..], &["--domain", "d", "-d", "a=b"]].concat(),
        );
        assert_eq!((code, said.as_str()), (Some(1), ""), "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
    let both = [
        "--rules", "x", "--server", "y", "--domain", "d", "-d", "a=b",
    ];
    assert_eq!(run(&folder, &both).0, Some(2));
}

/// Runs each command of tests/it/explain/examples.txt on the rules above it. UPDATE_GOLDEN=1 writes what they print.
#[test]
fn each_cause_of_no_limit_and_each_trap_has_an_example() {
    const PAGE: &str = "tests/it/explain/examples.txt";
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let folder = TempDir::new().unwrap();
    let mut all = String::new();
    for example in page.split("=== ").skip(1) {
        let (heading, text) = example.split_once('\n').unwrap();
        if heading == "rules" {
            fs::write(folder.path().join("shop.yaml"), text).unwrap();
            all += &format!("=== rules\n{text}");
            continue;
        }
        let (command, _) = text.split_once('\n').unwrap();
        let args = command.trim_start_matches("$ ").split(' ');
        let args: Vec<_> = ["--rules", "shop.yaml"].into_iter().chain(args).collect();
        let (code, said, errors) = run(&folder, &args);
        assert_eq!(code, Some(0), "{errors}");
        all += &format!("=== {heading}\n{command}\n{said}");
    }
    for expected in [
        "no rules are for this domain",
        "the domain has no rules",
        "is no key here",
        "no rule is for this value",
        "the rules end at entry 1",
        "the limits are deeper",
        "the rule has no limit",
        "the rule is `unlimited`",
        "replaces its limits",
        "matching never goes back",
        "the first wildcard wins",
        "a wildcard wins over a bare key",
        "an exact value wins",
        "joined text",
        "strict matching keeps them apart",
        "in shadow mode",
        "all quotas are over",
    ] {
        assert!(all.contains(expected), "no example of: {expected}");
    }
    papers::check(PAGE, &all);
}
