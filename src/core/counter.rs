//! Counters, their keys, and batches of increments.
//!
//! A key is an encoding that can be decoded again, so that two counters never share one:
//!
//! ```text
//! {4:shop14:remote_address9:127.0.0.1}60@29920500
//!  ^ domain and entries, each behind   ^  ^ number of the window since the epoch
//!    its length                        length of the period in seconds
//! ```
//!
//! A calendar limit has its unit in front, and the start of the window in seconds behind `@`:
//! `{…}month@1795219200`. Other algorithms use one key per counter for all time: a letter for the
//! algorithm, then the period: `{…}l60`. So after a reload no algorithm reads the state of another.
//!
//! The braces are a Redis Cluster hash tag: all periods of one descriptor live in one slot. An entry
//! whose counters all values of a wildcard share has `*` in place of its value's colon. A text longer
//! than [`MAX_IDENTITY_BYTES`] is replaced by `#` and 128 bits of SHA-256.
//!
//! For a migration tollgate can write the reference's keys instead; both programs then count together:
//!
//! ```text
//! shop_remote_address_127.0.0.1_1795200000
//! ```

use std::{
    cell::RefCell,
    ops::{Deref, Range},
    thread::LocalKey,
};

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use crate::{
    core::{
        limit::{Algorithm, Limit, OnStoreLoss},
        request::{Entry, Hits},
        window::{Period, Timestamp, Unit, Window, window},
    },
    foundation::{
        object_pool::{IdleList, Poolable},
        text::Text,
    },
};

/// The longest domain-and-entries text that is written into a key literally, in bytes.
pub const MAX_IDENTITY_BYTES: usize = 160;

/// Increments that one request makes, in order, with their keys in one buffer.
#[derive(Debug, Default)]
pub struct Batch {
    keys: Keys,
    increments: SmallVec<[BatchEntry; 8]>,
}

/// The counts after a batch's increments, in their order.
pub type CounterStates = SmallVec<[CounterState; 8]>;

#[derive(Clone, Copy, Debug)]
struct BatchEntry {
    key_start: usize,
    key_end: usize,
    spec: IncrementSpec,
}

/// A counter's key, and the increment to apply.
#[derive(Clone, Copy, Debug)]
pub struct Increment<'a> {
    pub key: &'a [u8],
    pub spec: IncrementSpec,
}

impl Deref for Increment<'_> {
    type Target = IncrementSpec;

    fn deref(&self) -> &IncrementSpec {
        &self.spec
    }
}

/// Parameters of an increment, without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncrementSpec {
    pub hits: Hits,
    /// The most hits that the limit admits; see [`Limit::capacity`].
    pub limit: u32,
    pub method: CounterKind,
    pub charge: Charge,
    pub enforcement: Enforcement,
    /// The answer while the store does not reply.
    pub on_loss: OnStoreLoss,
    /// The index of its descriptor in the request.
    pub descriptor: u32,
    /// Whether the unit of its limit is the second.
    pub is_per_second: bool,
    /// The length of the limit's period in milliseconds; for a calendar limit, that of the present
    /// window.
    pub period_millis: u64,
    /// The end of the window, if it is known in advance. From then on the counter may be dropped.
    pub expires_at: Timestamp,
}

/// The algorithm by which a counter takes hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// A plain number; the window is part of the key.
    Window,
    FirstHit,
    SlidingWindow,
    SlidingLog,
    /// `rate` tokens flow in per period; never 0.
    TokenBucket {
        rate: u32,
    },
}

/// The hits that are charged to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// All hits.
    Always,
    /// Hits that its own limit lets pass.
    Within,
    /// Hits of requests that pass as a whole.
    Admitted,
    /// Hits that its own limit refuses, and hits of requests in which no limit refuses
    /// (`STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`).
    Stopping,
    /// No hits: the increment only looks at the count they would lead to.
    Never,
}

/// The effect of an exceeded limit on the request as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The request is refused.
    Refuses,
    /// The request is refused if all its quota descriptors are over (`quota_mode`).
    Quota,
    /// No effect (shadow mode).
    Silent,
}

