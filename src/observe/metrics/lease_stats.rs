//! Counts of the leases of a rule: its reservations, the hits in them, and its slots.

use std::{
    mem,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{
    core::lease::order::OrderOutcome,
    foundation::{lock::lock, metric_name::RuleLabels, sample::SampleWriter},
};

/// Events of reservations. Those that are still open were made and neither settled, released nor kept.
#[derive(Clone, Copy)]
enum ReservationEvent {
    Made,
    Settled,
    Released,
    Kept,
    Unknown,
    Unreserved,
    Repeated,
    LateWindow,
}

const EVENTS: [(ReservationEvent, &str); 8] = [
    (ReservationEvent::Made, "made"),
    (ReservationEvent::Settled, "settled"),
    (ReservationEvent::Released, "released"),
    (ReservationEvent::Kept, "kept"),
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
            OrderOutcome::Kept { leased } => {
                self.settled(leased, leased);
                ReservationEvent::Kept
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

    /// Writes the counts of the rule that has these labels.
    pub(super) fn samples(&self, [domain, rule]: RuleLabels<'_>, list: &mut SampleWriter<'_>) {
        for ((_, event), total) in EVENTS.iter().zip(&self.events) {
            let labels = &[domain, rule, ("event", *event)];
            list.counter("tollgate.reservations_total", labels, total.load(Relaxed));
        }
        for (kind, total) in HITS.iter().zip(&self.hits) {
            let labels = &[domain, rule, ("kind", *kind)];
            let name = "tollgate.reservation_hits_total";
            list.counter(name, labels, total.load(Relaxed));
        }
    }
}

/// Counts of the requests of one rule that held slots.
#[derive(Debug)]
pub(super) struct SlotStats {
    began: Instant,
    taken: AtomicU64,
    freed: AtomicU64,
    /// Freed once more.
    repeated: AtomicU64,
    open: Mutex<OpenRequests>,
}

impl Default for SlotStats {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            began: now.checked_sub(LONGEST_ANSWER).unwrap_or(now),
            taken: AtomicU64::default(),
            freed: AtomicU64::default(),
            repeated: AtomicU64::default(),
            open: Mutex::default(),
        }
    }
}

impl SlotStats {
    /// Counts a request that took slots, which last for `ttl` at most.
    pub(super) fn taken(&self, ttl: Duration) {
        self.taken.fetch_add(1, Relaxed);
        let now = self.began.elapsed();
        lock(&self.open).add(1, now, now, ttl);
    }

    /// Counts a release of slots that were taken before `age`, unless they have left by themselves meanwhile.
    pub(super) fn freed(&self, is_first: bool, age: Duration, ttl: Duration) {
        if !is_first {
            self.repeated.fetch_add(1, Relaxed);
        } else if age < ttl {
            self.freed.fetch_add(1, Relaxed);
            let now = self.began.elapsed();
            if let Some(came) = (now + INEXACT).checked_sub(age) {
                // Rather too early: see `OpenRequests::owed`.
                let came = came.saturating_sub(2 * INEXACT);
                lock(&self.open).add(-1, came, now, ttl);
            }
        }
    }

    /// Counts a reset that freed this many slots.
    pub(super) fn reset(&self, slots: u64) {
        let requests = lock(&self.open).remove_oldest(slots, self.began.elapsed());
        self.freed.fetch_add(requests, Relaxed);
    }

    /// Writes the counts of the rule that has these labels.
    pub(super) fn samples(&self, [domain, rule]: RuleLabels<'_>, list: &mut SampleWriter<'_>) {
        let (held, expired) = lock(&self.open).counts(self.began.elapsed());
        for (event, total) in [
            ("taken", self.taken.load(Relaxed)),
            ("freed", self.freed.load(Relaxed)),
            ("repeated", self.repeated.load(Relaxed)),
            ("expired", expired),
        ] {
            let labels = &[domain, rule, ("event", event)];
            list.counter("tollgate.slots_total", labels, total);
        }
        list.gauge("tollgate.slots_held", &[domain, rule], held);
    }
}

/// The first request came at most this long before it is counted: the store had to answer.
const LONGEST_ANSWER: Duration = Duration::from_secs(1);

/// The parts of a ttl that are counted apart.
const PARTS: usize = 64;

/// Clocks of requests have milliseconds, so the age of a request can be wrong by this much.
const INEXACT: Duration = Duration::from_millis(1);

/// Requests that took slots here and were not freed, by the part of time in which they came. So those whose end gets
/// lost are known after the ttl, when their slots have left. Times are those since shortly before the first
/// request.
#[derive(Debug)]
struct OpenRequests {
    part: Duration,
    /// The number of the part that is not over.
    latest: usize,
    counts: [i64; PARTS],
    /// The requests whose slots have left by themselves.
    expired: u64,
    /// By how many the requests that were freed exceed those that came, in the parts that are a ttl ago; never
    /// positive. Some came to other processes. Others are counted as freed one part too early; one too late would let
    /// the slots of their own part seem to have left by themselves.
    owed: i64,
}

