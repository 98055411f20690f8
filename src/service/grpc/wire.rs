//! Converts between prost messages and our types, and refuses invalid requests. No other module knows the shape of a
//! message.

use std::{collections::BTreeMap, num::NonZeroU32};

use prost::bytes::Bytes;
use prost_types::{Duration, ListValue, Struct, value::Kind};

use super::proto::{
    envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{self, DescriptorStatus, RateLimit, rate_limit},
        },
    },
    saturated,
};
use crate::{
    core::{
        decision::{Binding, Code, Decision, Status},
        lease::token::LeaseToken,
        limit::Limit,
        metadata::{Metadata, MetadataValue},
        request::{Entry, Hits, Request},
        window::{Period, Unit},
    },
    foundation::header_text::{is_free_name, is_value},
};

/// Most descriptors of a request. Envoy sends one for each of its actions.
pub const MAX_DESCRIPTORS: usize = 1000;

/// Most entries of a descriptor.
pub const MAX_ENTRIES: usize = 100;

/// Longest domain, key or value, in bytes. Envoy accepts at most 60 KiB of headers.
pub const MAX_TEXT_BYTES: usize = 64 << 10;

/// Why a request is invalid. The texts go to the caller; the first two are the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("rate limit domain must not be empty")]
    EmptyDomain,
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    #[error("more than {MAX_DESCRIPTORS} descriptors")]
    TooManyDescriptors,
    #[error("a descriptor has more than {MAX_ENTRIES} entries")]
    TooManyEntries,
    #[error("a domain, key or value is longer than {MAX_TEXT_BYTES} bytes")]
    TextTooLong,
    #[error("unknown unit {0} in a limit override")]
    UnknownUnit(i32),
    #[error("the period of a limit override must be at least 1 unit and at most 10,000 years")]
    BadPeriod,
}

/// Converts `message` to a request.
///
/// # Errors
///
/// If the message is invalid or exceeds a bound.
pub fn request(message: &RateLimitRequest) -> Result<Request<'_>, BadRequest> {
    if message.domain.is_empty() {
        return Err(BadRequest::EmptyDomain);
    }
    if message.descriptors.is_empty() {
        return Err(BadRequest::NoDescriptors);
    }
    if message.descriptors.len() > MAX_DESCRIPTORS {
        return Err(BadRequest::TooManyDescriptors);
    }
    let mut request = Request::new(message.domain.as_bytes());
    for part in &message.descriptors {
        push_descriptor(part, message.hits_addend, &mut request)?;
    }
    text(request.domain)?;
    Ok(request)
}

fn push_descriptor<'a>(
    message: &'a RateLimitDescriptor,
    hits_of_request: u32,
    request: &mut Request<'a>,
) -> Result<(), BadRequest> {
    if message.entries.len() > MAX_ENTRIES {
        return Err(BadRequest::TooManyEntries);
    }
    for part in &message.entries {
        request.push_entry(entry(part)?);
    }
    // In the request's own number absent and 0 are equal on the wire, and both mean 1.
    let of_request = (hits_of_request > 0).then_some(hits_of_request.into());
    let addend = match (message.hits_addend.or(of_request), message.is_negative_hits) {
        (addend, false) => addend.map(Hits::add),
        (addend, true) => Some(Hits::give_back(addend.unwrap_or(1))),
    };
    request.push_descriptor(addend, message.limit.as_ref().map(limit).transpose()?);
    Ok(())
}

fn entry(message: &rate_limit_descriptor::Entry) -> Result<Entry<'_>, BadRequest> {
    Ok(Entry {
        key: text(&message.key)?,
        value: text(&message.value)?,
    })
}

fn text(bytes: &[u8]) -> Result<&[u8], BadRequest> {
    if bytes.len() > MAX_TEXT_BYTES {
        return Err(BadRequest::TextTooLong);
    }
    Ok(bytes)
}

fn limit(message: &rate_limit_descriptor::RateLimitOverride) -> Result<Limit, BadRequest> {
    let multiplier = NonZeroU32::new(message.unit_multiplier.unwrap_or(1));
    // The numbers of `envoy.type.v3.RateLimitUnit`, plus 7 for the week, which it lacks: the reference reads them as
    // the numbers of a reply, where 7 is the week.
    let unit = unit(message.unit).ok_or(BadRequest::UnknownUnit(message.unit))?;
    let period = multiplier.and_then(|multiplier| Period::new(unit, multiplier));
    let period = period.ok_or(BadRequest::BadPeriod)?;
    Ok(Limit::fixed(message.requests_per_unit.into(), period))
}

