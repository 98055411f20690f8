//! Leases whose answers were sent a moment ago. Envoy resets the stream of an answer that it does not use, because its
//! client has left or its timeout has passed. No order will ever end such a lease, so the reset does.
//!
//! [`server/authority.rs`](crate::server) sees every frame of a connection. It names the stream to each call by a
//! header, and reports the resets.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hyper::HeaderMap;
use smallvec::SmallVec;

use crate::{core::lease::token::LeaseToken, foundation::lock::lock};

/// The header that names the stream of a call. Only the connection itself can know it, so the last value counts.
pub(crate) const STREAM: &str = "tollgate-stream";

/// How long after its answer the reset of a stream still ends a lease. Envoy resets it within a round trip; this
/// leaves time for one that is busy.
const KEPT: Duration = Duration::from_secs(5);

/// The most leases of one worker that are kept: about 5 MB. Beyond it a lease is ended by its order only.
const MAX_KEPT: usize = 16_384;

/// The latest resets of a connection that are remembered for calls that are not answered yet. It has fewer streams
/// than that open at a time.
const MAX_RESETS: usize = 1024;

/// A lease that was sent to a caller, with what its end needs.
pub(crate) struct AnsweredLease {
    /// The request, encoded.
    pub(crate) message: Box<[u8]>,
    pub(crate) token: LeaseToken,
    /// The indexes of the descriptors that lease.
    pub(crate) descriptors: SmallVec<[usize; 2]>,
}

/// Ends leases that no request uses.
pub(crate) trait EndLeases: Send + Sync {
    /// Whether any rule in use leases, so that streams have to be named.
    fn has_leases(&self) -> bool;

    /// Gives back all that the lease holds.
    fn end(self: Arc<Self>, lease: AnsweredLease);
}

/// The leases that one worker keeps.
#[derive(Clone, Default)]
pub(crate) struct WorkerLeases {
    end: Option<Arc<dyn EndLeases>>,
    kept: Arc<AtomicUsize>,
}

impl WorkerLeases {
    pub(crate) fn new(end: Arc<dyn EndLeases>) -> Self {
        Self {
            end: Some(end),
            kept: Arc::default(),
        }
    }

    /// Those of a new connection.
    pub(crate) fn of_connection(&self) -> Arc<ConnectionLeases> {
        Arc::new(ConnectionLeases {
            worker: self.clone(),
            streams: Mutex::default(),
        })
    }
}

/// The leases of one connection, by the stream that answered each.
pub(crate) struct ConnectionLeases {
    worker: WorkerLeases,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    /// Later streams have higher numbers, so the first one is about the oldest.
    answered: BTreeMap<u32, (Instant, AnsweredLease)>,
    reset: VecDeque<u32>,
}

/// The stream of one call.
pub(crate) struct CallStream {
    leases: Arc<ConnectionLeases>,
    id: u32,
}

impl ConnectionLeases {
    /// Whether calls have to know their streams.
    pub(crate) fn names_streams(&self) -> bool {
        self.worker.end.as_ref().is_some_and(|end| end.has_leases())
    }

    /// The stream of the call with these headers, if it was named.
    pub(crate) fn stream(self: &Arc<Self>, headers: &HeaderMap) -> Option<CallStream> {
        if !self.names_streams() {
            return None;
        }
        let name = headers.get_all(STREAM).iter().next_back()?;
        Some(CallStream {
            leases: self.clone(),
            id: name.to_str().ok()?.parse().ok()?,
        })
    }

    /// Takes the reset of a stream by the client into account: its answer is not used.
    pub(crate) fn reset(&self, stream: u32) {
        let lease = {
            let mut streams = lock(&self.streams);
            let lease = streams.answered.remove(&stream);
            if lease.is_none() && self.names_streams() {
                if streams.reset.len() == MAX_RESETS {
                    streams.reset.pop_front();
                }
                streams.reset.push_back(stream);
            }
            lease
        };
        if let Some((at, lease)) = lease {
            self.worker.kept.fetch_sub(1, Relaxed);
            self.end(at, lease);
        }
    }

    /// Ends the latest leases of a connection that broke, as an Envoy's does that was killed. One that was closed in
    /// order may still use its answers: Envoy closes a connection after `max_requests_per_connection`, for example.
    pub(crate) fn broke(&self) {
        for (at, lease) in self.take_all() {
            self.end(at, lease);
        }
    }

    fn take_all(&self) -> impl Iterator<Item = (Instant, AnsweredLease)> {
        let all = std::mem::take(&mut lock(&self.streams).answered);
        self.worker.kept.fetch_sub(all.len(), Relaxed);
        all.into_values()
    }

