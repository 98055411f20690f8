//! The counters as they have to be: a map from keys to hits, and the rules by which each step changes it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
};

pub const DAY: u64 = 86_400;

pub const ESTIMATE: u64 = 200;

pub type Limits = [(u64, u64); 2];

/// A reload chooses one: another limit, or another period.
pub const VARIANTS: [Limits; 3] = [
    [(1_000, 2 * DAY), (9_000, 6 * DAY)],
    [(600, 2 * DAY), (9_000, 6 * DAY)],
    [(1_000, DAY), (9_000, 6 * DAY)],
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesInUse {
    pub variant: usize,
    /// Whether the end without a cost gives back what was reserved.
    pub gives_back: bool,
    /// The limit of a rule without requests: it shows which reload is in force.
    pub number: usize,
}

impl RulesInUse {
    pub fn limits(self) -> Limits {
        VARIANTS[self.variant]
    }

    pub fn text(self) -> String {
        let [(first, secs), (second, longer)] = self.limits();
        let days = longer / DAY;
        let missing = if self.gives_back { "zero" } else { "estimate" };
        format!(
            "
domain: llm
descriptors:
  - key: tenant
    reserve: {{ estimate: {ESTIMATE}, missing: {missing} }}
    rate_limits: [{first}/{secs}seconds, {second}/{days}days]
  - {{ key: number, rate_limits: [{}/year] }}
",
            self.number
        )
    }
}

/// The key of a counter, as the documentation of `src/core/counter/key.rs` has it.
pub fn key(tenant: &str, secs: u64, at: u64) -> String {
    let (length, number) = (tenant.len(), at / 1000 / secs);
    format!("{{3:llm6:tenant{length}:{tenant}}}{secs}@{number}")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitChange {
    Add(u64),
    GiveBack(u64),
    Reset,
}

impl HitChange {
    fn of(self, held: u64) -> u64 {
        match self {
            Self::Add(hits) => held.saturating_add(hits),
            Self::GiveBack(hits) => held.saturating_sub(hits),
            Self::Reset => 0,
        }
    }
}

pub type Changes = Vec<(String, HitChange)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitRange {
    pub least: u64,
    pub most: u64,
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub token: String,
    /// By the clock of tollgate, in milliseconds since 1970.
    pub at: u64,
    pub parts: Vec<LeasePart>,
    periods: [u64; 2],
}

#[derive(Clone, Debug)]
pub struct LeasePart {
    pub tenant: String,
    pub hits: u64,
    settled_by: HashSet<usize>,
}

impl Lease {
    pub fn new(token: String, limits: Limits, hits: &[(String, u64)]) -> Self {
        let at = token.split('.').nth(1).expect("a token has its time");
        let part = |(tenant, hits): &(String, u64)| LeasePart {
            tenant: tenant.clone(),
            hits: *hits,
            settled_by: HashSet::new(),
        };
        Self {
            at: u64::from_str_radix(at, 32).expect("the time is a number"),
            token,
            parts: hits.iter().map(part).collect(),
            periods: limits.map(|(_, secs)| secs),
        }
    }

    /// Whether a few seconds decide about it: then it is left alone.
    pub fn is_on_an_edge(&self, now: u64) -> bool {
        const FEW: u64 = 10_000;
        let (age, ahead) = (now.saturating_sub(self.at), self.at.saturating_sub(now));
        age.abs_diff(6 * DAY * 1000) < FEW || (1..FEW).contains(&ahead)
    }

    fn is_known(&self, now: u64) -> bool {
        self.at <= now + 1000 && now.saturating_sub(self.at) <= 6 * DAY * 1000
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    Settle,
    Release,
    /// All that Envoy sends at the end of a stream.
    All,
}

#[derive(Clone, Copy, Debug)]
pub struct Asking {
    pub process: usize,
    pub now: u64,
    pub rules: RulesInUse,
}

/// All counters that hold hits, and what processes remember of them.
#[derive(Debug, Default)]
pub struct LeaseModel {
    counts: BTreeMap<String, HitRange>,
    resets: HashMap<(usize, String), u64>,
}

impl LeaseModel {
    pub fn held(&self, key: &str) -> HitRange {
        self.counts.get(key).copied().unwrap_or_default()
    }

    pub fn counters(tenant: &str, limits: Limits, now: u64) -> [(String, u64); 2] {
        limits.map(|(hits, secs)| (key(tenant, secs, now), hits))
    }

    /// How often `hits` certainly fit into all counters of a tenant.
    pub fn room(&self, tenant: &str, limits: Limits, now: u64, hits: u64) -> u64 {
        let counters = Self::counters(tenant, limits, now);
        let room = counters.map(|(key, limit)| limit.saturating_sub(self.held(&key).most) / hits);
        room.into_iter().min().unwrap_or(0)
    }

    pub fn reserved(hits: &[(String, u64)], limits: Limits, now: u64) -> Changes {
        let of_tenant = |(tenant, hits): &(String, u64)| {
            Self::counters(tenant, limits, now).map(|(key, _)| (key, HitChange::Add(*hits)))
        };
        hits.iter().flat_map(of_tenant).collect()
    }

    /// The changes by an order for one part of a lease, which is then settled for the process. Also returns what kind
    /// of end it is.
    pub fn end(
        &self,
        lease: &mut Lease,
        index: usize,
        (kind, cost): (EndKind, Option<u64>),
        asking: Asking,
    ) -> (&'static str, Changes) {
        let (process, now, limits) = (asking.process, asking.now, asking.rules.limits());
        let (at, part) = (lease.at, &lease.parts[index]);
        let is_known = lease.is_known(now);
        let (leased, is_settled) = (part.hits, part.settled_by.contains(&process));
        let cost = match kind {
            EndKind::Release if !asking.rules.gives_back => return ("kept", Changes::new()),
            EndKind::Release if !is_known => return ("unknown release", Changes::new()),
            EndKind::Release => 0,
            EndKind::Settle | EndKind::All => cost.unwrap_or(if is_known { leased } else { 1 }),
        };
        if !is_known {
            return ("unknown", Self::charged(&part.tenant, cost, asking));
        }
        if is_settled {
            return ("repeated", Changes::new());
        }
        let periods = lease.periods;
        let part = &mut lease.parts[index];
        let is_first = part.settled_by.is_empty();
        part.settled_by.insert(process);
        let mut changes = Changes::new();
        for (_, secs) in limits {
            let then = key(&part.tenant, secs, at);
            let has_ended = (at / 1000 / secs + 1) * secs * 1000 <= now;
            if !periods.contains(&secs) {
                // The limit is new since then.
                if cost > 0 {
                    changes.push((key(&part.tenant, secs, now), HitChange::Add(cost)));
                }
                continue;
            }
            let (key, change) = match cost.checked_sub(leased) {
                Some(0) => continue,
                Some(more) if has_ended => (key(&part.tenant, secs, now), HitChange::Add(more)),
                Some(more) => (then, HitChange::Add(more)),
                None if has_ended => continue,
                None => (then, HitChange::GiveBack(leased - cost)),
            };
            let reset = self.resets.get(&(process, key.clone()));
            let is_forgotten = reset.is_some_and(|reset| *reset >= at);
            if !is_forgotten || matches!(change, HitChange::Add(_)) {
                changes.push((key, change));
            }
        }
        let name = match (kind, is_first) {
            (_, false) => "settled elsewhere too",
            (EndKind::Release, true) => "released",
            (EndKind::Settle | EndKind::All, true) => "settled",
        };
        (name, changes)
    }

    pub fn charged(tenant: &str, cost: u64, asking: Asking) -> Changes {
        let counters = Self::counters(tenant, asking.rules.limits(), asking.now);
        let changes = counters.map(|(key, _)| (key, HitChange::Add(cost)));
        changes.into_iter().filter(|_| cost > 0).collect()
    }

    pub fn reset(&mut self, tenant: &str, asking: Asking) -> Changes {
        let mut changes = Changes::new();
        for (key, _) in Self::counters(tenant, asking.rules.limits(), asking.now) {
            let by = (asking.process, key.clone());
            self.resets.insert(by, asking.now);
            changes.push((key, HitChange::Reset));
        }
        changes
    }

    pub fn apply(&mut self, changes: &Changes) {
        for (key, change) in changes {
            let held = self.counts.entry(key.clone()).or_default();
            *held = HitRange {
                least: change.of(held.least),
                most: change.of(held.most),
            };
        }
    }

    /// Some of the changes may have happened.
    pub fn perhaps(&mut self, changes: &Changes) {
        for (key, change) in changes {
            let held = self.counts.entry(key.clone()).or_default();
            *held = HitRange {
                least: held.least.min(change.of(held.least)),
                most: held.most.max(change.of(held.most)),
            };
        }
    }

    pub fn differences(&self, found: &BTreeMap<String, u64>) -> Vec<String> {
        let mut wrong = Vec::new();
        for (key, HitRange { least, most }) in &self.counts {
            let hits = found.get(key).copied().unwrap_or(0);
            if !(*least..=*most).contains(&hits) {
                wrong.push(format!("{key} holds {hits} instead of {least} to {most}"));
            }
        }
        let unexpected = found
            .iter()
            .filter(|(key, hits)| **hits != 0 && !self.counts.contains_key(*key));
        wrong.extend(unexpected.map(|(key, hits)| format!("{key} holds {hits} instead of 0")));
        wrong
    }

    /// Takes what was found for what must be there.
    pub fn settle_on(&mut self, found: &BTreeMap<String, u64>) {
        let held = found.iter().filter(|(_, hits)| **hits != 0);
        let known = held.map(|(key, hits)| {
            let (least, most) = (*hits, *hits);
            (key.clone(), HitRange { least, most })
        });
        drop(mem::replace(&mut self.counts, known.collect()));
    }
}
