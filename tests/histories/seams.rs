//! Measures the cases in which exact counting is hardest: one request on two stores, refunds next to a cache, one
//! counter used with several clocks, local counting without Redis. Each table can be measured on another build too.

use std::time::{Duration, Instant};

use ::tollgate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    it::support::{
        ask::{Client, ask, connect, descriptor, is_ok, request, send},
        cluster::Cluster,
        redis::Redis,
        tollgate::{self, Builder, Tollgate},
    },
    step_tables,
};

/// Long enough for every call on a busy machine.
const PATIENT: &str = "10s";

const NO_CACHE: &[&str] = &["--local-cache-bytes", "0"];

/// Prints the table with the name `only`, or all tables.
pub async fn print(only: Option<&str>) {
    let is_wanted = |table| only.is_none_or(|only| only == table);
    if is_wanted("bursts") {
        bursts().await;
    }
    if is_wanted("refunds") {
        given_back().await;
    }
    if is_wanted("buckets") {
        hot_buckets().await;
    }
    if is_wanted("skews") {
        skews().await;
    }
    if is_wanted("steps") {
        step_tables::print().await;
    }
    if is_wanted("stops") {
        stops().await;
    }
    if is_wanted("losses") {
        losses().await;
    }
    if is_wanted("returns") {
        crate::losses::print().await;
    }
}

fn head(title: &str, columns: &str) {
    let rule = "|---".repeat(columns.matches('|').count() - 1);
    println!("\n{title}\n\n{columns}\n{rule}|");
}

/// The store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Memory,
    Redis,
    TwoRedis,
    Cluster,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "one Redis",
            Self::TwoRedis => "a Redis for limits per second",
            Self::Cluster => "Cluster",
        }
    }
}

/// A server and its stores.
struct Running {
    server: Tollgate,
    _redis: Vec<Redis>,
    _cluster: Option<Cluster>,
}

fn start(place: Place, rules: &str, more: &[&str]) -> Running {
    let (mut redis, mut cluster) = (Vec::new(), None);
    let mut builder = tollgate::with_rules(rules);
    match place {
        Place::Memory => {}
        Place::Redis => {
            redis.push(Redis::start());
            builder = builder.redis_at(&redis[0].url(), PATIENT);
        }
        Place::TwoRedis => {
            redis.extend([Redis::start(), Redis::start()]);
            builder = builder
                .redis_at(&redis[0].url(), PATIENT)
                .args(["--redis-per-second"])
                .args(["--redis-per-second-url", &redis[1].url()]);
        }
        Place::Cluster => {
            let started = cluster.insert(Cluster::start(0));
            builder = builder.redis_at(&started.url(), PATIENT);
        }
    }
    Running {
        server: builder.args(more.iter().copied()).start(),
        _redis: redis,
        _cluster: cluster,
    }
}

