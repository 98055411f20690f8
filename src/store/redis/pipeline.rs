//! A batch of increments → Redis commands, and replies → counts.
//!
//! All hits on one key go out as one INCRBY; each request gets its own count out of the sum. The
//! EXPIRE rides along until this worker has once seen it answered for that key.

use std::collections::HashMap;

use bb8_redis::redis::{self, Pipeline, Value};

use super::StoreError;
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

/// The commands of one batch, and how their replies are to be read.
pub(super) struct Commands {
    pub(super) pipeline: Pipeline,
    steps: Vec<Step>,
    groups: Vec<Group>,
    /// Hashes of the keys that were given a time to live by this batch.
    pub(super) expired_keys: Vec<u64>,
    trusted: Vec<Trusted>,
}

/// How one increment finds its count.
#[derive(Clone, Copy)]
enum Step {
    /// It is the `after`th hit of a group.
    Grouped { group: usize, after: u64 },
    /// It gives back, and the reply to it is the count.
    Alone { group: usize },
}

/// Hits on one key that go out as one command: all of the batch, or those between two give-backs,
/// for a count that stops at zero depends on what came first.
struct Group {
    hits: u64,
    reply: usize,
}

/// A key that this batch gives no time to live, because it should have one.
struct Trusted {
    key: Vec<u8>,
    ttl_secs: u64,
    group: usize,
}

impl Commands {
    /// `is_known` says of a key's hash whether it has a time to live already.
    pub(super) fn new(
        increments: &[Increment<'_>],
        prefix: &str,
        now: Timestamp,
        hash: impl Fn(&[u8]) -> u64,
        is_known: impl Fn(u64) -> bool,
    ) -> Self {
        let mut commands = Self {
            pipeline: Pipeline::with_capacity(increments.len() * 2),
            steps: Vec::with_capacity(increments.len()),
            groups: Vec::new(),
            expired_keys: Vec::new(),
            trusted: Vec::new(),
        };
        let mut by_key: HashMap<&[u8], usize> = HashMap::with_capacity(increments.len());
        let mut firsts: Vec<&Increment<'_>> = Vec::new();
        for increment in increments {
            if increment.hits.given_back() > 0 {
                by_key.remove(increment.key);
                commands.steps.push(Step::Alone {
                    group: commands.groups.len(),
                });
                firsts.push(increment);
                commands.groups.push(Group { hits: 0, reply: 0 });
                continue;
            }
            let group = *by_key.entry(increment.key).or_insert_with(|| {
                firsts.push(increment);
                commands.groups.push(Group { hits: 0, reply: 0 });
                commands.groups.len() - 1
            });
            let hits = &mut commands.groups[group].hits;
            *hits = (*hits + increment.hits.added()).min(Hits::MAX);
            commands.steps.push(Step::Grouped {
                group,
                after: *hits,
            });
        }

        let mut key = Vec::with_capacity(128);
        let mut set_key = |bytes: &[u8]| {
            key.clear();
            key.extend_from_slice(prefix.as_bytes());
            key.extend_from_slice(bytes);
            key.clone()
        };
        for (index, (group, first)) in commands.groups.iter_mut().zip(firsts).enumerate() {
            group.reply = commands.pipeline.len();
            let key = set_key(first.key);
            let given_back = first.hits.given_back();
            if given_back > 0 {
                let script = commands.pipeline.cmd("EVAL").arg(GIVE_BACK);
                script.arg(1).arg(key).arg(given_back);
                continue;
            }
            if group.hits == 0 {
                commands.pipeline.cmd("GET").arg(key);
                continue;
            }
            commands.pipeline.cmd("INCRBY").arg(&key).arg(group.hits);
            let hash = hash(first.key);
            let ttl_secs = ttl_secs(first.expires_at, now);
            if is_known(hash) {
                commands.trusted.push(Trusted {
                    key,
                    ttl_secs,
                    group: index,
                });
            } else {
                commands.pipeline.cmd("EXPIRE").arg(key).arg(ttl_secs);
                commands.expired_keys.push(hash);
            }
        }
        commands
    }

    /// An EXPIRE for each key that should have had a time to live and was made by this batch all
    /// the same: Redis had lost it in a restart, a failover or an eviction.
    pub(super) fn repairs(&self, replies: &[Value]) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(0);
        for trusted in &self.trusted {
            let group = &self.groups[trusted.group];
            if count(&replies[group.reply]) == Ok(group.hits) {
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
        self.steps.iter().map(|step| match *step {
            Step::Alone { group } => count(&replies[self.groups[group].reply]),
            Step::Grouped { group, after } => {
                let group = &self.groups[group];
                let end = count(&replies[group.reply])?;
                Ok(end.saturating_sub(group.hits).saturating_add(after))
            }
        })
    }
}

fn ttl_secs(expires_at: Timestamp, now: Timestamp) -> u64 {
    let left = expires_at.secs().saturating_sub(now.secs());
    (left + GRACE_SECS).min(MAX_TTL_SECS)
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
