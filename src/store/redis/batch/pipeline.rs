//! A batch of increments → Redis commands, and replies → counts.
//!
//! All hits on one key are sent as one INCR or INCRBY; each request gets its own count out of the sum.
//! An EXPIRE follows until this connection has seen one succeed for that key, and again after a while.

use std::{iter, time::Duration};

use bb8_redis::redis::Value;
use hashbrown::{HashTable, hash_table::Entry};
use tokio::time::Instant;

use super::{
    packed::PackedCommands,
    queue::QueuedRequest,
    step::{self, MAX_SKEW, count},
};
use crate::{
    core::{
        counter::{CounterKind, CounterState, CounterStates, Increment},
        request::Hits,
        window::Timestamp,
    },
    store::{
        contract::StoreError,
        redis::{
            failure::{Reaction, is_try_again},
            options::{Options, TimeSource},
        },
    },
};

/// A counter outlives its window by this much, for replicas whose clocks run behind.
const GRACE_SECS: u64 = 1;

/// The longest time to live: 100 years. Redis refuses a time that does not fit its own clock.
const MAX_TTL_SECS: u64 = 3_155_760_000;

/// The commands of one batch, and how to read their replies.
pub(crate) struct Commands {
    pub(crate) packed: PackedCommands,
    /// Whether some of them are scripts.
    pub(crate) has_script: bool,
    sources: Vec<ReplySource>,
    groups: Vec<SentGroup>,
    /// Hashes of the keys that this batch gives a time to live, and the indexes of the commands.
    expiries: Vec<(u64, usize)>,
    /// Groups whose keys this batch gives no time to live, because they should have one already, and the time in
    /// seconds.
    trusted: Vec<(usize, u64)>,
}

/// A group after its command is written.
struct SentGroup {
    is_script: bool,
    command: usize,
    hits: u64,
    leaves: Option<Instant>,
}

/// How a server runs the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptForm {
    /// By its digest: the server knows it.
    Digest,
    /// The first one with its text.
    Text,
    /// Not at all.
    None,
}

/// Where one increment finds its count.
#[derive(Clone, Copy)]
enum ReplySource {
    /// Nowhere: it needs a script, and the server takes none.
    Omitted,
    /// The count after the first `after` hits of a group.
    Grouped { group: usize, after: u64 },
    /// One of a group's counts.
    Together {
        group: usize,
        index: usize,
        has_window: bool,
    },
}

/// Increments that one reply answers: all hits on one key of the batch, or those between two scripts, because the
/// result of a script depends on the commands before it. Or one of the scripts.
struct Group<'a> {
    is_script: bool,
    /// The index of a script among the scripts.
    script: usize,
    /// The key of the hits; empty for a script.
    key: &'a [u8],
    hash: u64,
    ends_at: Timestamp,
    hits: u64,
    /// When the caller of leased hits leaves.
    leaves: Option<Instant>,
}

/// Gathers the increments of a batch. They are applied in their order.
pub(crate) struct PipelineBuilder<'a, H, K> {
    options: &'a Options,
    now: Timestamp,
    script: ScriptForm,
    /// A key's hash, which no client can foresee.
    hash: H,
    /// Whether the key of a hash has a time to live already.
    is_known: K,
    sources: Vec<ReplySource>,
    groups: Vec<Group<'a>>,
    /// The groups that further hits can still join, by hash.
    open: HashTable<usize>,
    scripts: PackedCommands,
}

