//! Reads and writes the messages of almost every call in place: without copying texts, and without building a reply
//! in lists. Unusual messages are left to prost, so this module has no errors.

use prost::encoding::decode_varint;

use super::{
    proto::saturated,
    wire::{MAX_DESCRIPTORS, MAX_ENTRIES, MAX_TEXT_BYTES, unit_number},
};
use crate::core::{
    decision::{Binding, Code, Decision, Status},
    limit::Limit,
    request::{Entry, Hits, Request},
};

/// The key of a varint field: one byte, because no field number is above 15.
const fn number(field: u8) -> u8 {
    field << 3
}

/// The key of a length-delimited field: a text or another message.
const fn part_of(field: u8) -> u8 {
    field << 3 | 2
}

// Fields of `RateLimitRequest`, `RateLimitDescriptor` and its `Entry`.
const DOMAIN: u8 = part_of(1);
const DESCRIPTORS: u8 = part_of(2);
const HITS_ADDEND: u8 = number(3);
const ENTRIES: u8 = part_of(1);
const KEY: u8 = part_of(1);
const VALUE: u8 = part_of(2);

/// Parses `message`. `None` if it has anything besides a domain, descriptors with keys and values, and hits, or if it
/// is invalid.
pub fn read(message: &[u8]) -> Option<Request<'_>> {
    let mut request = Request::default();
    read_into(&mut request, message)?;
    Some(request)
}

/// Like [`read`], but fills an empty request in place; after a `None` its content is undefined.
pub fn read_into<'a>(request: &mut Request<'a>, message: &'a [u8]) -> Option<()> {
    let mut hits = 0;
    let mut rest = message;
    while !rest.is_empty() {
        match byte(&mut rest)? {
            DOMAIN => {
                // Must be UTF-8, unlike keys and values.
                let domain = std::str::from_utf8(text(&mut rest)?);
                request.domain = domain.ok()?.as_bytes();
            }
            DESCRIPTORS if request.len() < MAX_DESCRIPTORS => {
                read_descriptor(part(&mut rest)?, request)?;
            }
            HITS_ADDEND => hits = u32::try_from(varint(&mut rest)?).ok()?,
            _ => return None,
        }
    }
    if request.domain.is_empty() || request.is_empty() {
        return None;
    }
    // Hits can come after their descriptors on the wire.
    if hits > 0 {
        request.set_hits(Hits::add(hits.into()));
    }
    Some(())
}

fn read_descriptor<'a>(mut message: &'a [u8], request: &mut Request<'a>) -> Option<()> {
    let mut entries = 0;
    while !message.is_empty() {
        match byte(&mut message)? {
            ENTRIES if entries < MAX_ENTRIES => {
                request.push_entry(entry(part(&mut message)?)?);
                entries += 1;
            }
            _ => return None,
        }
    }
    request.push_descriptor(None, None);
    Some(())
}

fn entry(mut message: &[u8]) -> Option<Entry<'_>> {
    let mut entry = Entry {
        key: b"",
        value: b"",
    };
    while !message.is_empty() {
        match byte(&mut message)? {
            KEY => entry.key = text(&mut message)?,
            VALUE => entry.value = text(&mut message)?,
            _ => return None,
        }
    }
    Some(entry)
}

fn text<'a>(message: &mut &'a [u8]) -> Option<&'a [u8]> {
    part(message).filter(|text| text.len() <= MAX_TEXT_BYTES)
}

/// A length-delimited field.
#[inline]
fn part<'a>(message: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(message)?).ok()?;
    let (part, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(part)
}

#[inline]
fn varint(message: &mut &[u8]) -> Option<u64> {
    match message.split_first()? {
        (&byte, rest) if byte < 0x80 => {
            *message = rest;
            Some(byte.into())
        }
        _ => long_varint(message),
    }
}

/// A number of several bytes. It stays out of the code of all the fields that have one.
#[cold]
fn long_varint(message: &mut &[u8]) -> Option<u64> {
    decode_varint(message).ok()
}

