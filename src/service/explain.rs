//! Explains how a request would be decided, as JSON: by the rules alone, or with the counters of a server. This counts
//! no hit and creates no counter.

use std::sync::Arc;

use crate::{
    core::{
        counter::{CounterState, CounterStates},
        limit::Modes,
        matcher::Matcher,
        plan::Plan,
        request::Entries,
        window::Timestamp,
    },
    service::{
        grpc::{
            self,
            proto::envoy::{
                extensions::common::ratelimit::v3::{
                    RateLimitDescriptor, rate_limit_descriptor::Entry,
                },
                service::ratelimit::v3::RateLimitRequest,
            },
            wire::{self, BadRequest},
        },
        limiter::{NoDecision, RuleSet},
    },
    store::contract::{Deadline, Store, StoreError},
};

pub(crate) mod account;
mod words;
mod writer;

use writer::explain;

/// The request with these descriptors, each with `hits`. Negative hits are given back. Without a number it is as most
/// requests of Envoy: one hit, or the estimate of the rule.
pub(crate) fn question(
    domain: &str,
    descriptors: &[Entries],
    hits: Option<i64>,
) -> RateLimitRequest {
    let descriptor = |Entries(entries): &Entries| RateLimitDescriptor {
        entries: entries
            .iter()
            .map(|(key, value)| Entry {
                key: key.clone().into(),
                value: value.clone().into(),
            })
            .collect(),
        hits_addend: hits.map(i64::unsigned_abs),
        is_negative_hits: hits.is_some_and(i64::is_negative),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// Why a request cannot be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unexplained {
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    #[error(transparent)]
    NoRules(#[from] NoDecision),
}

/// Explains a request by rules alone, as if all its counters were empty.
///
/// # Errors
///
/// If the request is invalid.
pub(crate) fn by_rules(
    matcher: &Matcher,
    message: &RateLimitRequest,
    now: Timestamp,
) -> Result<String, Unexplained> {
    let request = wire::request(message)?;
    Ok(explain(matcher, &request, Modes::default(), now, None).json())
}

/// The counters of one request, and what else decides it.
#[derive(Debug)]
pub(crate) struct LookedAt {
    rules: Arc<RuleSet>,
    modes: Modes,
    now: Timestamp,
    counts: Result<CounterStates, StoreError>,
    /// The unused hits of each counter that this process has charged in advance.
    leased: Vec<u64>,
}

/// The states of a request's counters.
#[derive(Clone, Copy, Debug)]
struct CounterLook<'a> {
    counts: &'a [CounterState],
    leased: &'a [u64],
}

/// Looks at the counters of a request in the store of `service`.
///
/// # Errors
///
/// If the request is invalid or no rules are loaded. That a store does not answer is part of the explanation.
pub(crate) async fn look<S: Store + Clone>(
    service: &grpc::Service<S>,
    message: &RateLimitRequest,
) -> Result<LookedAt, Unexplained> {
    let request = wire::request(message)?;
    let limiter = &service.limiter;
    let rules = limiter.rules.current().ok_or(NoDecision::NoRules)?;
    let now = service.clock.now();
    let look = {
        let mut plan = Plan::default();
        limiter.plan(&mut plan, &rules, &request, now);
        plan.batch.look();
        plan.batch
    };
    let mut counts = CounterStates::new();
    let deadline = Deadline::of_store();
    let looked = limiter.count(&mut counts, &look, now, &deadline).await;
    let increments = look.iter();
    let leased = increments.map(|increment| {
        let bytes = increment.descriptor_bytes;
        limiter.store.leased(increment.key, bytes)
    });
    Ok(LookedAt {
        rules,
        modes: limiter.modes,
        now,
        counts: looked.map(|()| counts),
        leased: leased.collect(),
    })
}

impl LookedAt {
    /// Explains `message`, to which these counters belong. With very many rules this takes long.
    ///
    /// # Errors
    ///
    /// If the request is invalid.
    pub(crate) fn explain(&self, message: &RateLimitRequest) -> Result<String, Unexplained> {
        let request = wire::request(message)?;
        let matcher = &self.rules.matcher;
        let look = match &self.counts {
            Ok(counts) => Ok(CounterLook {
                counts,
                leased: &self.leased,
            }),
            Err(error) => Err(*error),
        };
        Ok(explain(matcher, &request, self.modes, self.now, Some(look)).json())
    }
}

#[cfg(test)]
mod tests;
