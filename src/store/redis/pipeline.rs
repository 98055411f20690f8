//! A batch of increments → Redis commands, and replies → counts.
//!
//! All hits on one key go out as one INCRBY; each request gets its own count out of the sum. The
//! EXPIRE rides along until this worker has once seen it answered for that key.

use std::{collections::HashMap, mem};

use bb8_redis::redis::{self, Cmd, Pipeline, Value};

use super::{Options, StoreError};
use crate::{counter::Increment, request::Hits, window::Timestamp};

/// A counter outlives its window by this much, for replicas whose clocks run behind.
const GRACE_SECS: u64 = 1;

/// The longest time to live: 100 years. Redis refuses what does not fit its own clock.
const MAX_TTL_SECS: u64 = 3_155_760_000;

/// Gives hits back, never below zero. The key keeps its time to live, and none is made.
const GIVE_BACK: &str = "if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end \
    local count = redis.call('DECRBY', KEYS[1], ARGV[1]) \
    if count < 0 then redis.call('SET', KEYS[1], '0', 'KEEPTTL') return 0 end \
    return count";

/// The increments of one request of which some may stop the others, as one atomic step: counts
/// are looked at before any is moved. Each key has three arguments: hits, limit, time to live.
const STOPPING: &str = "local passes, stops = {}, false \
    for i, key in ipairs(KEYS) do \
        local count = tonumber(redis.call('GET', key) or '0') \
        passes[i] = count + tonumber(ARGV[3 * i - 2]) > tonumber(ARGV[3 * i - 1]) \
        stops = stops or passes[i] \
    end \
    local counts = {} \
    for i, key in ipairs(KEYS) do \
        if (stops and not passes[i]) or ARGV[3 * i - 2] == '0' then \
            counts[i] = tonumber(redis.call('GET', key) or '0') \
        else \
            counts[i] = redis.call('INCRBY', key, ARGV[3 * i - 2]) \
            if counts[i] == tonumber(ARGV[3 * i - 2]) then \
                redis.call('EXPIRE', key, ARGV[3 * i]) \
            end \
        end \
    end \
    return counts";

/// The commands of one batch, and how their replies are to be read.
pub(super) struct Commands {
    pub(super) pipeline: Pipeline,
    steps: Vec<Step>,
    groups: Vec<Group>,
    /// Hashes of the keys that were given a time to live by this batch.
    pub(super) expired_keys: Vec<u64>,
}

/// How one increment finds its count.
#[derive(Clone, Copy)]
enum Step {
    /// It is the `after`th hit of a group.
    Grouped { group: usize, after: u64 },
    /// It is a script's only count.
    Alone { script: usize },
    /// It is one of a script's counts.
    Together { script: usize, place: usize },
}

/// All hits on one key.
struct Group {
    hits: u64,
    /// The command whose reply is the count after all of them.
    command: usize,
}

/// Gathers the increments of a batch.
pub(super) struct Builder<'a, H, K> {
    options: &'a Options,
    now: Timestamp,
    /// A key's hash.
    hash: H,
    /// Whether the key of a hash has a time to live already.
    is_known: K,
    steps: Vec<Step>,
    groups: Vec<(Group, Increment<'a>)>,
    by_key: HashMap<&'a [u8], usize>,
    /// They go out behind the groups.
    scripts: Vec<Cmd>,
}