fn byte(message: &mut &[u8]) -> Option<u8> {
    message.split_off_first().copied()
}

/// The most bytes of a status without the name of its limit.
const STATUS_BYTES: usize = 64;

/// The reply, without headers and metadata.
pub fn reply(decision: &Decision) -> Vec<u8> {
    let name = |status: &Status| Some(status.binding.as_ref()?.limit.name.as_ref()?.len());
    let of_status = |status| STATUS_BYTES + name(status).unwrap_or(0);
    let most = 2 + decision.statuses.iter().map(of_status).sum::<usize>();
    let mut room = vec![0; most];
    let mut reply = Backward {
        room: &mut room,
        start: most,
    };
    for status in decision.statuses.iter().rev() {
        reply.part(2, |reply| reply.status(status));
    }
    reply.number(1, code(decision.overall).into());
    let start = reply.start;
    room.drain(..start);
    room
}

/// Writes a message from its last byte to its first, so the length of a part is known when it has to be written.
struct Backward<'r> {
    room: &'r mut [u8],
    /// Where the part that is written begins.
    start: usize,
}

impl Backward<'_> {
    fn status(&mut self, status: &Status) {
        if let Some(reset_secs) = status.binding.as_ref().and_then(Binding::shown_reset_secs) {
            self.part(4, |reply| reply.number(1, reset_secs));
        }
        self.number(3, saturated(status.remaining).into());
        if let Some(binding) = &status.binding {
            self.part(2, |reply| reply.limit(&binding.limit));
        }
        self.number(1, code(status.code).into());
    }

    fn limit(&mut self, limit: &Limit) {
        let multiplier = limit.unit_multiplier();
        if multiplier > 1 {
            self.part(4, |reply| reply.number(1, multiplier.into()));
        }
        if let Some(name) = limit.name.as_ref().filter(|name| !name.is_empty()) {
            self.part(3, |reply| reply.text(name.as_bytes()));
        }
        if let Some(unit) = limit.unit() {
            self.number(2, unit_number(unit) as u64);
        }
        self.number(1, saturated(limit.requests_per_unit).into());
    }

    fn part(&mut self, field: u8, write: impl FnOnce(&mut Self)) {
        let end = self.start;
        write(self);
        self.field(part_of(field), (end - self.start) as u64);
    }

    /// A 0 is not written.
    fn number(&mut self, field: u8, value: u64) {
        if value > 0 {
            self.field(number(field), value);
        }
    }

    /// Writes a field's key before a number or a length.
    fn field(&mut self, key: u8, value: u64) {
        // The last byte has the highest bits, and alone has no mark that more follow.
        let mut shift = if value < 0x80 {
            0
        } else {
            value.ilog2() / 7 * 7
        };
        self.byte((value >> shift & 0x7f) as u8);
        while shift > 0 {
            shift -= 7;
            self.byte((value >> shift & 0x7f) as u8 | 0x80);
        }
        self.byte(key);
    }

    fn text(&mut self, text: &[u8]) {
        let end = self.start;
        self.start -= text.len();
        self.room[self.start..end].copy_from_slice(text);
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        self.start -= 1;
        self.room[self.start] = byte;
    }
}