/// The state of a counter after an increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// The hits that the counter holds now; sliding windows and buckets round up. After a refusal
    /// without a charge it includes earlier uncharged hits of the request on this counter.
    pub after: u64,
    /// Whether the hits of this increment are included.
    pub is_charged: bool,
    /// Whether it is known to be over the limit without asking the store.
    pub is_cached: bool,
    /// Whether it was answered without the store, which does not reply.
    pub is_degraded: bool,
    /// When the counter changes; `None` if its window determines that.
    pub ends: Option<ResetTimes>,
}

/// When a counter changes if no further hits arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetTimes {
    /// Milliseconds until it is empty; 0 if it is.
    pub resets_in: u64,
    /// Milliseconds until as many hits would pass: 0 if they would now, `None` if they never will.
    pub retry_in: Option<u64>,
}

impl From<u64> for CounterState {
    fn from(after: u64) -> Self {
        Self {
            after,
            is_charged: true,
            is_cached: false,
            is_degraded: false,
            ends: None,
        }
    }
}

impl CounterState {
    /// Whether `hits`, which led to this count, are too many for `limit`. A look is over only if the
    /// count itself is.
    pub fn is_over(self, limit: u32, hits: Hits) -> bool {
        let missing = if self.is_charged { 0 } else { hits.added() };
        self.after.saturating_add(missing) > u64::from(limit)
    }
}

impl IncrementSpec {
    /// Whether a counter that holds `held` refuses these hits. It never refuses hits that are given
    /// back.
    pub fn refuses(&self, held: u64) -> bool {
        self.hits.given_back() == 0
            && held.saturating_add(self.hits.added()) > u64::from(self.limit)
    }

    /// Whether the increment can be applied without looking at the other counters of its request.
    pub fn stands_alone(&self) -> bool {
        matches!(self.charge, Charge::Always | Charge::Within)
    }
}

/// How a descriptor's hits are charged to one of its counters.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorHits {
    pub hits: Hits,
    pub charge: Charge,
    pub enforcement: Enforcement,
    pub on_loss: OnStoreLoss,
    pub descriptor: u32,
}

impl From<Hits> for DescriptorHits {
    /// The defaults for the only descriptor of a request, whose rule sets no options.
    fn from(hits: Hits) -> Self {
        Self {
            hits,
            charge: Charge::Always,
            enforcement: Enforcement::Refuses,
            on_loss: OnStoreLoss::Error,
            descriptor: 0,
        }
    }
}

thread_local! {
    static BATCHES: IdleList<Batch> = const { RefCell::new(Vec::new()) };
    static COUNT_LISTS: IdleList<CounterStates> = const { RefCell::new(Vec::new()) };
}

impl Poolable for Batch {
    fn idle() -> &'static LocalKey<IdleList<Self>> {
        &BATCHES
    }

    fn clear(&mut self) -> bool {
        let is_small = !self.keys.is_long() && !self.increments.spilled();
        Self::clear(self);
        is_small
    }
}

impl Poolable for CounterStates {
    fn idle() -> &'static LocalKey<IdleList<Self>> {
        &COUNT_LISTS
    }

    fn clear(&mut self) -> bool {
        Self::clear(self);
        !self.spilled()
    }
}

#[cfg(test)]
impl Batch {
    /// [`Self::push`] for the descriptor `k=value` of domain `d`.
    pub fn push_value(
        &mut self,
        value: &[u8],
        limit: &Limit,
        now: Timestamp,
        counting: impl Into<DescriptorHits>,
    ) {
        let mut identity = Identity::default();
        identity.set(b"d", &[Entry { key: b"k", value }], &[]);
        self.push(&identity, limit, now, counting);
    }
}

impl Batch {
    pub fn len(&self) -> usize {
        self.increments.len()
    }

    pub fn is_empty(&self) -> bool {
        self.increments.is_empty()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Increment<'_>> + Clone {
        self.range(0..self.len())
    }

