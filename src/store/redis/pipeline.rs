//! A batch of increments → Redis commands, and replies → counts.
//!
//! All hits on one key go out as one INCRBY; each request gets its own count out of the sum. The
//! EXPIRE rides along until this worker has once seen it answered for that key.

use std::{collections::HashMap, iter, mem, sync::LazyLock};

use bb8_redis::redis::{self, Cmd, Pipeline, Value};
// Keys come from outside: seeded at random for each process.
use foldhash::quality::RandomState;

use super::{Clock, Options, StoreError};
use crate::{
    counter::{Charge, Count, Ends, Increment, Method, Voice},
    request::Hits,
    window::Timestamp,
};

/// A counter outlives its window by this much, for replicas whose clocks run behind.
const GRACE_SECS: u64 = 1;

/// The longest time to live: 100 years. Redis refuses what does not fit its own clock.
const MAX_TTL_SECS: u64 = 3_155_760_000;

/// What looks before it adds, as one atomic step.
const STEP: &str = include_str!("step.lua");

/// Its name to EVALSHA.
static STEP_SHA: LazyLock<String> =
    LazyLock::new(|| redis::Script::new(STEP).get_hash().to_owned());

/// The command that makes the step known to a server.
pub(super) fn load_step() -> Cmd {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(STEP);
    load
}

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
    /// It is one of a group's counts.
    Together {
        group: usize,
        place: usize,
        has_window: bool,
    },
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
    open: HashMap<&'a [u8], usize, RandomState>,
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
            open: HashMap::default(),
        }
    }

    /// The increments of one request.
    pub(super) fn request(&mut self, increments: impl Iterator<Item = Increment<'a>> + Clone) {
        if increments.clone().all(|increment| increment.stands_alone()) {
            increments.for_each(|increment| self.increment(increment));
        } else {
            self.step(increments);
        }
    }

    fn increment(&mut self, increment: Increment<'a>) {
        let is_plain = increment.method == Method::Window && increment.charge == Charge::Always;
        if !is_plain || increment.hits.given_back() > 0 {
            return self.step(iter::once(increment));
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

    /// One script for all of them.
    fn step(&mut self, increments: impl Iterator<Item = Increment<'a>> + Clone) {
        let mut script = redis::cmd("EVALSHA");
        script.arg(&*STEP_SHA).arg(increments.clone().count());
        for increment in increments.clone() {
            script.arg(self.key(increment.key));
            self.open.remove(increment.key);
        }
        match self.options.clock {
            Clock::Redis => script.arg(-1),
            Clock::Local => script.arg(self.now.millis()),
        };
        for increment in increments.clone() {
            self.step_arguments(&mut script, &increment);
        }
        self.groups.push((Group::default(), Call::Script(script)));
        let group = self.groups.len() - 1;
        let together = increments
            .enumerate()
            .map(|(place, increment)| Step::Together {
                group,
                place,
                has_window: increment.method == Method::Window,
            });
        self.steps.extend(together);
    }

    fn step_arguments(&self, script: &mut Cmd, increment: &Increment<'_>) {
        let (method, extra) = match increment.method {
            Method::Window => ("w", self.ttl_secs(increment)),
            Method::FirstHit => ("f", 0),
            Method::SlidingWindow => ("s", 0),
            Method::SlidingLog => ("l", 0),
            Method::TokenBucket { rate } => ("t", rate.into()),
        };
        let charge = match increment.charge {
            Charge::Always => "a",
            Charge::Within => "w",
            Charge::Admitted => "m",
            Charge::Stopping => "s",
        };
        let voice = match increment.voice {
            Voice::Refuses => "r",
            Voice::Quota => "q",
            Voice::Silent => "-",
        };
        script
            .arg(method)
            .arg(charge)
            .arg(voice)
            .arg(increment.descriptor)
            .arg(increment.hits.signed())
            .arg(increment.limit)
            .arg(increment.period_millis)
            .arg(extra);
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
    ) -> impl Iterator<Item = Result<Count, StoreError>> + 'a {
        let group = |group: usize| &self.groups[group];
        self.steps.iter().map(move |step| match *step {
            Step::Together {
                group: at,
                place,
                has_window,
            } => match &replies[group(at).command] {
                Value::Array(told) => told_by_step(told, place, has_window),
                reply => count(reply).map(Count::from),
            },
            Step::Grouped { group: at, after } => {
                let end = count(&replies[group(at).command])?;
                let after = end.saturating_sub(group(at).hits).saturating_add(after);
                Ok(Count::from(after))
            }
        })
    }

    /// The scripts that the server did not know, and so did not run.
    pub(super) fn unknown(&self, replies: &[Value]) -> Vec<usize> {
        let is_unknown = |reply: &Value| matches!(reply, Value::ServerError(error) if error.code() == "NOSCRIPT");
        let unknown = replies.iter().enumerate();
        unknown
            .filter(|(_, reply)| is_unknown(reply))
            .map(|(command, _)| command)
            .collect()
    }
}

/// What the step says of the counter at `place`.
fn told_by_step(told: &[Value], place: usize, has_window: bool) -> Result<Count, StoreError> {
    let [held, is_charged, resets_in, retry_in] = told
        .get(4 * place..)
        .and_then(|told| told.first_chunk())
        .ok_or(StoreError::Refused)?;
    let number = |reply: &Value| match reply {
        Value::Int(number) => Ok(*number),
        _ => Err(StoreError::Refused),
    };
    Ok(Count {
        is_charged: number(is_charged)? == 1,
        ends: if has_window {
            None
        } else {
            Some(Ends {
                resets_in: u64::try_from(number(resets_in)?).unwrap_or(0),
                retry_in: u64::try_from(number(retry_in)?).ok(),
            })
        },
        ..Count::from(count(held)?)
    })
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