fn unit(number: i32) -> Option<Unit> {
    match rate_limit::Unit::try_from(number).ok()? {
        rate_limit::Unit::Unknown => None,
        rate_limit::Unit::Second => Some(Unit::Second),
        rate_limit::Unit::Minute => Some(Unit::Minute),
        rate_limit::Unit::Hour => Some(Unit::Hour),
        rate_limit::Unit::Day => Some(Unit::Day),
        rate_limit::Unit::Week => Some(Unit::Week),
        rate_limit::Unit::Month => Some(Unit::Month),
        rate_limit::Unit::Year => Some(Unit::Year),
    }
}

pub(super) fn unit_number(unit: Unit) -> rate_limit::Unit {
    match unit {
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    }
}

/// Parts of a reply besides the statuses.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Names of the headers with the limit, the remaining hits and the reset; `None` if they are not sent
    /// (`LIMIT_RESPONSE_HEADERS_ENABLED`).
    pub headers: Option<[String; 3]>,
    /// The limits in the fields `RateLimit-Policy` and `RateLimit`.
    pub fields: LimitFields,
    /// Add to refused replies the time until the request would pass (RFC 9110, `Retry-After`).
    pub retry_after: bool,
    /// Return the request and the rules' metadata (`RESPONSE_DYNAMIC_METADATA`).
    pub dynamic_metadata: bool,
}

/// The limits that the fields `RateLimit-Policy` and `RateLimit` report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitFields {
    /// There are no such fields.
    #[default]
    Off,
    /// The limit that the `RateLimit-*` headers describe.
    Binding,
    /// All limits of the request.
    All,
}

impl crate::foundation::named::Named for LimitFields {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("binding", Self::Binding),
        ("all", Self::All),
    ];
}

impl Extras {
    /// Whether replies contain only statuses.
    pub fn is_none(&self) -> bool {
        self.headers.is_none()
            && self.fields == LimitFields::Off
            && !self.retry_after
            && !self.dynamic_metadata
    }
}