    /// The increment at `index`.
    ///
    /// # Panics
    ///
    /// If the batch has fewer increments.
    pub fn increment(&self, index: usize) -> Increment<'_> {
        self.with_key(&self.increments[index])
    }

    /// The key of the counter at `index`.
    ///
    /// # Panics
    ///
    /// If the batch has fewer increments.
    pub fn key(&self, index: usize) -> &[u8] {
        self.increment(index).key
    }

    /// The parameters of the increment at `index`.
    ///
    /// # Panics
    ///
    /// If the batch has fewer increments.
    pub fn spec(&self, index: usize) -> &IncrementSpec {
        &self.increments[index].spec
    }

    /// The parameters of all increments, in order.
    pub fn all_specs(&self) -> impl ExactSizeIterator<Item = &IncrementSpec> {
        self.increments.iter().map(|planned| &planned.spec)
    }

    /// The increments in `range`.
    ///
    /// # Panics
    ///
    /// If the batch has fewer increments.
    pub fn range(
        &self,
        range: Range<usize>,
    ) -> impl ExactSizeIterator<Item = Increment<'_>> + Clone {
        let planned = self.increments[range].iter();
        planned.map(|planned| self.with_key(planned))
    }

    fn with_key(&self, planned: &BatchEntry) -> Increment<'_> {
        Increment {
            key: &self.keys[planned.key_start..planned.key_end],
            spec: planned.spec,
        }
    }

    /// Removes all increments, but keeps the memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.increments.clear();
    }

    /// Appends a copy of `increment`.
    pub fn append_one(&mut self, increment: Increment<'_>) {
        let key_start = self.keys.len();
        self.keys.push_slice(increment.key);
        self.increments.push(BatchEntry {
            key_start,
            key_end: self.keys.len(),
            spec: increment.spec,
        });
    }

    /// Appends a copy of all of `other`.
    pub fn append(&mut self, other: &Self) {
        let start = self.keys.len();
        self.keys.push_slice(&other.keys);
        let moved = other.increments.iter().map(|planned| BatchEntry {
            key_start: start + planned.key_start,
            key_end: start + planned.key_end,
            spec: planned.spec,
        });
        self.increments.extend(moved);
    }

    /// Appends a copy of the increments in `range` of `other`.
    pub fn append_range(&mut self, other: &Self, range: Range<usize>) {
        for increment in other.range(range) {
            self.append_one(increment);
        }
    }

    /// Appends the increment of the counter of `identity` for `limit` at `now`.
    pub fn push(
        &mut self,
        identity: &Identity,
        limit: &Limit,
        now: Timestamp,
        counting: impl Into<DescriptorHits>,
    ) {
        let key_start = self.keys.len();
        let window = self.push_key(identity, limit, now);
        let DescriptorHits {
            hits,
            charge,
            enforcement,
            on_loss,
            descriptor,
        } = counting.into();
        let period = limit.period;
        self.increments.push(BatchEntry {
            key_start,
            key_end: self.keys.len(),
            spec: IncrementSpec {
                hits,
                limit: limit.capacity(),
                method: CounterKind::of(limit),
                charge,
                enforcement,
                on_loss,
                descriptor,
                is_per_second: period.unit() == Unit::Second,
                period_millis: match limit.algorithm {
                    Algorithm::Calendar(_) => {
                        let Window { start, end } = window;
                        end.millis().saturating_sub(start.millis())
                    }
                    _ => period.secs() * 1000,
                },
                expires_at: window.end,
            },
        });
    }

    /// Appends the key and returns its window.
    fn push_key(&mut self, identity: &Identity, limit: &Limit, now: Timestamp) -> Window {
        let keys = &mut self.keys;
        keys.push_slice(&identity.text);
        if identity.format == KeyFormat::Reference {
            let window = limit.window(now);
            keys.push_decimal(window.start.secs());
            return window;
        }
        let letter = match limit.algorithm {
            Algorithm::FixedWindow => return push_window(keys, limit.period, now),
            Algorithm::Calendar(_) => {
                let window = limit.window(now);
                keys.push_slice(limit.period.unit().name().as_bytes());
                keys.push(b'@');
                keys.push_decimal(window.start.secs());
                return window;
            }
            Algorithm::FirstHit => b'f',
            Algorithm::SlidingWindow => b's',
            Algorithm::SlidingLog => b'l',
            Algorithm::TokenBucket { .. } => b't',
        };
        keys.push(letter);
        keys.push_decimal(limit.period.secs());
        limit.window(now)
    }
}

/// Keys, concatenated.
type Keys = Text<384>;

/// The longest tail of a fixed-window key, in bytes. The product of the period and the window's number
/// is no later than the end of time in milliseconds, which bounds their digits.
const SUFFIX_BYTES: usize = 24;

