//! Token buckets, sliding windows, sliding logs, windows that begin with their first hit, and slots: the state each
//! keeps, and the answers it gives. They have to look before they add.
//!
//! The memory store runs on these. `store/redis/batch/step.lua` does the same inside Redis, and the store
//! contract holds both to one model. All times are milliseconds.
//!
//! Callers' clocks differ, if only by the millisecond between the readings of two threads, and a clock
//! can step back. So each counter has a present of its own that never goes back: the latest moment that
//! it remembers, until the caller's clock is past that. All answers are computed at this present, and a
//! look by a clock that is behind changes nothing.
//!
//! Counters in memory see one clock only. So if the present of one is more than a period ahead of the
//! caller, that clock was wrong before. Windows and logs are then dropped, and the tokens
//! missing from a bucket flow in from now on. `step.lua` can be set to count by several clocks, and then
//! allows a larger difference.

use std::collections::VecDeque;

use crate::core::counter::{BucketPlace, CounterKind, IncrementSpec, Reservation, ResetTimes};

mod first_hit;
mod slots;

pub(crate) use first_hit::FirstHit;
use slots::Slots;

/// The algorithm state of one counter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AlgorithmState {
    FirstHit(FirstHit),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
    Slots(Slots),
}

impl AlgorithmState {
    /// A state that has seen no hit, or `None` for a plain window, which needs no such state.
    pub(crate) fn new(method: CounterKind) -> Option<Self> {
        Some(match method {
            CounterKind::Window => return None,
            CounterKind::FirstHit => Self::FirstHit(FirstHit::default()),
            CounterKind::SlidingWindow => Self::SlidingWindow(SlidingWindow::default()),
            CounterKind::SlidingLog => Self::SlidingLog(SlidingLog::default()),
            CounterKind::TokenBucket { rate } => Self::TokenBucket(TokenBucket::new(rate.get())),
            CounterKind::Slots { .. } => Self::Slots(Slots::default()),
        })
    }

    /// The hits that the counter holds at `now`, partial ones rounded up. This is a look: it adopts a changed limit,
    /// drops the state that a wrong clock wrote, and changes nothing else.
    pub(crate) fn held(&mut self, spec: &IncrementSpec, now: u64) -> u64 {
        let now = self.present(spec, now);
        match self {
            Self::FirstHit(state) => state.at(spec, now).count,
            Self::SlidingWindow(state) => state.at(spec, now).held(spec, now),
            Self::SlidingLog(state) => state.held(spec, now),
            Self::TokenBucket(state) => state.held(spec, now),
            Self::Slots(state) => state.held(now),
        }
    }

    /// The hits it would hold after `ahead` more hits and then the hits of `spec`, which are given
    /// back.
    pub(crate) fn held_after(&mut self, spec: &IncrementSpec, ahead: u64, now: u64) -> u64 {
        let now = self.present(spec, now);
        if let Self::SlidingWindow(state) = self {
            let mut state = state.at(spec, now);
            state.add(ahead);
            state.give_back(spec.taken_off());
            return state.held(spec, now);
        }
        if let Self::Slots(state) = self {
            let left = state.held(now) - state.freed(spec, now);
            return left.saturating_add(ahead);
        }
        let held = self.held(spec, now).saturating_add(ahead);
        let most = match self {
            // No more tokens can be missing.
            Self::TokenBucket(_) => spec.limit,
            Self::Slots(_) | Self::FirstHit(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) => {
                u64::MAX
            }
        };
        spec.moves(held.min(most))
    }

    /// Applies the hits of `spec`, regardless of its limit. Giving back stops at zero and removes the
    /// latest hits first.
    pub(crate) fn charge(&mut self, spec: &IncrementSpec, now: u64) {
        // This adopts a changed limit.
        self.held(spec, now);
        let now = self.present(spec, now);
        match self {
            Self::FirstHit(state) => {
                *state = state.at(spec, now);
                state.charge(spec, now);
            }
            // Giving back to a counter that has seen no hit leaves no trace.
            Self::SlidingWindow(state) if spec.added() == 0 && *state == Default::default() => {}
            Self::SlidingWindow(state) => {
                *state = state.at(spec, now);
                state.charge(spec);
            }
            Self::SlidingLog(state) => state.charge(spec, now),
            Self::TokenBucket(state) => state.charge(spec, now),
            Self::Slots(state) => state.charge(spec, now),
        }
    }