/// One hit on each of the keys. Retries while a slot of a cluster is not yet known.
async fn passes(client: &mut Client, keys: &[&str]) -> bool {
    loop {
        let descriptors = keys.iter().map(|key| descriptor(&[(key, "v")])).collect();
        match send(client, request("d", descriptors)).await {
            Ok(reply) => return reply.overall_code() == Code::Ok,
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn passing(client: &mut Client, keys: &[&str], calls: usize) -> usize {
    let mut passing = 0;
    for _ in 0..calls {
        passing += usize::from(passes(client, keys).await);
    }
    passing
}

async fn bursts() {
    const TOGETHER: &str = "
domain: d
descriptors: [{key: k, count: admitted, rate_limits: [2/second, 30/day]}]
";
    const APART: &str = "
domain: d
descriptors:
  - {key: short, count: admitted, rate_limits: [2/second]}
  - {key: long, count: admitted, rate_limits: [30/day]}
";
    head(
        "Bursts of 64 calls, `count: admitted`, 2 per second and 30 per day; then one call each 0.55 s",
        "| where | cache | bursts | then | of 30 |",
    );
    let apart: &[&str] = &["short", "long"];
    for (place, rules, keys) in [
        (Place::Redis, TOGETHER, &["k"][..]),
        (Place::TwoRedis, TOGETHER, &["k"]),
        (Place::Cluster, APART, apart),
    ] {
        for (cache, more) in [("default", &[][..]), ("none", NO_CACHE)] {
            let running = start(place, rules, more);
            let client = connect(running.server.grpc).await;
            let mut reported = Vec::new();
            for _ in 0..5 {
                let mut calls = JoinSet::new();
                for _ in 0..64 {
                    let mut client = client.clone();
                    calls.spawn(async move { usize::from(passes(&mut client, keys).await) });
                }
                reported.push(calls.join_all().await.into_iter().sum::<usize>());
                sleep(Duration::from_millis(1100)).await;
            }
            let mut client = client;
            let mut then = 0;
            for _ in 0..40 {
                then += passing(&mut client, keys, 1).await;
                sleep(Duration::from_millis(550)).await;
            }
            let all: usize = reported.iter().sum::<usize>() + then;
            let reported: Vec<_> = reported.iter().map(usize::to_string).collect();
            let (place, reported) = (place.name(), reported.join(" "));
            println!("| {place} | {cache} | {reported} | {then} of 40 | {all} |");
        }
    }
}

async fn given_back() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: fixed, rate_limits: [10/year]}
  - {key: admitted, count: admitted, rate_limits: [10/year]}
  - {key: log, count: admitted, rate_limit: {unit: year, requests_per_unit: 10, algorithm: sliding_log}}
  - {key: first, count: admitted, rate_limit: {unit: year, requests_per_unit: 10, window: first_hit}}
";
    head(
        "Ten per year are used up over one connection, six are given back over another one",
        "| limit | given back through | admitted of 20 at once | a second later |",
    );
    for through in ["another worker", "another replica"] {
        let redis = Redis::start();
        let replica = || {
            let builder = tollgate::with_rules(RULES).redis_at(&redis.url(), PATIENT);
            builder.args(["--workers", "2"]).start()
        };
        let (one, other) = (replica(), replica());
        let mut here = connect(one.grpc).await;
        let there = if through == "another worker" {
            &one
        } else {
            &other
        };
        let mut there = connect(there.grpc).await;
        for key in ["fixed", "admitted", "log", "first"] {
            passing(&mut here, &[key], 11).await;
            // A plain fixed window also counts refused hits.
            let count = if key == "fixed" { 7 } else { 6 };
            let mut back = descriptor(&[(key, "v")]);
            (back.hits_addend, back.is_negative_hits) = (Some(count), true);
            send(&mut there, request("d", vec![back])).await.unwrap();
            let at_once = passing(&mut here, &[key], 20).await;
            sleep(Duration::from_millis(1100)).await;
            let later = passing(&mut here, &[key], 20).await;
            println!("| {key} | {through} | {at_once} | {later} |");
        }
    }
}

async fn hot_buckets() {
    head(
        "Token bucket, one hot key",
        "| where | workers | clock | rate/burst | calls/s | admitted of the bound |",
    );
    let both = |clock| ["--clock", clock];
    for (place, workers, clock, rate, burst) in [
        (Place::Memory, "1", "", 2000, 200),
        (Place::Memory, "2", "", 100, 10),
        (Place::Memory, "2", "", 500, 50),
        (Place::Memory, "2", "", 2000, 200),
        (Place::Memory, "8", "", 2000, 200),
        (Place::Redis, "2", "redis", 2000, 200),
        (Place::Redis, "2", "local", 2000, 200),
        (Place::Redis, "8", "local", 2000, 200),
    ] {
        let rules = format!(
            "
domain: d
descriptors:
  - {{key: k, rate_limit: {{unit: second, requests_per_unit: {rate}, burst: {burst}, algorithm: token_bucket}}}}
"
        );
        let mut more = vec!["--workers", workers];
        if !clock.is_empty() {
            more.extend(both(clock));
        }
        let running = start(place, &rules, &more);
        let began = Instant::now();
        let mut calls = JoinSet::new();
        for _ in 0..32 {
            let mut client = connect(running.server.grpc).await;
            calls.spawn(async move {
                let (mut asked, mut admitted) = (0_u32, 0_u32);
                while began.elapsed() < Duration::from_secs(4) {
                    asked += 1;
                    admitted += u32::from(passes(&mut client, &["k"]).await);
                }
                (asked, admitted)
            });
        }
        let reported = calls.join_all().await;
        let took = began.elapsed().as_secs_f64();
        let asked: u32 = reported.iter().map(|reported| reported.0).sum();
        let admitted: u32 = reported.iter().map(|reported| reported.1).sum();
        let bound = f64::from(burst) + f64::from(rate) * took;
        println!(
            "| {} | {workers} | {} | {rate}/{burst} | {:.0} | {:.1} % |",
            place.name(),
            if clock.is_empty() { "–" } else { clock },
            f64::from(asked) / took,
            f64::from(admitted) / bound * 100.0
        );
    }
}

async fn skews() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: fixed_window, rate_limits: [50/10seconds]}
  - {key: sliding_log, rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 50, algorithm: sliding_log}}
  - {key: sliding_window, rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 50, algorithm: sliding_window}}
  - {key: token_bucket, rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 50, algorithm: token_bucket}}