impl<'a, H, K> PipelineBuilder<'a, H, K>
where
    H: Fn(&[u8]) -> u64,
    K: Fn(u64) -> bool,
{
    /// A builder for about this many `increments`.
    pub(crate) fn new(
        options: &'a Options,
        now: Timestamp,
        increments: usize,
        script: ScriptForm,
        hash: H,
        is_known: K,
    ) -> Self {
        Self {
            options,
            now,
            script,
            hash,
            is_known,
            sources: Vec::with_capacity(increments),
            groups: Vec::with_capacity(increments),
            open: HashTable::with_capacity(increments),
            scripts: PackedCommands::default(),
        }
    }

    /// Adds the increments of one request. Those of a lease are not charged after the moment when their caller leaves,
    /// which `leaves` has by the clock of the server too.
    pub(crate) fn request(
        &mut self,
        increments: impl Iterator<Item = Increment<'a>> + Clone,
        leaves: Option<(Timestamp, Instant)>,
    ) {
        if increments
            .clone()
            .all(|increment| increment.needs_no_look())
        {
            increments.for_each(|increment| self.increment(increment));
        } else {
            self.step(increments, leaves);
        }
    }

    fn increment(&mut self, increment: Increment<'a>) {
        if !increment.is_plain() {
            return self.step(iter::once(increment), None);
        }
        let group = self.group(&increment);
        let hits = &mut self.groups[group].hits;
        *hits = (*hits + increment.hits).min(Hits::MAX);
        let after = *hits;
        self.sources.push(ReplySource::Grouped { group, after });
    }

    /// The group that hits on the key of `increment` join.
    fn group(&mut self, increment: &Increment<'a>) -> usize {
        let hash = (self.hash)(increment.key);
        let groups = &mut self.groups;
        let known = self.open.entry(
            hash,
            |&group| groups[group].key == increment.key,
            |&group| groups[group].hash,
        );
        match known {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(index) => {
                let group = groups.len();
                index.insert(group);
                groups.push(Group {
                    is_script: false,
                    script: 0,
                    key: increment.key,
                    hash,
                    ends_at: ends_at(self.options, increment),
                    hits: 0,
                    leaves: None,
                });
                group
            }
        }
    }

    /// Adds one script for all `increments`.
    fn step(
        &mut self,
        increments: impl Iterator<Item = Increment<'a>> + Clone,
        leaves: Option<(Timestamp, Instant)>,
    ) {
        let count = increments.clone().count();
        if self.script == ScriptForm::None {
            let omitted = iter::repeat_n(ReplySource::Omitted, count);
            return self.sources.extend(omitted);
        }
        let number = self.scripts.len();
        let ends = leaves.map(|(ends, _)| ends);
        let mut script = self.scripts.command(step::words(count, ends));
        step::begin(&mut script, count);
        for increment in increments.clone() {
            script.words(&[self.options.key_prefix.as_bytes(), increment.key]);
            let hash = (self.hash)(increment.key);
            let groups = &self.groups;
            let known = self
                .open
                .find_entry(hash, |&group| groups[group].key == increment.key);
            if let Ok(known) = known {
                known.remove();
            }
        }
        match self.options.clock {
            TimeSource::Redis => script.number(-1),
            TimeSource::Local => script.number(self.now.millis()),
        };
        for increment in increments.clone() {
            let ttl_secs = || {
                let hash = (self.hash)(increment.key);
                let ends_at = ends_at(self.options, &increment);
                ttl_secs(self.options, self.now, ends_at, hash)
            };
            step::write_fields(&mut script, &increment, ttl_secs);
        }
        step::write_end(&mut script, ends);
        drop(script);
        let group = self.groups.len();
        self.groups.push(Group {
            is_script: true,
            script: number,
            key: &[],
            hash: 0,
            ends_at: self.now,
            hits: 0,
            leaves: leaves.map(|(_, leaves)| leaves),
        });
        let together = increments
            .enumerate()
            .map(|(index, increment)| ReplySource::Together {
                group,
                index,
                has_window: increment.method == CounterKind::Window,
            });
        self.sources.extend(together);
    }

    pub(crate) fn finish(self) -> Commands {
        /// Bytes around the key in a command that increments by one.
        const AROUND: usize = 40;
        let key_bytes = self.groups.iter().map(|group| match group.is_script {
            true => 0,
            false => AROUND + self.options.key_prefix.len() + group.key.len(),
        });
        let mut commands = Commands {
            has_script: !self.scripts.is_empty(),
            packed: PackedCommands::with_capacity(self.groups.len(), key_bytes.sum()),
            sources: Vec::new(),
            groups: Vec::with_capacity(self.groups.len()),
            expiries: Vec::new(),
            trusted: Vec::new(),
        };
        for group in &self.groups {
            commands.groups.push(SentGroup {
                is_script: group.is_script,
                command: commands.packed.len(),
                hits: group.hits,
                leaves: group.leaves,
            });
            if !group.is_script {
                self.hits(group, &mut commands);
            } else if group.script == 0 && self.script == ScriptForm::Text {
                // In its place, so that the commands after it are applied after it.
                step::push_with_text(&mut commands.packed, &self.scripts, 0);
            } else {
                commands.packed.copy(&self.scripts, group.script);
            }
        }
        commands.sources = self.sources;
        commands
    }

    /// Adds INCR or INCRBY for the last group of `commands`, and EXPIRE if its key might have no time to live; GET if
    /// it has no hits.
    fn hits(&self, group: &Group<'a>, commands: &mut Commands) {
        let key = [self.options.key_prefix.as_bytes(), group.key];
        let packed = &mut commands.packed;
        if group.hits == 0 {
            packed.command(2).word(b"GET").words(&key);
            return;
        }
        packed.increment(&key, group.hits);
        let ttl_secs = ttl_secs(self.options, self.now, group.ends_at, group.hash);
        if (self.is_known)(group.hash) {
            commands.trusted.push((commands.groups.len() - 1, ttl_secs));
        } else {
            commands.expiries.push((group.hash, packed.len()));
            expire(packed, &key, ttl_secs);
        }
    }
}