    /// When the counter, which holds `held`, changes if no further hits arrive.
    pub(crate) fn ends(&mut self, spec: &IncrementSpec, held: u64, now: u64) -> ResetTimes {
        let (added, limit) = (spec.added(), spec.limit);
        let resets_in = self.resets_in(spec, now);
        if held.saturating_add(added) <= limit {
            return ResetTimes {
                resets_in,
                retry_in: Some(0),
            };
        }
        let now = self.present(spec, now);
        let retry_in = || match self {
            Self::FirstHit(_) => resets_in,
            Self::SlidingWindow(state) => state.at(spec, now).retry_in(spec, now),
            Self::SlidingLog(state) => state.retry_in(spec, now),
            Self::TokenBucket(state) => state.retry_in(spec, now),
            Self::Slots(state) => state.leaves_room_in(spec, now),
        };
        ResetTimes {
            resets_in,
            retry_in: (added <= limit).then(retry_in),
        }
    }

    /// Milliseconds until it is empty; until the oldest slot leaves.
    fn resets_in(&mut self, spec: &IncrementSpec, now: u64) -> u64 {
        let now = self.present(spec, now);
        match self {
            Self::FirstHit(state) => state.at(spec, now).resets_in(spec, now),
            Self::SlidingWindow(state) => state.at(spec, now).resets_in(spec, now),
            Self::SlidingLog(state) => state.resets_in(spec, now),
            Self::TokenBucket(state) => state.resets_in(spec, now),
            Self::Slots(state) => state.oldest_leaves_in(now),
        }
    }

    /// The moment from which on the state has no effect, if no further hits arrive.
    pub(crate) fn expires_at(&mut self, spec: &IncrementSpec, now: u64) -> u64 {
        if let Self::TokenBucket(state) = self {
            // Under a larger limit more tokens could be missing than under this one.
            let missing = state.spent.saturating_add(state.open().parts);
            let full_in = missing.div_ceil(state.rate.max(1));
            return state.since.saturating_add(full_in);
        }
        if let Self::Slots(state) = self {
            return state.last_leaves_at();
        }
        let resets_in = self.resets_in(spec, now);
        self.present(spec, now).saturating_add(resets_in)
    }

    /// Where a reservation begins that was just charged.
    pub(crate) fn place(&self) -> BucketPlace {
        match self {
            Self::TokenBucket(state) => state.open().place,
            _ => BucketPlace::default(),
        }
    }

    /// The bytes of the state outside of its own struct.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::SlidingLog(log) => log.entries.capacity() * size_of::<(u64, u64)>(),
            Self::Slots(state) => state.heap_bytes(),
            Self::TokenBucket(state) => state.reserved.as_deref().map_or(0, size_of_val),
            Self::FirstHit(_) | Self::SlidingWindow(_) => 0,
        }
    }

    /// Makes room for one more hit without more bytes: a log that has no free place forgets every other moment, and
    /// then takes those hits for later ones. So it never counts less than before, and at `now` no more.
    pub(crate) fn make_room(&mut self, spec: &IncrementSpec, now: u64) {
        let now = self.present(spec, now);
        if let Self::SlidingLog(log) = self {
            log.drop_left(spec, now);
            if log.entries.len() == log.entries.capacity() {
                log.merge_pairs();
            }
        }
    }

    /// The counter's present if its caller's clock reads `now`. Read it once per step: it may come from
    /// a hit that the step then gives back.
    pub(crate) fn present(&mut self, spec: &IncrementSpec, now: u64) -> u64 {
        let latest = match self {
            Self::FirstHit(state) => state.start,
            Self::SlidingWindow(state) => state.index.saturating_mul(spec.period_millis),
            Self::SlidingLog(state) => state.latest(),
            Self::TokenBucket(state) => state.since,
            Self::Slots(state) => {
                state.bound(now.saturating_add(spec.period_millis));
                return now;
            }
        };
        if latest <= now.saturating_add(spec.period_millis) {
            return now.max(latest);
        }
        match self {
            Self::FirstHit(state) => *state = FirstHit::default(),
            Self::SlidingWindow(state) => *state = SlidingWindow::default(),
            Self::SlidingLog(state) => *state = SlidingLog::default(),
            Self::TokenBucket(state) => state.since = now,
            Self::Slots(_) => {}
        }
        now
    }
}