fn code(code: Code) -> u8 {
    match code {
        Code::Ok => 1,
        Code::OverLimit => 2,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::{
        core::window::{Period, Unit},
        service::grpc::{
            proto::envoy::{
                extensions::common::ratelimit::v3::{
                    RateLimitDescriptor, rate_limit_descriptor as descriptor,
                },
                service::ratelimit::v3::RateLimitRequest,
            },
            wire,
        },
    };

    /// prost's reading of the bytes.
    #[track_caller]
    fn check(bytes: &[u8], is_plain: bool) {
        let message = RateLimitRequest::decode(bytes);
        let plain = read(bytes);
        assert_eq!(plain.is_some(), is_plain);
        if let Some(plain) = plain {
            let message = message.as_ref().unwrap();
            assert_eq!(wire::request(message), Ok(plain));
        }
    }

    fn plain() -> RateLimitRequest {
        let entry = |value: &str| descriptor::Entry {
            key: "key".into(),
            value: value.to_owned().into(),
        };
        RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![entry("1"), entry("")],
                ..RateLimitDescriptor::default()
            }],
            hits_addend: 7,
        }
    }

    #[track_caller]
    fn check_changed(change: impl FnOnce(&mut RateLimitRequest), is_plain: bool) {
        let mut message = plain();
        change(&mut message);
        check(&message.encode_to_vec(), is_plain);
    }

    #[test]
    fn plain_requests_take_the_fast_path_and_the_rest_is_left_to_prost() {
        check_changed(|_| (), true);
        check_changed(|message| message.hits_addend = 0, true);
        check_changed(|message| message.descriptors[0].entries.clear(), true);
        check_changed(|message| message.domain.clear(), false);
        check_changed(|message| message.descriptors.clear(), false);
        check_changed(
            |message| message.descriptors[0].hits_addend = Some(1),
            false,
        );
        check_changed(
            |message| message.descriptors[0].is_negative_hits = true,
            false,
        );
        let limit = descriptor::RateLimitOverride::default();
        check_changed(|message| message.descriptors[0].limit = Some(limit), false);
        let many = vec![RateLimitDescriptor::default(); MAX_DESCRIPTORS + 1];
        check_changed(|message| message.descriptors = many, false);
        let many = vec![descriptor::Entry::default(); MAX_ENTRIES + 1];
        check_changed(|message| message.descriptors[0].entries = many, false);
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        check_changed(|message| message.domain = long, false);
        check(b"\x0a\x01\xff\x12\x00", false);
        check(&[0x0b; 100], false);
    }

    fn any_limit() -> impl Strategy<Value = Limit> {
        let unit = prop::sample::select(Unit::ALL.to_vec());
        let name = prop::option::of("[a-z]{0,3}");
        (any::<u64>(), unit, 1_u32..200, name).prop_map(|(requests_per_unit, unit, n, name)| {
            let period = Period::new(unit, NonZeroU32::new(n).unwrap()).unwrap();
            Limit {
                name: name.map(Into::into),
                ..Limit::fixed(requests_per_unit, period)
            }
        })
    }

    fn any_code() -> impl Strategy<Value = Code> {
        prop::sample::select(vec![Code::Ok, Code::OverLimit])
    }

    fn any_status() -> impl Strategy<Value = Status> {
        let binding = (any_limit(), any::<u32>()).prop_map(|(limit, reset_secs)| Binding {
            limit,
            counter: 0,
            reset_secs: reset_secs.into(),
            is_over: false,
        });
        (any_code(), prop::option::of(binding), any::<u64>()).prop_map(
            |(code, binding, remaining)| Status {
                code,
                binding,
                remaining,
                retry_secs: None,
            },
        )
    }

    proptest! {
        #[test]
        fn replies_are_written_as_prost_writes_them(
            overall in any_code(),
            statuses in prop::collection::vec(any_status(), 0..4),
        ) {
            let mut decision = Decision {
                overall,
                statuses: statuses.into(),
                ..Decision::default()
            };
            let written = reply(&decision);
            let extras = wire::Extras::default();
            let message = wire::response(&mut decision, &plain(), &extras);
            prop_assert_eq!(written, message.encode_to_vec());
        }

        #[test]
        fn the_fast_path_reads_as_prost_does(
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut bytes = plain().encode_to_vec();
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let message = RateLimitRequest::decode(&bytes[..]);
            if let Some(plain) = read(&bytes) {
                let message = message.as_ref().unwrap();
                prop_assert_eq!(wire::request(message), Ok(plain));
            }
        }
    }
}
