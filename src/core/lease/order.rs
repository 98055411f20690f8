//! Orders: Envoy asks for them at the end of a stream, by the last entry of a descriptor. The entries before it name
//! the counters, as they did at the request.

use std::time::Duration;

use smallvec::SmallVec;

use super::{
    mark,
    settlement::{ChargedHits, is_settled_by, settle},
    token::{LeaseCharge, LeaseId, LeasePart, LeaseToken},
};
use crate::core::{
    counter::{
        Batch, BucketPlace, Charge, Enforcement, Identity, IncrementSpec, Operation, Reservation,
    },
    limit::{LeasePolicy, Limit, MissingCost, OnStoreLoss, Rule},
    request::{Entry, Hits},
    window::Timestamp,
};

/// The beginning of the keys of orders. No rule has such a key.
pub(crate) const PREFIX: &[u8] = b"tollgate.";

/// The key of the entry that settles a lease.
pub(crate) const SETTLE: &[u8] = b"tollgate.reservation";

/// A cost above the largest limit counts as this: more would say nothing, and could not be added up.
pub(crate) const MOST_COST: u64 = Limit::MAX_REQUESTS;

/// An order of Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind<'a> {
    /// To replace what the lease of this token charged by the cost.
    Settle(&'a [u8]),
    /// To end the lease of this token, unless the same message settles it. A settlement frees slots as well.
    Release(&'a [u8]),
    /// To charge the cost, unless the same message settles a lease.
    Unreserved,
    /// Nothing that tollgate knows.
    Unknown,
}

impl<'a> OrderKind<'a> {
    /// The order of a descriptor, and the entries that name its counters; `None` if it is none.
    pub fn of<'e>(entries: &'e [Entry<'a>]) -> Option<(Self, &'e [Entry<'a>])> {
        let (last, target) = entries.split_last()?;
        let name = last.key.strip_prefix(PREFIX)?;
        let kind = match name {
            b"reservation" => Self::Settle(last.value),
            b"release" => Self::Release(last.value),
            b"unreserved" => Self::Unreserved,
            _ => Self::Unknown,
        };
        Some((kind, target))
    }
}

/// An order of a message.
#[derive(Debug)]
pub struct Order<'a> {
    pub kind: OrderKind<'a>,
    /// The cost, at most [`MOST_COST`]; `None` if the descriptor brings none.
    pub cost: Option<u64>,
    /// `None` if its entries name no rule that leases.
    pub target: Option<OrderTarget<'a>>,
}

/// The counters of an order.
#[derive(Debug)]
pub struct OrderTarget<'a> {
    pub rule: &'a Rule,
    pub lease: LeasePolicy,
    pub limits: &'a [Limit],
    pub identity: Identity,
}

/// The result of the orders for one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderOutcome {
    /// The cost replaces what was reserved.
    Settled { leased: u64, cost: u64 },
    /// The stream ended without a cost, and what was reserved is given back.
    Released { leased: u64 },
    /// The stream ended without a cost, and what was reserved stays charged.
    Kept { leased: u64 },
    /// No token of these counters came, so the cost is charged in full.
    Unknown { cost: u64 },
    /// Nothing was reserved, so the cost is charged in full.
    Unreserved { cost: u64 },
    /// It was settled before.
    Repeated,
    /// The slots of a request are freed.
    Freed {
        is_first: bool,
        /// Since when they were taken, by the clocks of requests.
        age: Duration,
    },
}

/// The increments that orders lead to.
#[derive(Debug, Default)]
pub(crate) struct OrderedHits<'a> {
    /// Hits to add; the descriptor of each increment is the index of its outcome.
    pub adds: Batch,
    pub gives_back: Batch,
    /// Slots to free.
    pub frees: Batch,
    /// The results of orders, each with its rule, and whether a window ended between the reservation and the order.
    pub outcomes: Vec<(&'a Rule, OrderOutcome, bool)>,
    /// How many orders name no rule that leases, are not known, or have no effect on slots.
    pub strays: u64,
}

