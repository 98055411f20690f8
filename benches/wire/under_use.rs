//! A limit that demand exceeds by a tenth, on four processes with slices: how many of its hits nobody gets.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tollgate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::{
    hot::{PROCESSES, replicas},
    processes::Redis,
    settlements::{self, Client},
};

const LIMIT: u64 = 20_000;
const SECS: u64 = 20;
/// In limits a window.
const DEMAND: f64 = 1.1;
/// Windows that count; slices learn in one before.
const WINDOWS: usize = 3;

/// Prints the hits of each window that were admitted.
pub fn print() -> anyhow::Result<()> {
    let redis = Redis::start()?;
    let rules = format!(
        "domain: bench\ndescriptors:\n  - {{ key: hot, accuracy: exact-leased, rate_limits: [{LIMIT}/{SECS}seconds] }}"
    );
    let servers = replicas(&redis, 1, &rules)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut admitted = [0; WINDOWS + 3];
    let first = window();
    let every = Duration::from_secs(SECS).mul_f64(PROCESSES as f64 / (DEMAND * LIMIT as f64));
    runtime.block_on(async {
        let mut callers = JoinSet::new();
        for server in &servers {
            let address = format!("http://{}", server.address);
            callers.spawn(ask(address, every, first));
        }
        while let Some(ended) = callers.join_next().await {
            for (all, own) in admitted.iter_mut().zip(ended??) {
                *all += own;
            }
        }
        anyhow::Ok(())
    })?;
    // The first is not whole, and slices learn in the second.
    for count in &admitted[2..2 + WINDOWS] {
        ensure!(*count <= LIMIT, "{count} of {LIMIT} were admitted");
        let under = (LIMIT - count) as f64 / LIMIT as f64;
        println!(
            "{count} of {LIMIT} hits admitted, {:.3} % under",
            100.0 * under
        );
    }
    Ok(())
}

/// The number of the window at this moment.
#[expect(
    clippy::disallowed_methods,
    reason = "windows begin by the time of day"
)]
fn window() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs()) / SECS
}

/// Asks at random moments, on average as often as `every`. Returns how many hits were admitted in each window from
/// `first` on: a window is full before it ends, so that none of its replies comes in the next one.
async fn ask(address: String, every: Duration, first: u64) -> anyhow::Result<[u64; WINDOWS + 3]> {
    let client = Client::connect(address).await?;
    let mut admitted = [0; WINDOWS + 3];
    let mut answers = JoinSet::new();
    let mut next = Instant::now();
    while window() < first + WINDOWS as u64 + 2 {
        next += every.mul_f64(-(1.0 - fastrand::f64()).ln());
        sleep_until(next).await;
        let mut client = client.clone();
        answers.spawn(async move {
            let reply = settlements::ask(&mut client, &[("hot", "v")], None).await?;
            anyhow::Ok((window(), reply.overall_code() == Code::Ok))
        });
        while let Some(answer) = answers.try_join_next() {
            count(answer??, first, &mut admitted);
        }
    }
    while let Some(answer) = answers.join_next().await {
        count(answer??, first, &mut admitted);
    }
    Ok(admitted)
}

fn count((window, passes): (u64, bool), first: u64, admitted: &mut [u64]) {
    let index = usize::try_from(window - first).unwrap_or(usize::MAX);
    if let Some(own) = admitted.get_mut(index) {
        *own += u64::from(passes);
    }
}
