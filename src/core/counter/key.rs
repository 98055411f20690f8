//! Builds the keys of counters, by which a store finds them; this is their format.
//!
//! Two counters never share a key, because a key tells where each of its parts ends:
//!
//! ```text
//! {4:shop14:remote_address9:127.0.0.1}60@29920500
//!  ^ domain and entries, each after    ^  ^ number of the window since the epoch
//!    its length                        length of the period in seconds
//! ```
//!
//! A calendar limit has its unit in front, and the start of the window in seconds after `@`:
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

use sha2::{Digest as _, Sha256};

use crate::{
    core::{
        kind::Algorithm,
        limit::Limit,
        request::Entry,
        window::{Timestamp, Unit, Window, window},
    },
    foundation::text::Text,
};

/// The longest domain-and-entries text that is written into a key literally, in bytes.
pub(crate) const MAX_IDENTITY_BYTES: usize = 160;

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

impl crate::foundation::named::Named for KeyFormat {
    const NAMES: &'static [(&'static str, Self)] =
        &[("native", Self::Native), ("reference", Self::Reference)];
}

/// The key part that all counters of one descriptor share: its domain and its values.
#[derive(Debug, Default)]
pub struct Identity {
    format: KeyFormat,
    /// The number of its domain.
    pub(super) domain: u32,
    pub(super) text: Joined,
}

/// The text of one descriptor; usual ones fit inline.
pub type Joined = Text<192>;

impl Identity {
    /// An empty identity.
    pub fn new(format: KeyFormat) -> Self {
        Self {
            format,
            domain: 0,
            text: Joined::new(),
        }
    }

    pub(crate) fn format(&self) -> KeyFormat {
        self.format
    }

    /// Sets the identity of `entries`; those in `shared` are written as a pattern instead of their
    /// value.
    pub fn set(&mut self, domain: &[u8], entries: &[Entry<'_>], shared: &[(usize, &[u8])]) {
        self.text.clear();
        self.domain = number(domain);
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

    /// Its text: the part of a key that names the descriptor.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.text
    }

    /// How many bytes its text has: the part of a key that names the descriptor.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Appends to `keys` the key of this descriptor's counter for `limit` at `now`, and returns its
    /// window.
    ///
    /// Inlined, but for the ends that few keys have: as a call it takes 2 % of the instructions of a plan.
    #[inline(always)]
    pub(super) fn push_key(&self, keys: &mut Keys, limit: &Limit, now: Timestamp) -> Window {
        keys.push_slice(&self.text);
        let (KeyFormat::Native, Algorithm::FixedWindow) = (self.format, &limit.algorithm) else {
            return self.push_other_end(keys, limit, now);
        };
        let period = limit.period;
        if period.multiplier().get() == 1 {
            let (head, length) = window_head(period.unit());
            keys.push_first(head, length);
        } else {
            keys.push_decimal(period.secs());
            keys.push(b'@');
        }
        keys.push_decimal(now.secs() / period.secs());
        window(period, now)
    }

    /// Appends the end of a key of another algorithm or of the reference.
    #[inline(never)]
    fn push_other_end(&self, keys: &mut Keys, limit: &Limit, now: Timestamp) -> Window {
        let window = limit.window(now);
        match (self.format, &limit.algorithm) {
            (KeyFormat::Reference, _) => keys.push_decimal(window.start.secs()),
            (KeyFormat::Native, Algorithm::Calendar(_)) => {
                keys.push_slice(limit.period.unit().name().as_bytes());
                keys.push(b'@');
                keys.push_decimal(window.start.secs());
            }
            (KeyFormat::Native, other) => {
                keys.push(other.kind(1).facts().letter);
                keys.push_decimal(limit.period.secs());
            }
        }
        window
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

/// The number of a domain or of a rule (FNV-1a): equal in all processes, and after each load of rules.
pub(crate) fn number(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// The seconds of one unit and `@`, padded to one size for a copy without a branch, and how many bytes these are.
fn window_head(unit: Unit) -> (&'static [u8; 9], usize) {
    match unit {
        Unit::Second => (b"1@       ", 2),
        Unit::Minute => (b"60@      ", 3),
        Unit::Hour => (b"3600@    ", 5),
        Unit::Day => (b"86400@   ", 6),
        Unit::Week => (b"604800@  ", 7),
        Unit::Month => (b"2592000@ ", 8),
        Unit::Year => (b"31536000@", 9),
    }
}

/// Inlined for the same reason as [`Identity::push_key`].
#[inline(always)]
fn push_text(key: &mut Joined, separator: u8, text: &[u8]) {
    match text.len() as u64 {
        // Most lengths have one or two digits.
        length @ 0..10 => key.push_both(&[digit(length), separator], text),
        length @ 10..100 => {
            let head = [digit(length / 10), digit(length % 10), separator];
            key.push_both(&head, text);
        }
        length => {
            key.push_decimal(length);
            key.push(separator);
            key.push_slice(text);
        }
    }
}

/// The decimal digit of a number below ten.
fn digit(number: u64) -> u8 {
    b'0' | (number & 0xf) as u8
}

/// Keys, concatenated.
pub(super) type Keys = Text<384>;
