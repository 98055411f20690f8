//! A flood of values that nobody has seen before, each of which would need a counter of its own.

use std::fmt;

use ::tollgate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use super::{
    ask::{Client, connect, descriptor, request, send},
    tollgate::{self, Tollgate},
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

/// Newcomers, spread over the flood.
const NEWCOMERS: usize = 200;

/// Effects of a flood.
#[derive(Debug, Default)]
pub struct Outcome {
    pub values: usize,
    /// Resident memory after the first tenth of the flood, which fills the table, and at its end.
    pub resident_early: u64,
    pub resident: u64,
    /// Requests with a status instead of a decision.
    pub undecided: usize,
    /// Hits that a client was admitted which was known before the flood, of twice its limit.
    pub known_admitted: usize,
    /// The most hits that a newcomer was admitted.
    pub newcomer_most: usize,
    /// Hits within their limits that newcomers were refused, and all of them.
    pub newcomers_refused: usize,
    pub newcomers_sent: usize,
    /// Hits that were counted in common counters.
    pub shared: u64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} new values: {} requests without a decision; memory {} MB after a tenth of them and {} MB at the end; a \
            client that was known before was admitted {} of its {LIMIT} hits, and newcomers at most {} of their {LIMIT}; \
            {} of {} hits of newcomers within their limits were refused; {} hits were counted in common counters",
            self.values,
            self.undecided,
            self.resident_early.div_ceil(1 << 20),
            self.resident.div_ceil(1 << 20),
            self.known_admitted,
            self.newcomer_most,
            self.newcomers_refused,
            self.newcomers_sent,
            self.shared,
        )
    }
}

/// Floods a server whose table has room for `counters` with `values`, at least ten thousand.
pub async fn run(values: usize, counters: usize) -> Outcome {
    let counters = counters.to_string();
    let server = tollgate::with_rules(RULES)
        .args(["--max-counters", &counters])
        .start();
    let mut client = connect(server.grpc).await;
    let mut outcome = Outcome {
        values,
        ..Outcome::default()
    };
    let known = hits(&mut client, "known", "before the flood", 3, &mut outcome).await;
    outcome.known_admitted = known;
    let requests = values / TOGETHER;
    for number in 0..requests {
        let values = (0..TOGETHER).map(|value| (number * TOGETHER + value).to_string());
        let descriptors = values
            .map(|value| descriptor(&[("flood", &value)]))
            .collect();
        let reply = send(&mut client, request("d", descriptors)).await;
        outcome.undecided += usize::from(reply.is_err());
        if number == requests / 10 {
            outcome.resident_early = server.resident_bytes();
        }
        if number % requests.div_ceil(NEWCOMERS) == 0 {
            newcomer(&mut client, number, &mut outcome).await;
        }
    }
    outcome.resident = server.resident_bytes();
    outcome.known_admitted += hits(&mut client, "known", "before the flood", 7, &mut outcome).await;
    outcome.shared = server.metric("tollgate_memory_overflow_hits_total");
    assert_table_is_full(&server, &counters);
    outcome
}

/// A value that comes during the flood and asks for more than its limit.
async fn newcomer(client: &mut Client, number: usize, outcome: &mut Outcome) {
    let admitted = hits(client, "few", &number.to_string(), LIMIT + 2, outcome).await;
    outcome.newcomer_most = outcome.newcomer_most.max(admitted);
    outcome.newcomers_sent += LIMIT;
    outcome.newcomers_refused += LIMIT.saturating_sub(admitted);
}

/// How many of `count` hits of one value are admitted.
async fn hits(
    client: &mut Client,
    key: &str,
    value: &str,
    count: usize,
    outcome: &mut Outcome,
) -> usize {
    let mut admitted = 0;
    for _ in 0..count {
        match send(client, request("d", vec![descriptor(&[(key, value)])])).await {
            Ok(reply) => admitted += usize::from(reply.overall_code() == Code::Ok),
            Err(_) => outcome.undecided += 1,
        }
    }
    admitted
}

fn assert_table_is_full(server: &Tollgate, counters: &str) {
    let held = server.metric("tollgate_memory_counters").to_string();
    assert_eq!(held, counters, "the flood has to fill the table");
}
