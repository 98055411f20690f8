//! The bytes that callers make the gRPC port hold: messages that have not arrived completely, and replies that are not
//! sent. All connections share one bound. Above it, messages that are still arriving and large replies are refused;
//! near it, the connection that holds the most is closed.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

use prost::bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    foundation::log_throttle::LogThrottle,
    observe::metrics::{CutOff, Metrics},
};

/// Most bytes that all connections hold together: a sidecar's limit in our manifests is 256 MB.
pub(crate) const MAX_HELD_BYTES: u64 = 32 << 20;

/// Above this, the connections that hold the most are closed, so that there is room for a message of another one.
const CLOSED_ABOVE_BYTES: u64 = MAX_HELD_BYTES / 4 * 3;

/// The bytes of a connection count in whole pieces of this size, so that ordinary calls touch no shared counter.
const PIECE_BYTES: usize = 16 << 10;

/// A connection that holds more gets no answers while there is little room. An Envoy's holds less, with all its calls.
const MODEST_BYTES: u64 = 256 << 10;

/// Memory of HTTP/2 for a call whose reply waits, besides the reply.
const CALL_BYTES: usize = 1 << 10;

/// Replies up to this size are sent above the bound too. Those to an Envoy have some hundred bytes.
const SMALL_REPLY_BYTES: usize = 4 << 10;

/// The bytes that all connections hold.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    metrics: Arc<Metrics>,
    /// Notified when connections have to close.
    pub(crate) is_over: Notify,
}

/// A connection of the gRPC port, from its arrival to its end.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    all: Arc<HeldBytes>,
    held: AtomicUsize,
    pub(crate) opened: Instant,
    /// When the last call arrived, in milliseconds after `opened`, plus one; 0 if there was none.
    last_call: AtomicU64,
    /// Cancelled when the connection has to close.
    pub(crate) closed: CancellationToken,
}

impl HeldBytes {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        metrics.server.held_bytes_max.store(MAX_HELD_BYTES, Relaxed);
        Arc::new(Self {
            metrics,
            is_over: Notify::new(),
        })
    }

    /// A connection that was just accepted.
    pub(crate) fn open(self: &Arc<Self>) -> Arc<OpenConnection> {
        Arc::new(OpenConnection {
            all: self.clone(),
            held: AtomicUsize::new(0),
            opened: Instant::now(),
            last_call: AtomicU64::new(0),
            closed: CancellationToken::new(),
        })
    }

    /// How many bytes connections have to close for.
    pub(crate) fn excess(&self) -> u64 {
        let bytes = self.metrics.server.held_bytes.load(Relaxed);
        bytes.saturating_sub(CLOSED_ABOVE_BYTES)
    }

    fn cut_off(&self, reason: CutOff) {
        static THROTTLES: [LogThrottle; CutOff::ALL.len()] =
            [const { LogThrottle::new() }; CutOff::ALL.len()];
        let reason = reason as usize;
        self.metrics.server.cut_off.count(reason);
        if THROTTLES[reason].may_log() {
            tracing::warn!("{}", CutOff::ALL[reason].1);
        }
    }
}

impl OpenConnection {
    /// Records that a call has arrived.
    pub(crate) fn called(&self) {
        let after = self.opened.elapsed().as_millis();
        let after = u64::try_from(after).unwrap_or(u64::MAX);
        self.last_call.store(after.saturating_add(1), Relaxed);
    }

    /// When the last call arrived, if any has.
    pub(crate) fn last_call(&self) -> Option<Instant> {
        let after = self.last_call.load(Relaxed).checked_sub(1)?;
        Some(self.opened + Duration::from_millis(after))
    }

    /// How many bytes count as held.
    pub(crate) fn held(&self) -> u64 {
        whole_pieces(self.held.load(Relaxed))
    }

    /// Closes the connection, and counts the reason.
    pub(crate) fn close(&self, reason: CutOff) {
        if !self.closed.is_cancelled() {
            self.all.cut_off(reason);
        }
        self.closed.cancel();
    }

