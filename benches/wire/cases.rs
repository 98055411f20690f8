//! The cases as data: another case is another line.

use std::time::Duration;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub server: Server,
    /// The limits of every key, in the form of a rule file.
    pub limits: &'static str,
    /// Whether the rule has slices (`accuracy: exact-leased`).
    pub is_sliced: bool,
    pub shape: Shape,
    pub expected: Expected,
    pub observed: Observed,
    /// Measured unless a filter names other cases.
    pub is_default: bool,
}

/// The answers to the calls of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Ok,
    OverLimit,
    /// OVER_LIMIT for the users whose numbers have seven leading zeros: ten of a thousand.
    SomeOverLimit,
}

/// The observation of decisions that a server has beside its metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// The defaults of all settings.
    Default,
    /// A log of all refused decisions, and an open page.
    Everything,
}

/// The server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// Answers OK to everything, with a service of tonic on hyper and one runtime per core.
    Floor,
    /// Like [`Floor`](Self::Floor), with one PING to Redis per call.
    FloorAndPing,
    /// Answers OK to everything, with tonic on tokio's multi-thread runtime, as in tonic's examples.
    Stock,
    Memory,
    Redis,
    /// With a local cache of counters that are over their limit.
    RedisAndCache,
    /// Takes a connection from a pool and sends one pipeline for each request.
    Naive,
    /// The server at the address of `--server`.
    Foreign,
}

impl Server {
    pub fn has_redis(self) -> bool {
        matches!(
            self,
            Self::FloorAndPing | Self::Redis | Self::RedisAndCache | Self::Naive
        )
    }
}

/// The load of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Concurrent calls, over all connections.
    pub streams: usize,
    pub connections: usize,
    pub descriptors: usize,
    pub keys: Keys,
    /// The hits of each descriptor; 0 to name none.
    pub hits: u64,
    /// The least time between an answer and the next call of its connection.
    pub rest: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            streams: 64,
            connections: 4,
            descriptors: 1,
            keys: Keys::Spread(1_000),
            hits: 0,
            rest: Duration::ZERO,
        }
    }
}

/// The keys of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// So many keys, each equally often.
    Spread(u32),
    /// So many keys, the n-th 1/n times as often as the first.
    Zipf(u32),
}

impl Keys {
    pub fn count(self) -> u32 {
        match self {
            Self::Spread(count) | Self::Zipf(count) => count,
        }
    }

    /// Maps a random number to a key.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the number of keys"
    )]
    pub fn pick(self, random: u64) -> u32 {
        match self {
            Self::Spread(count) => (((random >> 32) * u64::from(count)) >> 32) as u32,
            Self::Zipf(count) => {
                // The n-th key has the share 1/n of the area under 1/x from 1 to count + 1.
                let share = (random >> 11) as f64 / (1_u64 << 53) as f64;
                let rank = f64::from(count + 1).powf(share) as u32;
                rank.clamp(1, count) - 1
            }
        }
    }
}

pub const ONE_PERIOD: &str = "[4000000000/day]";
pub const TWO_PERIODS: &str = "[4000000000/day, 4000000000/week]";
pub const FOUR_PERIODS: &str =
    "[4000000000/day, 4000000000/week, 4000000000/month, 4000000000/year]";
pub const NOTHING: &str = "[1/month, 1/year]";
pub const FIRST_HIT: &str = "[{requests_per_unit: 4000000000, unit: day, window: first_hit}, \
     {requests_per_unit: 4000000000, unit: week, window: first_hit}]";
pub const SLIDING_WINDOW: &str = "[{requests_per_unit: 4000000000, unit: day, algorithm: sliding_window}, \
     {requests_per_unit: 4000000000, unit: week, algorithm: sliding_window}]";
/// A log remembers every hit, so its limits are as low as possible without refusing any call of a turn.
pub const SLIDING_LOG: &str = "[{requests_per_unit: 10000, unit: second, algorithm: sliding_log}, \
     {requests_per_unit: 10000, unit: second, unit_multiplier: 2, algorithm: sliding_log}]";
/// A bucket holds no more than it can count exactly.
pub const TOKEN_BUCKET: &str = "[{requests_per_unit: 4000000000, unit: day, algorithm: token_bucket, burst: 10000000}, \
     {requests_per_unit: 4000000000, unit: week, algorithm: token_bucket, burst: 10000000}]";
pub const CALENDAR: &str = "[{requests_per_unit: 4000000000, unit: day, calendar: true, time_zone: UTC}, \
     {requests_per_unit: 4000000000, unit: month, calendar: true, time_zone: UTC}]";

/// A minute, as a pair with [`LEASED`].
pub const MINUTE: &str = "[10000000/minute]";
/// A minute, charged in advance.
pub const LEASED: &str = "[10000000/minute]\n        accuracy: exact-leased";

const MINUTE_AND_DAY: &str = "[4000000000/minute, 4000000000/day]";
const SECOND_AND_MINUTE: &str = "[4000000000/second, 4000000000/minute]";

