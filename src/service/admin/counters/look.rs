//! The counters of some descriptors, found as for a decision that is not made, and their resets.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};

use crate::{
    core::{
        counter::{CounterKind, CounterStates, IncrementSpec, Operation},
        request::{Descriptor, Hits, Request},
        window::Timestamp,
    },
    foundation::{
        ascii_json::{ascii_json, json_without_nulls},
        printable::Shown,
    },
    service::{
        admin::{
            counters::{
                Counters, Refusal,
                access::Allowed,
                batch, refused,
                report::{
                    CounterReport, CountersDocument, DescriptorDocument, counters_of,
                    entry_document, request_of, text,
                },
                take_states, without_store,
            },
            json::{is_json, json_headers, read_json},
        },
        grpc::{proto, wire},
        limiter::RuleSet,
    },
    store::contract::{Deadline, Store as _},
};

/// Most descriptors of one request.
const MAX_DESCRIPTORS: usize = 16;

/// Answers with the counters of the descriptors in `body`. A caller who is `allowed` to has reset them.
pub(super) async fn answer(
    counters: &Counters,
    allowed: Option<Allowed>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    if !is_json(headers) {
        let text = "Unsupported Media Type: send application/json";
        return Err(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let blocking = &counters.blocking;
    let message = read_json(blocking, body, proto::request).await?;
    let message = message.map_err(|error| {
        let text = format!("the body is not a RateLimitRequest: {error}");
        refused(StatusCode::BAD_REQUEST, &text)
    })?;
    if message.descriptors.len() > MAX_DESCRIPTORS {
        let text = format!("more than {MAX_DESCRIPTORS} descriptors");
        return Err(refused(StatusCode::BAD_REQUEST, &text));
    }
    let request = wire::request(&message);
    let request = request.map_err(|error| refused(StatusCode::BAD_REQUEST, &error.to_string()))?;
    let mut answer = CounterAnswer::begin(counters, &request)?;
    let looked = counters.look_at(&mut answer.reports, answer.now).await;
    looked.map_err(without_store)?;
    if let Some(allowed) = allowed {
        answer.reset(counters, &allowed, &request).await?;
    }
    let document = answer.document(&request);
    let json = move || ascii_json(&json_without_nulls(&document)) + "\n";
    let text = blocking.work(json).await;
    Ok((json_headers(), text).into_response())
}

/// The counters of a request's descriptors.
struct CounterAnswer {
    rules: Arc<RuleSet>,
    now: Timestamp,
    reports: Vec<CounterReport>,
    /// Where the counters of each descriptor end.
    ends: Vec<usize>,
}

impl CounterAnswer {
    /// Finds the counters, without asking the store.
    ///
    /// # Errors
    ///
    /// If there are no rules.
    fn begin(counters: &Counters, request: &Request<'_>) -> Result<Self, Refusal> {
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

    /// Takes all hits off the counters, and frees all slots.
    ///
    /// A reset goes through the stores like any give-back: in one step with the peek at the counter, and workers
    /// forget that it is over.
    async fn reset(
        &mut self,
        counters: &Counters,
        allowed: &Allowed,
        request: &Request<'_>,
    ) -> Result<(), Response> {
        for report in &mut self.reports {
            report.before = report.state;
            report.spec = IncrementSpec {
                operation: Operation::Reset,
                hits: Hits::MAX,
                ..report.spec
            };
        }
        let mut counts = CounterStates::new();
        let resets = batch(&self.reports);
        // Before it, or what was reserved could be given back to a counter that is reset already.
        for increment in resets.iter() {
            counters.leases.record_reset(increment.key, self.now);
            if let Some(slices) = counters.store.slices() {
                slices.forget(increment.key, increment.descriptor_bytes);
            }
        }
        if !resets.is_empty() {
            let deadline = Deadline::of_store();
            let store = &counters.store;
            let reset = store.add_into(&mut counts, &resets, self.now, &deadline);
            if let Err(error) = reset.await {
                tracing::warn!(%error, by = %allowed, "counters were perhaps not reset");
                return Err(without_store(error));
            }
        }
        take_states(&mut self.reports, &counts);
        self.count_freed_slots();
        for (descriptor, reports) in self.parts(request) {
            log(allowed, request, descriptor, reports);
        }
        Ok(())
    }

    /// Counts the slots that a reset freed in the metrics of their rules.
    fn count_freed_slots(&self) {
        for report in &self.reports {
            let has_slots = matches!(report.spec.method, CounterKind::Slots { .. });
            if has_slots && let (Some(rule), Some(before)) = (report.rule_id, report.before) {
                self.rules.stats.reset_slots(rule, before.after);
            }
        }
    }

    /// Pairs each descriptor with its counters.
    fn parts<'a>(
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
    fn document(&self, request: &Request<'_>) -> CountersDocument {
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

/// Most characters of a descriptor in a log line.
const MAX_SHOWN: usize = 1_024;

/// Logs who reset which counters. Values are quoted, because one could otherwise look like further entries.
/// Writing to a string cannot fail.
fn log(
    allowed: &Allowed,
    request: &Request<'_>,
    descriptor: Descriptor<'_>,
    reports: &[CounterReport],
) {
    let mut entries = String::new();
    for (index, entry) in descriptor.entries.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        let [key, value] = [entry.key, entry.value].map(Shown);
        let _ = write!(entries, "{separator}{key}=\"{value}\"");
    }
    let mut changes = String::new();
    for (index, report) in reports.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        let [before, after] =
            [report.before, report.state].map(|state| state.map(|state| state.after));
        let _ = write!(
            changes,
            "{separator}{} {} -> {}",
            report.limit.rate(),
            before.unwrap_or_default(),
            after.unwrap_or_default()
        );
    }
    tracing::info!(
        domain = %Shown(request.domain),
        descriptor = entries.chars().take(MAX_SHOWN).collect::<String>(),
        by = %allowed,
        hits = changes,
        "counters were reset"
    );
}
