//! Room for counters: how many the store holds and how many bytes they take, and the bounds on both.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bounds on the counters of one store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CounterBounds {
    /// The most counters.
    pub counters: usize,
    /// The most bytes that they take.
    pub bytes: usize,
}

impl CounterBounds {
    /// A million counters of fixed windows, and half of them again.
    pub(crate) const DEFAULT_BYTES: usize = 192 << 20;

    /// A counter of a fixed window under a short key, its place in the map included.
    const FIXED_WINDOW_BYTES: usize = 125;

    /// Bounds of each of two stores that share these.
    pub(crate) fn half(&self) -> Self {
        Self {
            bytes: self.bytes / 2,
            ..*self
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
    pub(super) live: AtomicUsize,
    bytes: AtomicUsize,
    pub(super) bounds: CounterBounds,
}

/// Counters that exist may grow after there is no room for new ones: one byte in this many is left for them.
const GROWTH_SHARE: usize = 8;

impl Capacity {
    pub(super) fn new(bounds: &CounterBounds) -> Self {
        Self {
            live: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            bounds: *bounds,
        }
    }

    /// How many bytes they take, as far as the store can tell.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The most bytes of counters with which new ones may come.
    fn bytes_for_new(&self) -> usize {
        let max = self.bounds.bytes;
        max - max / GROWTH_SHARE
    }

    /// Takes room for one more counter; returns whether there was any.
    pub(super) fn takes_one(&self) -> bool {
        let one_more = |live| (live < self.bounds.counters).then_some(live + 1);
        self.bytes() < self.bytes_for_new()
            && self.live.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    /// Whether a counter that exists may take so many bytes more.
    pub(super) fn may_grow(&self, bytes: usize) -> bool {
        self.bytes().saturating_add(bytes) < self.bounds.bytes
    }

    /// Records that a counter takes `after` bytes instead of `before`.
    pub(super) fn resize(&self, before: usize, after: usize) {
        if after != before {
            // Less is added as a number that wraps around.
            self.bytes.fetch_add(after.wrapping_sub(before), Relaxed);
        }
    }

    /// Gives back the room of one counter.
    pub(super) fn give_back(&self, bytes: usize) {
        self.live.fetch_sub(1, Relaxed);
        self.resize(bytes, 0);
    }
}
