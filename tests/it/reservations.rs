//! `docs/token-budgets.md`: budgets that concurrent requests cannot overrun, through a real Envoy and directly.

use std::{
    ffi::OsStr,
    fs,
    net::SocketAddr,
    ops::Range,
    path::Path,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost_types::value::Kind;
use serde_yaml::Value as Yaml;
use tokio::{task::JoinSet, time::sleep};

use crate::support::{
    Random,
    ask::*,
    cluster::Cluster,
    demo::Demo,
    envoy::Envoy,
    eventually,
    http::post_json_with,
    json,
    model::Model,
    redis::{Monitor, Redis},
    tollgate::{self, Builder, Tollgate},
    wait_until,
};

const COST: u64 = 200;

fn rules(estimate: u64) -> String {
    format!(
        "
domain: llm
descriptors:
  - key: tenant
    reserve: {{ estimate: {estimate} }}
    rate_limits: [1000/year]
"
    )
}

/// The page, or the whole Envoy beside it.
fn document(name: &str) -> String {
    fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("docs")
            .join(name),
    )
    .unwrap()
}

/// The blocks of the page in this language.
fn blocks() -> Vec<String> {
    let page = document("token-budgets.md");
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap().to_owned());
    blocks.collect()
}

/// The page's Envoy.
fn envoy(grpc: SocketAddr, model: &Model) -> Envoy {
    // A busy machine must not look like a service that is away.
    let page = document("token-budgets.yaml").replace("timeout: 0.1s", "timeout: 10s");
    Envoy::of_page(&page, grpc, model.address)
}

fn envoy_with(server: &Tollgate, model: &Model, change: impl FnOnce(&mut Yaml)) -> Envoy {
    let mut page: Yaml = serde_yaml::from_str(&document("token-budgets.yaml")).unwrap();
    let chain = &mut page["static_resources"]["listeners"][0]["filter_chains"][0];
    change(&mut chain["filters"][0]["typed_config"]);
    let page = serde_yaml::to_string(&page).unwrap();
    Envoy::of_page(&page, server.grpc, model.address)
}

fn open_model() -> Model {
    let model = Model::start(COST);
    model.open();
    model
}

/// The bodies of a request for a whole answer, and for a stream of events.
const BODIES: [&str; 2] = [
    r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#,
    r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}"#,
];

fn ask(front: SocketAddr, tenant: &str, body: &str) -> u16 {
    let headers = [("x-tenant", tenant)];
    let reply = post_json_with(front, "/v1/chat/completions", &headers, body);
    reply.unwrap().status
}

/// How many of 20 requests at once pass, and the tokens that they and then 10 more spend.
#[track_caller]
fn spent(server: Builder, tenant: &'static str, body: &'static str) -> (usize, u64) {
    let server = server.start();
    let model = Model::start(COST);
    let envoy = envoy(server.grpc, &model);
    let front = envoy.listener("front");
    let first = (0..20).map(|_| thread::spawn(move || ask(front, tenant, body)));
    let first: Vec<_> = first.collect();
    // None has an answer before all are decided.
    wait_until("all are refused or have arrived", || {
        let refused = first.iter().filter(|ask| ask.is_finished()).count();
        refused + model.arrived() == 20
    });
    let passed = model.arrived();
    model.open();
    let statuses: Vec<_> = first.into_iter().map(|ask| ask.join().unwrap()).collect();
    let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!((count(200), count(429)), (passed, 20 - passed));
    await_settled(&server, &model);
    for _ in 0..10 {
        ask(front, tenant, body);
        await_settled(&server, &model);
    }
    (passed, model.spent())
}

fn reservations(server: &Tollgate, name: &str) -> u64 {
    stat(
        server,
        &format!("tollgate.reservations_total.llm.tenant.{name}"),
    )
    .unwrap_or(0)
}

#[track_caller]
fn await_settled(server: &Tollgate, model: &Model) {
    let answers = model.spent() / COST;
    wait_until("all reservations are settled", || {
        ["made", "settled"].map(|name| reservations(server, name)) == [answers, answers]
    });
}

/// The table of the page: an estimate, a tenant, one of the bodies, how many pass at once, and what all spend.
const TABLE: [(u64, &str, usize, (usize, u64)); 4] = [
    (200, "exact", 0, (5, 1000)),
    (200, "streamed", 1, (5, 1000)),
    (100, "half", 0, (10, 2000)),
    (400, "double", 1, (2, 800)),
];

