//! Workers that hold slices of one counter, event by event: the state machine of the core, driven as
//! `src/store/slices.rs` drives it, with what a worker knows and a Redis.
//!
//! Each holder is the only worker of its replica. A command takes [`HOP`] to Redis, and so does its answer; neither
//! Redis nor a holder takes time for it.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use fastrand::Rng;
use tollgate::{Slice, SlicePolicy, SteadyTime};

/// From a holder to Redis or back.
const HOP: Duration = Duration::from_micros(500);
/// A decision waits this long for Redis by default.
const TIMEOUT: Duration = Duration::from_millis(100);
/// How long a refusal is answered without asking Redis.
const BELIEVED_FOR: Duration = Duration::from_secs(1);
/// Windows of a run. The first does not count: holders learn in it.
const WINDOWS: u32 = 4;
/// The share of replies that are lost where holders are killed.
const LOST: f64 = 0.01;

/// A counter, its holders and their demand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    pub(crate) limit: u64,
    pub(crate) window: Duration,
    pub(crate) holders: usize,
    /// In limits a window.
    pub(crate) demand: f64,
    pub(crate) spread: Spread,
    pub(crate) turnover: Turnover,
}

/// The demand of each holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    Uniform,
    /// The n-th holder has an n-th of the demand of the first.
    Zipf,
    /// Each has four times its share, for a twentieth of a window on average, and then none for three times as long.
    Bursty,
}

/// Holders that are replaced by new ones, in the course of all windows that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turnover {
    None,
    /// All but the last one are killed, and replies are lost.
    Killed,
    /// All are told to end: they give back what is free.
    Drained,
}

/// Counts of a run, over all windows but the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Hits above the limit.
    pub(crate) over: u64,
    /// The most hits of a window's limit that were wanted and not admitted.
    pub(crate) under: u64,
    pub(crate) decisions: u64,
    pub(crate) commands: u64,
    /// Decisions that waited for Redis.
    pub(crate) waited: u64,
}

/// The hits of one window.
#[derive(Clone, Copy, Debug, Default)]
struct Ledger {
    /// Of the counter in Redis.
    count: u64,
    wanted: u64,
    admitted: u64,
    /// Charged, and no holder knows it yet; or taken out by a holder, and Redis does not know it yet.
    under_way: u64,
    /// Charged for nobody until the window ends.
    lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Request,
    Ask,
    GiveBack,
}

/// A command of a holder, and what its answer is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Command {
    holder: usize,
    /// The number of the process.
    life: u32,
    kind: Kind,
    window: usize,
    hits: u64,
    /// Whether Redis counts them whether they are too many or not.
    adds_first: bool,
    /// When the request arrived.
    began: Duration,
    /// How many give-backs of the holder were answered before.
    given_back: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Answer {
    count: u64,
    is_charged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    AtRedis(Command),
    /// `None` at the time-out of a lost reply.
    Answered(Command, Option<Answer>),
    Sweep(usize),
    Replaced(usize),
    WindowEnd(usize),
}

/// A worker.
#[derive(Debug, Default)]
struct Holder {
    life: u32,
    held: Option<Held>,
    /// A window that is full, and when that was asked for.
    full: Option<(usize, Duration)>,
    given_back: u64,
    /// Of its demand, in hits a second.
    rate: f64,
    /// The end of a burst.
    busy_until: Duration,
}

#[derive(Debug)]
struct Held {
    slice: Slice,
    window: usize,
    /// Of the counter, when Redis answered last.
    count: u64,
}

struct Run {
    counter: Counter,
    policy: SlicePolicy,
    /// Otherwise each decision is counted in Redis.
    has_slices: bool,
    rng: Rng,
    began: SteadyTime,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    number: u64,
    holders: Vec<Holder>,
    ledgers: Vec<Ledger>,
    counts: Counts,
}

/// Simulates a counter. Equal seeds give equal counts.
///
/// # Panics
///
/// If the count in Redis is not the hits that were admitted, are free, under way or lost.
pub(crate) fn simulate(counter: Counter, has_slices: bool, seed: u64) -> Counts {
    let window = u64::try_from(counter.window.as_millis()).expect("a window is short");
    let holders = u32::try_from(counter.holders).expect("holders are few");
    let mut run = Run {
        counter,
        policy: SlicePolicy::new(window, counter.limit, holders),
        has_slices,
        rng: Rng::with_seed(seed),
        began: Instant::now().into(),
        events: BinaryHeap::new(),
        number: 0,
        holders: Vec::new(),
        ledgers: vec![Ledger::default(); WINDOWS as usize],
        counts: Counts::default(),
    };
    run.begin();
    while let Some(Reverse((now, _, event))) = run.events.pop() {
        match event {
            Event::Arrival(holder) => run.arrive(holder, now),
            Event::AtRedis(command) => run.count(command, now),
            Event::Answered(command, answer) => run.take_answer(command, answer, now),
            Event::Sweep(holder) => run.sweep(holder, now),
            Event::Replaced(holder) => run.replace(holder, now),
            Event::WindowEnd(window) => run.check(window),
        }
    }
    run.finish()
}