fn expire(commands: &mut PackedCommands, key: &[&[u8]], ttl_secs: u64) {
    let mut expire = commands.command(3);
    expire.word(b"EXPIRE").words(key).number(ttl_secs);
}

/// When the window of a counter ends by the clocks of all replicas. Each replica that has not seen the
/// key before sets the time to live again; where clocks differ, one that is ahead would end the window
/// for one that is behind. Clocks that differ by more than a period count in different windows.
fn ends_at(options: &Options, increment: &Increment<'_>) -> Timestamp {
    match options.clock {
        TimeSource::Redis => increment.expires_at,
        TimeSource::Local => {
            let period = Duration::from_millis(increment.period_millis);
            increment.expires_at.plus(period.min(MAX_SKEW))
        }
    }
}

fn ttl_secs(options: &Options, now: Timestamp, ends_at: Timestamp, hash: u64) -> u64 {
    let left = ends_at.secs().saturating_sub(now.secs());
    let spread = match options.jitter_secs {
        0 => 0,
        jitter => hash % jitter,
    };
    left.saturating_add(GRACE_SECS)
        .saturating_add(spread)
        .min(MAX_TTL_SECS)
}

impl Commands {
    /// A question that counts nothing.
    pub(crate) fn ping() -> Self {
        Self {
            packed: PackedCommands::one(&[b"PING"]),
            has_script: false,
            sources: Vec::new(),
            groups: Vec::new(),
            expiries: Vec::new(),
            trusted: Vec::new(),
        }
    }

    /// EXPIRE commands of batches that failed.
    pub(crate) fn expiries(packed: PackedCommands) -> Self {
        Self {
            expiries: (0..packed.len()).map(|command| (0, command)).collect(),
            packed,
            ..Self::ping()
        }
    }

    /// The EXPIRE commands that this server did not carry out, but another one will, or this one later.
    pub(crate) fn undone(&self, replies: &[Value]) -> PackedCommands {
        let mut undone = PackedCommands::default();
        for &(_, command) in &self.expiries {
            let reaction = Reaction::to(&replies[command]);
            if !matches!(reaction, None | Some(Reaction::Refuse)) {
                undone.copy(&self.packed, command);
            }
        }
        undone
    }

    /// Answers the requests that these are the commands of, unless they have an answer. Returns how many callers take
    /// theirs, and how many have left.
    pub(crate) fn answer(&self, replies: &[Value], requests: &mut [QueuedRequest]) -> [u64; 2] {
        let mut counts = self.counts(replies);
        let mut taken = [0; 2];
        for request in requests {
            // All counts of a request are consumed, even if one is an error.
            let mut own = CounterStates::new();
            let mut result = Ok(());
            for count in counts.by_ref().take(request.batch.len()) {
                match count {
                    Ok(count) => own.push(count),
                    Err(error) => result = result.and(Err(error)),
                }
            }
            if let Some(is_taken) = request.answer(result.map(|()| own)) {
                taken[usize::from(!is_taken)] += 1;
            }
        }
        taken
    }

    /// Hashes of the keys that now certainly have a time to live.
    pub(crate) fn expiring(&self, replies: &[Value]) -> impl Iterator<Item = u64> {
        let is_set = |command: usize| !self.groups.is_empty() && replies[command] == Value::Int(1);
        let set = self
            .expiries
            .iter()
            .filter(move |(_, command)| is_set(*command));
        set.map(|(hash, _)| *hash)
    }