#[track_caller]
fn check(rows: Range<usize>, server: impl Fn(&str) -> Builder) {
    for (estimate, tenant, body, expected) in &TABLE[rows] {
        let server = server(&rules(*estimate));
        assert_eq!(spent(server, tenant, BODIES[*body]), *expected, "{tenant}");
    }
}

#[test]
fn a_budget_in_memory_is_not_overrun() {
    check(0..4, tollgate::with_rules);
}

#[test]
fn a_budget_in_redis_is_not_overrun() {
    let redis = Redis::start();
    check(1..4, |rules| tollgate::with_rules(rules).redis(&redis));
}

#[test]
fn a_budget_in_a_cluster_is_not_overrun() {
    let cluster = Cluster::start(0);
    check(0..4, |rules| {
        tollgate::with_rules(rules).redis_at(&cluster.url(), "10s")
    });
}

#[test]
fn the_page_shows_the_entries_of_its_envoy() {
    let unindented = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    assert!(unindented(&document("token-budgets.yaml")).contains(&unindented(&blocks()[1])));
}

#[test]
fn the_cost_is_found_in_the_body_by_envoys_own_filter() {
    let server = tollgate::with_rules(&rules(400)).start();
    let model = open_model();
    let [_, _, filter] = &blocks()[..] else {
        panic!("the page has other blocks");
    };
    let filter: Yaml = serde_yaml::from_str(filter).unwrap();
    let envoy = envoy_with(&server, &model, |manager| {
        // In the place of the one that reads the header.
        manager["http_filters"][0] = filter["http_filters"][0].clone();
        let route = &mut manager["route_config"]["virtual_hosts"][0]["routes"][0];
        let route = &mut route["typed_per_filter_config"];
        let own = filter["typed_per_filter_config"].as_mapping().unwrap();
        route.as_mapping_mut().unwrap().extend(own.clone());
        for entry in 1..=2_usize {
            let entries = &mut route["envoy.filters.http.ratelimit"]["rate_limits"];
            entries[entry]["hits_addend"] = filter["hits_addend"].clone();
        }
    });
    for (tenant, body) in ["whole", "streamed"].into_iter().zip(BODIES) {
        assert_eq!(ask(envoy.listener("front"), tenant, body), 200);
        wait_until("the cost is counted", || held(&server, tenant) == COST);
    }
    assert_eq!(reservations(&server, "settled"), 2);
}

/// Entries that end a reservation by its number of hits.
const WITHOUT_TOKEN: &str = r#"
- actions: [request_headers: { header_name: x-tenant, descriptor_key: tenant }]
- actions: [request_headers: { header_name: x-tenant, descriptor_key: tenant }]
  hits_addend: { format: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:reserved)%", is_negative_hits: true }
  apply_on_stream_done: true
- actions:
    - request_headers: { header_name: x-tenant, descriptor_key: tenant }
    - generic_key: { descriptor_key: tollgate.unreserved, descriptor_value: "1" }
  hits_addend: { format: "%DYNAMIC_METADATA(tollgate:tokens)%" }
  apply_on_stream_done: true
"#;

#[test]
fn a_reservation_can_end_without_its_token() {
    let server = tollgate::with_rules(&rules(400)).start();
    let model = open_model();
    let envoy = envoy_with(&server, &model, |manager| {
        let route = &mut manager["route_config"]["virtual_hosts"][0]["routes"][0];
        let filter = &mut route["typed_per_filter_config"]["envoy.filters.http.ratelimit"];
        filter["rate_limits"] = serde_yaml::from_str(WITHOUT_TOKEN).unwrap();
    });
    for answers in 1..=4 {
        assert_eq!(ask(envoy.listener("front"), "a", BODIES[0]), 200);
        let cost = answers * COST;
        wait_until("the cost is counted", || held(&server, "a") == cost);
    }
    assert_eq!(ask(envoy.listener("front"), "a", BODIES[0]), 429);
}