";
    const SPAN: Duration = Duration::from_secs(10);
    head(
        "Two replicas whose clocks differ, 50 per 10 s, calls to both; admitted in true spans of 10 s",
        "| clock | ahead by | fixed_window | sliding_log | sliding_window | token_bucket |",
    );
    for (clock, ahead) in [
        ("redis", "+3s"),
        ("redis", "-3600s"),
        ("local", "+3s"),
        ("local", "+3600s"),
    ] {
        let redis = Redis::start();
        let replica = |builder: Builder| {
            let builder = builder.redis_at(&redis.url(), PATIENT);
            builder.args(["--clock", clock])
        };
        let one = replica(tollgate::with_rules(RULES)).start();
        let other = replica(tollgate::with_rules(RULES))
            .with_clock(ahead)
            .start();
        let mut clients = [connect(one.grpc).await, connect(other.grpc).await];
        // Spans begin at windows of the true clock.
        #[expect(
            clippy::disallowed_methods,
            reason = "the true time, which no server is given"
        )]
        let since_epoch = || {
            let now = std::time::SystemTime::now();
            now.duration_since(std::time::UNIX_EPOCH).unwrap()
        };
        let number = |span: Duration| span.as_millis() / SPAN.as_millis();
        let first = number(since_epoch()) + 1;
        while number(since_epoch()) < first {
            sleep(Duration::from_millis(5)).await;
        }
        let keys = [
            "fixed_window",
            "sliding_log",
            "sliding_window",
            "token_bucket",
        ];
        let mut admitted = [[0_u32; 3]; 4];
        loop {
            let span = || usize::try_from(number(since_epoch()) - first).unwrap();
            if span() >= 3 {
                break;
            }
            for client in &mut clients {
                for (key, admitted) in keys.iter().zip(&mut admitted) {
                    let began = span();
                    let reported = ask(client, "d", &[(key, "v")]).await;
                    // A call that begins in one span and ends in the next one may be counted in either.
                    if let Some(admitted) = admitted.get_mut(began)
                        && began == span()
                    {
                        *admitted += u32::from(is_ok(&reported));
                    }
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
        let spans = admitted.map(|[first, second, third]| format!("{first} {second} {third}"));
        println!("| `{clock}` | {ahead} | {} |", spans.join(" | "));
    }
}

async fn stops() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: over, rate_limits: [1/100000000seconds]}
  - {key: other, rate_limits: [100/year]}