/// The tail of fixed-window keys of one period, as long as the window lasts.
#[derive(Clone, Copy)]
struct CachedSuffix {
    period: Period,
    window: Window,
    bytes: [u8; SUFFIX_BYTES],
    length: usize,
}

/// More than there are units, so that each unit without a multiplier has an entry of its own.
const SUFFIXES: usize = 16;

thread_local! {
    /// The tails that this thread wrote last: rules are many but periods are few, and four divisions per
    /// decision are measurable.
    static CACHED_SUFFIXES: RefCell<[CachedSuffix; SUFFIXES]> = const { RefCell::new([CachedSuffix::NONE; SUFFIXES]) };
}

impl CachedSuffix {
    const NONE: Self = Self {
        period: Period::SECOND,
        // No moment falls into it.
        window: Window {
            start: Timestamp::from_secs(0),
            end: Timestamp::from_secs(0),
        },
        bytes: [0; SUFFIX_BYTES],
        length: 0,
    };

    fn new(period: Period, now: Timestamp) -> Self {
        let window = window(period, now);
        let mut text = Text::<SUFFIX_BYTES>::new();
        text.push_decimal(period.secs());
        text.push(b'@');
        text.push_decimal(window.start.secs() / period.secs());
        let mut bytes = [0; SUFFIX_BYTES];
        bytes[..text.len()].copy_from_slice(&text);
        Self {
            period,
            window,
            bytes,
            length: text.len(),
        }
    }

    fn is_of(&self, period: Period, now: Timestamp) -> bool {
        self.period == period && self.window.start <= now && now < self.window.end
    }
}

/// Appends the period and the number of the window that `now` falls in.
fn push_window(keys: &mut Keys, period: Period, now: Timestamp) -> Window {
    CACHED_SUFFIXES.with_borrow_mut(|suffixes| {
        let index = period.unit() as usize + period.multiplier().get() as usize - 1;
        let suffix = &mut suffixes[index % SUFFIXES];
        if !suffix.is_of(period, now) {
            *suffix = CachedSuffix::new(period, now);
        }
        keys.push_first(&suffix.bytes, suffix.length);
        suffix.window
    })
}

impl CounterKind {
    fn of(limit: &Limit) -> Self {
        match limit.algorithm {
            Algorithm::FixedWindow | Algorithm::Calendar(_) => Self::Window,
            Algorithm::FirstHit => Self::FirstHit,
            Algorithm::SlidingWindow => Self::SlidingWindow,
            Algorithm::SlidingLog => Self::SlidingLog,
            Algorithm::TokenBucket { .. } => Self::TokenBucket {
                rate: limit.requests_per_unit.max(1),
            },
        }
    }
}

/// The format of counter keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyFormat {
    /// Unambiguous: no two counters share a key.
    #[default]
    Native,
    /// As the reference writes them: nothing is escaped and the unit is left out, so some counters share
    /// a key.
    Reference,
}

/// The key part that all counters of one descriptor share: its domain and its values.
#[derive(Debug, Default)]
pub struct Identity {
    format: KeyFormat,
    text: Joined,
}

/// The text of one descriptor; usual ones fit inline.
pub type Joined = Text<192>;

impl Identity {
    /// An empty identity.
    pub fn new(format: KeyFormat) -> Self {
        Self {
            format,
            text: Joined::new(),
        }
    }

