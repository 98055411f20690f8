//! A flood of values that nobody has seen before, each of which would need a counter of its own.

use std::{fmt::Write as _, fs};

use prost::Message as _;

use ::tollgate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use super::attack::{Kept, calls_without_message, connections};
use crate::it::support::{
    ask::{Client, ask, connect, descriptor, request, send},
    hoard::{Hoarder, framed, slow_bodies, who_does_not_read},
    tollgate::{self, Tollgate},
    wait_until,
};

/// Limits of ten thousand years, so that no window ends meanwhile.
const RULES: &str = "
domain: d
descriptors:
  - { key: known, rate_limits: [5/10000years] }
  - { key: flood, rate_limits: [1000000/10000years] }
  - { key: few, rate_limits: [5/10000years] }
";
const LIMIT: usize = 5;

/// Values in one request: as many as it may have descriptors.
const TOGETHER: usize = 1_000;

const NEWCOMERS: usize = 200;

/// The effects, and whether nobody got a fresh limit and nobody an error, and memory stayed as it was.
pub async fn run(values: usize, counters: usize) -> (String, bool) {
    const KNOWN: (&str, &str) = ("known", "before the flood");
    let room = counters.to_string();
    let builder = tollgate::with_rules(RULES).args(["--max-counters", &room]);
    let server = builder.start();
    let mut client = connect(server.grpc).await;
    let mut undecided = 0;
    let mut known = hits(&mut client, KNOWN, 3, &mut undecided).await;
    // The most hits that a newcomer was admitted, and the hits within their limits that they were refused, and all.
    let (mut newcomer, mut refused, mut sent) = (0, 0, 0);
    let mut resident_early = 0;
    let requests = values / TOGETHER;
    for number in 0..requests {
        let values = (0..TOGETHER).map(|value| (number * TOGETHER + value).to_string());
        let descriptors = values.map(|value| descriptor(&[("flood", &value)]));
        let reply = send(&mut client, request("d", descriptors.collect())).await;
        undecided += usize::from(reply.is_err());
        if number == requests / 10 {
            resident_early = server.resident_bytes();
        }
        if number % requests.div_ceil(NEWCOMERS) == 0 {
            let value = number.to_string();
            let admitted = hits(&mut client, ("few", &value), LIMIT + 2, &mut undecided).await;
            newcomer = newcomer.max(admitted);
            sent += LIMIT;
            refused += LIMIT.saturating_sub(admitted);
        }
    }
    let resident = server.resident_bytes();
    known += hits(&mut client, KNOWN, 7, &mut undecided).await;
    let shared = server.metric("tollgate_memory_overflow_hits_total");
    let held = server.metric("tollgate_memory_counters").to_string();
    assert_eq!(held, room, "the flood has to fill the table");
    let [early, late] = [resident_early, resident].map(|bytes| bytes.div_ceil(1 << 20));
    let text = format!(
        "{values} new values: {undecided} requests without a decision; memory {early} MB after a tenth of them and \
         {late} MB at the end; a client that was known before was admitted {known} of its {LIMIT} hits, and newcomers \
         at most {newcomer} of their {LIMIT}; {refused} of {sent} hits of newcomers within their limits were refused; \
         {shared} hits were counted in common counters"
    );
    // All newcomers without room share one limit.
    let is_shared = refused < sent && shared >= u64::try_from(values - counters).unwrap();
    let is_limited = undecided == 0 && known == LIMIT && newcomer <= LIMIT;
    let is_small = resident < resident_early + (8 << 20);
    (text, is_shared && is_limited && is_small)
}

async fn hits(
    client: &mut Client,
    entry: (&str, &str),
    count: usize,
    undecided: &mut usize,
) -> usize {
    let mut admitted = 0;
    for _ in 0..count {
        match ask(client, "d", &[entry]).await {
            Ok(reply) => admitted += usize::from(reply.overall_code() == Code::Ok),
            Err(_) => *undecided += 1,
        }
    }
    admitted
}

/// Bounds of a server whose container has 256 MiB.
pub const FULL_ARGS: &str = "--max-counter-bytes 89478485 --max-connections 1016";

const VALUE: usize = 120;

/// The attack on memory as a sum: full counters, connections, pages, bodies and rules, where little is allowed.
pub fn fill(server: &Tollgate) -> Kept {
    let messages = (0..430).map(|thousand| {
        let value = |number| format!("{:0>VALUE$}", thousand * 1_000 + number);
        let descriptors = (0..1_000).map(|number| descriptor(&[("two", &value(number))]));
        request("d", descriptors.collect()).encode_to_vec()
    });
    let mut flood = Hoarder::connect(server.grpc, 1 << 30);
    for (before, message) in messages.enumerate() {
        assert!(flood.call(&framed(&message), true));
        while flood.ended == before && flood.hear() {}
    }
    let page = b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n".repeat(20);
    let pages = (0..900).map(|_| who_does_not_read(server.http));
    let kept = (
        calls_without_message(server.grpc),
        connections(server.debug, 900, &page),
        pages.collect::<Vec<_>>(),
        slow_bodies(server.http, 600),
        flood,
    );
    load_rules(server, 5_000);
    Box::new(kept)
}

/// Gives the server so many rules more, and waits until it has taken or refused them.
fn load_rules(server: &Tollgate, count: usize) {
    let mut text = "domain: e\ndescriptors:\n".to_owned();
    for number in 0..count {
        let _ = writeln!(text, "- {{key: k{number}, rate_limits: [{number}/day]}}");
    }
    let loads = || {
        let log = server.log().text();
        log.matches("rules loaded").count() + log.matches("the rules were not reloaded").count()
    };
    let before = loads();
    let hidden = server.rules().join(".new");
    fs::write(&hidden, text).unwrap();
    fs::rename(hidden, server.rules().join("more.yaml")).unwrap();
    wait_until("the rules are taken or refused", || loads() > before);
}