    /// An EXPIRE for each key that this batch may have created, if it is not known how far it was carried out.
    pub(crate) fn owed(&self) -> PackedCommands {
        let mut owed = PackedCommands::default();
        for &(_, command) in &self.expiries {
            owed.copy(&self.packed, command);
        }
        for &trusted in &self.trusted {
            self.expire(trusted, &mut owed);
        }
        owed
    }

    fn expire(&self, (group, ttl_secs): (usize, u64), commands: &mut PackedCommands) {
        let key = self.packed.key(self.groups[group].command);
        expire(commands, &[key], ttl_secs);
    }

    /// An EXPIRE for each key that should have had a time to live but was created by this batch: Redis
    /// had lost it in a restart, a failover or an eviction.
    pub(crate) fn repairs(&self, replies: &[Value]) -> PackedCommands {
        let mut repairs = PackedCommands::default();
        for &trusted in &self.trusted {
            let group = &self.groups[trusted.0];
            if count(&replies[group.command]) == Ok(group.hits) {
                self.expire(trusted, &mut repairs);
            }
        }
        repairs
    }

    /// A SET for each key whose count was below zero, as an earlier version left it: these hits count from 0. A key
    /// that has ended stays away.
    pub(crate) fn lifts(&self, replies: &[Value]) -> PackedCommands {
        let mut lifts = PackedCommands::default();
        for group in self.groups.iter().filter(|group| !group.is_script) {
            let hits = group.hits.cast_signed();
            if matches!(replies[group.command], Value::Int(count) if count < hits) {
                let mut lift = lifts.command(5);
                lift.word(b"SET")
                    .word(self.packed.key(group.command))
                    .number(group.hits)
                    .word(b"KEEPTTL")
                    .word(b"XX");
            }
        }
        lifts
    }

    /// The count after each increment, in order.
    pub(crate) fn counts(
        &self,
        replies: &[Value],
    ) -> impl Iterator<Item = Result<CounterState, StoreError>> {
        let group = |group: usize| &self.groups[group];
        self.sources.iter().map(move |source| match *source {
            ReplySource::Together {
                group: at,
                index,
                has_window,
            } => match &replies[group(at).command] {
                Value::Array(reply) => step::counter_state(reply, index, has_window),
                reply if is_try_again(reply) => Err(StoreError::Moving),
                _ => Err(StoreError::Refused),
            },
            ReplySource::Omitted => Err(StoreError::Refused),
            ReplySource::Grouped { group: at, after } => {
                let SentGroup { command, hits, .. } = *group(at);
                // A count that was below zero is read as 0: these hits count from there.
                let end = count(&replies[command])?.max(hits);
                let later = hits.saturating_sub(after);
                Ok(CounterState::from(end.saturating_sub(later)))
            }
        })
    }

    /// How many counters scripts have dropped because they were too far ahead of the clock.
    pub(crate) fn reset_counters(replies: &[Value]) -> u64 {
        replies.iter().filter_map(step::reset_counters).sum()
    }

    /// The scripts that were refused because their callers had left by the clock of the server, though they wait at
    /// `now`: that clock was set. Each comes with the time that it shows when its caller leaves.
    pub(crate) fn refused(&self, replies: &[Value], now: Instant) -> Vec<(usize, Timestamp)> {
        let refused = |group: &SentGroup| {
            let waits = group.leaves?.checked_duration_since(now)?;
            let server = step::refused_at(&replies[group.command])?;
            Some((group.command, server.plus(waits)))
        };
        self.groups.iter().filter_map(refused).collect()
    }

