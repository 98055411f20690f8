//! Counts of the leases of a rule: its reservations, the hits in them, and its slots.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{
    core::lease::order::OrderOutcome,
    foundation::{lock::lock, metric_name::sanitize, sample::SampleWriter},
};

/// Events of reservations. Those that are still open were made and neither settled nor released.
#[derive(Clone, Copy)]
enum ReservationEvent {
    Made,
    Settled,
    Released,
    Unknown,
    Unreserved,
    Repeated,
    LateWindow,
}

const EVENTS: [(ReservationEvent, &str); 7] = [
    (ReservationEvent::Made, "made"),
    (ReservationEvent::Settled, "settled"),
    (ReservationEvent::Released, "released"),
    (ReservationEvent::Unknown, "unknown"),
    (ReservationEvent::Unreserved, "unreserved"),
    (ReservationEvent::Repeated, "repeated"),
    (ReservationEvent::LateWindow, "late_window"),
];

/// Hits of reservations, by index. Those that an empty bucket could not be charged are lost.
const HITS: [&str; 6] = [
    "reserved",
    "settled",
    "overshoot",
    "unused",
    "unreserved",
    "lost",
];

const RESERVED: usize = 0;
const SETTLED: usize = 1;
const OVERSHOOT: usize = 2;
const UNUSED: usize = 3;
const UNRESERVED: usize = 4;
const LOST: usize = 5;

/// Counts of the reservations of one rule. They are allocated at the first one, and all workers share them.
#[derive(Debug, Default)]
pub(super) struct ReservationStats {
    events: [AtomicU64; EVENTS.len()],
    hits: [AtomicU64; HITS.len()],
}

impl ReservationStats {
    /// Counts a new reservation of these hits.
    pub(super) fn made(&self, hits: u64) {
        self.count(ReservationEvent::Made);
        self.add(RESERVED, hits);
    }

    /// Counts the end of a reservation, or a cost without one. It `is_late` if its window had ended.
    pub(super) fn ended(&self, outcome: OrderOutcome, is_late: bool) {
        self.count(match outcome {
            OrderOutcome::Settled { leased, cost } => {
                self.settled(leased, cost);
                ReservationEvent::Settled
            }
            OrderOutcome::Released { leased } => {
                self.settled(leased, 0);
                ReservationEvent::Released
            }
            OrderOutcome::Unknown { cost } => {
                self.add(UNRESERVED, cost);
                ReservationEvent::Unknown
            }
            OrderOutcome::Unreserved { cost } => {
                self.add(UNRESERVED, cost);
                ReservationEvent::Unreserved
            }
            OrderOutcome::Repeated | OrderOutcome::Freed { .. } => ReservationEvent::Repeated,
        });
        if is_late {
            self.count(ReservationEvent::LateWindow);
        }
    }

    /// Counts hits that a bucket had no tokens for.
    pub(super) fn lost(&self, hits: u64) {
        self.add(LOST, hits);
    }

    fn settled(&self, leased: u64, cost: u64) {
        self.add(SETTLED, cost);
        self.add(OVERSHOOT, cost.saturating_sub(leased));
        self.add(UNUSED, leased.saturating_sub(cost));
    }

    fn count(&self, event: ReservationEvent) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    fn add(&self, kind: usize, hits: u64) {
        self.hits[kind].fetch_add(hits, Relaxed);
    }

    /// Writes the counts of the rule at `path`.
    pub(super) fn samples(&self, path: &str, list: &mut SampleWriter<'_>) {
        let path = sanitize(path);
        for ((_, name), total) in EVENTS.iter().zip(&self.events) {
            let name = format!("tollgate.reservations_total.{path}.{name}");
            list.counter(name, total.load(Relaxed));
        }
        for (name, total) in HITS.iter().zip(&self.hits) {
            let name = format!("tollgate.reservation_hits_total.{path}.{name}");
            list.counter(name, total.load(Relaxed));
        }
    }
}

/// Counts of the requests of one rule that held slots.
#[derive(Debug, Default)]
pub(super) struct SlotStats {
    taken: AtomicU64,
    freed: AtomicU64,
    /// Freed once more.
    repeated: AtomicU64,
    /// Whose slots had left before they were freed.
    expired: AtomicU64,
    open: Mutex<OpenRequests>,
}