/// The counts of the present aligned window and of the one before. The hits of the older window are
/// taken as spread evenly: the share counts that overlaps the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SlidingWindow {
    /// The number of the present window since the epoch.
    index: u64,
    current: u64,
    previous: u64,
}

impl SlidingWindow {
    fn at(self, spec: &IncrementSpec, now: u64) -> Self {
        let index = now / spec.period_millis;
        if index <= self.index {
            return self;
        }
        let is_next = index == self.index + 1;
        Self {
            index,
            current: 0,
            previous: if is_next { self.current } else { 0 },
        }
    }

    fn held(&self, spec: &IncrementSpec, now: u64) -> u64 {
        let left = self.left(spec, now);
        self.current
            .saturating_add(scale(self.previous, left, spec.period_millis))
    }

    /// Milliseconds of the present window that are left.
    fn left(&self, spec: &IncrementSpec, now: u64) -> u64 {
        let period = spec.period_millis;
        period - now.saturating_sub(self.index * period).min(period)
    }

    fn charge(&mut self, spec: &IncrementSpec) {
        self.add(spec.added());
        self.give_back(spec.taken_off());
    }

    fn add(&mut self, hits: u64) {
        self.current = self.current.saturating_add(hits);
    }

    fn give_back(&mut self, back: u64) {
        self.previous = self
            .previous
            .saturating_sub(back.saturating_sub(self.current));
        self.current = self.current.saturating_sub(back);
    }

    fn end(&self, period: u64) -> u64 {
        (self.index + 1).saturating_mul(period)
    }

    fn resets_in(&self, spec: &IncrementSpec, now: u64) -> u64 {
        let period = spec.period_millis;
        let end = match (self.current, self.previous) {
            (0, 0) => return 0,
            (0, _) => self.end(period),
            _ => self.end(period).saturating_add(period),
        };
        end.saturating_sub(now)
    }

    /// The wait until the share of the older window, which falls with time, leaves room.
    fn retry_in(&self, spec: &IncrementSpec, now: u64) -> u64 {
        let period = spec.period_millis;
        let room = spec.limit - spec.added();
        let end = self.end(period);
        let (end, older, room) = match room.checked_sub(self.current) {
            Some(room) => (end, self.previous, room),
            None => (end.saturating_add(period), self.current, room),
        };
        // The share is rounded up, so it is within `room` as soon as the exact one is.
        let left = wide(room) * wide(period) / wide(older.max(1));
        let at = end.saturating_sub(narrow(left.min(wide(period))));
        at.saturating_sub(now)
    }
}

/// The hits of the last period. Hits of one millisecond share an entry, so there are at most as many
/// entries as the limit, and as the period has milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SlidingLog {
    /// The moment and the number of its hits.
    entries: VecDeque<(u64, u64)>,
    total: u64,
}

impl SlidingLog {
    fn latest(&self) -> u64 {
        self.entries.back().map_or(0, |(at, _)| *at)
    }

    fn held(&self, spec: &IncrementSpec, now: u64) -> u64 {
        let has_left = |&&(at, _): &&(u64, u64)| at.saturating_add(spec.period_millis) <= now;
        let left = self.entries.iter().take_while(has_left);
        self.total - left.map(|(_, hits)| hits).sum::<u64>()
    }

    /// Forgets the hits that are a period old.
    fn drop_left(&mut self, spec: &IncrementSpec, now: u64) {
        while let Some(&(at, hits)) = self.entries.front()
            && at.saturating_add(spec.period_millis) <= now
        {
            self.total -= hits;
            self.entries.pop_front();
        }
    }

    fn charge(&mut self, spec: &IncrementSpec, now: u64) {
        self.drop_left(spec, now);
        let added = spec.added();
        let mut back = spec.taken_off().min(self.total);
        self.total = self.total + added - back;
        match self.entries.back_mut() {
            Some((at, count)) if *at == now => *count += added,
            _ if added > 0 => self.entries.push_back((now, added)),
            _ => {}
        }
        while back > 0 {
            let (_, count) = self.entries.back_mut().expect("the total is their sum");
            let taken = back.min(*count);
            *count -= taken;
            back -= taken;
            if *count == 0 {
                self.entries.pop_back();
            }
        }
    }