    /// The indexes of scripts that the server did not know and so did not run.
    pub(crate) fn unknown(&self, replies: &[Value]) -> Vec<usize> {
        let is_unknown =
            |command: &usize| Reaction::to(&replies[*command]) == Some(Reaction::SendText);
        (0..replies.len()).filter(is_unknown).collect()
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis;
    use proptest::prelude::*;

    use super::*;
    use crate::core::{
        counter::{Batch, Charge, IncrementSpec},
        limit::Limit,
        window::{Period, Unit},
    };

    fn options(clock: TimeSource) -> Options {
        Options {
            key_prefix: String::new(),
            deadline: Duration::ZERO,
            lose_after: Duration::from_secs(1),
            jitter_secs: 0,
            clock,
        }
    }

    /// Requests of one increment each: a value, its hits and how they are charged.
    fn requests(of: &[(&str, Hits, Charge)]) -> Vec<Batch> {
        let request = |(value, hits, charge): &(&str, Hits, Charge)| {
            let counting = IncrementSpec::charged(*hits, *charge);
            let mut batch = Batch::default();
            batch.push_value(
                value.as_bytes(),
                &Limit::fixed(9, Unit::Year),
                START,
                counting,
            );
            batch
        };
        of.iter().map(request).collect()
    }

    /// The names of the commands for `requests`, each count or its error after `replies`, and the number
    /// of repairs. With `is_known` the keys have a time to live already.
    fn reply(
        requests: &[Batch],
        is_known: bool,
        replies: &[Value],
    ) -> (Vec<String>, Vec<Result<u64, StoreError>>, usize) {
        let options = options(TimeSource::Redis);
        let hash = |key: &[u8]| key.iter().map(|&byte| u64::from(byte)).sum();
        let mut builder =
            PipelineBuilder::new(&options, START, 1, ScriptForm::Digest, hash, |_| is_known);
        for request in requests {
            builder.request(request.iter(), None);
        }
        let commands = builder.finish();
        let text = String::from_utf8(commands.packed.bytes().to_vec()).unwrap();
        let is_name = |word: &&str| ["INCR", "INCRBY", "EXPIRE", "GET", "EVALSHA"].contains(word);
        let names: Vec<_> = text
            .split("\r\n")
            .filter(is_name)
            .map(str::to_owned)
            .collect();
        assert_eq!(names.len(), commands.packed.len());
        assert_eq!(names.len(), replies.len(), "{names:?}");
        let counts = commands.counts(replies);
        let counts = counts.map(|count| count.map(|count| count.after)).collect();
        (names, counts, commands.repairs(replies).len())
    }

    const START: Timestamp = Timestamp::from_secs(1_795_230_000);

    #[test]
    fn hits_on_one_key_are_one_command_and_each_request_has_its_own_count() {
        use Charge::Always;
        let three = requests(&[
            ("a", Hits::ONE, Always),
            ("b", Hits::add(2), Always),
            ("a", Hits::add(3), Always),
        ]);
        let replies = [9, 1, 2, 1].map(Value::Int);
        let (names, counts, repairs) = reply(&three, false, &replies);
        assert_eq!(names, ["INCRBY", "EXPIRE", "INCRBY", "EXPIRE"]);
        assert_eq!(counts, [Ok(6), Ok(2), Ok(9)]);
        assert_eq!(repairs, 0);
        // A count that was below zero is read as 0.
        let (_, counts, repairs) = reply(&three, true, &[-2, 7].map(Value::Int));
        assert_eq!((counts, repairs), (vec![Ok(1), Ok(7), Ok(4)], 0));
        // A look is a GET, and joins the hits of others.
        let look = requests(&[("a", Hits::add(0), Always)]);
        let (names, counts, _) = reply(&look, false, &[Value::Nil]);
        assert_eq!((names, counts), (vec!["GET".to_owned()], vec![Ok(0)]));
        let beside = requests(&[("a", Hits::ONE, Always), ("a", Hits::add(0), Always)]);
        let (names, counts, _) = reply(&beside, true, &[Value::Int(4)]);
        assert_eq!(
            (names, counts),
            (vec!["INCR".to_owned()], vec![Ok(4), Ok(4)])
        );
    }

    #[test]
    fn only_a_count_that_was_below_zero_is_set_to_the_hits() {
        let two = requests(&[
            ("a", Hits::add(2), Charge::Always),
            ("b", Hits::ONE, Charge::Always),
        ]);
        let options = options(TimeSource::Redis);
        let hash = |key: &[u8]| key.iter().map(|&byte| u64::from(byte)).sum();
        let mut builder =
            PipelineBuilder::new(&options, START, 1, ScriptForm::Digest, hash, |_| true);
        two.iter()
            .for_each(|request| builder.request(request.iter(), None));
        let commands = builder.finish();
        for (replies, expected) in [([2, 1], 0), ([-98, 1], 1), ([1, 0], 2)] {
            let lifts = commands.lifts(&replies.map(Value::Int));
            assert_eq!(lifts.len(), expected, "{replies:?}");
            let text = str::from_utf8(lifts.bytes()).unwrap();
            let is_whole = text.contains("\r\n2\r\n$7\r\nKEEPTTL\r\n$2\r\nXX\r\n");
            assert_eq!(is_whole, expected > 0, "{text}");
        }
    }

    #[test]
    fn a_key_that_should_have_been_there_is_given_its_time_to_live_again() {
        let two = requests(&[
            ("a", Hits::add(2), Charge::Always),
            ("b", Hits::ONE, Charge::Always),
        ]);
        for (replies, expected) in [([5, 7], 0), ([2, 7], 1), ([2, 1], 2)] {
            let (names, _, repairs) = reply(&two, true, &replies.map(Value::Int));
            assert_eq!(names, ["INCRBY", "INCR"]);
            assert_eq!(repairs, expected, "{replies:?}");
        }
    }

    #[test]
    fn a_script_stands_between_hits_on_its_key() {
        let three = requests(&[
            ("a", Hits::ONE, Charge::Always),
            ("a", Hits::ONE, Charge::Admitted),
            ("a", Hits::ONE, Charge::Always),
        ]);
        assert_eq!(
            Commands::reset_counters(&[Value::Int(1), Value::Array(Vec::new())]),
            0
        );
        let with_reset_counters = Value::Array([3, 1, 0, 0, 2].map(Value::Int).to_vec());
        assert_eq!(
            Commands::reset_counters(&[Value::Int(1), with_reset_counters]),
            2
        );
        let script = Value::Array([3, 1, 0, 0].map(Value::Int).to_vec());
        let replies = [Value::Int(2), script, Value::Int(4)];
        let (names, counts, _) = reply(&three, true, &replies);
        assert_eq!(names, ["INCR", "EVALSHA", "INCR"]);
        assert_eq!(counts, [Ok(2), Ok(3), Ok(4)]);
    }

    #[test]
    fn one_that_is_refused_takes_nobody_along() {
        let two = requests(&[
            ("a", Hits::ONE, Charge::Admitted),
            ("b", Hits::ONE, Charge::Always),
        ]);
        let error =
            |text: &str| redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
        for (text, expected) in [
            ("OOM no room", StoreError::Refused),
            ("TRYAGAIN the slot moves", StoreError::Moving),
        ] {
            let (_, counts, _) = reply(&two, true, &[error(text), Value::Int(1)]);
            assert_eq!(counts, [Err(expected), Ok(1)]);
        }
    }

    /// The seconds of the EXPIRE for the window of `period` that holds `now`.
    fn expire_secs(clock: TimeSource, period: Period, now: Timestamp) -> u64 {
        let options = options(clock);
        let mut batch = Batch::default();
        batch.push_value(b"v", &Limit::fixed(1, period), now, Hits::ONE);
        let mut builder =
            PipelineBuilder::new(&options, now, 1, ScriptForm::Digest, |_| 0, |_| false);
        builder.request(batch.iter(), None);
        let commands = builder.finish();
        let text = String::from_utf8(commands.packed.bytes().to_vec()).unwrap();
        let words: Vec<_> = text.split("\r\n").filter(|word| !word.is_empty()).collect();
        assert!(words.contains(&"EXPIRE"), "{text}");
        words.last().unwrap().parse().unwrap()
    }

    fn any_period() -> impl Strategy<Value = Period> {
        prop::sample::select(Unit::ALL.to_vec()).prop_map(Period::from)
    }

    proptest! {
        #[test]
        fn no_clock_ends_a_window_for_one_that_is_behind(
            period in any_period(),
            start in 1_000_000_000..2_000_000_000_u64,
            (ahead, behind) in (any::<u64>(), any::<u64>()),
        ) {
            let secs = period.secs();
            let start = start - start % secs;
            let ahead = ahead % secs;
            // Still in that window, and no further apart than is allowed for.
            let behind = behind % (ahead.min(MAX_SKEW.as_secs()) + 1);
            let now = Timestamp::from_secs(start + ahead);
            let left = secs - (ahead - behind);
            let expire_secs = expire_secs(TimeSource::Local, period, now);
            prop_assert!(expire_secs > left, "{expire_secs} and not {left}");
        }

        #[test]
        fn by_the_clock_of_redis_a_key_outlives_its_window_by_a_second(
            period in any_period(),
            now in 1_000_000_000..2_000_000_000_u64,
        ) {
            let left = period.secs() - now % period.secs();
            let expire_secs = expire_secs(TimeSource::Redis, period, Timestamp::from_secs(now));
            prop_assert_eq!(expire_secs, left + 1);
        }
    }
}
