//! Changes to the counters of some descriptors.
//!
//! A reset gives back all hits that a counter holds, and frees all slots; a grant gives back as many as should pass
//! beyond the limit. Both
//! go through the stores like any give-back: in one step with the peek at the counter, and past the over-limit caches,
//! which then no longer trust what they know of the counter.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode},
    response::Response,
};

use super::{
    Counters,
    access::Allowed,
    batch,
    look::{Asked, CounterAnswer, reply},
    refused,
    report::CounterReport,
    take_states, without_store,
};
use crate::{
    core::{
        counter::{CounterKind, CounterStates, IncrementSpec, KeyFormat, Operation},
        request::{Descriptor, Hits, Request},
    },
    foundation::printable::Shown,
    service::held_bytes::Account,
    store::contract::{Deadline, Store as _},
};

/// A change to all counters of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Afterwards they hold no hits.
    Reset,
    /// Lets as many more hits pass as the descriptor has, until the windows end.
    Grant,
}

/// The reply to a grant if envoyproxy/ratelimit can share the counters.
const NO_GRANT: &str = "no grants with --key-format reference: one could leave a negative count, and \
     envoyproxy/ratelimit fails each request that reads it; raise the limit in the rules, or take all hits off with \
     a reset";

/// Most characters of a descriptor in a log line.
const MAX_SHOWN: usize = 1_024;

/// Changes the counters of the descriptors in `body`, and answers with their state before and after.
pub(super) async fn change(
    counters: &Counters,
    change: Change,
    allowed: Allowed,
    account: &Arc<Account>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    let asked = Asked::read(counters, account, headers, body).await?;
    let request = asked.request(counters)?;
    let mut answer = CounterAnswer::begin(counters, &request)?;
    let mut hits = request.descriptors().map(|descriptor| descriptor.hits);
    let is_too_many = |hits: Hits| hits.added() == 0 || hits.added() > u32::MAX.into();
    if change == Change::Grant && hits.any(is_too_many) {
        let text =
            "hitsAddend of each descriptor has to be the number of hits to grant: 1 to 4294967295";
        return Err(refused(StatusCode::BAD_REQUEST, text));
    }
    if change == Change::Grant && answer.key_format() == KeyFormat::Reference {
        return Err(refused(StatusCode::CONFLICT, NO_GRANT));
    }
    let looked = counters.look_at(&mut answer.reports, answer.now).await;
    looked.map_err(without_store)?;
    answer.each(&request, |report, hits| {
        report.before = report.state;
        report.asked = (change == Change::Grant).then(|| hits.added());
        report.spec = change.spec(report.spec, hits);
    });
    let mut counts = CounterStates::new();
    let changes = batch(&answer.reports);
    if change == Change::Reset {
        // Before it, or what was reserved could be given back to a counter that is reset already.
        for increment in changes.iter() {
            counters.leases.record_reset(increment.key, answer.now);
            if let Some(slices) = counters.store.slices() {
                slices.forget(increment.key, increment.descriptor_bytes);
            }
        }
    }
    if !changes.is_empty() {
        let deadline = Deadline::of_store();
        let changed = counters
            .store
            .add_into(&mut counts, &changes, answer.now, &deadline);
        if let Err(error) = changed.await {
            tracing::warn!(%error, by = %allowed, "counters were perhaps not changed");
            return Err(without_store(error));
        }
    }
    take_states(&mut answer.reports, &counts);
    for (descriptor, reports) in answer.parts(&request) {
        log(change, allowed, &request, descriptor, reports);
    }
    Ok(reply(counters, account, answer.document(&request)).await)
}

impl Change {
    /// The increment that makes the change. `spec` is a peek, and `hits` are the descriptor's.
    fn spec(self, spec: IncrementSpec, hits: Hits) -> IncrementSpec {
        let has_slots = matches!(spec.method, CounterKind::Slots { .. });
        let (operation, hits) = match self {
            // It frees all of them.
            Self::Reset if has_slots => (Operation::Grant, 1),
            Self::Grant if has_slots => return spec,
            Self::Reset => (Operation::GiveBack, Hits::MAX),
            Self::Grant => (Operation::Grant, hits.added()),
        };
        IncrementSpec {
            operation,
            hits,
            ..spec
        }
    }
}

/// Logs who changed which counters, and how. Values are quoted, because one could otherwise look like further entries.
/// Writing to a string cannot fail.
fn log(
    change: Change,
    allowed: Allowed,
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
        if let Some(effect) = report.grant_effect() {
            let _ = write!(changes, " and {} more pass", effect.granted);
        }
    }
    let done = match change {
        Change::Reset => "counters were reset",
        Change::Grant => "hits were granted",
    };
    tracing::info!(
        domain = %Shown(request.domain),
        descriptor = entries.chars().take(MAX_SHOWN).collect::<String>(),
        by = %allowed,
        grant = (change == Change::Grant).then(|| descriptor.hits.added()),
        hits = changes,
        "{done}"
    );
}
