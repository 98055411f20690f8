//! Counts the allocations of a decision in memory, once tables have their final sizes. Counts, unlike times, are
//! equal on every machine.

use std::{
    fs,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use hyper::HeaderMap;
use prost::{Message as _, bytes::Bytes};
use tempfile::TempDir;
use tollgate::{
    ConnectionLeases, LeaseBook, Limiter, MemoryStore, Metrics, Modes, NearRatio, RequestClock,
    Returns, RuleFiles, RuleOptions, RuleSource, Rules, Service, Tracer, UnaryMethod as _,
    WorkerLeases,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
    wire::{Extras, RequestBounds},
};

const WINDOWS: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limits: [1000/month, 1000/year]\n";

/// A service that counts in memory, of as many counters at most, without a server around it.
pub(crate) fn service(max_counters: usize) -> Service<Arc<MemoryStore>> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, WINDOWS).unwrap();
    let loaded = RuleFiles::read(&RuleSource::Paths(vec![file])).compile(RuleOptions::default());
    let metrics = Arc::new(Metrics::new(NearRatio::default(), 10));
    let rules = Rules::default();
    rules.swap(loaded.unwrap().matcher, &metrics);
    let store = Arc::new(MemoryStore::new(max_counters));
    Service {
        limiter: Limiter {
            decision_log: Default::default(),
            talkers: Default::default(),
            leases: LeaseBook::of_memory(),
            returns: Returns::new(Arc::default()),
            rules,
            store,
            modes: Modes::default(),
            metrics: metrics.recorder(0),
        },
        bounds: RequestBounds {
            descriptors: 1000,
            entries: 10,
            text_bytes: 100,
        },
        extras: Extras::default(),
        tracer: Tracer::default(),
        clock: RequestClock::default(),
    }
}

fn message(descriptors: usize) -> Bytes {
    let entry = |index: usize| Entry {
        key: "k".into(),
        value: format!("v{index}").into_bytes().into(),
    };
    let descriptor = |index| RateLimitDescriptor {
        entries: vec![entry(index)],
        ..RateLimitDescriptor::default()
    };
    let message = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: (0..descriptors).map(descriptor).collect(),
        ..RateLimitRequest::default()
    };
    message.encode_to_vec().into()
}

/// Answers `message` without a runtime: the memory store never waits.
#[track_caller]
fn answer(
    service: &Service<Arc<MemoryStore>>,
    connection: &Arc<ConnectionLeases>,
    message: &Bytes,
) {
    let noted = service.note(&HeaderMap::new(), None, connection);
    let mut call = pin!(service.call(noted, message.clone()));
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => drop(reply.unwrap()),
        Poll::Pending => panic!("a decision in memory waits"),
    }
}

#[track_caller]
fn check(descriptors: usize, most: u64) {
    let service = service(1000);
    let message = message(descriptors);
    let connection = WorkerLeases::default().of_connection();
    answer(&service, &connection, &message);
    let counted = allocation_counter::measure(|| answer(&service, &connection, &message));
    assert!(
        counted.count_total <= most,
        "{} allocations instead of {most}",
        counted.count_total
    );
    // Every allocation was freed, or counters would cost more with every hit.
    assert_eq!(counted.count_current, 0);
}

/// From the message as received to the reply as sent.
#[test]
fn a_decision_in_memory_allocates_nothing() {
    check(1, 0);
}

#[test]
fn nor_does_one_of_four_descriptors() {
    check(4, 0);
}
