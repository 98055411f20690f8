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
/// are looked at before any is moved. Each key has three arguments: hits, negative ones to give
/// back, limit, time to live.
const STOPPING: &str = "local passes, stops = {}, false \
    for i, key in ipairs(KEYS) do \
        local hits = tonumber(ARGV[3 * i - 2]) \
        local count = tonumber(redis.call('GET', key) or '0') \
        passes[i] = hits >= 0 and count + hits > tonumber(ARGV[3 * i - 1]) \
        stops = stops or passes[i] \
    end \
    local counts = {} \
    for i, key in ipairs(KEYS) do \
        local hits = tonumber(ARGV[3 * i - 2]) \
        local count = tonumber(redis.call('GET', key) or '0') \
        if hits < 0 and count > 0 then \
            if count + hits > 0 then \
                count = redis.call('INCRBY', key, ARGV[3 * i - 2]) \
            else \
                redis.call('SET', key, '0', 'KEEPTTL') \
                count = 0 \
            end \
        elseif hits > 0 and (passes[i] or not stops) then \
            count = redis.call('INCRBY', key, ARGV[3 * i - 2]) \
            if count == hits then \
                redis.call('EXPIRE', key, ARGV[3 * i]) \
            end \
        end \
        counts[i] = count \
    end \
    return counts";

/// The commands of one batch, and how their replies are to be read.
pub(super) struct Commands {
    pub(super) pipeline: Pipeline,
    steps: Vec<Step>,
    groups: Vec<Group>,
    /// Hashes of the keys that this batch gives a time to live, and the places of the commands.
    expiries: Vec<(u64, usize)>,
    trusted: Vec<Trusted>,
}

/// How one increment finds its count.
#[derive(Clone, Copy)]
enum Step {
    /// It is the `after`th hit of a group.
    Grouped { group: usize, after: u64 },
    /// The group's count is its own.
    Alone { group: usize },
    /// It is one of a group's counts.
    Together { group: usize, place: usize },
}

/// What is answered by one reply.
#[derive(Default)]
struct Group {
    hits: u64,
    /// The place of its command, and so of the reply.
    command: usize,
}

/// A key that this batch gives no time to live, because it should have one.
struct Trusted {
    key: Vec<u8>,
    ttl_secs: u64,
    group: usize,
}

/// Gathers the increments of a batch. They are applied in their order.
pub(super) struct Builder<'a, H, K> {
    options: &'a Options,
    now: Timestamp,
    /// A key's hash.
    hash: H,
    /// Whether the key of a hash has a time to live already.
    is_known: K,
    steps: Vec<Step>,
    groups: Vec<(Group, Call<'a>)>,
    /// The groups that further hits can still join.
    open: HashMap<&'a [u8], usize>,
}

