//! Histories over clocks that step: the time of day of tollgate and of Redis is set forward and back while clients ask
//! steadily. What they measure is by a clock that cannot be set.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};

use super::{
    Random,
    ask::{Client, ask, connect, is_ok},
    redis::Redis,
    tollgate::{self, Tollgate},
    wall_clock::WallClock,
};

/// The keys of a rule for each algorithm.
pub const ALGORITHMS: [&str; 5] = [
    "fixed_window",
    "first_hit",
    "sliding_window",
    "sliding_log",
    "token_bucket",
];

/// Rules for all [`ALGORITHMS`] and each of `limits`. Only the fixed window charges refused hits too.
pub fn rules(limits: &[Rate]) -> String {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for rate in limits {
        for algorithm in ALGORITHMS {
            let count = match algorithm {
                "fixed_window" => "count: all, ",
                _ => "count: admitted, ",
            };
            text += &rule(*rate, algorithm, count);
        }
    }
    text
}

/// Rules for all [`ALGORITHMS`], which go on locally while Redis is lost.
pub fn local_rules(rate: Rate) -> String {
    let rules = ALGORITHMS.map(|algorithm| rule(rate, algorithm, ""));
    format!(
        "domain: d\non_store_loss: local\ndescriptors:\n{}",
        rules.concat()
    )
}

fn rule(rate: Rate, algorithm: &str, more: &str) -> String {
    let way = match algorithm {
        "first_hit" => "window",
        _ => "algorithm",
    };
    let Rate { hits, secs } = rate;
    let key = rate.key(algorithm);
    format!(
        "  - {{key: {key}, {more}rate_limit: {{unit: second, unit_multiplier: {secs}, requests_per_unit: {hits}, \
         {way}: {algorithm}}}}}\n"
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub hits: u32,
    pub secs: u64,
}

impl Rate {
    /// The key of the rule that limits to this rate by an algorithm.
    pub fn key(self, algorithm: &str) -> String {
        format!("{algorithm}_{}", self.secs)
    }

    pub fn period(self) -> Duration {
        Duration::from_secs(self.secs)
    }
}

/// One call, decided between `sent` and `received` after the beginning.
#[derive(Clone, Copy, Debug)]
struct Sample {
    pub sent: Duration,
    pub received: Duration,
    /// `None` if there was no decision.
    pub admitted: Option<bool>,
}

/// A client that asks for one descriptor, from `began` for as long as `lasts`.
#[derive(Clone, Debug)]
struct Asking {
    pub key: String,
    pub value: &'static str,
    /// The mean time from one call to the next.
    pub every: Duration,
    pub began: Instant,
    pub lasts: Duration,
}

impl Asking {
    /// Asks at irregular times, so that no two clients keep step with each other. Returns the calls in order.
    async fn run(self, client: Client, seed: u64) -> Vec<Sample> {
        let mut random = Random::new(seed);
        let mut client = client;
        let mut samples = Vec::new();
        let mut next = self.began;
        loop {
            let micros = u64::try_from(self.every.as_micros()).unwrap();
            next += Duration::from_micros(micros / 2 + random.below(micros));
            sleep(next.saturating_duration_since(Instant::now())).await;
            let sent = self.began.elapsed();
            if sent >= self.lasts {
                return samples;
            }
            let reply = ask(&mut client, "d", &[(&self.key, self.value)]).await;
            samples.push(Sample {
                sent,
                received: self.began.elapsed(),
                admitted: reply.is_ok().then(|| is_ok(&reply)),
            });
        }
    }
}

/// The longest time in which calls were refused and none was admitted, from the first answer to the last question.
fn longest_refusal(samples: &[Sample]) -> Duration {
    let (mut longest, mut first) = (Duration::ZERO, None);
    for sample in samples {
        match sample.admitted {
            Some(true) => first = None,
            Some(false) => {
                let first = *first.get_or_insert(sample.received);
                longest = longest.max(sample.sent.saturating_sub(first));
            }
            None => {}
        }
    }
    longest
}

/// For each call that was admitted: when it was sent, and how many were certainly admitted in the `period` from then on.
fn in_periods(samples: &[Sample], period: Duration) -> impl Iterator<Item = (Duration, usize)> {
    let admitted = samples
        .iter()
        .filter(|sample| sample.admitted == Some(true));
    let mut calls: Vec<_> = admitted.copied().collect();
    calls.sort_unstable_by_key(|call| call.sent);
    (0..calls.len()).map(move |first| {
        let from = calls[first].sent;
        let later = calls[first..].iter();
        let near = later.take_while(|call| call.sent <= from + period);
        let count = near.filter(|call| call.received <= from + period).count();
        (from, count)
    })
}

/// Where hits are counted, and whose clocks step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    Memory,
    /// Two replicas and a Redis, which also fails over to a server with another time of day, one after the other.
    Redis,
}