/// Loads beside which the cost of a rule with slices is compared with that of a plain one: names, limits, keys, calls a
/// second in all, and the hits of a call.
const SLICED_LOADS: [([&str; 2], &str, u32, u64, u64); 9] = [
    (
        [
            "plain: minute, 1 key, 4,000 a second",
            "sliced: minute, 1 key, 4,000 a second",
        ],
        MINUTE,
        1,
        4_000,
        0,
    ),
    (
        [
            "plain: minute, 20 keys, 1,500 a second",
            "sliced: minute, 20 keys, 1,500 a second",
        ],
        MINUTE,
        20,
        1_500,
        0,
    ),
    (
        [
            "plain: minute, 200 keys, 2,000 a second",
            "sliced: minute, 200 keys, 2,000 a second",
        ],
        MINUTE,
        200,
        2_000,
        0,
    ),
    (
        [
            "plain: second and minute, 100 keys, 8,000 a second",
            "sliced: second and minute, 100 keys, 8,000 a second",
        ],
        SECOND_AND_MINUTE,
        100,
        8_000,
        0,
    ),
    (
        [
            "plain: second and minute, 1,000 keys, 8,000 a second",
            "sliced: second and minute, 1,000 keys, 8,000 a second",
        ],
        SECOND_AND_MINUTE,
        1_000,
        8_000,
        0,
    ),
    (
        [
            "plain: minute, 1,000 keys, 1,000 a second, 10 hits",
            "sliced: minute, 1,000 keys, 1,000 a second, 10 hits",
        ],
        MINUTE,
        1_000,
        1_000,
        10,
    ),
    (
        [
            "plain: minute and day, 500 keys, 1,000 a second, 1,000 hits",
            "sliced: minute and day, 500 keys, 1,000 a second, 1,000 hits",
        ],
        MINUTE_AND_DAY,
        500,
        1_000,
        1_000,
    ),
    (
        [
            "plain: minute and day, 10,000 keys, 6,000 a second, 10 hits",
            "sliced: minute and day, 10,000 keys, 6,000 a second, 10 hits",
        ],
        MINUTE_AND_DAY,
        10_000,
        6_000,
        10,
    ),
    (
        [
            "plain: second and minute, 1,000 keys, 2,000 a second, 10 hits",
            "sliced: second and minute, 1,000 keys, 2,000 a second, 10 hits",
        ],
        SECOND_AND_MINUTE,
        1_000,
        2_000,
        10,
    ),
];

const HOT: Keys = Keys::Spread(1);
const MANY: Keys = Keys::Spread(100_000);
const ZIPF: Keys = Keys::Zipf(100_000);

/// Two periods on a thousand keys, 64 concurrent calls over 4 connections.
const BASE: Case = Case {
    name: "",
    server: Server::Memory,
    limits: TWO_PERIODS,
    is_sliced: false,
    shape: Shape {
        streams: 64,
        connections: 4,
        descriptors: 1,
        keys: Keys::Spread(1_000),
        hits: 0,
        rest: Duration::ZERO,
    },
    expected: Expected::Ok,
    observed: Observed::Default,
    is_default: false,
};