/// Envoy lets the request pass that tollgate answers too late, and then knows of no reservation.
#[test]
fn the_cost_of_a_request_that_passed_without_a_decision_is_counted() {
    let redis = Redis::start();
    let server = tollgate::with_rules(&rules(200)).redis(&redis).start();
    let model = open_model();
    let page = document("token-budgets.yaml")
        .replace("timeout: 0.1s", "timeout: 0.001s")
        .replace("failure_mode_deny: true", "failure_mode_deny: false");
    let envoy = Envoy::of_page(&page, server.grpc, model.address);
    redis.freeze();
    assert_eq!(ask(envoy.listener("front"), "late", BODIES[0]), 200);
    redis.thaw();
    // The hits that were reserved in vain are given back, and the cost comes without a reservation.
    wait_until("the cost is counted", || held(&server, "late") == COST);
    let counted = ["unreserved", "made"].map(|name| reservations(&server, name));
    assert_eq!(counted, [1, 0]);
}

fn held(server: &Tollgate, tenant: &str) -> u64 {
    counters(server, "get", "llm", ("tenant", tenant)).expect("counters")[0]
}

#[test]
fn a_failed_answer_costs_what_was_reserved_or_nothing() {
    for (missing, held_after, event) in [("estimate", 200, "kept"), ("zero", 0, "released")] {
        let estimate = format!("estimate: 200, missing: {missing}");
        let text = rules(200).replace("estimate: 200", &estimate);
        let server = tollgate::with_rules(&text).start();
        let model = open_model();
        let envoy = envoy(server.grpc, &model);
        let front = envoy.listener("front");
        let reply = post_json_with(front, "/fails", &[("x-tenant", "a")], "{}");
        assert_eq!(reply.unwrap().status, 500);
        wait_until("it is released", || held(&server, "a") == held_after);
        wait_until("it is counted", || reservations(&server, event) == 1);
    }
}

async fn ask_for(client: &mut Client, parts: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    send(client, request("llm", parts)).await.unwrap()
}

fn of_tenant(tenant: &str) -> RateLimitDescriptor {
    descriptor(&[("tenant", tenant)])
}

async fn reserve(client: &mut Client, tenant: &str) -> Option<String> {
    token(&ask_for(client, vec![of_tenant(tenant)]).await)
}

fn reserved(reply: &RateLimitResponse) -> Option<f64> {
    let metadata = reply.dynamic_metadata.as_ref()?;
    match metadata.fields.get("reserved")?.kind.as_ref()? {
        Kind::NumberValue(hits) => Some(*hits),
        other => panic!("{other:?}"),
    }
}

async fn settle(client: &mut Client, tenant: &str, token: &str, cost: u64) {
    let entries = [("tenant", tenant), ("tollgate.reservation", token)];
    let reply = ask_for(client, vec![with_hits(&entries, cost)]).await;
    assert!(is_ok(&Ok(reply)));
}

/// Charges a cost of which tollgate knew nothing.
async fn charge(client: &mut Client, tenant: &str, cost: u64) {
    let entries = [("tenant", tenant), ("tollgate.unreserved", "1")];
    ask_for(client, vec![with_hits(&entries, cost)]).await;
}

