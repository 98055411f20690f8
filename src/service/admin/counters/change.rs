//! Changes to the counters of some descriptors.
//!
//! A reset gives back all hits that a counter holds. It takes the way of any give-back through the stores: in one step
//! with the look at the counter, and past the over-limit caches, which then doubt the counter.

use std::{fmt::Write as _, sync::Arc};

use axum::{body::Body, http::HeaderMap, response::Response};

use super::{
    Counters,
    access::Allowed,
    batch,
    look::{Answer, Asked},
    report::CounterReport,
    take_states, without_store,
};
use crate::{
    core::{
        counter::{Charge, CounterStates, IncrementSpec},
        request::{Descriptor, Hits, Request},
    },
    service::budget::Account,
    store::contract::{Deadline, Store as _},
};

/// A change to all counters of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// They hold no hit any more.
    Reset,
}

/// Most characters of a domain or a descriptor in a line of the log.
const MAX_SHOWN: usize = 1_024;

/// Changes the counters of the descriptors in `body`, and answers with their state before and after.
pub(super) async fn change(
    counters: &Counters,
    change: Change,
    allowed: Allowed,
    account: &Arc<Account>,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let asked = match Asked::read(counters, account, headers, body).await {
        Ok(asked) => asked,
        Err(refusal) => return refusal,
    };
    let request = match asked.request(counters) {
        Ok(request) => request,
        Err(refusal) => return refusal,
    };
    let mut answer = match Answer::begin(counters, &request) {
        Ok(answer) => answer,
        Err(refusal) => return refusal,
    };
    if let Err(error) = counters.look_at(&mut answer.reports, answer.now).await {
        return without_store(error);
    }
    for report in &mut answer.reports {
        report.before = report.state.map(|state| state.after);
        report.spec = report.spec.map(|spec| change.spec(spec));
    }
    let mut counts = CounterStates::new();
    let changes = batch(&answer.reports);
    if !changes.is_empty() {
        let deadline = Deadline::of_store();
        let changed = counters
            .store
            .add_into(&mut counts, &changes, answer.now, &deadline);
        if let Err(error) = changed.await {
            tracing::warn!(%error, by = %allowed, "counters were perhaps not changed");
            return without_store(error);
        }
    }
    take_states(&mut answer.reports, &counts);
    for (descriptor, reports) in answer.parts(&request) {
        log(change, allowed, &request, descriptor, reports);
    }
    answer.reply(&request, account)
}

impl Change {
    /// The increment that makes the change; `spec` is a look.
    fn spec(self, spec: IncrementSpec) -> IncrementSpec {
        match self {
            Self::Reset => IncrementSpec {
                hits: Hits::give_back(Hits::MAX),
                charge: Charge::Always,
                ..spec
            },
        }
    }
}

/// Writes who changed which counters how. Writing to a string cannot fail.
fn log(
    change: Change,
    allowed: Allowed,
    request: &Request<'_>,
    descriptor: Descriptor<'_>,
    reports: &[CounterReport],
) {
    let mut entries = String::new();
    for (index, entry) in descriptor.entries.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        let [key, value] = [entry.key, entry.value].map(shown);
        let _ = write!(entries, "{separator}{key}={value}");
    }
    let mut changes = String::new();
    for (index, report) in reports.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        let limit = report.limit.as_ref().map(|limit| limit.rate().to_string());
        let (before, after) = (report.before, report.state.map(|state| state.after));
        let _ = write!(
            changes,
            "{separator}{} {} -> {}",
            limit.unwrap_or_default(),
            before.unwrap_or_default(),
            after.unwrap_or_default()
        );
    }
    let done = match change {
        Change::Reset => "counters were reset",
    };
    tracing::info!(
        domain = shown(request.domain),
        descriptor = entries.chars().take(MAX_SHOWN).collect::<String>(),
        by = %allowed,
        hits = changes,
        "{done}"
    );
}

/// Bytes as one line of bounded length.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN)]);
    text.escape_debug().take(MAX_SHOWN).collect()
}
