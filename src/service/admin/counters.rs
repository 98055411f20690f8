//! `/counters`: the hits that counters hold now, and their resets.
//!
//! Counters are read by peeks, which go past what workers know and neither count a hit nor create a counter.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, Uri},
    response::Response,
};

use super::{json::refused, origin::Peer, page::BlockingQueue};
use crate::{
    core::{
        counter::{Batch, CounterState, CounterStates, Increment},
        window::Timestamp,
    },
    service::{
        grpc::RequestClock,
        leases::LeaseBook,
        limiter::{RuleSet, Rules},
    },
    store::{
        any::AnyStore,
        contract::{Deadline, Store as _, StoreError},
    },
};

mod access;
mod look;
pub(crate) mod report;

pub(crate) use access::ChangeAccess;
use access::NotAllowed;
use report::CounterReport;
pub(super) use report::{algorithm, limit_document, text};

/// The parts of the server that `/counters` needs.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub rules: Rules,
    pub store: AnyStore,
    pub clock: RequestClock,
    pub blocking: BlockingQueue,
    pub access: ChangeAccess,
    pub leases: LeaseBook,
}

/// Counters that one request to the store looks at. They are few, because decisions share the batch.
const LOOKS_AT_ONCE: usize = 32;

impl Counters {
    /// The counters of the descriptors in `body`.
    pub(super) async fn get(self, headers: HeaderMap, body: Body) -> Result<Response, Response> {
        look::answer(&self, None, &headers, body).await
    }

    /// Resets the counters of the descriptors in `body`, if the caller is allowed to.
    pub(super) async fn reset(
        self,
        peer: Peer,
        uri: Uri,
        headers: HeaderMap,
        body: Body,
    ) -> Result<Response, Response> {
        let allowed = self.access.check(peer, &uri, &headers, &self.blocking);
        let forbidden = |error: NotAllowed| refused(StatusCode::FORBIDDEN, &error.to_string());
        let allowed = allowed.await.map_err(forbidden)?;
        look::answer(&self, Some(allowed), &headers, body).await
    }

    /// The rules in use.
    fn rules(&self) -> Result<Arc<RuleSet>, Refusal> {
        self.rules.current().ok_or_else(|| Refusal {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "no rate limit configuration loaded".to_owned(),
        })
    }

    /// Asks the store for the states of the counters in `reports`, a few at a time.
    async fn look_at(
        &self,
        reports: &mut [CounterReport],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        for some in reports.chunks_mut(LOOKS_AT_ONCE) {
            let mut counts = CounterStates::new();
            let (batch, deadline) = (batch(some), Deadline::of_store_itself());
            let looked = self.store.add_into(&mut counts, &batch, now, &deadline);
            looked.await?;
            take_states(some, &counts);
            for report in some.iter_mut() {
                let bytes = report.spec.descriptor_bytes;
                report.leased = self.store.leased(&report.key, bytes);
            }
        }
        Ok(())
    }
}

/// The increments of all `reports`.
fn batch(reports: &[CounterReport]) -> Batch {
    let mut batch = Batch::default();
    for CounterReport { key, spec, .. } in reports {
        batch.append_one(Increment { key, spec: *spec });
    }
    batch
}

/// Stores the states in `reports`.
fn take_states(reports: &mut [CounterReport], counts: &[CounterState]) {
    for (report, count) in reports.iter_mut().zip(counts) {
        report.state = Some(*count);
    }
}

/// Why a call is refused.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    reason: String,
}

impl From<Refusal> for Response {
    fn from(Refusal { status, reason }: Refusal) -> Self {
        refused(status, &reason)
    }
}

/// The reply if the store does not return counts.
fn without_store(error: StoreError) -> Response {
    refused(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
}