#[derive(Clone, Copy, Debug)]
pub struct ClockPlan {
    pub clocks: Clocks,
    pub lasts: Duration,
    pub limits: &'static [Rate],
    pub seed: u64,
}

#[derive(Debug)]
pub struct ClockOutcome {
    pub steps: usize,
    pub calls: usize,
    pub admitted: usize,
    pub unknown: usize,
    pub violations: Vec<String>,
}

const STEPS: [i64; 4] = [1, 20, 600, 24 * 60 * 60];

struct Step {
    at: Duration,
    what: String,
    /// How many windows it may add. A replica whose own clock steps goes on by that of Redis. Each moves to another
    /// window when it has measured a step of Redis, so that for a while both may be in different ones.
    windows: usize,
}

/// Milliseconds from one step to the next.
const BETWEEN_STEPS: std::ops::Range<u64> = 1_500..4_000;

/// How long after a step replicas may still count by the time before: until they have measured it twice.
const SETTLES: Duration = Duration::from_secs(3);

/// Any client may be refused for so long after its period is over.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The share of the limit that the steady client asks for.
const STEADY: u32 = 5;

/// How many times the limit the greedy client asks for.
const GREEDY: u32 = 4;

#[derive(Debug)]
struct Stepping {
    replicas: Vec<(Arc<WallClock>, Tollgate)>,
    redis: Option<(Arc<WallClock>, Redis)>,
}

impl Stepping {
    fn start(clocks: Clocks, rules: &str) -> Self {
        let redis = (clocks == Clocks::Redis).then(|| {
            let clock = Arc::new(WallClock::start());
            let redis = Redis::with_wall_clock(&clock);
            (clock, redis)
        });
        let count = redis.iter().len() + 1;
        let replicas = (0..count).map(|_| {
            let clock = Arc::new(WallClock::start());
            let builder = tollgate::with_rules(rules).with_wall_clock(&clock);
            let builder = match &redis {
                Some((_, redis)) => builder.redis(redis),
                None => builder,
            };
            (clock, builder.start())
        });
        Self {
            replicas: replicas.collect(),
            redis,
        }
    }

    /// Steps one clock after the other, in turns, and returns when, and how.
    async fn step(&mut self, began: Instant, plan: ClockPlan) -> Vec<Step> {
        let mut random = Random::new(plan.seed);
        let mut below = |bound: usize| usize::try_from(random.below(bound as u64)).unwrap();
        let mut ahead = vec![0; self.replicas.len() + 1];
        let mut steps = Vec::new();
        loop {
            let pause = BETWEEN_STEPS.start
                + below(usize::try_from(BETWEEN_STEPS.end - BETWEEN_STEPS.start).unwrap()) as u64;
            let at = began.elapsed() + Duration::from_millis(pause);
            if at >= plan.lasts {
                return steps;
            }
            sleep(Duration::from_millis(pause)).await;
            let kinds = if self.redis.is_some() { 3 } else { 1 };
            let kind = steps.len() % kinds;
            let stepping = match kind {
                0 => below(self.replicas.len()),
                _ => self.replicas.len(),
            };
            let by = STEPS[below(STEPS.len())];
            // Every other step leads back to the true time.
            ahead[stepping] = match (ahead[stepping], below(2)) {
                (0, 0) => by,
                (0, _) => -by,
                _ => 0,
            };
            let ahead = ahead[stepping];
            let what = match (kind, &mut self.redis) {
                (1, Some((clock, _))) => {
                    clock.set(ahead);
                    "the clock of Redis"
                }
                (2, Some((clock, redis))) => {
                    redis.kill();
                    clock.set(ahead);
                    redis.restart();
                    "another Redis"
                }
                _ => {
                    self.replicas[stepping].0.set(ahead);
                    "the clock of a replica"
                }
            };
            let windows = match (kind, &self.redis) {
                (0, Some(_)) => 0,
                _ => self.replicas.len(),
            };
            let at = began.elapsed();
            let what = format!("{what}: {ahead:+} s at {at:.1?}");
            steps.push(Step { at, what, windows });
        }
    }
}

