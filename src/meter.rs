//! Ways of counting that have to look before they add: what each remembers, and what it answers.
//!
//! The store in memory runs on these. `store/redis/step.lua` does the same inside Redis, and the
//! store contract holds both to one model. All times are milliseconds.
//!
//! A clock that steps back gives no window and no log hits away: what it has seen last is its present
//! until the clock is there again. If that is more than a period away the clock was wrong, and what it
//! wrote is forgotten. A bucket is empty then, at worst.

use std::collections::VecDeque;

use crate::{
    counter::{Ends, Method, Terms},
    request::Hits,
};

/// What is remembered of one counter.
#[derive(Clone, Debug, PartialEq)]
pub enum Meter {
    FirstHit(FirstHit),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
}

impl Meter {
    /// One that has seen no hit. A plain window needs none of these.
    pub fn new(method: Method) -> Option<Self> {
        Some(match method {
            Method::Window => return None,
            Method::FirstHit => Self::FirstHit(FirstHit::default()),
            Method::SlidingWindow => Self::SlidingWindow(SlidingWindow::default()),
            Method::SlidingLog => Self::SlidingLog(SlidingLog::default()),
            Method::TokenBucket { rate } => Self::TokenBucket(TokenBucket::new(rate)),
        })
    }

    /// How many hits it holds at `now`, partial ones rounded up. This is a look: whatever is
    /// forgotten by it would not have counted at any later time.
    pub fn held(&mut self, terms: &Terms, now: u64) -> u64 {
        match self {
            Self::FirstHit(meter) => {
                if meter.start > now.saturating_add(terms.period_millis) {
                    *meter = FirstHit::default();
                }
                meter.at(terms, now).count
            }
            Self::SlidingWindow(meter) => {
                if meter.index > now / terms.period_millis + 1 {
                    *meter = SlidingWindow::default();
                }
                meter.at(terms, now).held(terms, now)
            }
            Self::SlidingLog(meter) => meter.held(terms, now),
            Self::TokenBucket(meter) => meter.held(terms, now),
        }
    }

    /// Applies the hits of `terms`, whatever its limit says. Giving back stops at zero, and the
    /// latest hits go first.
    pub fn charge(&mut self, terms: &Terms, now: u64) {
        // It forgets what the clock had wrong.
        self.held(terms, now);
        let hits = terms.hits;
        match self {
            Self::FirstHit(meter) => {
                *meter = meter.at(terms, now);
                meter.charge(hits, now);
            }
            Self::SlidingWindow(meter) => {
                *meter = meter.at(terms, now);
                meter.charge(hits);
            }
            Self::SlidingLog(meter) => meter.charge(hits, now),
            Self::TokenBucket(meter) => meter.charge(terms, now),
        }
    }

    /// When it changes if nobody hits it again; `is_refused` says whether the hits of `terms` wait
    /// for that.
    pub fn ends(&mut self, terms: &Terms, is_refused: bool, now: u64) -> Ends {
        let waits = is_refused && terms.hits.added() <= u64::from(terms.limit);
        let (resets_in, retry_in) = match self {
            Self::FirstHit(meter) => {
                let resets_in = meter.at(terms, now).resets_in(terms, now);
                (resets_in, waits.then_some(resets_in))
            }
            Self::SlidingWindow(meter) => {
                let meter = meter.at(terms, now);
                let retry_in = waits.then(|| meter.retry_in(terms, now));
                (meter.resets_in(terms, now), retry_in)
            }
            Self::SlidingLog(meter) => {
                let retry_in = waits.then(|| meter.retry_in(terms, now));
                (meter.resets_in(terms, now), retry_in)
            }
            Self::TokenBucket(meter) => {
                let retry_in = waits.then(|| meter.retry_in(terms, now));
                (meter.resets_in(now), retry_in)
            }
        };
        Ends {
            resets_in,
            retry_in: if is_refused { retry_in } else { Some(0) },
        }
    }
}

/// A window that begins with the first hit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FirstHit {
    start: u64,
    /// 0 for a window that did not begin.
    count: u64,
}

impl FirstHit {
    fn at(self, terms: &Terms, now: u64) -> Self {
        if now >= self.start.saturating_add(terms.period_millis) {
            return Self::default();
        }
        self
    }

    fn charge(&mut self, hits: Hits, now: u64) {
        if self.count == 0 && self.start == 0 && hits.added() > 0 {
            self.start = now;
        }
        self.count = add(self.count, hits);
    }

    fn resets_in(&self, terms: &Terms, now: u64) -> u64 {
        if self.start == 0 && self.count == 0 {
            return 0;
        }
        let end = self.start.saturating_add(terms.period_millis);
        end.saturating_sub(now)
    }
}

/// The count of the present aligned window and of the one before, whose hits are taken as spread
/// evenly: a share of them as large as its overlap with the last period counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SlidingWindow {
    /// The number of the present window since the epoch.
    index: u64,
    current: u64,
    previous: u64,
}