impl<'a, H, K> Builder<'a, H, K>
where
    H: Fn(&[u8]) -> u64,
    K: Fn(u64) -> bool,
{
    pub(super) fn new(options: &'a Options, now: Timestamp, hash: H, is_known: K) -> Self {
        Self {
            options,
            now,
            hash,
            is_known,
            steps: Vec::new(),
            groups: Vec::new(),
            by_key: HashMap::new(),
            scripts: Vec::new(),
        }
    }

    pub(super) fn increment(&mut self, increment: Increment<'a>) {
        if increment.hits.given_back() > 0 {
            return self.give_back(increment);
        }
        let group = *self.by_key.entry(increment.key).or_insert_with(|| {
            let group = Group {
                hits: 0,
                command: 0,
            };
            self.groups.push((group, increment));
            self.groups.len() - 1
        });
        let hits = &mut self.groups[group].0.hits;
        *hits = (*hits + increment.hits.added()).min(Hits::MAX);
        let after = *hits;
        self.steps.push(Step::Grouped { group, after });
    }

    fn give_back(&mut self, increment: Increment<'_>) {
        let script = self.scripts.len();
        self.steps.push(Step::Alone { script });
        let mut command = redis::cmd("EVAL");
        command
            .arg(GIVE_BACK)
            .arg(1)
            .arg(self.key(increment.key))
            .arg(increment.hits.given_back());
        self.scripts.push(command);
    }

    /// One request of which some increments may stop the others.
    pub(super) fn stopping(&mut self, increments: impl Iterator<Item = Increment<'a>>) {
        let script = self.scripts.len();
        // Its place; it is written once all its keys are known.
        self.scripts.push(Cmd::new());
        let mut together = Vec::new();
        for increment in increments {
            if increment.hits.given_back() > 0 {
                self.give_back(increment);
            } else {
                let place = together.len();
                self.steps.push(Step::Together { script, place });
                together.push(increment);
            }
        }
        let mut command = redis::cmd("EVAL");
        command.arg(STOPPING).arg(together.len());
        for increment in &together {
            command.arg(self.key(increment.key));
        }
        for increment in &together {
            command
                .arg(increment.hits.added())
                .arg(increment.limit)
                .arg(self.ttl_secs(increment));
        }
        self.scripts[script] = command;
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [self.options.key_prefix.as_bytes(), key].concat()
    }

    fn ttl_secs(&self, increment: &Increment<'_>) -> u64 {
        let left = increment.expires_at.secs().saturating_sub(self.now.secs());
        let spread = match self.options.jitter_secs {
            0 => 0,
            jitter => (self.hash)(increment.key) % jitter,
        };
        left.saturating_add(GRACE_SECS)
            .saturating_add(spread)
            .min(MAX_TTL_SECS)
    }

    pub(super) fn finish(mut self) -> Commands {
        let mut pipeline = Pipeline::with_capacity(self.groups.len() * 2 + self.scripts.len());
        let mut expired_keys = Vec::new();
        let mut groups = Vec::with_capacity(self.groups.len());
        for (mut group, first) in mem::take(&mut self.groups) {
            group.command = pipeline.len();
            let key = self.key(first.key);
            if group.hits == 0 {
                pipeline.cmd("GET").arg(key);
            } else {
                pipeline.cmd("INCRBY").arg(&key).arg(group.hits);
                let hash = (self.hash)(first.key);
                if !(self.is_known)(hash) {
                    let ttl_secs = self.ttl_secs(&first);
                    pipeline.cmd("EXPIRE").arg(key).arg(ttl_secs);
                    expired_keys.push(hash);
                }
            }
            groups.push(group);
        }
        let first_script = pipeline.len();
        for step in &mut self.steps {
            if let Step::Alone { script } | Step::Together { script, .. } = step {
                *script += first_script;
            }
        }
        for script in self.scripts {
            pipeline.add_command(script);
        }
        Commands {
            pipeline,
            steps: self.steps,
            groups,
            expired_keys,
        }
    }
}

impl Commands {
    /// The count after each increment, in order.
    pub(super) fn counts<'a>(
        &'a self,
        replies: &'a [Value],
    ) -> impl Iterator<Item = Result<u64, StoreError>> + 'a {
        self.steps.iter().map(|step| match *step {
            Step::Alone { script } => count(&replies[script]),
            Step::Together { script, place } => match &replies[script] {
                Value::Array(counts) => counts.get(place).map_or(Err(StoreError::Refused), count),
                reply => count(reply),
            },
            Step::Grouped { group, after } => {
                let group = &self.groups[group];
                let end = count(&replies[group.command])?;
                Ok(end.saturating_sub(group.hits).saturating_add(after))
            }
        })
    }
}

/// The count that a reply stands for.
fn count(reply: &Value) -> Result<u64, StoreError> {
    match reply {
        Value::Nil => Ok(0),
        Value::Int(count) => Ok(u64::try_from(*count).unwrap_or(0)),
        Value::BulkString(_) => {
            redis::from_redis_value(reply.clone()).map_err(|_| StoreError::Refused)
        }
        // The counter is as full as Redis can hold, which is above every limit.
        Value::ServerError(error)
            if error
                .details()
                .is_some_and(|text| text.contains("overflow")) =>
        {
            Ok(i64::MAX.unsigned_abs())
        }
        _ => Err(StoreError::Refused),
    }
}