    /// Sets the identity of `entries`; those in `shared` are written as a pattern instead of their
    /// value.
    pub fn set(&mut self, domain: &[u8], entries: &[Entry<'_>], shared: &[(usize, &[u8])]) {
        self.text.clear();
        match self.format {
            KeyFormat::Native => self.set_native(domain, entries, shared),
            KeyFormat::Reference => {
                self.push_joined(domain);
                for (index, entry) in entries.iter().enumerate() {
                    let pattern = shared.iter().find(|(at, _)| *at == index);
                    self.push_joined(entry.key);
                    self.push_joined(pattern.map_or(entry.value, |(_, pattern)| pattern));
                }
            }
        }
    }

    fn push_joined(&mut self, text: &[u8]) {
        self.text.push_slice(text);
        self.text.push(b'_');
    }

    fn set_native(&mut self, domain: &[u8], entries: &[Entry<'_>], shared: &[(usize, &[u8])]) {
        let text = &mut self.text;
        text.push(b'{');
        push_text(text, b':', domain);
        for (index, entry) in entries.iter().enumerate() {
            push_text(text, b':', entry.key);
            match shared.iter().find(|(at, _)| *at == index) {
                Some((_, pattern)) => push_text(text, b'*', pattern),
                None => push_text(text, b':', entry.value),
            }
        }
        if text.len() > MAX_IDENTITY_BYTES + 1 {
            let digest = Sha256::digest(&text[1..]);
            text.clear();
            text.push_slice(b"{#");
            for byte in &digest[..16] {
                for digit in [byte >> 4, byte & 0xf] {
                    text.push(b"0123456789abcdef"[usize::from(digit)]);
                }
            }
        }
        text.push(b'}');
    }
}

fn push_text(key: &mut Joined, separator: u8, text: &[u8]) {
    match text.len() as u64 {
        // Most lengths have one or two digits.
        length @ 0..10 => key.push_slice(&[digit(length), separator]),
        length @ 10..100 => key.push_slice(&[digit(length / 10), digit(length % 10), separator]),
        length => {
            key.push_decimal(length);
            key.push(separator);
        }
    }
    key.push_slice(text);
}

/// The decimal digit of a number below ten.
fn digit(number: u64) -> u8 {
    b'0' | (number & 0xf) as u8
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    type Values = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>, bool)>);

    fn identity(values: &Values) -> Identity {
        identity_in(KeyFormat::Native, values)
    }