/// The reply to the request `message`; takes the metadata out of `decision`.
pub fn response(
    decision: &mut Decision,
    message: &RateLimitRequest,
    extras: &Extras,
) -> RateLimitResponse {
    let headers = extras.headers.as_ref();
    let mut response_headers_to_add =
        headers.map_or_else(Vec::new, |names| response_headers(names, decision));
    if let (true, Some(secs)) = (extras.retry_after, decision.retry_secs) {
        response_headers_to_add.extend(header("Retry-After", secs.to_string()));
    }
    RateLimitResponse {
        overall_code: code(decision.overall).into(),
        response_headers_to_add,
        dynamic_metadata: match (extras.dynamic_metadata, decision.is_degraded) {
            (false, false) => None,
            (true, _) => Some(dynamic_metadata(message, decision)),
            (false, true) => Some(Struct {
                fields: BTreeMap::from([degraded()]),
            }),
        },
        statuses: decision.statuses.iter().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

fn response_headers(names: &[String; 3], decision: &Decision) -> Vec<HeaderValue> {
    let Some(status) = decision.headline.map(|index| &decision.statuses[index]) else {
        return Vec::new();
    };
    let Some(binding) = &status.binding else {
        return Vec::new();
    };
    let values = [
        Some(binding.limit.requests_per_unit),
        Some(status.remaining),
        binding.shown_reset_secs(),
    ];
    let headers = names.iter().zip(values);
    headers
        .filter_map(|(name, value)| header(name, value?.to_string()))
        .collect()
}

/// Adds headers of the client's response to `reply`.
pub(super) fn add_headers(reply: &mut RateLimitResponse, headers: Vec<(&'static str, String)>) {
    let headers = headers
        .into_iter()
        .filter_map(|(name, value)| header(name, value));
    reply.response_headers_to_add.extend(headers);
}

/// The body of a refusal, the header that names its type, and further headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusalText {
    pub(super) content_type: String,
    pub(super) text: String,
    pub(super) headers: Box<[(String, String)]>,
}

/// Adds the body of the client's response to `reply`. Only with its type: without one, Envoy would call it plain text.
pub(super) fn add_body(reply: &mut RateLimitResponse, body: RefusalText) {
    let RefusalText {
        content_type,
        text,
        headers,
    } = body;
    let headers = headers.into_iter();
    let headers = headers.filter_map(|(name, value)| header(&name, value));
    reply.response_headers_to_add.extend(headers);
    if is_value(&content_type) {
        reply.response_headers_to_add.push(HeaderValue {
            key: "content-type".to_owned(),
            value: content_type,
            raw_value: Bytes::new(),
        });
        reply.raw_body = text.into();
    }
}

/// Adds the token of a lease to the metadata of `reply`, and the number of hits if it is equal for all its descriptors:
/// Envoy returns them at the end of the stream.
pub(super) fn add_lease(reply: &mut RateLimitResponse, lease: &LeaseToken) {
    let metadata = reply.dynamic_metadata.get_or_insert_default();
    let mut add = |key: &str, value| metadata.fields.insert(key.to_owned(), to_value(value));
    add("reservation", MetadataValue::Text(lease.to_string()));
    let Some((first, others)) = lease.parts().split_first() else {
        return;
    };
    if others.iter().all(|part| part.hits == first.hits) {
        #[expect(clippy::cast_precision_loss, reason = "a limit is below 2^53")]
        let hits = first.hits as f64;
        add("reserved", MetadataValue::Number(hits));
    }
}

/// The token that [`add_lease`] wrote into `reply`.
pub(crate) fn lease(reply: &RateLimitResponse) -> Option<LeaseToken> {
    let metadata = reply.dynamic_metadata.as_ref()?;
    match metadata.fields.get("reservation")?.kind.as_ref()? {
        Kind::StringValue(text) => LeaseToken::parse(text.as_bytes()),
        _ => None,
    }
}

/// A header, unless Envoy could not send it unchanged.
fn header(name: &str, value: String) -> Option<HeaderValue> {
    (is_free_name(name) && is_value(&value)).then(|| HeaderValue {
        key: name.to_owned(),
        value,
        raw_value: Bytes::new(),
    })
}

/// The request as parsed, and the metadata of the rules that let it pass.
fn dynamic_metadata(message: &RateLimitRequest, decision: &mut Decision) -> Struct {
    let mut fields = BTreeMap::new();
    fields.extend(decision.is_degraded.then(degraded));
    let mut add = |key: &str, kind| {
        fields.insert(key.to_owned(), prost_types::Value { kind: Some(kind) });
    };
    add("domain", Kind::StringValue(message.domain.clone()));
    let descriptors = message.descriptors.iter().map(descriptor_metadata);
    add(
        "descriptors",
        Kind::ListValue(ListValue {
            values: descriptors.collect(),
        }),
    );
    if message.hits_addend != 0 {
        add("hitsAddend", Kind::NumberValue(message.hits_addend.into()));
    }
    if let Some(metadata) = decision.metadata.take() {
        add("metadata", Kind::StructValue(to_struct(metadata)));
    }
    Struct { fields }
}

/// Marks a reply that was decided without the store; sent even without other metadata.
fn degraded() -> (String, prost_types::Value) {
    ("degraded".to_owned(), to_value(MetadataValue::Bool(true)))
}

/// Whether the reply says that it was decided without the store.
pub(crate) fn is_degraded(reply: &RateLimitResponse) -> bool {
    let (name, expected) = degraded();
    let metadata = reply.dynamic_metadata.as_ref();
    metadata.is_some_and(|metadata| metadata.fields.get(&name) == Some(&expected))
}

fn descriptor_metadata(descriptor: &RateLimitDescriptor) -> prost_types::Value {
    let text = |entry: &rate_limit_descriptor::Entry| {
        let mut text = String::with_capacity(entry.key.len() + 1 + entry.value.len());
        push_text(&mut text, &entry.key);
        text.push('=');
        push_text(&mut text, &entry.value);
        to_value(MetadataValue::Text(text))
    };
    let mut fields = BTreeMap::new();
    let entries = ListValue {
        values: descriptor.entries.iter().map(text).collect(),
    };
    let entries = prost_types::Value {
        kind: Some(Kind::ListValue(entries)),
    };
    fields.insert("entries".to_owned(), entries);
    if let Some(limit) = &descriptor.limit {
        let text = override_text(limit);
        fields.insert("limit".to_owned(), to_value(MetadataValue::Text(text)));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "a Struct has no other numbers")]
        let hits = MetadataValue::Number(hits as f64);
        fields.insert("hitsAddend".to_owned(), to_value(hits));
    }
    prost_types::Value {
        kind: Some(Kind::StructValue(Struct { fields })),
    }
}

