//! `tollgate explain`, offline and with a server: its account and the decision agree, and asking costs nothing.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
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
    cli::{files, run, run_in, url},
    papers,
    support::{
        ask::{self, ask, connect, descriptor, is_ok, request, send},
        eventually, free_port,
        http::get,
        json,
        redis::Redis,
        tollgate::{self, Builder},
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

/// The server's account of a request in JSON.
#[track_caller]
fn explain(debug: SocketAddr, request: &RateLimitRequest) -> Value {
    let Explained(reply) = Explained::of(debug, request);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// A request in proto3 JSON.
fn body(request: &RateLimitRequest) -> String {
    let present = |mut map: Value| {
        let fields = map.as_object_mut().unwrap();
        fields.retain(|_, value| !value.is_null());
        map
    };
    let descriptor = |descriptor: &RateLimitDescriptor| {
        let entries = descriptor.entries.iter().map(|entry| {
            let text = String::from_utf8_lossy;
            json!({ "key": text(&entry.key), "value": text(&entry.value) })
        });
        let limit = descriptor.limit.as_ref().map(|limit| {
            let (requests, multiplier) = (limit.requests_per_unit, limit.unit_multiplier);
            present(json!({ "requestsPerUnit": requests, "unit": limit.unit, "unitMultiplier": multiplier }))
        });
        present(json!({
            "entries": entries.collect::<Vec<_>>(), "isNegativeHits": descriptor.is_negative_hits,
            "hitsAddend": descriptor.hits_addend, "limit": limit,
        }))
    };
    let descriptors: Vec<_> = request.descriptors.iter().map(descriptor).collect();
    let (domain, hits) = (&request.domain, request.hits_addend);
    json!({ "domain": domain, "hitsAddend": hits, "descriptors": descriptors }).to_string()
}

type Decided = Result<RateLimitResponse, tonic::Status>;

/// Explains a request that is asked afterwards.
pub(crate) struct Explained(json::Reply);

impl Explained {
    pub(crate) fn of(debug: SocketAddr, request: &RateLimitRequest) -> Self {
        let body = body(request);
        Self(json::send(debug, "POST", "/explain", body.as_bytes()))
    }

    /// Compares with the decision.
    pub(crate) fn agrees(&self, reply: &Decided) -> Result<(), String> {
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
            let (code, limited) = (one["code"].as_str().unwrap(), one["result"] != "no_limit");
            found.push(format!("{code} limited: {limited}"));
        }
        let unlike = || format!("explained as {account:#}\n  decided as {expected:?}");
        (found == expected).then_some(()).ok_or_else(unlike)
    }
}

// --- a server ------------------------------------------------------------------------------------

/// Explains each request before it is sent, until all limits have refused.
#[tokio::test]
async fn an_explanation_agrees_with_the_decision_and_writes_nothing() {
    let redis = Redis::start();
    let shared = tollgate::with_rules(RULES).redis(&redis);
    let shared = shared.args(["--local-cache-bytes", "0"]);
    for server in [tollgate::with_rules(RULES), shared].map(Builder::start) {
        let of = |key| request("d", vec![descriptor(&[(key, "x")])]);
        for key in KEYS {
            let account = explain(server.debug, &of(key));
            assert_eq!(account["counters"], "known", "{account}");
        }
        assert_eq!(redis.keys(), [""; 0]);
        let mut client = connect(server.grpc).await;
        for (round, key) in (0..4_u64).flat_map(|round| KEYS.map(|key| (round, key))) {
            // The counters of these two take any number of hits.
            let is_open = ["few", "first"].contains(&key);
            let held = if is_open { round } else { round.min(2) };
            for _ in 0..2 {
                let limit = &explain(server.debug, &of(key))["descriptors"][0]["limits"][0];
                assert_eq!(limit["count"], held, "{key} {limit}");
                assert_eq!(limit["over"], round >= 2, "{key} {limit}");
                assert_eq!(limit["charged"], round < 2 || is_open, "{key} {limit}");
            }
            let explained = Explained::of(server.debug, &of(key));
            let reply = send(&mut client, of(key)).await;
            explained.agrees(&reply).unwrap();
        }
    }
}

#[test]
fn without_the_store_there_is_no_decision_but_a_path() {
    let redis = format!("redis://127.0.0.1:{}", free_port());
    let server = tollgate::with_rules(RULES).redis_by_default(&redis).start();
    let asked = request("d", vec![descriptor(&[("few", "x")])]);
    let account = explain(server.debug, &asked);
    assert!(account["code"].is_null(), "{account}");
    assert_eq!(account["counters"], "unknown");
    let error = account["error"].as_str().unwrap();
    assert!(error.contains("not reachable"), "{account}");
    let one = &account["descriptors"][0];
    assert_eq!(one["rule"]["path"], "d.few");
    let nothing = [&one["code"], &one["limits"][0]["charged"]];
    assert_eq!(nothing, [&Value::Null; 2]);
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
    for query in "domain= domain=d domain=d&descriptor=x descriptor=a=b x=%0a".split(' ') {
        let reply = get(debug, &format!("/explain?{query}"));
        let lines = reply.body.lines().count();
        assert_eq!((reply.status, lines), (400, 1), "{query}");
    }
    let plain = json::send_with(debug, "POST", "/explain", "", b"{}");
    assert_eq!(plain.status, 415);
    for (method, body, status) in [
        ("POST", "{", 400),
        ("POST", "{\"domain\":5}", 400),
        ("PUT", "", 405),
    ] {
        let reply = json::send(debug, method, "/explain", body.as_bytes());
        assert_eq!(reply.status, status, "{body}");
    }
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
    request("d", vec![ask::with_hits(&[(key, "x")], hits)])
}

/// Envoy sends no number of hits, unless it is told to.
#[tokio::test]
async fn without_a_number_of_hits_the_estimate_of_the_rule_counts() {
    let server = tollgate::with_rules(LEASES).start();
    let mut client = connect(server.grpc).await;
    let used = send(&mut client, with_hits("budget", 900)).await;
    assert!(is_ok(&used));
    let (debug, grpc) = (url(server.debug), url(server.grpc));
    let explained = |more: &str| {
        let (code, said) = run(&format!("explain --domain d -d budget=x {more}"));
        assert_eq!(code, Some(0), "{said}");
        said
    };
    let said = explained(&format!("--server {debug}"));
    assert!(said.starts_with("would be refused: "), "{said}");
    assert!(said.contains("budget=x (hits 200)\n"), "{said}");
    let said = explained(&format!("--server {debug} --hits 1"));
    assert!(said.starts_with("would pass: "), "{said}");
    let said = explained(&format!("--rules {}", server.rules().display()));
    assert!(said.contains("budget=x (hits 200)\n"), "{said}");
    for (query, code) in [("", "OVER_LIMIT"), ("&hits=100", "OK")] {
        let path = format!("/explain?domain=d&descriptor=budget=x{query}");
        let account: Value = serde_json::from_str(&get(server.debug, &path).body).unwrap();
        assert_eq!(account["code"], code, "{account}");
    }
    let asked = |more: &str| {
        run(&format!(
            "ask --server {grpc} --domain d -d budget=x {more}"
        ))
        .0
    };
    assert_eq!(asked(""), Some(3));
    assert_eq!(asked("--hits 1"), Some(0));
    let reply = ask(&mut client, "d", &[("budget", "x")]).await;
    assert!(!is_ok(&reply));
}

/// Requests free most slots before these leave by themselves.
#[tokio::test]
async fn a_slot_is_said_to_be_free_at_the_latest_when_it_leaves_by_itself() {
    let redis = Redis::start();
    let memory = tollgate::with_rules(LEASES);
    for builder in [memory, tollgate::with_rules(LEASES).redis(&redis)] {
        let server = builder.args(["--retry-after"]).start();
        let mut client = connect(server.grpc).await;
        for hits in [1, 2] {
            assert!(is_ok(&send(&mut client, with_hits("slots", hits)).await));
        }
        let (debug, grpc) = (url(server.debug), url(server.grpc));
        let of = "--domain d -d slots=x";
        let (_, said) = run(&format!("explain --server {debug} {of}"));
        let latest = "would pass at the latest in ";
        assert_eq!(said.matches(latest).count(), 2, "{said}");
        assert!(!said.contains("would pass at the latest in 1s"), "{said}");
        let (_, said) = run(&format!(
            "ask --server {grpc} --why --debug-server {debug} {of}"
        ));
        for expected in ["OVER_LIMIT, 0 of 3 in flight left", latest] {
            assert!(said.contains(expected), "{said}");
        }
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

#[tokio::test]
async fn hits_that_this_process_has_charged_in_advance_let_a_request_pass() {
    let redis = Redis::start();
    let builder = tollgate::with_rules(LEASES).redis(&redis);
    let server = builder.args(["--workers", "1"]).start();
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
    let counted = redis.number(&["GET", &key]);
    redis.cli(&["INCRBY", &key, &(20_000 - counted).to_string()]);
    let mut client = connect(server.grpc).await;
    for (hits, passes) in [(3, true), (20_000, false)] {
        let asked = with_hits("hot", hits);
        let explained = Explained::of(server.debug, &asked);
        let reply = send(&mut client, asked).await;
        explained.agrees(&reply).unwrap();
        assert_eq!(is_ok(&reply), passes);
    }
}

// --- the commands --------------------------------------------------------------------------------

#[tokio::test]
async fn ask_explains_the_decision_that_it_gets() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for _ in 0..2 {
        ask(&mut client, "d", &[("few", "x")]).await.unwrap();
    }
    let servers = format!(
        "--server {} --debug-server {}",
        url(server.grpc),
        url(server.debug)
    );
    let asked = |more: &str| run(&format!("ask {servers} --why --domain d -d few=x {more}")).1;
    let said = asked("");
    let decided = "OVER_LIMIT\n  few=x: OVER_LIMIT, 0 of 2 per year left";
    assert!(said.starts_with(decided), "{said}");
    for expected in [
        "\n\nexplained: would be refused: descriptor 1 is over the limit; would",
        "\n    count 2, 0 left, resets in ",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    let said: Value = serde_json::from_str(&asked("--json")).unwrap();
    assert_eq!(said["overallCode"], "OVER_LIMIT");
    let one = &said["explanation"]["descriptors"][0];
    assert_eq!(one["limits"][0]["count"], 3);
}

#[test]
fn the_account_of_a_server_is_that_of_its_files() {
    let server = tollgate::with_rules(RULES).start();
    let account = |from: String| -> Value {
        let (code, said) = run(&format!(
            "explain {from} --domain d -d few=x -d fwe=y --json"
        ));
        assert_eq!(code, Some(0), "{said}");
        serde_json::from_str(&said).unwrap()
    };
    let online = account(format!("--server {}", url(server.debug)));
    let offline = account(format!("--rules {}", server.rules().display()));
    assert_eq!(online["counters"], "known");
    assert_eq!(offline["counters"], "empty");
    for at in [0, 1] {
        let [online, offline] = [&online, &offline].map(|account| &account["descriptors"][at]);
        assert_eq!(online["path"], offline["path"]);
        assert_eq!(online["rule"], offline["rule"]);
        let counters = [online, offline].map(|one| &one["limits"][0]["counter"]);
        assert_eq!(counters[0], counters[1]);
    }
    assert_eq!(online["descriptors"][1]["nearest"]["path"], "d.few");
}

#[test]
fn without_an_explanation_the_reason_is_given() {
    let folder = files(&[("bad.yaml", "domain: d\nnonsense: 1\n")]);
    let server = tollgate::with_rules(RULES).start();
    let explain = |from: &str| run_in(folder.path(), &format!("explain {from} --domain d -d a=b"));
    let nowhere = format!("--server http://127.0.0.1:{}", free_port());
    let health = format!("--server {}", url(server.http));
    let answered = "is this the debug port of a tollgate? It answered 404";
    for (from, expected) in [
        ("--rules bad.yaml", "bad.yaml:2:1: "),
        ("--rules missing", "missing: "),
        (&nowhere, "cannot ask http://127.0.0.1:"),
        (&health, answered),
    ] {
        let (code, said, errors) = explain(from);
        assert_eq!((code, said.as_str()), (Some(1), ""), "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
    assert_eq!(explain("--rules x --server y").0, Some(2));
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
        let args = command.trim_start_matches("$ ");
        let line = format!("explain --rules shop.yaml {args}");
        let (code, said, errors) = run_in(folder.path(), &line);
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