    fn end(&self, at: Instant, lease: AnsweredLease) {
        if let Some(end) = &self.worker.end
            && at.elapsed() < KEPT
        {
            end.clone().end(lease);
        }
    }
}

impl Drop for ConnectionLeases {
    fn drop(&mut self) {
        self.take_all().for_each(drop);
    }
}

impl CallStream {
    /// Keeps a lease whose answer is about to be sent, or ends it if the stream was reset meanwhile.
    pub(crate) fn keep(&self, lease: AnsweredLease) {
        let (leases, now) = (&self.leases, Instant::now());
        let kept = &leases.worker.kept;
        let mut streams = lock(&leases.streams);
        if streams.reset.contains(&self.id) {
            drop(streams);
            return leases.end(now, lease);
        }
        while let Some(oldest) = streams.answered.first_entry()
            && (oldest.get().0 + KEPT <= now || kept.load(Relaxed) >= MAX_KEPT)
        {
            oldest.remove();
            kept.fetch_sub(1, Relaxed);
        }
        if kept.load(Relaxed) < MAX_KEPT && streams.answered.insert(self.id, (now, lease)).is_none()
        {
            kept.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use hyper::header::HeaderValue;

    use super::*;
    use crate::core::{lease::token::LeaseId, window::Timestamp};

    /// Remembers the tokens of the leases that it ended.
    #[derive(Default)]
    pub(crate) struct EndedLeases(pub(crate) Mutex<Vec<u64>>);

    impl EndLeases for EndedLeases {
        fn has_leases(&self) -> bool {
            true
        }

        fn end(self: Arc<Self>, lease: AnsweredLease) {
            lock(&self.0).push(lease.token.id.0);
        }
    }

    fn lease(id: u64) -> AnsweredLease {
        let at = Timestamp::from_secs(1);
        AnsweredLease {
            message: Box::default(),
            token: LeaseToken::new(at, LeaseId(id), 0, []).unwrap(),
            descriptors: SmallVec::new(),
        }
    }

    fn stream(connection: &Arc<ConnectionLeases>, id: u32) -> CallStream {
        let mut headers = HeaderMap::new();
        // A caller cannot name another one.
        headers.append(STREAM, HeaderValue::from_static("99"));
        headers.append(STREAM, HeaderValue::from(id));
        connection.stream(&headers).unwrap()
    }

    fn connection() -> (Arc<EndedLeases>, Arc<ConnectionLeases>) {
        let ended = Arc::<EndedLeases>::default();
        (ended.clone(), WorkerLeases::new(ended).of_connection())
    }

    #[test]
    fn a_reset_ends_the_lease_of_its_stream_once_before_and_after_the_answer() {
        let (ended, connection) = connection();
        for id in [1, 3, 5, 7] {
            if id == 7 {
                connection.reset(7);
            }
            stream(&connection, id).keep(lease(id.into()));
        }
        connection.reset(3);
        connection.reset(3);
        connection.reset(11);
        assert_eq!(*lock(&ended.0), [7, 3]);
        connection.broke();
        assert_eq!(*lock(&ended.0), [7, 3, 1, 5]);
        assert_eq!(connection.worker.kept.load(Relaxed), 0);
    }

    #[test]
    fn a_connection_that_ends_in_order_keeps_its_leases() {
        let (ended, connection) = connection();
        stream(&connection, 1).keep(lease(1));
        let kept = connection.worker.kept.clone();
        assert_eq!(kept.load(Relaxed), 1);
        drop(connection);
        assert_eq!(kept.load(Relaxed), 0);
        assert!(lock(&ended.0).is_empty());
    }

    #[test]
    fn a_worker_keeps_a_bounded_number_of_leases_and_the_latest_of_a_connection() {
        let (ended, connection) = connection();
        let most = u32::try_from(MAX_KEPT).unwrap();
        for id in 0..most + 10 {
            stream(&connection, id).keep(lease(id.into()));
        }
        assert_eq!(connection.worker.kept.load(Relaxed), MAX_KEPT);
        connection.reset(9);
        connection.reset(10);
        assert_eq!(*lock(&ended.0), [10]);
        let other = connection.worker.of_connection();
        stream(&other, 1).keep(lease(1));
        assert_eq!(connection.worker.kept.load(Relaxed), MAX_KEPT);
    }

    #[test]
    fn the_resets_of_a_connection_are_bounded() {
        let (_, connection) = connection();
        let most = u32::try_from(MAX_RESETS).unwrap();
        (0..2 * most).for_each(|id| connection.reset(id));
        assert_eq!(lock(&connection.streams).reset.len(), MAX_RESETS);
    }
}