/// Appends `bytes` as text, not longer than they are: each invalid sequence becomes `?`.
fn push_text(text: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push('?');
        }
    }
}

/// The override in protobuf's text format.
fn override_text(limit: &rate_limit_descriptor::RateLimitOverride) -> String {
    let mut parts = Vec::new();
    if limit.requests_per_unit != 0 {
        parts.push(format!("requests_per_unit:{}", limit.requests_per_unit));
    }
    if let Some(unit) = unit(limit.unit) {
        parts.push(format!("unit:{}", unit.name().to_uppercase()));
    }
    if let Some(multiplier) = limit.unit_multiplier {
        parts.push(format!("unit_multiplier:{{value:{multiplier}}}"));
    }
    parts.join(" ")
}

fn to_struct(map: Metadata) -> Struct {
    let field = |(key, value): (Box<str>, _)| (key.into_string(), to_value(value));
    Struct {
        fields: map.into_iter().map(field).collect(),
    }
}

fn to_value(value: MetadataValue) -> prost_types::Value {
    let kind = match value {
        MetadataValue::Null => Kind::NullValue(0),
        MetadataValue::Bool(value) => Kind::BoolValue(value),
        MetadataValue::Number(number) => Kind::NumberValue(number),
        MetadataValue::Text(text) => Kind::StringValue(text),
        MetadataValue::List(values) => Kind::ListValue(ListValue {
            values: values.into_iter().map(to_value).collect(),
        }),
        MetadataValue::Map(map) => Kind::StructValue(to_struct(map)),
    };
    prost_types::Value { kind: Some(kind) }
}