    /// Counts `bytes` as held. Returns whether there is room.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let before = self.held.fetch_add(bytes, Acquire);
        let more = whole_pieces(before + bytes) - whole_pieces(before);
        if more == 0 {
            return true;
        }
        let all = self.all.metrics.server.held_bytes.fetch_add(more, Relaxed) + more;
        if all > CLOSED_ABOVE_BYTES {
            self.all.is_over.notify_one();
        }
        all <= MAX_HELD_BYTES
    }

    pub(super) fn give_back(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Release);
        let less = whole_pieces(before) - whole_pieces(before - bytes);
        if less > 0 {
            self.all.metrics.server.held_bytes.fetch_sub(less, Relaxed);
        }
    }

    /// `bytes` of a reply, which count as held until they are sent. `None` if there is no room for so many.
    pub(super) fn hold(self: &Arc<Self>, bytes: Bytes) -> Option<Bytes> {
        let has_room = self.take(bytes.len() + CALL_BYTES);
        let unsent = UnsentBytes {
            bytes,
            connection: self.clone(),
        };
        let is_small = unsent.bytes.len() <= SMALL_REPLY_BYTES;
        (has_room || is_small).then(|| Bytes::from_owner(unsent))
    }

    /// Whether a call is refused before it costs anything: its connection is one of those that leave little room.
    pub(super) fn is_greedy(&self) -> bool {
        self.all.excess() > 0 && self.held() > MODEST_BYTES
    }

    /// Counts a call that is refused.
    pub(super) fn refused(&self, reason: CutOff) {
        self.all.cut_off(reason);
    }
}

fn whole_pieces(bytes: usize) -> u64 {
    (bytes / PIECE_BYTES * PIECE_BYTES) as u64
}

struct UnsentBytes {
    bytes: Bytes,
    connection: Arc<OpenConnection>,
}

impl AsRef<[u8]> for UnsentBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        self.connection.give_back(self.bytes.len() + CALL_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connections_hold_counts_until_it_is_sent() {
        let metrics = Arc::<Metrics>::default();
        let all = HeldBytes::new(metrics.clone());
        let held = || metrics.server.held_bytes.load(Relaxed);
        let connection = all.open();
        let little = connection.hold(Bytes::from_static(b"a reply")).unwrap();
        assert_eq!((held(), connection.held()), (0, 0));
        let much = connection.hold(Bytes::from(vec![0; 100_000])).unwrap();
        let part = much.slice(5..7);
        drop(much);
        assert_eq!(held(), connection.held());
        assert!((90_000..110_000).contains(&held()), "{}", held());
        drop((little, part));
        assert_eq!((held(), all.excess()), (0, 0));
    }

    #[tokio::test]
    async fn the_bound_is_one_of_all_connections() {
        let metrics = Arc::<Metrics>::default();
        let all = HeldBytes::new(metrics.clone());
        let [one, other] = [(); 2].map(|()| all.open());
        let most = usize::try_from(MAX_HELD_BYTES).unwrap();
        assert!(one.take(most - PIECE_BYTES));
        assert!(other.take(PIECE_BYTES));
        assert!(!other.take(PIECE_BYTES));
        all.is_over.notified().await;
        let above = MAX_HELD_BYTES - CLOSED_ABOVE_BYTES;
        assert_eq!(all.excess(), above + PIECE_BYTES as u64);
        assert_eq!([one.is_greedy(), other.is_greedy()], [true, false]);
        assert!(other.hold(Bytes::from(vec![0; PIECE_BYTES])).is_none());
        assert!(other.hold(Bytes::from_static(b"a reply")).is_some());
        other.give_back(2 * PIECE_BYTES);
        assert!(other.take(PIECE_BYTES) && all.excess() == above);
        for _ in 0..2 {
            one.close(CutOff::ConnectionNoRoom);
        }
        one.closed.cancelled().await;
        assert_eq!(metrics.server.cut_off.totals(), [1, 0, 0, 0]);
        assert!(!other.closed.is_cancelled());
    }
}
