//! Takes all hits off the counters of some descriptors, and frees all slots.
//!
//! A reset goes through the stores like any give-back: in one step with the peek at the counter, and past the
//! over-limit caches, which then no longer trust what they know of the counter.

use std::{fmt::Write as _, sync::Arc};

use axum::{body::Body, http::HeaderMap, response::Response};

use super::{
    Counters,
    access::Allowed,
    batch,
    look::{Asked, CounterAnswer, reply},
    report::CounterReport,
    take_states, without_store,
};
use crate::{
    core::{
        counter::{CounterStates, IncrementSpec, Operation},
        request::{Descriptor, Hits, Request},
    },
    foundation::printable::Shown,
    service::held_bytes::Account,
    store::contract::{Deadline, Store as _},
};

/// Most characters of a descriptor in a log line.
const MAX_SHOWN: usize = 1_024;

/// Resets the counters of the descriptors in `body`, and answers with their state before and after.
pub(super) async fn reset(
    counters: &Counters,
    allowed: Allowed,
    account: &Arc<Account>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    let asked = Asked::read(counters, account, headers, body).await?;
    let request = asked.request(counters)?;
    let mut answer = CounterAnswer::begin(counters, &request)?;
    let looked = counters.look_at(&mut answer.reports, answer.now).await;
    looked.map_err(without_store)?;
    for report in &mut answer.reports {
        report.before = report.state;
        report.spec = IncrementSpec {
            operation: Operation::Reset,
            hits: Hits::MAX,
            ..report.spec
        };
    }
    let mut counts = CounterStates::new();
    let resets = batch(&answer.reports);
    // Before it, or what was reserved could be given back to a counter that is reset already.
    for increment in resets.iter() {
        counters.leases.record_reset(increment.key, answer.now);
        if let Some(slices) = counters.store.slices() {
            slices.forget(increment.key, increment.descriptor_bytes);
        }
    }
    if !resets.is_empty() {
        let deadline = Deadline::of_store();
        let reset = counters
            .store
            .add_into(&mut counts, &resets, answer.now, &deadline);
        if let Err(error) = reset.await {
            tracing::warn!(%error, by = %allowed, "counters were perhaps not reset");
            return Err(without_store(error));
        }
    }
    take_states(&mut answer.reports, &counts);
    answer.count_freed_slots();
    for (descriptor, reports) in answer.parts(&request) {
        log(allowed, &request, descriptor, reports);
    }
    Ok(reply(counters, account, answer.document(&request)).await)
}

/// Logs who reset which counters. Values are quoted, because one could otherwise look like further entries.
/// Writing to a string cannot fail.
fn log(
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
    }
    tracing::info!(
        domain = %Shown(request.domain),
        descriptor = entries.chars().take(MAX_SHOWN).collect::<String>(),
        by = %allowed,
        hits = changes,
        "counters were reset"
    );
}