/// The memory of earlier leases.
pub(crate) trait LeaseMemory {
    /// Whether a token of this epoch names counters that are in use.
    fn knows(&self, epoch: u32) -> bool;

    /// Whether this lease is settled for the first time for the descriptor of this mark. It remembers both.
    fn is_first(&mut self, id: LeaseId, descriptor: u32) -> bool;

    /// Whether the counter of this key was reset at that time or later: then it no longer has what was charged before.
    fn was_reset(&self, key: &[u8], since: Timestamp) -> bool;
}

/// The increments for the orders of one message.
pub(crate) fn ordered_hits<'a>(
    orders: &[Order<'a>],
    memory: &mut impl LeaseMemory,
    now: Timestamp,
) -> OrderedHits<'a> {
    let mut hits = OrderedHits::default();
    let mut is_done = SmallVec::<[bool; 8]>::from_elem(false, orders.len());
    for (index, order) in orders.iter().enumerate() {
        let Some(target) = &order.target else {
            hits.strays += 1;
            continue;
        };
        if is_done[index] {
            continue;
        }
        // A descriptor that stands twice was reserved as one.
        let mut together = OrdersOfTarget::default();
        for (order, is_done) in orders[index..].iter().zip(&mut is_done[index..]) {
            let is_same =
                |other: &OrderTarget<'_>| other.identity.bytes() == target.identity.bytes();
            if order.target.as_ref().is_some_and(is_same) {
                *is_done = true;
                together.add(order);
            }
        }
        together.carry_out(target, memory, now, &mut hits);
    }
    hits
}