/// What a group comes to.
enum Call<'a> {
    /// All hits on one key of the batch, or those between two scripts: what a script says depends
    /// on what came first.
    Hits(Increment<'a>),
    Script(Cmd),
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
            open: HashMap::new(),
        }
    }

    pub(super) fn increment(&mut self, increment: Increment<'a>) {
        if increment.hits.given_back() > 0 {
            return self.give_back(increment);
        }
        let group = *self.open.entry(increment.key).or_insert_with(|| {
            self.groups.push((Group::default(), Call::Hits(increment)));
            self.groups.len() - 1
        });
        let hits = &mut self.groups[group].0.hits;
        *hits = (*hits + increment.hits.added()).min(Hits::MAX);
        let after = *hits;
        self.steps.push(Step::Grouped { group, after });
    }

    fn give_back(&mut self, increment: Increment<'a>) {
        let mut script = redis::cmd("EVAL");
        script
            .arg(GIVE_BACK)
            .arg(1)
            .arg(self.key(increment.key))
            .arg(increment.hits.given_back());
        self.open.remove(increment.key);
        let group = self.script(script);
        self.steps.push(Step::Alone { group });
    }

    /// One request of which some increments may stop the others.
    pub(super) fn stopping(&mut self, increments: impl Iterator<Item = Increment<'a>>) {
        let increments: Vec<_> = increments.collect();
        let mut script = redis::cmd("EVAL");
        script.arg(STOPPING).arg(increments.len());
        for increment in &increments {
            script.arg(self.key(increment.key));
            self.open.remove(increment.key);
        }
        for increment in &increments {
            let given_back = increment.hits.given_back();
            if given_back > 0 {
                script.arg(format!("-{given_back}"));
            } else {
                script.arg(increment.hits.added());
            }
            script.arg(increment.limit).arg(self.ttl_secs(increment));
        }
        let group = self.script(script);
        let together = (0..increments.len()).map(|place| Step::Together { group, place });
        self.steps.extend(together);
    }

    fn script(&mut self, script: Cmd) -> usize {
        self.groups.push((Group::default(), Call::Script(script)));
        self.groups.len() - 1
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
        let mut commands = Commands {
            pipeline: Pipeline::with_capacity(self.groups.len() * 2),
            steps: mem::take(&mut self.steps),
            groups: Vec::with_capacity(self.groups.len()),
            expiries: Vec::new(),
            trusted: Vec::new(),
        };
        for (mut group, call) in mem::take(&mut self.groups) {
            group.command = commands.pipeline.len();
            match call {
                Call::Script(script) => {
                    commands.pipeline.add_command(script);
                }
                Call::Hits(first) if group.hits == 0 => {
                    commands.pipeline.cmd("GET").arg(self.key(first.key));
                }
                Call::Hits(first) => self.hits(&first, group.hits, &mut commands),
            }
            commands.groups.push(group);
        }
        commands
    }

    /// INCRBY, and EXPIRE if the key may not have a time to live.
    fn hits(&self, first: &Increment<'_>, hits: u64, commands: &mut Commands) {
        let key = self.key(first.key);
        commands.pipeline.cmd("INCRBY").arg(&key).arg(hits);
        let hash = (self.hash)(first.key);
        let ttl_secs = self.ttl_secs(first);
        if (self.is_known)(hash) {
            commands.trusted.push(Trusted {
                key,
                ttl_secs,
                group: commands.groups.len(),
            });
        } else {
            commands.expiries.push((hash, commands.pipeline.len()));
            commands.pipeline.cmd("EXPIRE").arg(key).arg(ttl_secs);
        }
    }
}

impl Commands {
    /// Hashes of the keys that are now sure to have a time to live.
    pub(super) fn expiring<'a>(&'a self, replies: &'a [Value]) -> impl Iterator<Item = u64> + 'a {
        let is_set = |command: usize| replies[command] == Value::Int(1);
        let set = self
            .expiries
            .iter()
            .filter(move |(_, command)| is_set(*command));
        set.map(|(hash, _)| *hash)
    }

    /// An EXPIRE for each key that should have had a time to live and was made by this batch all
    /// the same: Redis had lost it in a restart, a failover or an eviction.
    pub(super) fn repairs(&self, replies: &[Value]) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(0);
        for trusted in &self.trusted {
            let group = &self.groups[trusted.group];
            if count(&replies[group.command]) == Ok(group.hits) {
                let expire = pipeline.cmd("EXPIRE");
                expire.arg(&trusted.key).arg(trusted.ttl_secs);
            }
        }
        pipeline
    }

    /// The count after each increment, in order.
    pub(super) fn counts<'a>(
        &'a self,
        replies: &'a [Value],
    ) -> impl Iterator<Item = Result<u64, StoreError>> + 'a {
        let group = |group: usize| &self.groups[group];
        self.steps.iter().map(move |step| match *step {
            Step::Alone { group: at } => count(&replies[group(at).command]),
            Step::Together { group: at, place } => match &replies[group(at).command] {
                Value::Array(counts) => counts.get(place).map_or(Err(StoreError::Refused), count),
                reply => count(reply),
            },
            Step::Grouped { group: at, after } => {
                let end = count(&replies[group(at).command])?;
                Ok(end.saturating_sub(group(at).hits).saturating_add(after))
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