impl Default for OpenRequests {
    fn default() -> Self {
        Self {
            part: Duration::ZERO,
            latest: 0,
            counts: [0; PARTS],
            expired: 0,
            owed: 0,
        }
    }
}

impl OpenRequests {
    /// Adds requests that came at `came`, unless their slots have left.
    fn add(&mut self, count: i64, came: Duration, now: Duration, ttl: Duration) {
        let part = ttl
            .div_f64(PARTS as f64 - 1.0)
            .max(Duration::from_millis(1));
        if part != self.part {
            *self = Self {
                part,
                latest: number(now, part),
                expired: self.expired,
                ..Self::default()
            };
        }
        self.turn(now);
        let came = number(came, part);
        if came <= self.latest && self.latest - came < PARTS {
            self.counts[came % PARTS] += count;
        }
    }

    /// Removes up to `most` requests, those that came first before others: operators reset counters because of slots
    /// that leaked. Returns how many there were.
    fn remove_oldest(&mut self, most: u64, now: Duration) -> u64 {
        self.turn(now);
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut left = most;
        for part in self.latest + 1..=self.latest + PARTS {
            let count = &mut self.counts[part % PARTS];
            let removed = left.min(*count).max(0);
            *count -= removed;
            left -= removed;
        }
        (most - left).unsigned_abs()
    }

    /// Counts the requests of the parts that are a ttl ago as expired.
    fn turn(&mut self, now: Duration) {
        if self.part.is_zero() {
            return;
        }
        let now = number(now, self.part);
        for part in (self.latest..now).take(PARTS) {
            let left = mem::take(&mut self.counts[(part + 1) % PARTS]) + self.owed;
            self.expired += left.max(0).unsigned_abs();
            self.owed = left.min(0);
        }
        self.latest = self.latest.max(now);
    }

    /// Those that came in the last ttl, and those that have expired. Slots that another process took can be freed here.
    fn counts(&mut self, now: Duration) -> (u64, u64) {
        self.turn(now);
        let sum: i64 = self.counts.iter().sum();
        (sum.max(0).unsigned_abs(), self.expired)
    }
}

/// The number of the part of time.
fn number(time: Duration, part: Duration) -> usize {
    usize::try_from(time.as_nanos() / part.as_nanos()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(63);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn requests_are_open_until_they_are_freed_or_their_slots_have_left() {
        let mut open = OpenRequests::default();
        open.add(1, secs(5), secs(5), TTL);
        open.add(1, secs(15), secs(15), TTL);
        assert_eq!(open.counts(secs(15)), (2, 0));
        open.add(-1, secs(5), secs(15), TTL);
        assert_eq!(open.counts(secs(15)), (1, 0));
        assert_eq!(open.counts(secs(15) + TTL), (1, 0));
        // The slots of the second one have left without a release.
        assert_eq!(open.counts(secs(16) + TTL), (0, 1));
        let now = secs(100_000);
        open.add(1, now, now, TTL);
        assert_eq!(open.counts(now), (1, 1));
        // Another ttl begins again from nothing.
        open.add(1, now, now, 2 * TTL);
        assert_eq!(open.counts(now), (1, 1));
        // Taken by another process.
        open.add(-5, now, now, 2 * TTL);
        assert_eq!(open.counts(now), (0, 1));
    }

    #[test]
    fn only_requests_that_are_not_freed_expire() {
        let mut open = OpenRequests::default();
        let (ttl, every) = (Duration::from_millis(6_300), Duration::from_millis(7));
        let (mut now, mut freed) = (Duration::ZERO, 0);
        // One in a hundred leaks; the others last for 177 requests.
        for number in 0..10_000 {
            open.add(1, now, now, ttl);
            if number >= 177 && number % 100 > 0 {
                freed += 1;
                let came = (now - 177 * every).saturating_sub(2 * INEXACT);
                open.add(-1, came, now, ttl);
            }
            let (held, expired) = open.counts(now);
            assert!(held <= 200, "{number}: {held}");
            assert!(expired <= number / 100, "{number}: {expired}");
            now += every;
        }
        assert_eq!(open.counts(now + 2 * ttl), (0, 10_000 - freed));
    }

    #[test]
    fn a_reset_removes_the_requests_that_came_first() {
        let mut open = OpenRequests::default();
        open.add(3, secs(0), secs(0), TTL);
        open.add(2, secs(10), secs(10), TTL);
        assert_eq!(open.remove_oldest(4, secs(20)), 4);
        assert_eq!(open.counts(secs(20)), (1, 0));
        assert_eq!(open.remove_oldest(4, secs(20)), 1);
        assert_eq!(open.counts(secs(200)), (0, 0));
    }
}