    fn identity_in(format: KeyFormat, (domain, entries): &Values) -> Identity {
        let mut identity = Identity::new(format);
        let shared: Vec<_> = entries
            .iter()
            .enumerate()
            .filter(|(_, (_, _, is_shared))| *is_shared)
            .map(|(index, (_, value, _))| (index, value.as_slice()))
            .collect();
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value, is_shared)| Entry {
                key,
                value: if *is_shared { b"" } else { value },
            })
            .collect();
        identity.set(domain, &entries, &shared);
        identity
    }

    fn key(values: &Values, period: Period, now: Timestamp) -> Vec<u8> {
        key_of(&identity(values), period, now)
    }

    fn key_of(identity: &Identity, period: Period, now: Timestamp) -> Vec<u8> {
        let mut batch = Batch::default();
        let limit = Limit::fixed(1, period);
        batch.push(identity, &limit, now, Hits::ONE);
        batch.iter().next().unwrap().key.to_vec()
    }

    /// Decodes an identity that was not replaced by a digest.
    fn decode(mut text: &[u8]) -> Option<Values> {
        let mut next = || {
            let digits = text.iter().position(|byte| !byte.is_ascii_digit())?;
            let length: usize = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
            let is_shared = text[digits] == b'*';
            let end = digits + 1 + length;
            let part = text[digits + 1..end].to_vec();
            text = &text[end..];
            Some((part, is_shared))
        };
        let (domain, _) = next()?;
        let mut entries = Vec::new();
        while let Some((key, _)) = next() {
            let (value, is_shared) = next()?;
            entries.push((key, value, is_shared));
        }
        Some((domain, entries))
    }

    fn simple(domain: &str, entries: &[(&str, &str)]) -> Values {
        let entries = entries
            .iter()
            .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec(), false));
        (domain.as_bytes().to_vec(), entries.collect())
    }

    #[test]
    fn a_key_reads_as_documented() {
        let values = simple("shop", &[("remote_address", "127.0.0.1")]);
        let now = Timestamp::from_secs(1_795_230_000);
        assert_eq!(
            String::from_utf8(key(&values, Unit::Minute.into(), now)).unwrap(),
            "{4:shop14:remote_address9:127.0.0.1}60@29920500"
        );
    }

    #[track_caller]
    fn check_reference(values: &Values, unit: Unit, expected: &str) {
        let identity = identity_in(KeyFormat::Reference, values);
        let key = key_of(&identity, unit.into(), Timestamp::from_secs(1234));
        assert_eq!(String::from_utf8_lossy(&key), expected);
    }

    #[test]
    fn the_reference_s_keys_are_those_of_the_reference() {
        let plain = simple("domain", &[("key", "value")]);
        check_reference(&plain, Unit::Second, "domain_key_value_1234");
        let two = simple("domain", &[("key2", "value2"), ("subkey2", "subvalue2")]);
        let expected = "domain_key2_value2_subkey2_subvalue2_1200";
        check_reference(&two, Unit::Minute, expected);
        check_reference(&simple("d", &[("a", "")]), Unit::Second, "d_a__1234");
        let files = (b"files".to_vec(), b"files/*".to_vec(), true);
        let shared = (b"domain".to_vec(), vec![files]);
        check_reference(&shared, Unit::Second, "domain_files_files/*_1234");
    }

    #[test]
    fn where_one_text_ends_and_the_next_begins_is_part_of_the_key() {
        let now = Timestamp::from_secs(0);
        let key = |domain, entries| key(&simple(domain, entries), Unit::Hour.into(), now);
        assert_ne!(key("d", &[("a", "b_c")]), key("d", &[("a_b", "c")]));
        assert_ne!(key("d_a", &[("b", "c")]), key("d", &[("a_b", "c")]));
        assert_ne!(
            key("d", &[("a", "b:1:c")]),
            key("d", &[("a", "b"), ("c", "")])
        );
    }

    #[test]
    fn an_hour_and_a_day_that_begin_together_are_two_counters() {
        let values = simple("d", &[("a", "b")]);
        let midnight = Timestamp::from_secs(0);
        assert_ne!(
            key(&values, Unit::Hour.into(), midnight),
            key(&values, Unit::Day.into(), midnight)
        );
    }

    #[test]
    fn a_long_identity_is_a_digest_of_all_of_it() {
        let long = |last: &str| simple("d", &[("a", &("x".repeat(1_000_000) + last))]);
        let digest = identity(&long("1")).text.to_vec();
        assert_eq!(digest.len(), "{#}".len() + 32);
        assert!(digest.starts_with(b"{#"));
        assert_ne!(digest, identity(&long("2")).text.to_vec());
    }

    #[test]
    fn a_shared_pattern_is_not_the_value_that_reads_the_same() {
        let shared = (b"d".to_vec(), vec![(b"f".to_vec(), b"a/*".to_vec(), true)]);
        assert_ne!(
            *identity(&shared).text,
            *identity(&simple("d", &[("f", "a/*")])).text
        );
    }

    #[test]
    fn an_identity_is_written_out_up_to_the_longest_that_may_be() {
        // Ten bytes and the value.
        for (value_bytes, text_bytes) in [
            (150, "{}".len() + MAX_IDENTITY_BYTES),
            (151, "{#}".len() + 32),
        ] {
            let values = simple("d", &[("a", &"x".repeat(value_bytes))]);
            assert_eq!(identity(&values).text.len(), text_bytes, "{value_bytes}");
        }
    }

    #[test]
    fn lengths_are_written_in_as_many_digits_as_they_have() {
        for (length, text) in [
            (0, "0"),
            (9, "9"),
            (10, "10"),
            (42, "42"),
            (99, "99"),
            (100, "100"),
        ] {
            let domain = "x".repeat(length);
            let expected = format!("{{{text}:{domain}}}");
            assert_eq!(*identity(&simple(&domain, &[])).text, *expected.as_bytes());
        }
    }

    /// How the keys of windows of `multiplier` units end at each of `times`, in milliseconds.
    #[track_caller]
    fn check_windows(unit: Unit, multiplier: u32, times: &[(u64, &str)]) {
        let period = Period::new(unit, NonZeroU32::new(multiplier).unwrap()).unwrap();
        for &(millis, expected) in times {
            let key = key(&simple("d", &[]), period, Timestamp::from_millis(millis));
            assert_eq!(String::from_utf8_lossy(&key), format!("{{1:d}}{expected}"));
        }
    }

    #[test]
    fn a_key_ends_with_the_window_of_its_own_moment_whatever_was_asked_for_before() {
        let minutes = &[
            (119_999, "60@1"),
            (120_000, "60@2"),
            (179_999, "60@2"),
            (180_000, "60@3"),
            (119_999, "60@1"),
            (60_000, "60@1"),
        ];
        check_windows(Unit::Minute, 1, minutes);
        // Two lengths whose last windows are kept in one place, one after the other.
        for _ in 0..2 {
            check_windows(Unit::Second, 2, &[(180_000, "2@90"), (181_999, "2@90")]);
            check_windows(Unit::Minute, 1, &[(180_000, "60@3")]);
        }
        check_windows(
            Unit::Second,
            1_000,
            &[(999_999, "1000@0"), (1_000_000, "1000@1")],
        );
    }

    #[test]
    fn an_increment_carries_the_terms_of_its_limit() {
        use crate::core::calendar::{Calendar, Starts};

        let calendar = Calendar::new(Unit::Day, "Europe/Madrid", Starts::default()).unwrap();
        // The day on which the clocks are put forward: 2026-03-28T23:00Z to 22:00Z.
        let now = Timestamp::from_secs(1_774_785_600);
        let two_minutes = Period::new(Unit::Minute, NonZeroU32::new(2).unwrap()).unwrap();
        let bucket = Algorithm::TokenBucket { burst: 9 };
        let rate = CounterKind::TokenBucket { rate: 7 };
        for (period, algorithm, limit, method, is_per_second, period_millis, expires_at) in [
            (
                Unit::Second.into(),
                Algorithm::FixedWindow,
                7,
                CounterKind::Window,
                true,
                1_000,
                1,
            ),
            (
                two_minutes,
                Algorithm::FixedWindow,
                7,
                CounterKind::Window,
                false,
                120_000,
                120,
            ),
            (
                Unit::Day.into(),
                Algorithm::Calendar(calendar.into()),
                7,
                CounterKind::Window,
                false,
                23 * 3_600_000,
                10 * 3_600,
            ),
            (
                two_minutes,
                Algorithm::FirstHit,
                7,
                CounterKind::FirstHit,
                false,
                120_000,
                120,
            ),
            (
                two_minutes,
                Algorithm::SlidingLog,
                7,
                CounterKind::SlidingLog,
                false,
                120_000,
                120,
            ),
            (Unit::Second.into(), bucket, 9, rate, true, 1_000, 1),
        ] {
            let limited = Limit {
                algorithm,
                ..Limit::fixed(7, period)
            };
            let mut batch = Batch::default();
            batch.push_value(b"v", &limited, now, Hits::add(3));
            let expected = IncrementSpec {
                hits: Hits::add(3),
                limit,
                method,
                charge: Charge::Always,
                enforcement: Enforcement::Refuses,
                on_loss: OnStoreLoss::Error,
                descriptor: 0,
                is_per_second,
                period_millis,
                expires_at: Timestamp::from_secs(now.secs() + expires_at),
            };
            assert_eq!(*batch.spec(0), expected);
        }
    }

    #[test]
    fn only_charges_that_depend_on_no_other_limit_stand_alone() {
        let stands_alone = |charge| {
            let mut batch = Batch::default();
            let counting = DescriptorHits {
                charge,
                ..DescriptorHits::from(Hits::ONE)
            };
            let limit = Limit::fixed(1, Unit::Day);
            batch.push_value(b"v", &limit, Timestamp::from_secs(0), counting);
            batch.spec(0).stands_alone()
        };
        use Charge::{Admitted, Always, Never, Stopping, Within};
        let all = [Always, Within, Admitted, Stopping, Never];
        assert_eq!(all.map(stands_alone), [true, true, false, false, false]);
    }

    #[test]
    fn hits_are_too_many_when_they_pass_the_limit_and_what_is_given_back_never_is() {
        // Of a limit of 10: the hits, what was held before, whether they are refused.
        for (hits, held, is_refused) in [
            (Hits::ONE, 9, false),
            (Hits::ONE, 10, true),
            (Hits::add(3), 7, false),
            (Hits::add(3), 8, true),
            (Hits::add(0), 10, false),
            (Hits::add(0), 11, true),
            (Hits::add(1), u64::MAX, true),
            (Hits::give_back(1), 11, false),
            (Hits::give_back(1), u64::MAX, false),
        ] {
            let mut batch = Batch::default();
            let limit = Limit::fixed(10, Unit::Day);
            batch.push_value(b"v", &limit, Timestamp::from_secs(0), hits);
            assert_eq!(batch.spec(0).refuses(held), is_refused, "{hits:?} {held}");
        }
    }

    /// A batch with one increment for each value, of as many hits as its place says.
    fn batch_of(values: &[&[u8]]) -> Batch {
        let mut batch = Batch::default();
        for (hits, value) in (1..).zip(values) {
            let limit = Limit::fixed(1, Unit::Hour);
            batch.push_value(value, &limit, Timestamp::from_secs(0), Hits::add(hits));
        }
        batch
    }

    #[track_caller]
    fn check_batch(batch: &Batch, expected: &[(&str, u64)]) {
        let all = batch.iter().map(|increment| {
            let key = String::from_utf8(increment.key.to_vec()).unwrap();
            (key, increment.hits.added())
        });
        let expected: Vec<_> = expected
            .iter()
            .map(|(value, hits)| (format!("{{1:d1:k1:{value}}}3600@0"), *hits))
            .collect();
        assert_eq!(all.collect::<Vec<_>>(), expected);
        let (count, is_empty) = (expected.len(), expected.is_empty());
        assert_eq!((batch.len(), batch.is_empty()), (count, is_empty));
        for (index, (key, hits)) in expected.iter().enumerate() {
            assert_eq!(batch.key(index), key.as_bytes());
            assert_eq!(batch.spec(index).hits, Hits::add(*hits));
        }
    }

    #[test]
    fn batches_are_put_together_in_order() {
        let (first, second) = (batch_of(&[b"a", b"b"]), batch_of(&[b"c", b"d", b"e"]));
        let mut all = Batch::default();
        check_batch(&all, &[]);
        all.append(&first);
        check_batch(&all, &[("a", 1), ("b", 2)]);
        all.append(&second);
        check_batch(&all, &[("a", 1), ("b", 2), ("c", 1), ("d", 2), ("e", 3)]);
        all.clear();
        check_batch(&all, &[]);
        all.append_one(first.increment(1));
        all.append_range(&second, 1..3);
        check_batch(&all, &[("b", 2), ("d", 2), ("e", 3)]);
    }

    #[test]
    fn batches_and_counts_that_have_grown_are_not_kept_for_other_requests() {
        let long = "x".repeat(60);
        for (value, count, is_kept) in [("v", 8, true), ("v", 9, false), (&*long, 8, false)] {
            let mut batch = batch_of(&vec![value.as_bytes(); count]);
            assert_eq!(Poolable::clear(&mut batch), is_kept, "{count} of {value}");
            check_batch(&batch, &[]);
        }
        for (count, is_kept) in [(8, true), (9, false)] {
            let mut counts: CounterStates = (0..count).map(CounterState::from).collect();
            assert_eq!(Poolable::clear(&mut counts), is_kept, "{count}");
            assert!(counts.is_empty());
        }
    }

    fn any_values() -> impl Strategy<Value = Values> {
        let text = || prop::collection::vec(any::<u8>(), 0..12);
        let entry = (text(), text(), any::<bool>());
        (text(), prop::collection::vec(entry, 0..4))
    }

    /// Texts that are easily confused: few letters, and the separators.
    fn alike_values() -> impl Strategy<Value = Values> {
        let text = || prop::collection::vec(prop::sample::select(b"1:*_}".to_vec()), 0..4);
        let entry = (text(), text(), any::<bool>());
        (text(), prop::collection::vec(entry, 0..3))
    }

    fn any_period() -> impl Strategy<Value = Period> {
        (prop::sample::select(Unit::ALL.to_vec()), 1_u32..4)
            .prop_map(|(unit, n)| Period::new(unit, NonZeroU32::new(n).unwrap()).unwrap())
    }

    proptest! {
        #[test]
        fn an_identity_can_be_taken_apart_again(values in any_values()) {
            let text = identity(&values).text.to_vec();
            let inner = &text[1..text.len() - 1];
            if inner.first() != Some(&b'#') {
                prop_assert_eq!(decode(inner), Some(values));
            }
        }

        #[test]
        fn distinct_counters_have_distinct_keys(
            first in prop_oneof![any_values(), alike_values()],
            second in prop_oneof![any_values(), alike_values()],
            periods in (any_period(), any_period()),
            secs in (0_u64..1_000_000, 0_u64..1_000_000),
        ) {
            let now = (Timestamp::from_secs(secs.0), Timestamp::from_secs(secs.1));
            let same_counter = first == second
                && periods.0.secs() == periods.1.secs()
                && window(periods.0, now.0) == window(periods.1, now.1);
            let same_key = key(&first, periods.0, now.0) == key(&second, periods.1, now.1);
            prop_assert_eq!(same_counter, same_key);
        }
    }
}
