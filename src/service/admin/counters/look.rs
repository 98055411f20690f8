//! The counters of some descriptors, found as for a decision that is not made.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};

use super::{
    super::json::{is_json, json_headers, read_json},
    Counters, Refusal,
    document::{CountersDocument, DescriptorDocument},
    refused,
    report::{CounterReport, counters_of, entry_document, request_of, text},
    without_store,
};
use crate::{
    core::{
        counter::CounterKind,
        request::{Descriptor, Request},
        window::Timestamp,
    },
    foundation::ascii_json::{ascii_json, json_without_nulls},
    service::{
        grpc::{json, proto::envoy::service::ratelimit::v3::RateLimitRequest, wire},
        held_bytes::{Account, HeldBytes},
        limiter::RuleSet,
    },
};

/// Most descriptors of one request.
const MAX_DESCRIPTORS: usize = 16;

/// Answers with the counters of the descriptors in `body`.
pub(super) async fn get(
    counters: &Counters,
    account: &Arc<Account>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    let asked = Asked::read(counters, account, headers, body).await?;
    let request = asked.request(counters)?;
    let mut answer = CounterAnswer::begin(counters, &request)?;
    let looked = counters.look_at(&mut answer.reports, answer.now).await;
    looked.map_err(without_store)?;
    Ok(reply(counters, account, answer.document(&request)).await)
}

/// A request about counters.
pub(super) struct Asked {
    message: RateLimitRequest,
    /// Keeps the body charged while its message is in use.
    _held: HeldBytes,
}

impl Asked {
    /// Reads the request in `body`.
    ///
    /// # Errors
    ///
    /// The reply to a body that is not a valid request.
    pub(super) async fn read(
        counters: &Counters,
        account: &Arc<Account>,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Self, Response> {
        if !is_json(headers) {
            let text = "Unsupported Media Type: send application/json";
            return Err(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let (blocking, bodies) = (&counters.blocking, counters.bodies);
        match read_json(blocking, account, body, bodies, json::request).await? {
            (Ok(message), _held) => Ok(Self { message, _held }),
            (Err(error), _) => {
                let text = format!("the body is not a RateLimitRequest: {error}");
                Err(refused(StatusCode::BAD_REQUEST, &text))
            }
        }
    }

    /// # Errors
    ///
    /// If the request is not valid or too large.
    pub(super) fn request(&self, counters: &Counters) -> Result<Request<'_>, Refusal> {
        let bounds = wire::RequestBounds {
            descriptors: counters.bounds.descriptors.min(MAX_DESCRIPTORS),
            ..counters.bounds
        };
        wire::request(&self.message, bounds).map_err(|error| Refusal {
            status: StatusCode::BAD_REQUEST,
            reason: error.to_string(),
        })
    }
}

/// The counters of a request's descriptors.
pub(super) struct CounterAnswer {
    rules: Arc<RuleSet>,
    pub(super) now: Timestamp,
    pub(super) reports: Vec<CounterReport>,
    /// Where the counters of each descriptor end.
    ends: Vec<usize>,
}

impl CounterAnswer {
    /// Finds the counters, without asking the store.
    ///
    /// # Errors
    ///
    /// If there are no rules.
    pub(super) fn begin(counters: &Counters, request: &Request<'_>) -> Result<Self, Refusal> {
        let rules = counters.rules()?;
        let now = counters.clock.now();
        let (mut reports, mut ends) = (Vec::new(), Vec::new());
        for descriptor in request.descriptors() {
            let alone = request_of(request.domain, descriptor.entries, descriptor.limit);
            reports.extend(counters_of(&rules.matcher, &alone, now));
            ends.push(reports.len());
        }
        Ok(Self {
            rules,
            now,
            reports,
            ends,
        })
    }

    /// Counts the slots that a reset freed in the metrics of their rules.
    pub(super) fn count_freed_slots(&self) {
        for report in &self.reports {
            let has_slots = matches!(report.spec.method, CounterKind::Slots { .. });
            if has_slots && let (Some(rule), Some(before)) = (report.rule_id, report.before) {
                self.rules.stats.reset_slots(rule, before.after);
            }
        }
    }

    /// Pairs each descriptor with its counters.
    pub(super) fn parts<'a>(
        &'a self,
        request: &'a Request<'_>,
    ) -> impl Iterator<Item = (Descriptor<'a>, &'a [CounterReport])> {
        let mut start = 0;
        let own = self.ends.iter().map(move |&end| {
            let start = std::mem::replace(&mut start, end);
            &self.reports[start..end]
        });
        request.descriptors().zip(own)
    }

    /// The counters by descriptor, or why a descriptor has none.
    pub(super) fn document(&self, request: &Request<'_>) -> CountersDocument {
        let part = |(descriptor, own): (Descriptor<'_>, &[CounterReport])| {
            let no_limit = || {
                let cause = self.rules.matcher.cause(request.domain, descriptor.entries);
                cause.map_or_else(|| "no limit".to_owned(), |cause| cause.to_string())
            };
            let entries = descriptor.entries.iter();
            DescriptorDocument {
                entries: entries
                    .map(|entry| entry_document(entry.key, entry.value))
                    .collect(),
                no_limit: own.is_empty().then(no_limit),
                counters: own.iter().map(|one| one.document(self.now)).collect(),
            }
        };
        CountersDocument {
            domain: text(request.domain),
            descriptors: self.parts(request).map(part).collect(),
        }
    }
}

/// The reply to a successful call, written on the blocking pool.
pub(super) async fn reply(
    counters: &Counters,
    account: &Arc<Account>,
    answer: CountersDocument,
) -> Response {
    let json = move || ascii_json(&json_without_nulls(&answer)) + "\n";
    let text = counters.blocking.work(json).await;
    let text = HeldBytes::new(account, text.len()).with(text.into());
    (json_headers(), text).into_response()
}