/// All cases. Each is compared with the floor under an equal load.
pub fn all() -> Vec<Case> {
    use Server::{Floor, FloorAndPing, Memory, Naive, Redis, RedisAndCache, Stock};
    let default = |name, server| Case {
        name,
        server,
        is_default: true,
        ..BASE
    };
    let case = |name, server| Case {
        name,
        server,
        ..BASE
    };
    let with = |case: Case, keys| Case {
        shape: Shape { keys, ..case.shape },
        ..case
    };
    let over = |case: Case, streams, connections| Case {
        shape: Shape {
            streams,
            connections,
            ..case.shape
        },
        ..case
    };
    let many = |streams, case| over(with(case, MANY), streams, 4);
    let limits = |limits, case: Case| Case { limits, ..case };
    let three = |case: Case| Case {
        shape: Shape {
            descriptors: 3,
            ..case.shape
        },
        ..case
    };
    let denied = |case: Case| Case {
        limits: NOTHING,
        expected: Expected::OverLimit,
        ..with(case, HOT)
    };
    let observed = |observed, case: Case| Case {
        observed,
        expected: Expected::SomeOverLimit,
        ..case
    };
    let sliced = SLICED_LOADS
        .iter()
        .flat_map(|(names, limits, keys, a_second, hits)| {
            [false, true].map(|is_sliced| Case {
                name: names[usize::from(is_sliced)],
                limits,
                is_sliced,
                shape: Shape {
                    streams: 64,
                    connections: 64,
                    keys: Keys::Spread(*keys),
                    hits: *hits,
                    rest: Duration::from_micros(64_000_000 / a_second),
                    ..BASE.shape
                },
                ..case("", Redis)
            })
        });
    let mut all = vec![
        default("floor", Floor),
        default("stock", Stock),
        limits(MINUTE, case("memory, a minute", Memory)),
        limits(MINUTE, case("redis, a minute", Redis)),
        limits(LEASED, case("redis, leased", Redis)),
        over(
            limits(MINUTE, case("memory, a minute, one at a time", Memory)),
            1,
            1,
        ),
        over(
            limits(MINUTE, case("redis, a minute, one at a time", Redis)),
            1,
            1,
        ),
        over(
            limits(LEASED, case("redis, leased, one at a time", Redis)),
            1,
            1,
        ),
        default("memory", Memory),
        with(default("memory, 100,000 keys", Memory), MANY),
        with(default("memory, hot key", Memory), HOT),
        denied(default("memory, denied", Memory)),
        default("redis", Redis),
        with(default("redis, 100,000 keys", Redis), MANY),
        with(default("redis, hot key", Redis), HOT),
        denied(default("redis, denied", Redis)),
        denied(default("redis, denied, cache", RedisAndCache)),
        default("naive", Naive),
        over(default("floor, 1 stream", Floor), 1, 1),
        over(default("floor and PING, 1 stream", FloorAndPing), 1, 1),
        over(default("memory, 1 stream", Memory), 1, 1),
        over(default("redis, 1 stream", Redis), 1, 1),
        over(default("naive, 1 stream", Naive), 1, 1),
        // Periods and descriptors.
        limits(ONE_PERIOD, case("memory, 1 period", Memory)),
        limits(FOUR_PERIODS, case("memory, 4 periods", Memory)),
        limits(ONE_PERIOD, case("redis, 1 period", Redis)),
        limits(FOUR_PERIODS, case("redis, 4 periods", Redis)),
        three(case("floor, 3 descriptors", Floor)),
        three(case("memory, 3 descriptors", Memory)),
        three(case("redis, 3 descriptors", Redis)),
        // Algorithms.
        limits(FIRST_HIT, case("memory, first hit", Memory)),
        limits(FIRST_HIT, case("redis, first hit", Redis)),
        limits(SLIDING_WINDOW, case("memory, sliding window", Memory)),
        limits(SLIDING_WINDOW, case("redis, sliding window", Redis)),
        limits(SLIDING_LOG, case("memory, sliding log", Memory)),
        limits(SLIDING_LOG, case("redis, sliding log", Redis)),
        limits(TOKEN_BUCKET, case("memory, token bucket", Memory)),
        limits(TOKEN_BUCKET, case("redis, token bucket", Redis)),
        limits(CALENDAR, case("memory, calendar", Memory)),
        limits(CALENDAR, case("redis, calendar", Redis)),
        // Observation, with one refused call in a hundred.
        observed(Observed::Default, case("memory, unobserved", Memory)),
        observed(Observed::Everything, case("memory, observed", Memory)),
        observed(Observed::Default, case("redis, unobserved", Redis)),
        observed(Observed::Everything, case("redis, observed", Redis)),
        // Keys.
        with(case("memory, Zipf", Memory), ZIPF),
        with(case("redis, Zipf", Redis), ZIPF),
        // Loads.
        over(case("floor, 16 over 1", Floor), 16, 1),
        many(4, case("memory, 100,000 keys, 4 over 4", Memory)),
        many(8, case("memory, 100,000 keys, 8 over 4", Memory)),
        many(16, case("memory, 100,000 keys, 16 over 4", Memory)),
        many(32, case("memory, 100,000 keys, 32 over 4", Memory)),
        many(4, case("redis, 100,000 keys, 4 over 4", Redis)),
        many(8, case("redis, 100,000 keys, 8 over 4", Redis)),
        many(16, case("redis, 100,000 keys, 16 over 4", Redis)),
        many(32, case("redis, 100,000 keys, 32 over 4", Redis)),
        over(case("memory, 16 over 1", Memory), 16, 1),
        over(case("redis, 16 over 1", Redis), 16, 1),
        over(case("floor, 64 over 1", Floor), 64, 1),
        over(case("memory, 64 over 1", Memory), 64, 1),
        over(case("redis, 64 over 1", Redis), 64, 1),
        over(case("floor, 64 over 2", Floor), 64, 2),
        over(case("memory, 64 over 2", Memory), 64, 2),
        over(case("redis, 64 over 2", Redis), 64, 2),
        over(case("floor, 256 over 4", Floor), 256, 4),
        over(case("memory, 256 over 4", Memory), 256, 4),
        over(case("redis, 256 over 4", Redis), 256, 4),
    ];
    all.extend(sliced);
    all
}

/// The row of a foreign server.
pub fn foreign() -> Case {
    Case {
        name: "foreign",
        server: Server::Foreign,
        ..BASE
    }
}

impl Case {
    /// The rule file of its server.
    pub fn rules(&self) -> String {
        let mut rules = rules(self.limits);
        if self.is_sliced {
            rules += "        accuracy: exact-leased\n";
        }
        if self.expected == Expected::SomeOverLimit {
            rules += "      - key: user\n        value: 0000000*\n        rate_limits: [1/year]\n";
        }
        rules
    }
}

/// A rule file that gives every key `limits`.
pub fn rules(limits: &str) -> String {
    format!(
        "domain: bench\ndescriptors:\n  - key: tenant\n    descriptors:\n      - key: user\n        \
         rate_limits: {limits}\n"
    )
}
