//! A hot key that is refused, beside settlements of other keys that give hits back: each makes caches of full counters
//! doubt what they hear meanwhile, but of few counters.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use prost_types::value::Kind;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use tonic::transport::Channel;

use crate::{
    Options,
    processes::{Process, Redis},
};

pub type Client = RateLimitServiceClient<Channel>;

/// The limit of the hot key is one per second, so it has a Redis of its own, whose commands are counted.
const RULES: &str = "
domain: bench
descriptors:
  - { key: hot, rate_limits: [1/2592000seconds] }
  - { key: tenant, reserve: { estimate: 2 }, rate_limits: [1000000000/month] }
";

/// Calls for the hot key, and settlements, in a second.
const HOT: u32 = 2_000;
const SETTLEMENTS: u32 = 5_000;

/// Callers at a time. Each has connections of its own, which workers get in turn.
const CALLERS: u32 = 8;

const TENANTS: u64 = 1_000;

/// Prints the commands to Redis for each decision on the hot key, without settlements and with them.
pub fn print(options: &Options) -> anyhow::Result<()> {
    // Each worker asks once a second, so a short turn shows too few questions.
    let turn = Duration::from_secs_f64(options.seconds.max(30.0));
    let (long, mut short) = (Redis::start()?, Redis::start()?);
    let arguments = [
        format!("--workers={}", options.workers),
        format!("--redis-url=redis://{}", long.address),
        "--redis-per-second".to_owned(),
        format!("--redis-per-second-url=redis://{}", short.address),
        "--redis-timeout=5s".to_owned(),
    ];
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let server = Process::tollgate(program, RULES, &arguments)?;
    let address = format!("http://{}", server.address);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut each = Vec::new();
    for settlements in [0, SETTLEMENTS] {
        // Full before it is measured.
        runtime.block_on(run(&address, Duration::from_millis(200), settlements))?;
        let before = short.counting_commands()?;
        let done = runtime.block_on(run(&address, turn, settlements))?;
        let commands = short.counting_commands()? - before;
        let [hot, settled] = done.map(|count| count as f64);
        let seconds = turn.as_secs_f64();
        println!(
            "{:.0} refusals and {:.0} settlements a second: {:.6} commands a refusal",
            hot / seconds,
            settled / seconds,
            commands as f64 / hot
        );
        each.push(commands as f64 / hot);
    }
    println!("with settlements: {:.3} times as many", each[1] / each[0]);
    Ok(())
}

/// Calls for `time`. Returns how many calls for the hot key and settlements there were.
async fn run(address: &str, time: Duration, settlements: u32) -> anyhow::Result<[u64; 2]> {
    let counts = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let end = Instant::now() + time;
    let mut callers = JoinSet::new();
    for (index, rate) in [HOT, settlements].into_iter().enumerate() {
        let Some(every) = (Duration::from_secs(1) * CALLERS).checked_div(rate) else {
            continue;
        };
        for number in 0..u64::from(CALLERS) {
            let mut client = Client::connect(address.to_owned()).await?;
            let count = counts[index].clone();
            callers.spawn(async move {
                let mut pace = interval(every);
                pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
                for round in 0.. {
                    // A caller that is behind never waits.
                    pace.tick().await;
                    if Instant::now() >= end {
                        break;
                    }
                    match index {
                        0 => refuse(&mut client).await?,
                        _ => settle(&mut client, round * u64::from(CALLERS) + number).await?,
                    }
                    count.fetch_add(1, Relaxed);
                }
                anyhow::Ok(())
            });
        }
    }
    for ended in callers.join_all().await {
        ended?;
    }
    Ok(counts.map(|count| count.load(Relaxed)))
}

/// Asks for one descriptor.
pub async fn ask(
    client: &mut Client,
    entries: &[(&str, &str)],
    hits_addend: Option<u64>,
) -> anyhow::Result<RateLimitResponse> {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned().into(),
        value: (*value).to_owned().into(),
    };
    let request = RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            hits_addend,
            ..RateLimitDescriptor::default()
        }],
        ..RateLimitRequest::default()
    };
    Ok(client.should_rate_limit(request).await?.into_inner())
}

/// Asks for the hot key. Only its first hit is admitted.
async fn refuse(client: &mut Client) -> anyhow::Result<()> {
    ask(client, &[("hot", "v")], None).await.map(drop)
}

/// Reserves two hits, and settles them for one.
async fn settle(client: &mut Client, number: u64) -> anyhow::Result<()> {
    let tenant = (number % TENANTS).to_string();
    let reply = ask(client, &[("tenant", &tenant)], None).await?;
    ensure!(reply.overall_code() == Code::Ok, "{reply:?}");
    let metadata = reply.dynamic_metadata.context("it is reserved")?;
    let kind = metadata.fields.get("reservation").map(|value| &value.kind);
    let Some(Some(Kind::StringValue(token))) = kind else {
        anyhow::bail!("no token in {metadata:?}");
    };
    let order = [("tenant", &*tenant), ("tollgate.reservation", token)];
    ask(client, &order, Some(1)).await.map(drop)
}