fn status(status: &Status) -> DescriptorStatus {
    let reset_secs = status.binding.as_ref().and_then(Binding::shown_reset_secs);
    DescriptorStatus {
        code: code(status.code).into(),
        current_limit: status.binding.as_ref().map(current_limit),
        limit_remaining: saturated(status.remaining),
        duration_until_reset: reset_secs.map(|secs| Duration {
            // A window is never longer than `Period::MAX_SECS`.
            seconds: i64::try_from(secs).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        quota: None,
    }
}

fn current_limit(Binding { limit, .. }: &Binding) -> RateLimit {
    let multiplier = limit.unit_multiplier();
    let unit = limit.unit().map_or(0, |unit| unit_number(unit).into());
    RateLimit {
        name: limit.name.as_deref().unwrap_or_default().to_owned(),
        requests_per_unit: saturated(limit.requests_per_unit),
        unit,
        unit_multiplier: (multiplier > 1).then_some(multiplier),
    }
}

fn code(code: Code) -> rate_limit_response::Code {
    match code {
        Code::Ok => rate_limit_response::Code::Ok,
        Code::OverLimit => rate_limit_response::Code::OverLimit,
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};
    use prost::Message as _;

    use super::*;
    use crate::core::request::InlineList;

    fn message() -> RateLimitRequest {
        RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![rate_limit_descriptor::Entry {
                    key: "k".into(),
                    value: "v".into(),
                }],
                ..RateLimitDescriptor::default()
            }],
            hits_addend: 0,
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut RateLimitRequest), expected: Result<(), BadRequest>) {
        let mut message = message();
        change(&mut message);
        assert_eq!(request(&message).map(|_| ()), expected);
    }

    #[test]
    fn nonsense_is_refused() {
        check(|_| (), Ok(()));
        check(
            |message| message.domain.clear(),
            Err(BadRequest::EmptyDomain),
        );
        check(
            |message| message.descriptors.clear(),
            Err(BadRequest::NoDescriptors),
        );
        check(|message| message.descriptors[0].entries.clear(), Ok(()));
        let many = vec![RateLimitDescriptor::default(); MAX_DESCRIPTORS + 1];
        check(
            |message| message.descriptors = many,
            Err(BadRequest::TooManyDescriptors),
        );
        let many = vec![rate_limit_descriptor::Entry::default(); MAX_ENTRIES + 1];
        check(
            |message| message.descriptors[0].entries = many,
            Err(BadRequest::TooManyEntries),
        );
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        check(
            |message| message.descriptors[0].entries[0].value = long.clone().into(),
            Err(BadRequest::TextTooLong),
        );
        check(
            |message| message.domain = long.clone(),
            Err(BadRequest::TextTooLong),
        );
    }

    #[track_caller]
    fn check_limit(unit: i32, multiplier: Option<u32>, expected: Result<(), BadRequest>) {
        let limit = rate_limit_descriptor::RateLimitOverride {
            requests_per_unit: 5,
            unit,
            unit_multiplier: multiplier,
        };
        check(
            |message| message.descriptors[0].limit = Some(limit),
            expected,
        );
    }

    #[test]
    fn a_limit_override_needs_a_period() {
        check_limit(1, None, Ok(()));
        check_limit(7, Some(3), Ok(()));
        check_limit(0, None, Err(BadRequest::UnknownUnit(0)));
        check_limit(8, None, Err(BadRequest::UnknownUnit(8)));
        check_limit(1, Some(0), Err(BadRequest::BadPeriod));
        check_limit(6, Some(u32::MAX), Err(BadRequest::BadPeriod));
    }

    #[track_caller]
    fn check_hits(of_request: u32, own: Option<u64>, is_negative: bool, expected: Hits) {
        let mut message = message();
        message.hits_addend = of_request;
        message.descriptors[0].hits_addend = own;
        message.descriptors[0].is_negative_hits = is_negative;
        let request = request(&message).unwrap();
        assert_eq!(request.descriptors().next().unwrap().hits, expected);
    }

    #[test]
    fn hits_come_from_the_descriptor_or_else_from_the_request() {
        check_hits(0, None, false, Hits::ONE);
        check_hits(7, None, false, Hits::add(7));
        check_hits(7, Some(0), false, Hits::add(0));
        check_hits(7, Some(2), false, Hits::add(2));
        check_hits(0, Some(u64::MAX), false, Hits::add(Hits::MAX));
        check_hits(0, Some(3), true, Hits::give_back(3));
        check_hits(0, None, true, Hits::give_back(1));
    }

    #[test]
    fn bytes_that_are_no_text_are_values_all_the_same() {
        // domain "d", one descriptor with one entry `k` = 0xff.
        let bytes = [
            0x0a, 1, b'd', 0x12, 8, 0x0a, 6, 0x0a, 1, b'k', 0x12, 1, 0xff,
        ];
        let message = RateLimitRequest::decode(&bytes[..]).unwrap();
        let request = request(&message).unwrap();
        let descriptor = request.descriptors().next().unwrap();
        assert_eq!(descriptor.entries[0].value, [0xff]);
    }

    #[test]
    fn a_status_tells_the_window_of_its_limit() {
        let half_hours = Period::new(Unit::Minute, NonZeroU32::new(30).unwrap()).unwrap();
        let limit = Limit {
            name: Some("slow".into()),
            ..Limit::fixed(300, half_hours)
        };
        let mut decision = Decision {
            overall: Code::OverLimit,
            statuses: InlineList::from_iter([Status {
                code: Code::OverLimit,
                binding: Some(Binding {
                    limit,
                    counter: 0,
                    reset_secs: 800,
                    is_over: true,
                }),
                remaining: 0,
                retry_secs: Some(800),
            }]),
            is_shadowed: false,
            is_degraded: false,
            headline: Some(0),
            retry_secs: Some(800),
            metadata: None,
            leased: None,
        };
        let extras = Extras {
            headers: Some(["L", "Rem", "Res"].map(str::to_owned)),
            fields: LimitFields::All,
            retry_after: true,
            dynamic_metadata: false,
        };
        let response = response(&mut decision, &message(), &extras);
        let headers: Vec<_> = response
            .response_headers_to_add
            .iter()
            .map(|header| format!("{}: {}", header.key, header.value))
            .collect();
        assert_eq!(
            headers,
            ["L: 300", "Rem: 0", "Res: 800", "Retry-After: 800"]
        );
        assert_eq!(response.overall_code, 2);
        let status = &response.statuses[0];
        let current = status.current_limit.as_ref().unwrap();
        assert_eq!((current.requests_per_unit, current.unit), (300, 2));
        assert_eq!(current.unit_multiplier, Some(30));
        assert_eq!(current.name, "slow");
        assert_eq!(status.duration_until_reset.as_ref().unwrap().seconds, 800);
    }

    #[test]
    fn dynamic_metadata_tells_the_request_and_the_rules_metadata() {
        let mut message = message();
        message.hits_addend = 3;
        message.descriptors[0].hits_addend = Some(0);
        message.descriptors[0].limit = Some(rate_limit_descriptor::RateLimitOverride {
            requests_per_unit: 5,
            unit: 4,
            unit_multiplier: None,
        });
        let list = MetadataValue::List(vec![MetadataValue::Null, MetadataValue::Bool(true)]);
        let metadata = Metadata::from_iter([("own", list)]);
        let text = |text: &str| to_value(MetadataValue::Text(text.to_owned()));
        let values = |values| to_value(MetadataValue::List(values));
        let mut decision = Decision {
            metadata: Some(metadata.clone()),
            ..Decision::default()
        };
        let shown = dynamic_metadata(&message, &mut decision).fields;
        assert_eq!(shown["domain"], text("d"));
        assert_eq!(shown["hitsAddend"], to_value(MetadataValue::Number(3.0)));
        assert_eq!(shown["metadata"], to_value(MetadataValue::Map(metadata)));
        let descriptor = Metadata::from_iter([
            (
                "entries",
                MetadataValue::List(vec![MetadataValue::Text("k=v".to_owned())]),
            ),
            (
                "limit",
                MetadataValue::Text("requests_per_unit:5 unit:DAY".to_owned()),
            ),
            ("hitsAddend", MetadataValue::Number(0.0)),
        ]);
        assert_eq!(
            shown["descriptors"],
            values(vec![MetadataValue::Map(descriptor)])
        );
    }

    fn any_descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
        let bytes = || vec(prop_oneof![Just(0xff), Just(b'x'), any::<u8>()], 0..9);
        let entry = (bytes(), bytes()).prop_map(|(key, value)| rate_limit_descriptor::Entry {
            key: key.into(),
            value: value.into(),
        });
        let limit = (any::<u32>(), 0..8, option::of(any::<u32>())).prop_map(
            |(requests_per_unit, unit, unit_multiplier)| rate_limit_descriptor::RateLimitOverride {
                requests_per_unit,
                unit,
                unit_multiplier,
            },
        );
        (
            vec(entry, 0..5),
            option::of(limit),
            option::of(any::<u64>()),
        )
            .prop_map(|(entries, limit, hits_addend)| RateLimitDescriptor {
                entries,
                limit,
                hits_addend,
                ..RateLimitDescriptor::default()
            })
    }

    proptest! {
        /// Names and metadata of rules are excluded: they are the operator's.
        #[test]
        fn a_reply_with_metadata_is_three_times_its_request_at_most(
            descriptors in vec(any_descriptor(), 0..9),
            domain in ".{0,9}",
            hits_addend: u32,
        ) {
            const OF_EACH: usize = 256;
            let message = RateLimitRequest { domain, descriptors, hits_addend };
            let period = Period::new(Unit::Minute, NonZeroU32::new(1 << 20).unwrap()).unwrap();
            let status = |_| Status {
                code: Code::OverLimit,
                binding: Some(Binding {
                    limit: Limit::fixed(u64::MAX, period),
                    counter: 0,
                    reset_secs: Period::MAX_SECS,
                    is_over: true,
                }),
                remaining: u64::MAX,
                retry_secs: Some(Period::MAX_SECS),
            };
            let mut decision = Decision {
                overall: Code::OverLimit,
                statuses: message.descriptors.iter().map(status).collect(),
                is_shadowed: false,
                is_degraded: true,
                headline: None,
                retry_secs: None,
                metadata: None,
                leased: None,
            };
            let extras = Extras { dynamic_metadata: true, ..Extras::default() };
            let reply = response(&mut decision, &message, &extras);
            let most = 3 * message.encoded_len() + OF_EACH * (message.descriptors.len() + 1);
            prop_assert!(reply.encoded_len() <= most, "{} > {most}", reply.encoded_len());
        }
    }
}
