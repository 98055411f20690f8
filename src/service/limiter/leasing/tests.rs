//! Histories of reservations and their ends, compared with a model after each step.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    sync::{Arc, Mutex},
    task::Poll,
    time::Instant,
};

use super::*;
use crate::{
    core::{
        decision::Code,
        lease::token::LeaseToken,
        limit::{Allows, CountPolicy, LeasePolicy, Limit, MissingCost, NearRatio, Reserve, Rule},
        matcher::Matcher,
        request::{Entry, Hits, Request},
        window::{Period, Unit},
    },
    foundation::lock::lock,
    observe::metrics::Metrics,
    service::{leases::LeaseBook, limiter::Rules},
    store::{contract::StoreState, memory::MemoryStore},
};

/// The steps of a history.
const STEPS: usize = 60_000;

const TENANTS: [&str; 3] = ["a", "b", "c"];

const ESTIMATE: u64 = 200;

/// The beginning of a day.
const START: u64 = 20_000 * 86_400_000;

/// Rules have these limits by turns: the numbers of hours, half hours and days.
const LIMITS: [[(u64, u64); 2]; 3] = [
    [(1_000, 3_600), (9_000, 86_400)],
    [(600, 3_600), (9_000, 86_400)],
    [(1_000, 1_800), (9_000, 86_400)],
];

/// How the store treats the next batch.
#[derive(Clone, Copy, Debug, Default)]
struct Treatment {
    /// How often a caller has to ask before the hits are counted, and after that before there is an answer.
    turns: [u32; 2],
    failure: Option<Failure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Nothing was sent, or nothing was counted.
    Unsent,
    Refused,
    /// The hits are counted, and the answer is lost.
    Unanswered,
}

/// A store in memory whose answers take their time, fail and get lost.
#[derive(Clone, Debug)]
struct SlowStore {
    store: Arc<MemoryStore>,
    next: Arc<Mutex<Treatment>>,
}