/// Runs a history over clocks that step, and checks it.
pub async fn run(plan: ClockPlan) -> ClockOutcome {
    let mut servers = Stepping::start(plan.clocks, &rules(plan.limits));
    let began = Instant::now();
    let mut asking = JoinSet::new();
    let mut seed = plan.seed;
    for rate in plan.limits {
        for algorithm in ALGORITHMS {
            for value in ["steady", "greedy"] {
                let per_period = match value {
                    "steady" => rate.hits / STEADY,
                    _ => rate.hits * GREEDY,
                };
                let replicas = u32::try_from(servers.replicas.len()).unwrap();
                for (_, server) in &servers.replicas {
                    seed = seed.wrapping_add(1);
                    let asks = Asking {
                        key: rate.key(algorithm),
                        value,
                        every: rate.period() * replicas / per_period,
                        began,
                        lasts: plan.lasts,
                    };
                    let client = connect(server.grpc).await;
                    let who = (*rate, algorithm, value);
                    asking.spawn(async move { (who, asks.run(client, seed).await) });
                }
            }
        }
    }
    let steps = servers.step(began, plan).await;
    let mut clients = asking.join_all().await;
    clients.sort_unstable_by_key(|((rate, algorithm, value), _)| (rate.secs, *algorithm, *value));
    let mut violations = Vec::new();
    let all: Vec<_> = steps.iter().map(|step| &step.what).collect();
    for of_one in clients.chunk_by(|(one, _), (other, _)| one == other) {
        let (rate, algorithm, value) = of_one[0].0;
        let by_replica = of_one.iter().map(|(_, samples)| samples);
        let mut samples: Vec<_> = by_replica.clone().flatten().copied().collect();
        samples.sort_unstable_by_key(|sample| sample.sent);
        let is_used_in_advance =
            plan.clocks == Clocks::Memory && algorithm == "fixed_window" && value == "greedy";
        let longest = match value {
            // It stays below its limit, so each replica lets it pass.
            "steady" => by_replica
                .map(|of_one| longest_refusal(of_one))
                .max()
                .unwrap(),
            // It takes all there is, and one of two replicas may be too late for all of it while they read other times.
            _ => longest_refusal(&samples),
        };
        if longest > rate.period() + REFUSED_FOR && !is_used_in_advance {
            violations.push(format!(
                "{algorithm}, {value}, {rate:?}: {longest:?} of refusals alone, {all:?}",
            ));
        }
        let limit = usize::try_from(rate.hits).unwrap();
        let found = in_periods(&samples, rate.period()).find(|(from, count)| {
            let to = *from + rate.period();
            let near = steps
                .iter()
                .filter(|step| step.at + SETTLES >= *from && step.at <= to);
            *count > limit * (2 + near.map(|step| step.windows).sum::<usize>())
        });
        if let Some((from, count)) = found {
            violations.push(format!(
                "{algorithm}, {value}, {rate:?}: {count} admitted in a period from {from:?}, {all:?}"
            ));
        }
    }
    let calls = || clients.iter().flat_map(|(_, samples)| samples);
    ClockOutcome {
        steps: steps.len(),
        calls: calls().count(),
        admitted: calls().filter(|call| call.admitted == Some(true)).count(),
        unknown: calls().filter(|call| call.admitted.is_none()).count(),
        violations,
    }
}