impl SlotStats {
    /// Counts a request that took slots, which last for `ttl` at most.
    pub(super) fn taken(&self, ttl: Duration) {
        self.taken.fetch_add(1, Relaxed);
        lock(&self.open).add(1, Duration::ZERO, ttl);
    }

    /// Counts a release of slots that were taken before `age`.
    pub(super) fn freed(&self, is_first: bool, age: Duration, ttl: Duration) {
        let count = match is_first {
            false => &self.repeated,
            true if age >= ttl => &self.expired,
            true => &self.freed,
        };
        count.fetch_add(1, Relaxed);
        if is_first {
            lock(&self.open).add(-1, age, ttl);
        }
    }

    /// Writes the counts of the rule at `path`.
    pub(super) fn samples(&self, path: &str, list: &mut SampleWriter<'_>) {
        let path = sanitize(path);
        for (name, total) in [
            ("taken", &self.taken),
            ("freed", &self.freed),
            ("repeated", &self.repeated),
            ("expired", &self.expired),
        ] {
            let name = format!("tollgate.slots_total.{path}.{name}");
            list.counter(name, total.load(Relaxed));
        }
        let held = lock(&self.open).count();
        list.gauge(format!("tollgate.slots_held.{path}"), held);
    }
}

/// The parts of a ttl that are counted apart.
const PARTS: usize = 64;

/// Requests that took slots here and were not freed, by the part of time in which they came. So those whose end gets
/// lost are forgotten after the ttl, as their slots are.
#[derive(Debug)]
struct OpenRequests {
    began: Instant,
    part: Duration,
    /// The number of the part that is not over.
    latest: usize,
    counts: [i64; PARTS],
}

impl Default for OpenRequests {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            part: Duration::ZERO,
            latest: 0,
            counts: [0; PARTS],
        }
    }
}

impl OpenRequests {
    /// Adds requests that came before `age`, unless their slots have left.
    fn add(&mut self, count: i64, age: Duration, ttl: Duration) {
        let part = ttl
            .div_f64(PARTS as f64 - 1.0)
            .max(Duration::from_millis(1));
        if part != self.part {
            *self = Self {
                part,
                ..Self::default()
            };
        }
        self.turn();
        let ago = usize::try_from(age.as_nanos() / part.as_nanos()).unwrap_or(usize::MAX);
        if ago < PARTS && ago <= self.latest {
            self.counts[(self.latest - ago) % PARTS] += count;
        }
    }

    /// Forgets the parts that are a ttl ago.
    fn turn(&mut self) {
        if self.part.is_zero() {
            return;
        }
        let passed = self.began.elapsed().as_nanos() / self.part.as_nanos();
        let now = usize::try_from(passed).unwrap_or(usize::MAX);
        for part in (self.latest..now).take(PARTS) {
            self.counts[(part + 1) % PARTS] = 0;
        }
        self.latest = now;
    }

    /// Those that came in the last ttl. Slots that another process took can be freed here.
    fn count(&mut self) -> u64 {
        self.turn();
        let sum: i64 = self.counts.iter().sum();
        u64::try_from(sum).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_open_until_they_are_freed_or_their_slots_have_left() {
        let mut open = OpenRequests::default();
        let minute = Duration::from_secs(63);
        let pass = |open: &mut OpenRequests, secs| open.began -= Duration::from_secs(secs);
        open.add(1, Duration::ZERO, minute);
        pass(&mut open, 10);
        open.add(1, Duration::ZERO, minute);
        assert_eq!(open.count(), 2);
        open.add(-1, Duration::from_secs(10), minute);
        assert_eq!(open.count(), 1);
        pass(&mut open, 62);
        assert_eq!(open.count(), 1);
        // The first one is forgotten with its release.
        pass(&mut open, 3);
        assert_eq!(open.count(), 0);
        pass(&mut open, 100_000);
        open.add(1, Duration::ZERO, minute);
        assert_eq!(open.count(), 1);
        // Another ttl begins again from nothing.
        open.add(1, Duration::ZERO, 2 * minute);
        assert_eq!(open.count(), 1);
        // Taken before this process began, or by another.
        open.add(-5, Duration::ZERO, 2 * minute);
        assert_eq!(open.count(), 0);
    }
}