#[tokio::test]
async fn only_a_reply_to_hits_that_were_all_charged_names_a_reservation() {
    let text = "
domain: llm
descriptors:
  - { key: tenant, reserve: { estimate: 200 }, rate_limits: [1000/year] }
  - { key: model, reserve: { estimate: 50 }, rate_limits: [1000/year] }
  - { key: plain, rate_limits: [1/year] }
";
    for more in [&[][..], &["--dynamic-metadata"], &["--retry-after"]] {
        let server = tollgate::with_rules(text).args(more.iter().copied());
        let (server, mut client) = serve(server).await;
        let (tenant, model) = ([("tenant", "a")], [("model", "m")]);
        let plain = descriptor(&[("plain", "x")]);
        let both = vec![descriptor(&tenant), descriptor(&model)];
        let seven = vec![with_hits(&tenant, 7), with_hits(&model, 7)];
        // The request, its code, whether a token comes back, and how many are said to be reserved.
        for (sent, code, has_token, hits) in [
            (vec![descriptor(&tenant)], 1, true, Some(200.0)),
            (both, 1, true, None),
            (seven, 1, true, Some(7.0)),
            (vec![with_hits(&tenant, 0)], 1, false, None),
            (vec![plain.clone()], 1, false, None),
            // A neighbour refuses the request, and then the rule itself does.
            (vec![descriptor(&tenant), plain], 2, false, None),
            (vec![with_hits(&tenant, 900)], 2, false, None),
        ] {
            let reply = ask_for(&mut client, sent).await;
            let is_reserved = (reply.overall_code, token(&reply).is_some());
            assert_eq!(is_reserved, (code, has_token), "{more:?}");
            assert_eq!(reserved(&reply), hits, "{more:?}");
        }
        // Through HTTP the reply is the same.
        let asked =
            r#"{"domain":"llm","descriptors":[{"entries":[{"key":"tenant","value":"json"}]}]}"#;
        let reply = json::send(server.http, "POST", "/json", asked.as_bytes());
        assert!(reply.body.contains(r#""reserved":200"#), "{}", reply.body);
    }
}

#[tokio::test]
async fn a_token_outlives_tollgate_if_its_counters_do() {
    let redis = Redis::start();
    let text = rules(200);
    for (with_redis, held_after, known) in [(true, 30, [1, 0]), (false, 230, [0, 1])] {
        let start = || match (tollgate::with_rules(&text), with_redis) {
            (server, true) => server.redis(&redis),
            (server, false) => server,
        };
        let (first, mut client) = serve(start()).await;
        let token = reserve(&mut client, "a").await.unwrap();
        drop(first);
        let (second, mut client) = serve(start()).await;
        if !with_redis {
            reserve(&mut client, "a").await.unwrap();
        }
        settle(&mut client, "a", &token, 30).await;
        assert_eq!(held(&second, "a"), held_after);
        let events = ["settled", "unknown"].map(|name| reservations(&second, name));
        assert_eq!(events, known);
    }
}

#[tokio::test]
async fn a_settlement_has_one_command_and_a_reservation_one_step() {
    let redis = Redis::start();
    let (_server, mut client) = serve(tollgate::with_rules(&rules(200)).redis(&redis)).await;
    reserve(&mut client, "first").await.unwrap();
    let sent = |monitor: &Monitor<'_>, command: &str| {
        let commands = monitor.commands();
        let own = commands.iter().filter(|own| own.contains("tenant"));
        own.filter(|own| own.starts_with(command)).count()
    };
    // The commands of a script are listed as well.
    let monitor = redis.monitor();
    let token = reserve(&mut client, "a").await.unwrap();
    assert_eq!(sent(&monitor, "\"EVALSHA\""), 1);
    let monitor = redis.monitor();
    settle(&mut client, "a", &token, 300).await;
    let sent = ["\"EVALSHA\"", "\"INCRBY\""].map(|command| sent(&monitor, command));
    assert_eq!(sent, [0, 1]);
}

/// Nobody will settle what is charged for a caller that has gone.
#[tokio::test]
async fn a_call_that_is_dropped_keeps_nothing_reserved_and_gives_back_only_what_was_charged() {
    let redis = Redis::start();
    let (server, mut client) = serve(tollgate::with_rules(&rules(200)).redis(&redis)).await;
    reserve(&mut client, "full").await.unwrap();
    charge(&mut client, "full", 700).await;
    redis.freeze();
    for tenant in ["free", "full"] {
        let asked = reserve(&mut client, tenant);
        let given_up = tokio::time::timeout(Duration::from_millis(100), asked).await;
        assert!(given_up.is_err());
    }
    let late = async || stat(&server, "tollgate.late_calls_total") == Some(2);
    eventually("both calls are dropped", late).await;
    redis.thaw();
    eventually("nothing is reserved", async || held(&server, "free") == 0).await;
    assert_eq!(held(&server, "full"), 900);
    let token = reserve(&mut client, "free").await.unwrap();
    settle(&mut client, "free", &token, 1).await;
    assert_eq!((held(&server, "free"), held(&server, "full")), (1, 900));
}

async fn looks(client: &mut Client) -> bool {
    let look = request("llm", vec![with_hits(&[("tenant", "probe")], 0)]);
    send(client, look).await.is_ok()
}

/// A cost above the estimate waits for Redis; hits to give back do not, because others may have counted since. Costs of
/// one counter wait as one sum: here are more than there may be other work for a worker.
#[tokio::test]
async fn costs_that_come_while_redis_is_away_are_counted_when_it_is_back() {
    let mut redis = Redis::start();
    let server = tollgate::with_rules(&rules(200)).redis(&redis);
    let (server, mut client) = serve(server.args(["--workers", "1"])).await;
    let more = reserve(&mut client, "more").await.unwrap();
    let less = reserve(&mut client, "less").await.unwrap();
    charge(&mut client, "a", 1).await;
    redis.cli(&["SAVE"]);
    redis.kill();
    eventually("the loss is known", async || !looks(&mut client).await).await;
    settle(&mut client, "more", &more, 230).await;
    settle(&mut client, "less", &less, 150).await;
    for _ in 0..90 {
        charge_at_once(&client, 50, 1).join_all().await;
    }
    redis.restart();
    await_counted(&redis, 4_501).await;
    eventually("the cost is counted", async || {
        looks(&mut client).await && held(&server, "more") == 230
    })
    .await;
    assert_eq!(held(&server, "less"), 200);
    assert_eq!(stat(&server, "tollgate.lost_settlements_total"), Some(1));
}

async fn each_store(test: impl AsyncFn(&dyn Fn(&str) -> Builder)) {
    test(&|text| tollgate::with_rules(text)).await;
    let redis = Redis::start();
    test(&|text| tollgate::with_rules(text).redis(&redis)).await;
    let cluster = Cluster::start(0);
    test(&|text| tollgate::with_rules(text).redis_at(&cluster.url(), "10s")).await;
    let [redis, seconds] = [(); 2].map(|()| Redis::start());
    test(&|text| with_seconds(tollgate::with_rules(text).redis(&redis), &seconds)).await;
}

/// Another period and a reset keep nothing to give back; a limit of another number keeps its counter.
#[tokio::test]
async fn a_reload_or_a_reset_under_an_open_reservation_takes_off_what_is_still_counted() {
    let (server, mut client) = serve(tollgate::with_rules(&rules(200))).await;
    let reload = |limit: &str| {
        let text = rules(200).replace("1000/year", limit);
        fs::write(server.rules().join("rules.yaml"), text).unwrap();
        let shown = format!(r#""rate":"{limit}""#);
        let is_loaded = || server.page("/rules").contains(&shown);
        wait_until("the new limit is in force", is_loaded);
    };
    let mut open = Vec::new();
    for _ in 0..3 {
        open.extend(reserve(&mut client, "a").await);
    }
    reload("900/year");
    settle(&mut client, "a", &open[0], 10).await;
    assert_eq!(held(&server, "a"), 410);
    let reset = counters(&server, "reset", "llm", ("tenant", "a"));
    assert_eq!(reset, Some(vec![0]));
    let after = reserve(&mut client, "a").await.unwrap();
    for (token, cost, held_then) in [(&open[1], 10, 200), (&open[2], 210, 210)] {
        settle(&mut client, "a", token, cost).await;
        assert_eq!(held(&server, "a"), held_then);
    }
    reload("900/10years");
    settle(&mut client, "a", &after, 20).await;
    assert_eq!(held(&server, "a"), 20);
}

/// A bucket that was empty, and a stream that lasts until more has flowed in than it did not cost.
#[tokio::test]
async fn a_busy_bucket_gets_back_what_a_long_stream_did_not_cost() {
    let limit = "{ algorithm: token_bucket, unit: second, requests_per_unit: 100, burst: 10000 }";
    let busy = rules(100).replace("1000/year", &format!("{limit}, 1000000/year"));
    each_store(async |start| {
        let (server, mut client) = serve(start(&busy)).await;
        charge(&mut client, "a", 10_000).await;
        let mut token = None;
        eventually("there is room for a request", async || {
            token = reserve(&mut client, "a").await;
            token.is_some()
        })
        .await;
        let missing = held(&server, "a");
        assert!(missing > 9_800);
        let has_flowed = async || held(&server, "a") < missing - 100;
        eventually("as many have flowed in", has_flowed).await;
        let before = held(&server, "a");
        settle(&mut client, "a", &token.unwrap(), 10).await;
        let after = held(&server, "a");
        assert!(before - after >= 90, "{before} {after}");
        // The other limit, which can be in another Redis, holds both costs and nothing of refused requests.
        let all = counters(&server, "get", "llm", ("tenant", "a"));
        assert_eq!(all.expect("counters")[1], 10_010);
    })
    .await;
}

/// How much is missing from a bucket into which a token flows each millisecond, after hits at these milliseconds.
fn missing(charges: impl Iterator<Item = (u64, u64)>, now: u64) -> u64 {
    let (mut missing, mut since) = (0_u64, 0);
    for (at, hits) in charges.chain([(now, 0)]) {
        missing = missing.saturating_sub(at - since) + hits;
        since = at;
    }
    missing
}

#[expect(clippy::disallowed_methods, reason = "the stores read the same clock")]
fn wall_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// Reservations, charges and costs in any order; it holds just as much if one reservation at a time is open.
#[tokio::test]
async fn a_bucket_holds_no_less_than_if_all_costs_had_been_known_when_they_were_reserved() {
    let limit =
        "{ algorithm: token_bucket, unit: second, requests_per_unit: 1000, burst: 1000000 }";
    let text = rules(100).replace("1000/year", limit);
    each_store(async |start| {
        let (server, mut client) = serve(start(&text)).await;
        for (tenant, most_open) in [("alone", 1), ("together", 8)] {
            let mut random = Random::new(7);
            // The first and the last millisecond in which the hits can have been charged.
            let mut charges: Vec<([u64; 2], u64)> = Vec::new();
            let mut open: Vec<(String, u64, usize)> = Vec::new();
            for step in 0..150 {
                sleep(Duration::from_millis(random.below(4) * random.below(12))).await;
                let (before, hits) = (wall_millis(), 1 + random.below(150));
                let mut charged = hits;
                match random.below(9) {
                    0 => charge(&mut client, tenant, hits).await,
                    1..5 if open.len() < most_open => {
                        let part = with_hits(&[("tenant", tenant)], hits);
                        let reply = ask_for(&mut client, vec![part]).await;
                        // Some never end.
                        if most_open == 1 || random.below(8) > 0 {
                            open.push((token(&reply).unwrap(), hits, charges.len()));
                        }
                    }
                    5.. if !open.is_empty() => {
                        let which = usize::try_from(random.below(8)).unwrap() % open.len();
                        let (token, hits, index) = open.swap_remove(which);
                        let cost = [0, hits, random.below(hits)][step % 3];
                        settle(&mut client, tenant, &token, cost).await;
                        (charges[index].1, charged) = (cost, 0);
                    }
                    _ => continue,
                }
                charges.push(([before, wall_millis()], charged));
                let before = wall_millis();
                let held = held(&server, tenant);
                let truth = |bound: usize, now| {
                    missing(charges.iter().map(|(at, hits)| (at[bound], *hits)), now)
                };
                let (least, most) = (truth(0, wall_millis()), truth(1, before));
                let is_in_time = held >= least && (most_open > 1 || held <= most);
                assert!(is_in_time, "step {step}: {least} {held} {most}");
            }
        }
    })
    .await;
}

/// The hits that the counter of tenant `a` holds, from a Redis of its own.
fn counted(redis: &Redis) -> i64 {
    let keys = redis.keys();
    let key = keys.iter().find(|key| key.contains("tenant1:a"));
    key.map_or(0, |key| redis.number(&["get", key]))
}

async fn await_counted(redis: &Redis, costs: i64) {
    let are_there = async || counted(redis) == costs;
    eventually("all costs are counted", are_there).await;
}

fn charge_at_once(client: &Client, calls: usize, cost: u64) -> JoinSet<()> {
    let call = |mut client: Client| async move { charge(&mut client, "a", cost).await };
    (0..calls).map(|_| call(client.clone())).collect()
}

/// Only the first is on its way when Redis stops; the others wait for its connection.
#[tokio::test]
async fn costs_that_were_not_sent_in_time_are_counted_once_redis_answers() {
    for policy in ["error", "allow"] {
        let redis = Redis::start();
        let text = format!("{}    on_store_loss: {policy}\n", rules(200));
        let server = tollgate::with_rules(&text).redis_at(&redis.url(), "500ms");
        let (server, mut client) = serve(server.args(["--workers", "1"])).await;
        charge(&mut client, "a", 1).await;
        redis.freeze();
        let first = charge_at_once(&client, 1, 100);
        one_is_in_flight(&server).await;
        charge_at_once(&client, 7, 100).join_all().await;
        first.join_all().await;
        redis.thaw();
        await_counted(&redis, 801).await;
    }
}

/// Without Redis they are charged and settled in this process. Afterwards nothing of them is given back.
#[tokio::test]
async fn reservations_of_a_loss_are_settled_while_it_lasts_and_take_nothing_off_redis() {
    let mut redis = Redis::start();
    let text = format!("{}    on_store_loss: local\n", rules(200));
    let server = tollgate::with_rules(&text).redis_at(&redis.url(), "100ms");
    let (server, mut client) = serve(server.args(["--replicas", "1"])).await;
    charge(&mut client, "a", 1).await;
    redis.cli(&["SAVE"]);
    redis.kill();
    // Ten estimates are twice the limit.
    for _ in 0..10 {
        let token = reserve(&mut client, "a").await.expect("a reservation");
        settle(&mut client, "a", &token, 10).await;
    }
    let token = reserve(&mut client, "a").await.expect("a reservation");
    redis.restart();
    no_store_is_lost(&server).await;
    settle(&mut client, "a", &token, 10).await;
    await_counted(&redis, 11).await;
}

/// Any caller of tollgate can send orders; none takes more off than a limit, fails or counts less than a cost.
#[tokio::test]
async fn bad_orders_charge_their_cost_and_nothing_else() {
    let (server, mut client) = serve(tollgate::with_rules(&rules(200))).await;
    let token = reserve(&mut client, "a").await.unwrap();
    let other = reserve(&mut client, "b").await.unwrap();
    let head = token.rsplit_once('.').unwrap().0;
    let nine = format!("{token}{}", ".1-1".repeat(8));
    let longer = format!("{token}0");
    let bad = [
        "",
        "x",
        "1.1.1.0.1-1",
        &other,
        head,
        &nine,
        &longer,
        "\u{e9}\0",
    ];
    let mut expected = 200;
    for text in bad {
        settle(&mut client, "a", text, 5).await;
        expected += 5;
        assert_eq!(held(&server, "a"), expected, "{text:?}");
    }
    // A negative cost is one.
    let negative = give_back(&[("tenant", "a"), ("tollgate.unreserved", "1")], 5);
    ask_for(&mut client, vec![negative]).await;
    expected += 5;
    // An order with a limit of its own, an unknown one, and one for a rule that does not reserve.
    let own = with_limit(&[("tenant", "a"), ("tollgate.reservation", &token)], 1, 4);
    let strays = vec![
        RateLimitDescriptor {
            hits_addend: Some(5),
            ..own
        },
        with_hits(&[("tenant", "a"), ("tollgate.orders", "1")], 5),
        with_hits(&[("nobody", "a"), ("tollgate.release", &token)], 5),
    ];
    assert!(is_ok(&Ok(ask_for(&mut client, strays).await)));
    assert_eq!(held(&server, "a"), expected);
    assert_eq!(stat(&server, "tollgate.stray_orders_total"), Some(3));
    settle(&mut client, "a", &"1".repeat(64 << 10), 5).await;
    expected += 5;
    // The true token works once.
    for _ in 0..2 {
        settle(&mut client, "a", &token, 1).await;
        assert_eq!(held(&server, "a"), expected - 199);
    }
    // No cost is more than the largest limit.
    settle(&mut client, "b", &other, u64::MAX).await;
    assert_eq!(held(&server, "b"), (1 << 53) - 1);
}

/// `make demo BUDGET=1`: the page's rules and Envoy, and a model that counts the tokens itself.
#[test]
fn the_budget_of_the_demo_holds() {
    let demo = Demo::with(OsStr::new(env!("CARGO_BIN_EXE_tollgate")), &["--budget"]);
    let spent = || -> Vec<u64> {
        let said = demo.said();
        let mut lines = said.lines();
        let line = lines.rfind(|line| line.starts_with("tokens of this minute"));
        let line = line.and_then(|line| line.rsplit_once(": "));
        let tenants = line.map_or("", |(_, tenants)| tenants).split(", ");
        let digits = tenants.map(|tenant| tenant.replace(|c: char| !c.is_ascii_digit(), ""));
        digits.filter_map(|digits| digits.parse().ok()).collect()
    };
    wait_until("a budget is nearly spent", || {
        spent().iter().any(|spent| *spent > 15_000)
    });
    // A request that is counted in one minute can reach the model in the next.
    let edge = 20 * 200;
    let are_kept = spent().iter().all(|spent| *spent <= 20_000 + edge);
    assert!(are_kept, "{}", demo.said());
}
