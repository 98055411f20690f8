//! Room for counters: how many the store holds and how many bytes they take, and the bounds on both.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use super::sketch;

/// Bounds on the counters of one store.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterBounds {
    /// The most counters.
    pub counters: usize,
    /// The most bytes that they take, sketches included.
    pub bytes: usize,
    /// Bytes of these that are kept free for rules at present.
    pub reserved: ReservedBytes,
}

/// Bytes that counters leave free at present.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReservedBytes(Arc<AtomicUsize>);

impl ReservedBytes {
    pub(crate) fn set(&self, bytes: usize) {
        self.0.store(bytes, Relaxed);
    }

    fn get(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl CounterBounds {
    /// A million counters of one or two fixed windows, and their sketches.
    pub(crate) const DEFAULT_BYTES: usize = 192 << 20;

    /// A counter of a fixed window under a short key, its place in the table included.
    const FIXED_WINDOW_BYTES: usize = 145;

    /// One byte in this many is for the sketches.
    const SKETCH_SHARE: usize = 4;

    /// The cells in a row of a sketch that may take a share of all bytes.
    pub(crate) fn sketch_width(&self) -> usize {
        self.bytes / Self::SKETCH_SHARE / sketch::BYTES_PER_WIDTH
    }

    /// Bounds of each of two stores that share these.
    pub(crate) fn half(&self) -> Self {
        Self {
            bytes: self.bytes / 2,
            ..self.clone()
        }
    }

    /// About how many counters of fixed windows there is room for.
    pub(crate) fn fixed_windows(&self) -> usize {
        let capacity = Capacity::new(self);
        self.counters
            .min(capacity.bytes_for_new() / Self::FIXED_WINDOW_BYTES)
    }
}

/// The counters that are held, within their bounds.
#[derive(Debug)]
pub(super) struct Capacity {
    live: AtomicUsize,
    bytes: AtomicUsize,
    /// Hits on keys that had no room.
    sketched_hits: AtomicU64,
    /// The most counters.
    pub(super) max: usize,
    /// The most bytes of counters, without sketches.
    max_bytes: usize,
    reserved: ReservedBytes,
}

/// Logs that exist may grow after there is no room for new counters: one byte in this many is left for them.
const LOG_SHARE: usize = 8;

/// However many bytes are reserved, counters keep one in this many.
const LEAST_SHARE: usize = 8;

impl Capacity {
    pub(super) fn new(bounds: &CounterBounds) -> Self {
        Self {
            live: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            sketched_hits: AtomicU64::new(0),
            max: bounds.counters,
            max_bytes: bounds.bytes - bounds.bytes / CounterBounds::SKETCH_SHARE,
            reserved: bounds.reserved.clone(),
        }
    }

    /// How many counters are held.
    pub(super) fn live(&self) -> usize {
        self.live.load(Relaxed)
    }

    /// How many bytes they take, as far as the store can tell.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Whether there is room for one more counter.
    pub(super) fn has_room(&self) -> bool {
        self.live() < self.max && self.has_bytes()
    }

    /// The most bytes of counters at present, without sketches.
    pub(super) fn max_bytes(&self) -> usize {
        let left = self.max_bytes.saturating_sub(self.reserved.get());
        left.max(self.max_bytes / LEAST_SHARE)
    }

    /// The most bytes of counters at present with which new ones may come.
    fn bytes_for_new(&self) -> usize {
        let max = self.max_bytes();
        max - max / LOG_SHARE
    }

    fn has_bytes(&self) -> bool {
        self.bytes() < self.bytes_for_new()
    }

    /// Takes room for one more counter; returns whether there was any.
    pub(super) fn take_one(&self) -> bool {
        let has_room = self.live.fetch_add(1, Relaxed) < self.max && self.has_bytes();
        if !has_room {
            self.live.fetch_sub(1, Relaxed);
        }
        has_room
    }

    /// Whether a counter that exists may take more bytes.
    pub(super) fn may_grow(&self) -> bool {
        self.bytes() < self.max_bytes()
    }

    /// Records that a counter takes more bytes.
    pub(super) fn grow(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Records hits on a key that had no room.
    pub(super) fn sketched(&self, hits: u64) {
        self.sketched_hits.fetch_add(hits, Relaxed);
    }

    /// Hits on keys that had no room, since the start.
    pub(super) fn sketched_hits(&self) -> u64 {
        self.sketched_hits.load(Relaxed)
    }

    /// Gives back room.
    pub(super) fn give_back(&self, room: Room) {
        if room.counters > 0 {
            self.live.fetch_sub(room.counters, Relaxed);
        }
        if room.bytes > 0 {
            self.bytes.fetch_sub(room.bytes, Relaxed);
        }
    }
}

/// Room that counters leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) counters: usize,
    pub(super) bytes: usize,
}