    /// Merges the first entry with the second one, the third with the fourth and so on, at the later moment.
    fn merge_pairs(&mut self) {
        let pairs = self.entries.len() / 2;
        for index in 0..pairs {
            let (_, earlier) = self.entries[2 * index];
            let (at, later) = self.entries[2 * index + 1];
            self.entries[index] = (at, earlier + later);
        }
        if self.entries.len() % 2 == 1 {
            self.entries[pairs] = self.entries[2 * pairs];
        }
        self.entries.truncate(self.entries.len().div_ceil(2));
    }

    fn resets_in(&self, spec: &IncrementSpec, now: u64) -> u64 {
        self.entries.back().map_or(0, |(at, _)| {
            at.saturating_add(spec.period_millis).saturating_sub(now)
        })
    }

    fn retry_in(&self, spec: &IncrementSpec, now: u64) -> u64 {
        let room = spec.limit - spec.added();
        let mut total = self.total;
        for (at, hits) in &self.entries {
            total -= hits;
            if total <= room {
                return at.saturating_add(spec.period_millis).saturating_sub(now);
            }
        }
        0
    }
}

/// A bucket by the generic cell rate algorithm (ITU-T I.371, made for ATM cells): it only remembers what is missing.
///
/// That is kept exactly, in parts of a token. A token has as many parts as a period has milliseconds, so in a
/// millisecond flow in as many parts as the rate has tokens.
///
/// Of what is missing, a part was spent, and open reservations hold the rest. Tokens flow in for what was spent first,
/// then for what is reserved, so that reservations that never end flow in like spent tokens.
///
/// They are stored as they were when the present limit was first seen, or at the last hit since. If that limit is lower
/// than the one before, more can be spent than the bucket holds. Each answer caps that at a full bucket, so that all of
/// it is missing again if the limit is raised again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenBucket {
    /// When the other fields were last stored.
    since: u64,
    /// The parts that were spent.
    spent: u64,
    rate: u64,
    /// The tokens that the bucket holds; 0 for a bucket that was never drawn from.
    limit: u64,
    /// `None` if it was never reserved from.
    reserved: Option<Box<ReservedParts>>,
}

impl TokenBucket {
    fn new(rate: u64) -> Self {
        Self {
            rate,
            ..Self::default()
        }
    }

    fn open(&self) -> ReservedParts {
        self.reserved.as_deref().copied().unwrap_or_default()
    }

    /// The parts that are spent of `most`, and those that are reserved.
    fn parts(&self, most: u128, now: u64) -> (u128, ReservedParts) {
        let mut reserved = self.open();
        let inflow = wide(now - self.since) * wide(self.rate);
        (reserved.flow(wide(self.spent).min(most), inflow), reserved)
    }

    /// The tokens that are missing from a full bucket, in parts.
    fn missing(&self, spec: &IncrementSpec, now: u64) -> u128 {
        let (spent, reserved) = self.parts(capacity(spec), now);
        spent + wide(reserved.parts)
    }

    fn store(&mut self, spent: u128, reserved: ReservedParts, now: u64) {
        (self.since, self.spent) = (now, narrow(spent));
        self.reserved = (reserved.place.era > 0).then(|| Box::new(reserved));
    }

    fn held(&mut self, spec: &IncrementSpec, now: u64) -> u64 {
        self.adopt(spec, now);
        let missing = self.missing(spec, now).min(capacity(spec));
        narrow(missing.div_ceil(wide(spec.period_millis)))
    }

    /// Adopts a changed limit. Missing tokens stay missing, and flow in at the new rate.
    fn adopt(&mut self, spec: &IncrementSpec, now: u64) {
        let CounterKind::TokenBucket { rate } = spec.method else {
            return;
        };
        let rate = rate.get();
        let (spent, reserved) = self.parts(u128::MAX, now);
        let is_any_missing = spent > 0 || reserved.parts > 0;
        if is_any_missing && (rate, spec.limit) != (self.rate, self.limit) {
            (self.rate, self.limit) = (rate, spec.limit);
            self.store(spent, reserved, now);
        }
    }

