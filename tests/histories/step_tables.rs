//! Tables of what passes while a clock steps: tollgate's, that of Redis, or that of a Redis which takes over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};

use crate::it::support::{
    ask::connect,
    redis::Redis,
    steps::{ALGORITHMS, Asking, Rate, by_second, in_periods, longest_refusal, rules},
    tollgate,
    wall_clock::WallClock,
};

/// A step of a clock, by so many seconds.
#[derive(Clone, Copy, Debug)]
enum Step {
    Own(i64),
    Redis(i64),
    /// Redis is killed, and another one with this time of day takes its place.
    Failover(i64),
    /// One of two replicas; the figures are those of its clients.
    OneOfTwo(i64),
    /// The clock of Redis steps and, seconds later, back.
    ThereAndBack(i64),
}

impl Step {
    fn name(self) -> String {
        match self {
            Self::Own(by) => format!("tollgate's clock {by:+} s"),
            Self::Redis(by) => format!("clock of Redis {by:+} s"),
            Self::Failover(by) => format!("failover to a Redis at {by:+} s"),
            Self::OneOfTwo(by) => format!("one of two replicas {by:+} s"),
            Self::ThereAndBack(by) => format!("clock of Redis {by:+} s, and back 10 s later"),
        }
    }
}

const PER_SECOND: Rate = Rate { hits: 10, secs: 1 };
const PER_TEN: Rate = Rate { hits: 50, secs: 10 };

/// Prints both tables.
pub async fn print() {
    println!("\n10 per second, a caller at 40 a second, a step after 3.5 s, default flags\n");
    println!("| step | algorithm | admitted by second | longest without, s | most in a second |");
    println!("|---|---|---|---|---|");
    for step in [
        Step::Own(20),
        Step::Own(600),
        Step::Redis(-3600),
        Step::Failover(-15),
        Step::OneOfTwo(15),
    ] {
        scenario(step, PER_SECOND, Duration::from_millis(3500), 26).await;
    }
    println!("\n50 per 10 s, a caller at 20 a second, a step after 14.5 s, default flags\n");
    println!("| step | algorithm | admitted by second | longest without, s | most in 10 s |");
    println!("|---|---|---|---|---|");
    for step in [
        Step::Redis(7),
        Step::Redis(-3600),
        Step::ThereAndBack(25 * 60 * 60),
    ] {
        scenario(step, PER_TEN, Duration::from_millis(14_500), 45).await;
    }
}

/// One client for each algorithm and replica asks for `secs` seconds, which begin with a window.
async fn scenario(step: Step, rate: Rate, steps_at: Duration, secs: u64) {
    let rules = rules(&[rate]);
    let mut own = Vec::new();
    let redis_clock = Arc::new(WallClock::start());
    let mut redis = Redis::with_wall_clock(&redis_clock);
    let replicas = if matches!(step, Step::OneOfTwo(_)) {
        2
    } else {
        1
    };
    for _ in 0..replicas {
        let clock = WallClock::start();
        let builder = tollgate::with_rules(&rules).redis_by_default(&redis.url());
        let server = builder.with_wall_clock(&clock).start();
        own.push((clock, server));
    }
    // Of a table, all columns begin alike.
    #[expect(
        clippy::disallowed_methods,
        reason = "the true time, which no server is given"
    )]
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let period = u128::from(rate.secs) * 1_000;
    let wait = period - now.as_millis() % period;
    sleep(Duration::from_millis(u64::try_from(wait).unwrap())).await;
    let began = Instant::now();
    let mut asking = JoinSet::new();
    for (index, (_, server)) in own.iter().enumerate() {
        for (number, algorithm) in ALGORITHMS.into_iter().enumerate() {
            let asks = Asking {
                key: rate.key(algorithm),
                value: "v",
                every: Duration::from_secs(rate.secs) * replicas / (4 * rate.hits),
                began,
                lasts: Duration::from_secs(secs),
            };
            let client = connect(server.grpc).await;
            asking.spawn(async move { ((index, number), asks.run(client, 7).await) });
        }
    }
    sleep(steps_at.saturating_sub(began.elapsed())).await;
    match step {
        Step::Own(by) => own[0].0.set(by),
        Step::OneOfTwo(by) => own[1].0.set(by),
        Step::Redis(by) => redis_clock.set(by),
        Step::Failover(by) => {
            redis.kill();
            redis_clock.set(by);
            redis.restart();
        }
        Step::ThereAndBack(by) => {
            redis_clock.set(by);
            sleep(Duration::from_secs(10)).await;
            redis_clock.set(0);
        }
    }
    let mut clients = asking.join_all().await;
    clients.sort_unstable_by_key(|(number, _)| *number);
    for ((index, number), samples) in clients {
        if index + 1 < own.len() {
            continue;
        }
        let seconds: Vec<_> = by_second(&samples).iter().map(usize::to_string).collect();
        let counts = in_periods(&samples, Duration::from_secs(rate.secs));
        let most = counts.map(|(_, count)| count).max();
        println!(
            "| {} | {} | {} | {:.1} | {} |",
            step.name(),
            ALGORITHMS[number],
            seconds.join(" "),
            longest_refusal(&samples).as_secs_f64(),
            most.unwrap_or(0),
        );
    }
}