async fn turns(mut count: u32) {
    poll_fn(|context| {
        if count == 0 {
            return Poll::Ready(());
        }
        count -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Store for SlowStore {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let Treatment {
            turns: [before, after],
            failure,
        } = mem::take(&mut *lock(&self.next));
        turns(before).await;
        match failure {
            Some(Failure::Unsent) => return Err(StoreError::Unsent),
            Some(Failure::Refused) => return Err(StoreError::Refused),
            Some(Failure::Unanswered) | None => {}
        }
        self.store.add_into(counts, batch, now, deadline).await?;
        turns(after).await;
        match failure {
            None => Ok(()),
            Some(_) => Err(StoreError::Timeout),
        }
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }
}

fn limits(variant: usize) -> Vec<Limit> {
    let limit = |(requests, secs): (u64, u64)| {
        let secs = u32::try_from(secs).unwrap().try_into().unwrap();
        Limit::fixed(requests, Period::new(Unit::Second, secs).unwrap())
    };
    LIMITS[variant].map(limit).into()
}

fn matcher(variant: usize, missing: MissingCost) -> Matcher {
    let mut matcher = Matcher::default();
    let root = matcher.insert_domain(b"d");
    let node = matcher.insert(root, b"tenant", b"").unwrap();
    matcher.set_rule(node, |id| Rule {
        lease: Some(LeasePolicy::Reserve(Reserve {
            estimate: Some(ESTIMATE),
            missing,
        })),
        counts: CountPolicy::Admitted,
        ..Rule::plain(id, "d.tenant", Allows::Within(limits(variant).into()))
    });
    matcher
}

/// A reservation that may be open.
#[derive(Clone, Debug)]
struct Lease {
    tenant: usize,
    token: String,
    hits: u64,
    at: u64,
    /// The process that made it, and the periods of its rule.
    epoch: u32,
    periods: [u64; 2],
    is_settled: bool,
}

/// The counts as they have to be, by tenant, period and start of the window.
#[derive(Debug, Default)]
struct Model {
    counts: HashMap<(usize, u64, u64), u64>,
    resets: HashMap<(usize, u64, u64), u64>,
}

fn start(at: u64, period: u64) -> u64 {
    at / 1000 / period * period
}

struct History {
    random: fastrand::Rng,
    limiter: Limiter<SlowStore>,
    metrics: Arc<Metrics>,
    epoch: u32,
    variant: usize,
    missing: MissingCost,
    now: u64,
    leases: Vec<Lease>,
    model: Model,
    /// How often each kind of step happened.
    done: HashMap<&'static str, usize>,
}

impl History {
    fn new(seed: u64) -> Self {
        let metrics = Arc::new(Metrics::new(NearRatio::default(), 0));
        let store = SlowStore {
            store: Arc::new(MemoryStore::new(100_000)),
            next: Arc::default(),
        };
        let rules = Rules::default();
        rules.swap(matcher(0, MissingCost::Estimate), &metrics);
        Self {
            random: fastrand::Rng::with_seed(seed),
            limiter: Limiter {
                rules,
                store,
                modes: Default::default(),
                metrics: metrics.clone().recorder(0),
                decision_log: Default::default(),
                talkers: Default::default(),
                leases: LeaseBook::of_memory(),
                returns: Returns::new(Arc::default()),
            },
            metrics,
            epoch: 0,
            variant: 0,
            missing: MissingCost::Estimate,
            now: START,
            leases: Vec::new(),
            model: Model::default(),
            done: HashMap::new(),
        }
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn note(&mut self, step: &'static str) {
        *self.done.entry(step).or_default() += 1;
    }

    fn treat(&mut self) -> Treatment {
        let mut turn = || self.random.u32(0..3);
        let turns = [turn(), turn()];
        let failure = match self.random.u32(0..30) {
            0 => Some(Failure::Unsent),
            1 => Some(Failure::Refused),
            2 => Some(Failure::Unanswered),
            _ => None,
        };
        let treatment = Treatment { turns, failure };
        *lock(&self.limiter.store.next) = treatment;
        treatment
    }

    /// Sends a request, and drops the call after this many turns. Returns its decision if there is one.
    async fn send(
        &mut self,
        entries: &[(&str, &str)],
        addend: Option<u64>,
        patience: u32,
    ) -> Option<Result<(Code, Option<LeaseToken>), ()>> {
        let mut request = Request::new(b"d");
        for (key, value) in entries {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            request.push_entry(Entry { key, value });
        }
        request.push_descriptor(addend.map(Hits::add), None);
        let now = self.time();
        let deadline = Deadline::of_call(Instant::now(), None);
        let leases = &self.limiter.leases;
        let answer = {
            let check = self.limiter.check(&request, now, &deadline, |decision, _| {
                let leased = decision.leased.as_deref();
                let token = leased.and_then(|leased| leases.token(leased, false, now));
                (decision.overall, token)
            });
            let mut check = std::pin::pin!(check);
            let mut left = patience;
            poll_fn(|context| match check.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending if left == 0 => Poll::Ready(None),
                Poll::Pending => {
                    left -= 1;
                    Poll::Pending
                }
            })
            .await
        };
        // Whatever goes on without the caller comes to its end.
        self.limiter.returns.all_done().await;
        *lock(&self.limiter.store.next) = Treatment::default();
        Some(answer?.map_err(|_| ()))
    }

    fn patience(&mut self) -> u32 {
        match self.random.u32(0..3) {
            0 => self.random.u32(0..5),
            _ => u32::MAX,
        }
    }

    fn count(&mut self, tenant: usize, period: u64, at: u64) -> &mut u64 {
        let key = (tenant, period, start(at, period));
        self.model.counts.entry(key).or_default()
    }

    async fn reserve(&mut self) {
        let tenant = self.random.usize(0..TENANTS.len());
        let addend = self.random.bool().then(|| self.random.u64(1..400));
        let hits = addend.unwrap_or(ESTIMATE);
        let now = self.now;
        let fits = LIMITS[self.variant]
            .map(|(limit, period)| self.count(tenant, period, now).saturating_add(hits) <= limit);
        let fits = fits == [true, true];
        let (treatment, patience) = (self.treat(), self.patience());
        let answer = self
            .send(&[("tenant", TENANTS[tenant])], addend, patience)
            .await;
        let is_counted = match (answer, treatment.failure) {
            (None, Some(Failure::Unanswered)) | (Some(Err(())), Some(Failure::Unanswered)) => {
                self.note("unanswered");
                fits
            }
            (None, _) => {
                self.note("cancelled");
                false
            }
            (Some(Err(())), failure) => {
                assert!(failure.is_some());
                self.note("failed");
                false
            }
            (Some(Ok((code, token))), failure) => {
                assert_eq!(
                    (failure, code == Code::Ok),
                    (None, fits),
                    "more or less than a limit"
                );
                assert_eq!(token.is_some(), fits);
                if let Some(token) = token {
                    self.leases.push(Lease {
                        tenant,
                        token: token.to_string(),
                        hits,
                        at: now,
                        epoch: self.epoch,
                        periods: LIMITS[self.variant].map(|(_, period)| period),
                        is_settled: false,
                    });
                    self.note("reserved");
                } else {
                    self.note("refused");
                }
                fits
            }
        };
        if is_counted {
            for (_, period) in LIMITS[self.variant] {
                *self.count(tenant, period, now) += hits;
            }
        }
    }

    /// Settles or releases any lease that there ever was.
    async fn end(&mut self, is_release: bool) {
        if self.leases.is_empty() {
            return;
        }
        let index = match self.random.u32(0..4) {
            0 => self.random.usize(0..self.leases.len()),
            _ => self.leases.len() - 1 - self.random.usize(0..self.leases.len().min(5)),
        };
        let lease = self.leases[index].clone();
        let now = self.now;
        let cost = self.random.u64(0..500);
        let limits = LIMITS[self.variant];
        let age = now.saturating_sub(lease.at);
        // The limit of a day is in all rules.
        let is_known = lease.epoch == self.epoch && lease.at <= now + 1000 && age <= 86_400_000;
        let (treatment, patience) = (self.treat(), self.patience());
        let order = if is_release {
            "tollgate.release"
        } else {
            "tollgate.reservation"
        };
        let entries = [("tenant", TENANTS[lease.tenant]), (order, &*lease.token)];
        let answer = self
            .send(&entries, (!is_release).then_some(cost), patience)
            .await;
        assert!(!matches!(answer, Some(Err(()))), "an order has no limit");
        let is_zero = self.missing == MissingCost::Zero;
        let cost = match (is_known, lease.is_settled, is_release) {
            (true, true, _) => return self.note("repeated"),
            (true, false, true) if is_zero => 0,
            (_, _, true) => return self.note("nothing to release"),
            (_, _, false) => cost,
        };
        self.leases[index].is_settled |= is_known;
        self.note(if is_known { "settled" } else { "unknown" });
        let charged = |period| is_known && lease.periods.contains(&period);
        // A limit that is new since then gets the whole cost.
        let leased = |period| if charged(period) { lease.hits } else { 0 };
        let is_any_add = limits.iter().any(|(_, period)| cost > leased(*period));
        for (_, period) in limits {
            let (is_charged, leased) = (charged(period), leased(period));
            // Costs are sent first, and later if they were not sent. Nothing is given back later.
            let is_lost = match treatment.failure {
                Some(Failure::Refused) => cost > leased || !is_any_add,
                Some(Failure::Unsent) => !is_any_add,
                Some(Failure::Unanswered) | None => false,
            };
            if is_lost && cost != leased {
                self.note("lost");
                continue;
            }
            let at = if is_charged { lease.at } else { now };
            let ends = (start(at, period) + period) * 1000;
            if ends <= now {
                *self.count(lease.tenant, period, now) += cost.saturating_sub(leased);
                continue;
            }
            let key = (lease.tenant, period, start(at, period));
            let was_reset = is_charged
                && self
                    .model
                    .resets
                    .get(&key)
                    .is_some_and(|reset| *reset >= at);
            let count = self.model.counts.entry(key).or_default();
            match cost.checked_sub(leased) {
                Some(more) => *count += more,
                None if was_reset => {}
                None => *count = count.saturating_sub(leased - cost),
            }
        }
    }

    async fn charge_unreserved(&mut self) {
        let tenant = self.random.usize(0..TENANTS.len());
        let (now, cost) = (self.now, self.random.u64(0..50));
        let (treatment, patience) = (self.treat(), self.patience());
        let entries = [("tenant", TENANTS[tenant]), ("tollgate.unreserved", "1")];
        self.send(&entries, Some(cost), patience).await;
        if treatment.failure != Some(Failure::Refused) || cost == 0 {
            for (_, period) in LIMITS[self.variant] {
                *self.count(tenant, period, now) += cost;
            }
        }
        self.note("unreserved");
    }

    /// Resets the counters of a tenant, as an operator does.
    async fn reset(&mut self) {
        let tenant = self.random.usize(0..TENANTS.len());
        let (now, millis) = (self.time(), self.now);
        let mut batch = self.look(tenant);
        batch.reset();
        for increment in batch.iter() {
            self.limiter.leases.record_reset(increment.key, now);
        }
        self.limiter.store.add(&batch, now).await.unwrap();
        for (_, period) in LIMITS[self.variant] {
            *self.count(tenant, period, millis) = 0;
            let key = (tenant, period, start(millis, period));
            self.model.resets.insert(key, millis);
        }
        self.note("reset");
    }

    fn look(&self, tenant: usize) -> Batch {
        let matcher = matcher(self.variant, self.missing);
        let mut request = Request::new(b"d");
        let value = TENANTS[tenant].as_bytes();
        request.push_entry(Entry {
            key: b"tenant",
            value,
        });
        request.push_descriptor(Hits::add(0), None);
        let plan = Plan::new(&matcher, &request, Default::default(), self.time());
        let mut batch = Batch::default();
        batch.append(&plan.batch);
        batch
    }

    fn reload(&mut self) {
        self.variant = self.random.usize(0..LIMITS.len());
        self.missing = match self.random.bool() {
            true => MissingCost::Zero,
            false => MissingCost::Estimate,
        };
        let matcher = matcher(self.variant, self.missing);
        self.limiter.rules.swap(matcher, &self.metrics);
        self.note("reload");
    }

    fn restart(&mut self) {
        self.limiter.store.store = Arc::new(MemoryStore::new(100_000));
        self.limiter.leases = LeaseBook::of_memory();
        self.epoch += 1;
        self.model = Model::default();
        self.note("restart");
    }

    fn pass_time(&mut self) {
        let half_hour = self.now / 1_800_000 * 1_800_000;
        self.now = match self.random.u32(0..40) {
            0 => self.now + self.random.u64(0..90_000_000),
            1 => self.now + self.random.u64(0..4_000_000),
            // A clock that steps back, within its windows: an ended one is forgotten.
            2 => self
                .now
                .saturating_sub(self.random.u64(0..5_000))
                .max(half_hour),
            _ => self.now + self.random.u64(0..3_000),
        };
    }

    async fn step(&mut self) {
        self.pass_time();
        match self.random.u32(0..1000) {
            0..450 => self.reserve().await,
            450..750 => self.end(false).await,
            750..850 => self.end(true).await,
            850..950 => self.charge_unreserved().await,
            950..980 => self.reset().await,
            980..998 => self.reload(),
            _ => self.restart(),
        }
        for tenant in 0..TENANTS.len() {
            let counts = self
                .limiter
                .store
                .add(&self.look(tenant), self.time())
                .await
                .unwrap();
            let held: Vec<_> = counts.iter().map(|count| count.after).collect();
            let now = self.now;
            let expected = LIMITS[self.variant].map(|(_, period)| *self.count(tenant, period, now));
            assert_eq!(held, expected, "tenant {tenant}");
        }
    }
}

/// No hit is charged twice, given back twice or to another window, or forgotten, whoever gives up and whatever fails.
#[tokio::test(start_paused = true)]
async fn counters_hold_what_open_reservations_and_costs_come_to() {
    let mut history = History::new(20_261_126);
    for step in 0..STEPS {
        history.step().await;
        if step % 1000 == 0 {
            // Old windows matter no more.
            let oldest = (history.now / 1000).saturating_sub(200_000);
            history
                .model
                .counts
                .retain(|(_, _, start), _| *start >= oldest);
            let len = history.leases.len();
            history.leases.drain(..len.saturating_sub(500));
        }
    }
    let least = STEPS / 2_000;
    for step in [
        "reserved",
        "refused",
        "cancelled",
        "failed",
        "unanswered",
        "settled",
        "unknown",
        "repeated",
        "lost",
        "unreserved",
        "reset",
        "reload",
        "restart",
    ] {
        assert!(
            history.done.get(step).is_some_and(|times| *times >= least),
            "{step}: {:?}",
            history.done
        );
    }
}