";
    head(
        "`--stop-when-over`: of 100, left after 20 requests that another limit refused",
        "| where | left |",
    );
    for place in [Place::Memory, Place::Redis, Place::TwoRedis, Place::Cluster] {
        let running = start(
            place,
            RULES,
            &[NO_CACHE, &["--stop-when-over"][..]].concat(),
        );
        let mut client = connect(running.server.grpc).await;
        passes(&mut client, &["over"]).await;
        passing(&mut client, &["over", "other"], 20).await;
        let mut look = descriptor(&[("other", "v")]);
        look.hits_addend = Some(0);
        let reported = send(&mut client, request("d", vec![look])).await.unwrap();
        println!(
            "| {} | {} |",
            place.name(),
            reported.statuses[0].limit_remaining
        );
    }
}

/// The replicas that count locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// One replica, asked through its other worker first.
    OtherWorker,
    /// Two replicas; the second one has seen no hit of the counter.
    OtherReplica,
    /// Two replicas that count themselves and restart during the loss.
    BothRestart,
}

impl Loss {
    fn name(self) -> &'static str {
        match self {
            Self::OtherWorker => "one replica, asked over the other worker's connection first",
            Self::OtherReplica => "two replicas, 90 through the first",
            Self::BothRestart => "two replicas restarted during the loss, `--replicas 0`",
        }
    }
}

async fn losses() {
    head(
        "`on_store_loss: local`, 100 per year: 90 are used, Redis is killed, and each connection asks 200 times",
        "| where | fixed_window | of 100 | sliding_log | of 100 |",
    );
    for loss in [Loss::OtherWorker, Loss::OtherReplica, Loss::BothRestart] {
        let mut row = format!("| {} |", loss.name());
        for key in ["fixed", "log"] {
            let (before, without) = lose(loss, key).await;
            let all = before + without.iter().sum::<usize>();
            let without: Vec<_> = without.iter().map(usize::to_string).collect();
            row += &format!(" {} | {all} |", without.join(" + "));
        }
        println!("{row}");
    }
}

/// How many calls pass before the loss, and during it through each connection.
async fn lose(loss: Loss, key: &str) -> (usize, Vec<usize>) {
    const RULES: &str = "
domain: d
on_store_loss: local
descriptors:
  - {key: fixed, rate_limits: [100/year]}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 100, algorithm: sliding_log}}
";
    /// Longer than replicas take to count themselves.
    const COUNTED_WITHIN: Duration = Duration::from_secs(15);
    let mut redis = Redis::start();
    let url = redis.url();
    let replicas = match loss {
        Loss::OtherWorker => "1",
        Loss::OtherReplica => "2",
        Loss::BothRestart => "0",
    };
    let start = |_| {
        let builder = tollgate::with_rules(RULES).redis_at(&url, "100ms");
        builder
            .args(["--replicas", replicas, "--workers", "2"])
            .start()
    };
    let numbers = 0..if replicas == "1" { 1 } else { 2 };
    let mut servers: Vec<_> = numbers.clone().map(start).collect();
    let mut clients = connect_each(&servers).await;
    if loss == Loss::BothRestart {
        let began = Instant::now();
        let is_counted = |server: &Tollgate| server.metric("tollgate_replicas") == 2;
        while began.elapsed() < COUNTED_WITHIN && !servers.iter().all(is_counted) {
            sleep(Duration::from_millis(50)).await;
        }
    }
    let before = passing(&mut clients[0], &[key], 90).await;
    redis.kill();
    match loss {
        // Workers get connections in turn.
        Loss::OtherWorker => clients.insert(0, connect(servers[0].grpc).await),
        Loss::BothRestart => {
            servers.clear();
            servers.extend(numbers.map(start));
            clients = connect_each(&servers).await;
        }
        Loss::OtherReplica => {}
    }
    let mut without = Vec::new();
    for client in &mut clients {
        without.push(passing(client, &[key], 200).await);
    }
    (before, without)
}

async fn connect_each(servers: &[Tollgate]) -> Vec<Client> {
    let mut clients = Vec::new();
    for server in servers {
        clients.push(connect(server.grpc).await);
    }
    clients
}