    fn charge(&mut self, spec: &IncrementSpec, now: u64) {
        let CounterKind::TokenBucket { rate } = spec.method else {
            return;
        };
        let parts = |hits| wide(hits) * wide(spec.period_millis);
        let added = parts(spec.added());
        let back = parts(spec.taken_off());
        let (mut spent, mut reserved) = self.parts(capacity(spec), now);
        match spec.reservation {
            Reservation::Begins => reserved.begin(narrow(added), now),
            Reservation::Ends { hits, place } => {
                let drained = reserved.end(narrow(parts(hits)), place);
                spent += (parts(hits) + added).saturating_sub(back + wide(drained));
            }
            Reservation::None => spent = reserved.flow(spent + added, back),
        }
        (self.rate, self.limit) = (rate.get(), spec.limit);
        self.store(spent, reserved, now);
    }

    fn resets_in(&self, spec: &IncrementSpec, now: u64) -> u64 {
        narrow(self.missing(spec, now).div_ceil(wide(self.rate)))
    }

    fn retry_in(&self, spec: &IncrementSpec, now: u64) -> u64 {
        let room = wide(spec.limit - spec.added()) * wide(spec.period_millis);
        let short = self.missing(spec, now).saturating_sub(room);
        narrow(short.div_ceil(wide(self.rate)))
    }
}

/// The parts of a full bucket.
fn capacity(spec: &IncrementSpec) -> u128 {
    wide(spec.limit) * wide(spec.period_millis)
}

/// The parts that open reservations hold of a bucket.
///
/// While nothing else is missing, tokens flow in for reserved ones, which drain. If the cost of a reservation proves
/// to be less, the bucket would have been full meanwhile, and such an inflow would have been lost. So at its end a
/// reservation takes the inflow since its beginning, up to what it holds: first for its cost, and the rest is not given
/// back. What one reservation has taken is no other's, so all of them together give up no more than has flowed in.
///
/// The inflow is numbered from the beginning of an era on. A reservation takes the lowest numbers after its beginning
/// that are left, because younger ones cannot take them. One range of those that were taken is remembered, and gives
/// way to a longer one below it, or if it is left behind. Other numbers can be taken twice, which leaves the bucket
/// emptier. So it is never fuller than if each had been charged its cost when it began, and as full if one is open at a
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ReservedParts {
    /// Those that have not drained.
    parts: u64,
    /// Where a reservation begins now. Its era is the millisecond at which nothing was reserved before, or a later one
    /// if the last era has that.
    place: BucketPlace,
    /// The range that reservations have taken of the inflow.
    taken: (u64, u64),
}

impl ReservedParts {
    /// Lets parts flow in. Returns how many of the `spent` ones are left.
    fn flow(&mut self, spent: u128, inflow: u128) -> u128 {
        let drains = narrow(inflow.saturating_sub(spent)).min(self.parts);
        self.parts -= drains;
        self.place.drained = self.place.drained.saturating_add(drains);
        spent.saturating_sub(inflow)
    }

    fn begin(&mut self, parts: u64, now: u64) {
        if self.parts == 0 {
            let era = now.max(self.place.era.saturating_add(1));
            (self.place, self.taken) = (BucketPlace { era, drained: 0 }, (0, 0));
        }
        self.parts = self.parts.saturating_add(parts);
    }

    /// Ends a reservation of `parts`. Returns how many of them drained.
    fn end(&mut self, parts: u64, place: BucketPlace) -> u64 {
        let BucketPlace {
            era,
            drained: began,
        } = place;
        if era == 0 || era != self.place.era || began > self.place.drained {
            return parts;
        }
        let (from, to) = self.taken;
        let is_next = (from..=to).contains(&began);
        let lowest = if is_next { to } else { began };
        let drained = parts.min(self.place.drained - lowest);
        if is_next {
            self.taken.1 = to + drained;
        } else if began > to.saturating_add(parts) || began < from && drained > to - from {
            self.taken = (began, began + drained);
        }
        self.parts -= (parts - drained).min(self.parts);
        drained
    }
}

/// `count * part / whole`, rounded up.
pub(crate) fn scale(count: u64, part: u64, whole: u64) -> u64 {
    narrow((wide(count) * wide(part)).div_ceil(wide(whole)))
}

fn wide(number: u64) -> u128 {
    number.into()
}

pub(crate) fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