impl Run {
    fn at(&mut self, time: Duration, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    fn end(&self) -> Duration {
        self.counter.window * WINDOWS
    }

    fn begin(&mut self) {
        let Counter {
            limit,
            window,
            holders,
            demand,
            spread,
            turnover,
        } = self.counter;
        let weight = |number: usize| match spread {
            Spread::Uniform | Spread::Bursty => 1.0,
            Spread::Zipf => 1.0 / (number + 1) as f64,
        };
        let all: f64 = (0..holders).map(weight).sum();
        let rate = demand * limit as f64 / window.as_secs_f64();
        for number in 0..holders {
            self.holders.push(Holder {
                rate: rate * weight(number) / all,
                ..Holder::default()
            });
            self.expect(number, Duration::ZERO);
            if self.has_slices {
                let first = SlicePolicy::SWEEP.mul_f64(self.rng.f64());
                self.at(first, Event::Sweep(number));
            }
        }
        let replaced = match turnover {
            Turnover::None => 0,
            Turnover::Killed => holders - 1,
            Turnover::Drained => holders,
        };
        for number in 0..replaced {
            let share = (number as f64 + 0.5) / replaced as f64;
            let time = window + (self.end() - window).mul_f64(share);
            self.at(time, Event::Replaced(number));
        }
        for number in 1..=WINDOWS {
            self.at(window * number, Event::WindowEnd(number as usize - 1));
        }
    }

    /// A random time of this mean.
    fn random(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.rng.f64()).ln())
    }

    /// Plans the next request of a holder.
    fn expect(&mut self, number: usize, now: Duration) {
        let Holder {
            rate,
            mut busy_until,
            ..
        } = self.holders[number];
        if rate == 0.0 {
            return;
        }
        let mean = Duration::from_secs_f64(1.0 / rate);
        let next = if self.counter.spread == Spread::Bursty {
            let burst = self.counter.window / 20;
            let mut next = now + self.random(mean / 4);
            while next > busy_until {
                let pause = self.random(burst * 3);
                next += pause;
                busy_until += pause + self.random(burst);
            }
            next
        } else {
            now + self.random(mean)
        };
        self.holders[number].busy_until = busy_until;
        if next < self.end() {
            self.at(next, Event::Arrival(number));
        }
    }

    fn window(&self, now: Duration) -> usize {
        let number = now.as_nanos() / self.counter.window.as_nanos();
        usize::try_from(number).expect("windows are few")
    }

    fn steady(&self, now: Duration) -> SteadyTime {
        self.began.plus(now)
    }

    fn arrive(&mut self, number: usize, now: Duration) {
        self.expect(number, now);
        let window = self.window(now);
        self.ledgers[window].wanted += 1;
        self.counts.decisions += u64::from(window > 0);
        if self.admits(number, window, now) {
            self.ledgers[window].admitted += 1;
            self.renew(number, now, now);
        } else {
            self.send(number, Kind::Request, window, 1, now);
        }
    }

    /// Whether a request is admitted from a slice.
    fn admits(&mut self, number: usize, window: usize, now: Duration) -> bool {
        let steady = self.steady(now);
        let held = self.holders[number].held.as_mut();
        let Some(held) = held.filter(|held| held.window == window && held.slice.free() > 0) else {
            return false;
        };
        held.slice.call(true, &self.policy, steady);
        held.slice.demand(1, &self.policy, steady);
        held.slice.admit(1);
        true
    }

    /// Gives back what is too much, and asks for more if it is time to. `began` is when the request arrived.
    fn renew(&mut self, number: usize, began: Duration, now: Duration) {
        let steady = self.steady(began);
        let Some(held) = &mut self.holders[number].held else {
            return;
        };
        let window = held.window;
        let surplus = held.slice.surplus(&self.policy, steady);
        let asked = held.slice.ask(&self.policy);
        if let Some(hits) = surplus {
            self.give_back(number, window, hits, now);
        }
        if let Some(hits) = asked {
            self.send(number, Kind::Ask, window, hits, now);
        }
    }

    /// Gives back hits that are not used, unless their window has ended.
    fn give_back(&mut self, number: usize, window: usize, hits: u64, now: Duration) {
        if hits == 0 {
            return;
        }
        if self.window(now) > window {
            self.ledgers[window].lost += hits;
            return;
        }
        self.ledgers[window].under_way += hits;
        self.send(number, Kind::GiveBack, window, hits, now);
    }

    /// Sends a command to Redis, unless the cache knows that the counter is full.
    fn send(&mut self, number: usize, kind: Kind, window: usize, hits: u64, now: Duration) {
        let holder = &mut self.holders[number];
        let is_full = holder
            .full
            .is_some_and(|(full, since)| full == window && now - since < BELIEVED_FOR);
        if kind == Kind::GiveBack {
            holder.full = None;
        } else if is_full {
            if kind == Kind::Ask {
                self.refuse_ask(number);
            }
            return;
        }
        let held = holder.held.as_ref();
        let known = held.filter(|held| held.window == window);
        let adds_first = kind == Kind::Request
            && self.has_slices
            && known.is_none_or(|held| held.slice.may_add_first(hits, &self.policy));
        let command = Command {
            holder: number,
            life: holder.life,
            kind,
            window,
            hits,
            adds_first,
            began: now,
            given_back: holder.given_back,
        };
        if window > 0 {
            self.counts.commands += 1;
            self.counts.waited += u64::from(kind == Kind::Request);
        }
        self.at(now + HOP, Event::AtRedis(command));
    }

    /// Lets the cache answer an ask.
    fn refuse_ask(&mut self, number: usize) {
        if let Some(held) = &mut self.holders[number].held {
            held.slice.answered(Some(0));
            held.see(self.counter.limit, 0, self.counter.limit);
        }
    }

    /// Redis counts: all hits or none. A key that is gone takes nothing back.
    fn count(&mut self, command: Command, now: Duration) {
        let has_ended = self.window(now) > command.window;
        let is_lost = self.counter.turnover == Turnover::Killed && self.rng.f64() < LOST;
        let ledger = &mut self.ledgers[command.window];
        let hits = command.hits;
        let mut is_charged = false;
        if command.kind == Kind::GiveBack {
            ledger.under_way -= hits;
            match has_ended {
                true => ledger.lost += hits,
                false => ledger.count -= hits,
            }
        } else if command.adds_first || ledger.count + hits <= self.counter.limit {
            ledger.count += hits;
            is_charged = ledger.count <= self.counter.limit;
            match is_lost {
                true => ledger.lost += hits,
                false => ledger.under_way += hits,
            }
        }
        let is_refused = command.adds_first && !is_charged;
        let answer = Answer {
            count: ledger.count - if is_refused { hits } else { 0 },
            is_charged,
        };
        if is_lost {
            self.at(command.began + TIMEOUT, Event::Answered(command, None));
        } else {
            self.at(now + HOP, Event::Answered(command, Some(answer)));
        }
    }

    fn take_answer(&mut self, command: Command, answer: Option<Answer>, now: Duration) {
        let is_alive = self.holders[command.holder].life == command.life;
        let charged = answer.filter(|answer| answer.is_charged);
        if let Some(answer) = answer
            && is_alive
        {
            self.remember(&command, answer);
        }
        let ledger = &mut self.ledgers[command.window];
        if charged.is_some() && command.kind != Kind::GiveBack {
            ledger.under_way -= command.hits;
            if !is_alive && self.counter.turnover == Turnover::Killed {
                ledger.lost += command.hits;
                return;
            }
            ledger.admitted += u64::from(command.kind == Kind::Request);
        }
        if command.adds_first && answer.is_some_and(|answer| !answer.is_charged) {
            ledger.under_way -= command.hits;
            if !is_alive && self.counter.turnover == Turnover::Killed {
                ledger.lost += command.hits;
            } else {
                self.give_back(command.holder, command.window, command.hits, now);
            }
        }
        let hits = charged.map_or(0, |_| command.hits);
        match (command.kind, answer) {
            (Kind::Request, Some(answer)) if is_alive && self.has_slices => {
                self.learn(&command, answer, now);
            }
            (Kind::Ask, answer) => self.take_asked(&command, answer, hits, now),
            (Kind::Request | Kind::GiveBack, _) => {}
        }
    }

    /// Remembers a full counter. A reply that crosses a give-back may be out of date.
    fn remember(&mut self, command: &Command, answer: Answer) {
        let holder = &mut self.holders[command.holder];
        if command.kind == Kind::GiveBack {
            holder.given_back += 1;
            holder.full = None;
        } else if answer.count >= self.counter.limit
            && !answer.is_charged
            && holder.given_back == command.given_back
        {
            holder.full = Some((command.window, command.began));
        }
    }

    /// Takes the answer to a request into account.
    fn learn(&mut self, command: &Command, answer: Answer, now: Duration) {
        let (number, window) = (command.holder, command.window);
        let steady = self.steady(command.began);
        let held = self.holders[number].held.get_or_insert_with(|| Held {
            slice: Slice::new(steady),
            window,
            count: answer.count,
        });
        let mut left = None;
        if held.window != window {
            left = Some((held.window, held.slice.turn()));
            held.window = window;
            held.count = answer.count;
        }
        held.slice.call(answer.is_charged, &self.policy, steady);
        held.see(
            answer.count,
            u64::from(answer.is_charged),
            self.counter.limit,
        );
        if answer.is_charged {
            held.slice.demand(1, &self.policy, steady);
        }
        if let Some((window, hits)) = left {
            self.give_back(number, window, hits, now);
        }
        self.renew(number, command.began, now);
    }

    /// Takes the answer to an ask over: so many hits are charged. They go back if the slice has ended meanwhile.
    fn take_asked(&mut self, command: &Command, answer: Option<Answer>, hits: u64, now: Duration) {
        let holder = &mut self.holders[command.holder];
        let held = holder.held.as_mut();
        let is_own = |held: &&mut Held| held.window == command.window;
        let Some(held) = held.filter(|held| holder.life == command.life && is_own(held)) else {
            self.give_back(command.holder, command.window, hits, now);
            return;
        };
        held.slice.answered(answer.map(|_| hits));
        if let Some(answer) = answer {
            held.see(answer.count, hits, self.counter.limit);
        }
    }

    fn sweep(&mut self, number: usize, now: Duration) {
        if now + SlicePolicy::SWEEP < self.end() {
            self.at(now + SlicePolicy::SWEEP, Event::Sweep(number));
        }
        let steady = self.steady(now);
        let Some(held) = &mut self.holders[number].held else {
            return;
        };
        let (window, surplus) = (held.window, held.slice.surplus(&self.policy, steady));
        if held.slice.is_idle(&self.policy, steady) {
            self.holders[number].held = None;
        }
        self.give_back(number, window, surplus.unwrap_or(0), now);
    }

    /// Ends a holder, and begins a new one.
    fn replace(&mut self, number: usize, now: Duration) {
        if let Some(mut held) = self.holders[number].held.take() {
            let free = held.slice.end();
            match self.counter.turnover {
                Turnover::Drained => self.give_back(number, held.window, free, now),
                _ => self.ledgers[held.window].lost += free,
            }
        }
        let holder = &mut self.holders[number];
        *holder = Holder {
            life: holder.life + 1,
            rate: holder.rate,
            busy_until: holder.busy_until,
            ..Holder::default()
        };
    }

    /// Checks that each hit of a window is where it should be.
    fn check(&self, window: usize) {
        let held = self
            .holders
            .iter()
            .filter_map(|holder| holder.held.as_ref());
        let free = held.filter(|held| held.window == window);
        let free: u64 = free.map(|held| held.slice.free()).sum();
        let ledger = &self.ledgers[window];
        let sum = ledger.admitted + free + ledger.under_way + ledger.lost;
        assert_eq!(ledger.count, sum, "{ledger:?}, {free} free");
    }

    fn finish(mut self) -> Counts {
        let limit = self.counter.limit;
        for window in 0..self.ledgers.len() {
            self.check(window);
            assert_eq!(self.ledgers[window].under_way, 0);
        }
        for ledger in self.ledgers.iter().skip(1) {
            let over = ledger.admitted.saturating_sub(limit);
            let under = ledger.wanted.min(limit).saturating_sub(ledger.admitted);
            self.counts.over += over;
            self.counts.under = self.counts.under.max(under);
        }
        self.counts
    }
}

impl Held {
    /// Takes a count into account, of which so many hits were charged for this holder.
    fn see(&mut self, count: u64, own: u64, limit: u64) {
        let growth = count.saturating_sub(self.count);
        self.count = count;
        self.slice.see(own, growth, limit.saturating_sub(count));
    }
}