/// The orders of a message for one descriptor.
#[derive(Default)]
struct OrdersOfTarget<'a> {
    /// Each token and its costs, which are `None` if no order brings any.
    settles: SmallVec<[(&'a [u8], Option<u64>); 1]>,
    releases: SmallVec<[&'a [u8]; 1]>,
    unreserved: Option<u64>,
}

impl<'a> OrdersOfTarget<'a> {
    fn add(&mut self, order: &Order<'a>) {
        let sum = |one: Option<u64>, other: u64| {
            Some(one.unwrap_or(0).saturating_add(other).min(MOST_COST))
        };
        match order.kind {
            OrderKind::Settle(token) => {
                let known = self.settles.iter_mut().find(|(other, _)| *other == token);
                match (known, order.cost) {
                    (Some((_, cost)), Some(more)) => *cost = sum(*cost, more),
                    (Some(_), None) => {}
                    (None, cost) => self.settles.push((token, cost)),
                }
            }
            OrderKind::Release(token) => self.releases.push(token),
            OrderKind::Unreserved => {
                self.unreserved = sum(self.unreserved, order.cost.unwrap_or(1));
            }
            OrderKind::Unknown => {}
        }
    }

    fn carry_out(
        self,
        target: &OrderTarget<'a>,
        memory: &mut impl LeaseMemory,
        now: Timestamp,
        hits: &mut OrderedHits<'a>,
    ) {
        let LeasePolicy::Reserve(reserve) = target.lease else {
            return self.free_slots(target, memory, now, hits);
        };
        let is_settled = |text: &&[u8]| self.settles.iter().any(|(other, _)| other == text);
        let releases = self.releases.iter().filter(|text| !is_settled(text));
        let settles = self.settles.iter().map(|&(text, cost)| (text, cost, false));
        let ends = settles.chain(releases.map(|&text| (text, Some(0), true)));
        for (text, cost, is_release) in ends {
            let is_kept = is_release && reserve.missing == MissingCost::Estimate;
            let (outcome, is_late) = match target.lease(text, |epoch| memory.knows(epoch), now) {
                Some(lease) if is_kept => {
                    let leased = lease.hits();
                    (OrderOutcome::Kept { leased }, false)
                }
                None if is_kept => continue,
                Some(lease) if memory.is_first(lease.id, target.mark()) => {
                    // Without a number the cost is what was reserved.
                    let leased = lease.hits();
                    let cost = cost.unwrap_or(leased);
                    let is_late = target.settle(&lease, cost, memory, now, hits);
                    let outcome = match is_release {
                        true => OrderOutcome::Released { leased },
                        false => OrderOutcome::Settled { leased, cost },
                    };
                    (outcome, is_late)
                }
                Some(_) => (OrderOutcome::Repeated, false),
                None => {
                    let cost = cost.unwrap_or(1);
                    target.charge(cost, now, hits);
                    (OrderOutcome::Unknown { cost }, false)
                }
            };
            hits.outcomes.push((target.rule, outcome, is_late));
        }
        if let (Some(cost), true) = (self.unreserved, self.settles.is_empty()) {
            target.charge(cost, now, hits);
            let outcome = OrderOutcome::Unreserved { cost };
            hits.outcomes.push((target.rule, outcome, false));
        }
    }
}

impl<'a> OrdersOfTarget<'a> {
    /// Frees slots by the ids of the tokens; nothing else in them has to agree. So a release works after any step of a
    /// clock, and a second one does nothing.
    fn free_slots(
        self,
        target: &OrderTarget<'a>,
        memory: &mut impl LeaseMemory,
        now: Timestamp,
        hits: &mut OrderedHits<'a>,
    ) {
        let settles = self.settles.iter().map(|(text, _)| *text);
        let mut tokens: SmallVec<[&[u8]; 2]> = settles.chain(self.releases).collect();
        tokens.dedup();
        if tokens.is_empty() {
            hits.strays += 1;
        }
        for text in tokens {
            let mut was_reset = false;
            let Some(token) = LeaseToken::parse(text) else {
                hits.strays += 1;
                continue;
            };
            for limit in target.limits.iter().filter(|limit| limit.is_concurrency()) {
                let mut one = Batch::default();
                let back = (Hits::give_back(1), Reservation::None);
                let outcome = hits.outcomes.len();
                target.push(limit, back, now, outcome, &mut one);
                one.name_slots(token.id.0);
                for free in one.iter() {
                    was_reset |= memory.was_reset(free.key, token.at);
                    hits.frees.append_one(free);
                }
            }
            // A reset has freed them already.
            let is_first = memory.is_first(token.id, target.mark()) && !was_reset;
            let outcome = OrderOutcome::Freed {
                is_first,
                age: Duration::from_millis(now.millis().saturating_sub(token.at.millis())),
            };
            hits.outcomes.push((target.rule, outcome, false));
        }
    }
}

/// The part of a token that is about one descriptor.
struct DescriptorLease {
    id: LeaseId,
    at: Timestamp,
    /// Never empty.
    parts: SmallVec<[LeasePart; 1]>,
}

impl DescriptorLease {
    /// The hits that were reserved.
    fn hits(&self) -> u64 {
        let hits = self.parts.iter().map(|part| part.hits);
        hits.fold(0, u64::saturating_add).min(MOST_COST)
    }

    /// The charge of the counter of this mark: of no hits if its limit was replaced, and `None` if it did not exist.
    fn charged(&self, mark: u32) -> Option<ChargedHits> {
        let mut charged = None;
        for part in &self.parts {
            let Some(charge) = part.charge(mark) else {
                continue;
            };
            let sum = charged.get_or_insert(ChargedHits {
                hits: 0,
                at: self.at,
                place: BucketPlace::default(),
            });
            match charge {
                LeaseCharge::Replaced => continue,
                LeaseCharge::Window => {}
                // A descriptor that stands twice reserves in one step.
                LeaseCharge::Bucket(place) if sum.hits == 0 => sum.place = place,
                LeaseCharge::Bucket(_) => {}
            }
            sum.hits = sum.hits.saturating_add(part.hits).min(MOST_COST);
        }
        charged
    }
}

impl OrderTarget<'_> {
    fn mark(&self) -> u32 {
        mark::of_descriptor(self.identity.bytes())
    }

    /// The lease of these counters that `text` names; `None` if it was made by another process, for other counters or
    /// in the future, or if no window of it can matter any more.
    fn lease(
        &self,
        text: &[u8],
        knows: impl Fn(u32) -> bool,
        now: Timestamp,
    ) -> Option<DescriptorLease> {
        let token = LeaseToken::parse(text).filter(|token| knows(token.epoch))?;
        let lease = DescriptorLease {
            id: token.id,
            at: token.at,
            parts: token.parts_of(self.identity.bytes(), self.limits),
        };
        let is_settled = |limit: &Limit| {
            let mark = mark::of_counter(self.identity.bytes(), limit);
            is_settled_by(limit, token.at, now) && lease.charged(mark).is_some()
        };
        self.limits.iter().any(is_settled).then_some(lease)
    }

    /// Replaces the hits of a lease by their cost. A limit that is new since then gets the whole cost. Returns whether
    /// a window has ended.
    fn settle(
        &self,
        lease: &DescriptorLease,
        cost: u64,
        memory: &impl LeaseMemory,
        now: Timestamp,
        hits: &mut OrderedHits<'_>,
    ) -> bool {
        let mut is_late = false;
        for limit in self.limits {
            let mark = mark::of_counter(self.identity.bytes(), limit);
            let Some(charged) = lease.charged(mark) else {
                self.charge_limit(limit, cost, now, hits);
                continue;
            };
            if charged.hits == 0 {
                continue;
            }
            let settlement = settle(limit, charged, cost, now);
            is_late |= settlement.is_late;
            let change = (settlement.change, settlement.reservation);
            let (outcome, mut one) = (hits.outcomes.len(), Batch::default());
            let is_past = settlement.reservation == Reservation::None && !settlement.is_late;
            let window = if is_past { lease.at } else { now };
            self.push(limit, change, window, outcome, &mut one);
            for change in one.iter() {
                if change.added() > 0 {
                    hits.adds.append_one(change);
                } else if !memory.was_reset(change.key, lease.at) {
                    hits.gives_back.append_one(change);
                }
            }
        }
        is_late
    }

    /// Charges a cost to the present windows.
    fn charge(&self, cost: u64, now: Timestamp, hits: &mut OrderedHits<'_>) {
        for limit in self.limits {
            self.charge_limit(limit, cost, now, hits);
        }
    }

    fn charge_limit(&self, limit: &Limit, cost: u64, now: Timestamp, hits: &mut OrderedHits<'_>) {
        let outcome = hits.outcomes.len();
        let cost = (Hits::add(cost), Reservation::None);
        self.push(limit, cost, now, outcome, &mut hits.adds);
    }

    /// Appends a change for the next outcome, if there is any.
    fn push(
        &self,
        limit: &Limit,
        (hits, reservation): (Hits, Reservation),
        at: Timestamp,
        outcome: usize,
        batch: &mut Batch,
    ) {
        if hits.is_peek() && reservation == Reservation::None {
            return;
        }
        let spec = IncrementSpec {
            operation: match hits.added() {
                0 => Operation::GiveBack,
                _ => Operation::Add(Charge::Always),
            },
            reservation,
            enforcement: Enforcement::Silent,
            // A cost that is not counted must be known to be lost.
            on_loss: match self.rule.on_store_loss {
                OnStoreLoss::Local => OnStoreLoss::Local,
                _ => OnStoreLoss::Error,
            },
            descriptor: u32::try_from(outcome).unwrap_or(u32::MAX),
            rule: self.rule.number,
            ..IncrementSpec::charged(hits, Charge::Always)
        };
        batch.push(&self.identity, limit, at, spec);
    }
}