impl SlidingWindow {
    fn at(self, terms: &Terms, now: u64) -> Self {
        let index = now / terms.period_millis;
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

    fn held(&self, terms: &Terms, now: u64) -> u64 {
        let period = terms.period_millis;
        // All of the present window is to come if the clock stepped back before it.
        let left = period - now.saturating_sub(self.index * period).min(period);
        self.current
            .saturating_add(scale(self.previous, left, period))
    }

    fn charge(&mut self, hits: Hits) {
        self.current = self.current.saturating_add(hits.added());
        let back = hits.given_back();
        self.previous = self
            .previous
            .saturating_sub(back.saturating_sub(self.current));
        self.current = self.current.saturating_sub(back);
    }

    fn end(&self, period: u64) -> u64 {
        (self.index + 1).saturating_mul(period)
    }

    fn resets_in(&self, terms: &Terms, now: u64) -> u64 {
        let period = terms.period_millis;
        let end = match (self.current, self.previous) {
            (0, 0) => return 0,
            (0, _) => self.end(period),
            _ => self.end(period).saturating_add(period),
        };
        end.saturating_sub(now)
    }

    /// The share of the older window falls with time; the first moment at which it leaves room.
    fn retry_in(&self, terms: &Terms, now: u64) -> u64 {
        let period = terms.period_millis;
        let room = u64::from(terms.limit) - terms.hits.added();
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

/// The hits of the last period. Those of one millisecond are one entry, so there are at most as
/// many as the limit, and as the period has milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlidingLog {
    /// When, and how many.
    entries: VecDeque<(u64, u64)>,
    total: u64,
}

impl SlidingLog {
    fn held(&mut self, terms: &Terms, now: u64) -> u64 {
        let latest = self.entries.back().map_or(0, |(at, _)| *at);
        if latest > now.saturating_add(terms.period_millis) {
            *self = Self::default();
        }
        while let Some(&(at, hits)) = self.entries.front() {
            if at.saturating_add(terms.period_millis) > now {
                break;
            }
            self.total -= hits;
            self.entries.pop_front();
        }
        self.total
    }

    fn charge(&mut self, hits: Hits, now: u64) {
        let added = hits.added();
        let mut back = hits.given_back().min(self.total);
        self.total = self.total + added - back;
        match self.entries.back_mut() {
            // A clock that stepped back has seen this moment already.
            Some((at, count)) if *at >= now => *count += added,
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

    fn resets_in(&self, terms: &Terms, now: u64) -> u64 {
        self.entries.back().map_or(0, |(at, _)| {
            at.saturating_add(terms.period_millis).saturating_sub(now)
        })
    }

    fn retry_in(&self, terms: &Terms, now: u64) -> u64 {
        let room = u64::from(terms.limit) - terms.hits.added();
        let mut total = self.total;
        for (at, hits) in &self.entries {
            total -= hits;
            if total <= room {
                return at.saturating_add(terms.period_millis).saturating_sub(now);
            }
        }
        0
    }
}

/// The generic cell rate algorithm (ITU-T I.371, there for cells of ATM): of a bucket it only
/// remembers when it will be full again. Also a leaky bucket, as a meter.
///
/// That moment is kept exactly, as whole milliseconds and a number of parts of one; there are as
/// many parts in a millisecond as tokens flow in during a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    full_at: u64,
    parts: u64,
    rate: u32,
}

impl TokenBucket {
    fn new(rate: u32) -> Self {
        Self {
            full_at: 0,
            parts: 0,
            rate,
        }
    }

    /// What is missing in the bucket, in parts.
    fn debt(&self, now: u64) -> u128 {
        match self.full_at.checked_sub(now) {
            Some(millis) => wide(millis) * u128::from(self.rate) + wide(self.parts),
            None => 0,
        }
    }

    fn owe(&mut self, debt: u128, now: u64) {
        let rate = u128::from(self.rate);
        self.full_at = now.saturating_add(narrow(debt / rate));
        self.parts = narrow(debt % rate);
    }

    fn held(&mut self, terms: &Terms, now: u64) -> u64 {
        self.settle(terms, now);
        narrow(self.debt(now).div_ceil(wide(terms.period_millis)))
    }

    /// Takes over a limit that changed. The tokens that are missing are still missing, but no more
    /// than the bucket holds now, and they flow at the new rate. A token is as many parts as a
    /// period has milliseconds, whatever the rate.
    ///
    /// More than all can be missing after the clock stepped back, too.
    fn settle(&mut self, terms: &Terms, now: u64) {
        let Method::TokenBucket { rate } = terms.method else {
            return;
        };
        let debt = self.debt(now);
        let most = wide(terms.limit.into()) * wide(terms.period_millis);
        if debt > most || (rate != self.rate && self.full_at >= now) {
            self.rate = rate;
            self.owe(debt.min(most), now);
        }
    }

    fn charge(&mut self, terms: &Terms, now: u64) {
        self.settle(terms, now);
        if let Method::TokenBucket { rate } = terms.method {
            let token = wide(terms.period_millis);
            let debt = self.debt(now) + wide(terms.hits.added()) * token;
            let back = wide(terms.hits.given_back()) * token;
            self.rate = rate;
            self.owe(debt.saturating_sub(back), now);
        }
    }

    fn resets_in(&self, now: u64) -> u64 {
        narrow(self.debt(now).div_ceil(u128::from(self.rate)))
    }

    fn retry_in(&self, terms: &Terms, now: u64) -> u64 {
        let room = wide(u64::from(terms.limit) - terms.hits.added()) * wide(terms.period_millis);
        let missing = self.debt(now).saturating_sub(room);
        narrow(missing.div_ceil(u128::from(self.rate)))
    }
}

fn add(count: u64, hits: Hits) -> u64 {
    count
        .saturating_add(hits.added())
        .saturating_sub(hits.given_back())
}

/// `count * part / whole`, rounded up.
fn scale(count: u64, part: u64, whole: u64) -> u64 {
    narrow((wide(count) * wide(part)).div_ceil(wide(whole)))
}

fn wide(number: u64) -> u128 {
    number.into()
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
