//! Admits requests of hot counters from slices: hits that this worker charged in the store in advance. The limits of
//! such a rule stay exact (`accuracy: exact-leased`).
//!
//! Either every descriptor of a request is admitted from slices, or the store is asked for all of them, exactly as
//! without this. Slices are asked for and given back by the worker's [`Returns`], never by a request. A slice is of all
//! counters of its descriptor together: it ends with the first window of its limits, and a reload that changes the
//! keys of a descriptor ends it too. What it has left goes back to the windows that go on.

use std::{
    collections::HashMap,
    convert::Infallible,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use super::{
    contract::{Deadline, Store, StoreError, StoreState},
    returns::Returns,
};
use crate::{
    core::{
        counter::{
            Batch, Charge, CounterState, CounterStates, Enforcement, Increment, IncrementSpec,
            Operation,
        },
        lease::slice::{Slice, SlicePolicy},
        limit::OnStoreLoss,
        window::{SteadyTime, Timestamp},
    },
    foundation::{lock::lock, sample::SampleWriter},
};

/// The most bytes of all slices, and about what one takes without its keys.
pub(crate) const MAX_BYTES: usize = 4 << 20;
const SLICE_BYTES: usize = size_of::<HeldSlice>() + 2 * size_of::<Box<[u8]>>();

/// A store around a store, one for each worker.
#[derive(Debug)]
pub(crate) struct Slices<S> {
    pub(super) store: S,
    own: Arc<WorkerSlices>,
    all: Arc<SliceTables>,
    returns: Returns,
}

/// The slices of all workers.
#[derive(Debug, Default)]
pub(crate) struct SliceTables {
    all: Mutex<Vec<Arc<WorkerSlices>>>,
    /// How many workers of all replicas can hold slices, as far as known.
    holders: AtomicU64,
    bytes: Arc<AtomicUsize>,
    stats: SliceStats,
}

/// Counts over all workers.
#[derive(Debug, Default)]
struct SliceStats {
    asked: AtomicU64,
    refused: AtomicU64,
    passes: AtomicU64,
    taken_hits: AtomicU64,
    returned_hits: AtomicU64,
    expired_hits: AtomicU64,
}

#[derive(Debug, Default)]
struct WorkerSlices {
    /// By the part of the keys that names the descriptor.
    slices: Mutex<HashMap<Box<[u8]>, HeldSlice, RandomState>>,
    /// From then on no slice is asked for.
    is_draining: AtomicBool,
    /// How often slices were forgotten because counters were reset.
    resets: AtomicU64,
}

/// The slice of a descriptor.
#[derive(Debug)]
struct HeldSlice {
    slice: Slice,
    policy: SlicePolicy,
    counters: Box<[SlicedCounter]>,
    bytes: SliceBytes,
}

/// The part of a slice in the bytes of all slices, until it is dropped.
#[derive(Debug)]
struct SliceBytes {
    all: Arc<AtomicUsize>,
    own: usize,
}

/// One of the counters that a slice is of.
#[derive(Debug)]
struct SlicedCounter {
    key: Box<[u8]>,
    spec: IncrementSpec,
    /// The hits that it held when the store answered last, with those that are free.
    held: u64,
}

impl SliceBytes {
    fn set(&mut self, own: usize) {
        self.all.fetch_add(own, Relaxed);
        self.all.fetch_sub(self.own, Relaxed);
        self.own = own;
    }
}

impl Drop for SliceBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl HeldSlice {
    /// Without counters, which a reply of the store brings.
    fn new(tables: &SliceTables, now: SteadyTime) -> Self {
        Self {
            slice: Slice::new(now),
            policy: tables.policy(0),
            counters: Box::default(),
            bytes: SliceBytes {
                all: tables.bytes.clone(),
                own: 0,
            },
        }
    }

    /// Makes it a slice of these counters, whose descriptor has a name of this length.
    fn set_counters(&mut self, counters: Box<[SlicedCounter]>, name: usize, tables: &SliceTables) {
        let of_counter = |counter: &SlicedCounter| size_of::<SlicedCounter>() + counter.key.len();
        self.bytes
            .set(SLICE_BYTES + name + counters.iter().map(of_counter).sum::<usize>());
        let periods = counters.iter().map(|counter| counter.spec.period_millis);
        self.policy = tables.policy(periods.min().unwrap_or(0));
        self.counters = counters;
    }

    /// Whether these are the increments of its counters.
    fn has(&self, batch: &Batch, range: Range<usize>) -> bool {
        let own = self.counters.iter().map(|own| &*own.key);
        own.eq(batch.range(range).map(|increment| increment.key))
    }

    /// Takes the counts after increments of its counters into account. `own` are the hits that were charged.
    fn see(&mut self, counts: &[CounterState], own: u64) {
        let mut least = (u64::MAX, 0);
        for (counter, count) in self.counters.iter_mut().zip(counts) {
            let (limit, now) = (counter.spec.limit, count.after);
            least = least.min((limit.saturating_sub(now), now.saturating_sub(counter.held)));
            counter.held = now;
        }
        self.slice.see(own, least.1, least.0);
    }

    fn increments(&self) -> impl Iterator<Item = Increment<'_>> {
        self.counters.iter().map(|counter| Increment {
            key: &counter.key,
            spec: counter.spec,
        })
    }

    /// Gives back hits to its counters.
    fn back(&self, hits: u64) -> Batch {
        increments(self.increments(), Operation::GiveBack, hits)
    }
}

/// Increments of these counters by `hits`. None of them is answered without the store.
fn increments<'c>(
    counters: impl Iterator<Item = Increment<'c>>,
    operation: Operation,
    hits: u64,
) -> Batch {
    let mut batch = Batch::default();
    for Increment { key, spec } in counters {
        let spec = IncrementSpec {
            operation,
            hits,
            enforcement: Enforcement::Refuses,
            on_loss: OnStoreLoss::Error,
            descriptor: 0,
            ..spec
        };
        batch.append_one(Increment { key, spec });
    }
    batch
}

impl SliceTables {
    /// Takes over the number of replicas, each with this many workers.
    pub(crate) fn set_holders(&self, replicas: u32, workers: usize) {
        let workers = u64::try_from(workers).unwrap_or(1);
        self.holders
            .store(u64::from(replicas.max(1)) * workers, Relaxed);
    }

    fn policy(&self, window_millis: u64) -> SlicePolicy {
        let holders = u32::try_from(self.holders.load(Relaxed)).unwrap_or(u32::MAX);
        SlicePolicy::new(window_millis, holders)
    }

    /// The hits of a counter that the workers of this process hold and have not used.
    pub(crate) fn free(&self, key: &[u8], descriptor_bytes: u32) -> u64 {
        let name = key.get(..descriptor_bytes as usize).unwrap_or(key);
        let of_worker = |worker: &Arc<WorkerSlices>| {
            let slices = lock(&worker.slices);
            let held = slices.get(name);
            let held = held.filter(|held| held.counters.iter().any(|own| &*own.key == key));
            held.map_or(0, |held| held.slice.free())
        };
        lock(&self.all).iter().map(of_worker).sum()
    }

    /// Forgets the slices of a counter that is reset: their hits are not given back to it.
    pub(crate) fn forget(&self, key: &[u8], descriptor_bytes: u32) {
        let name = key.get(..descriptor_bytes as usize).unwrap_or(key);
        for worker in lock(&self.all).iter() {
            worker.resets.fetch_add(1, Relaxed);
            lock(&worker.slices).remove(name);
        }
    }

    pub(crate) fn samples(&self, list: &mut SampleWriter<'_>) {
        let SliceStats {
            asked,
            refused,
            passes,
            taken_hits,
            returned_hits,
            expired_hits,
        } = &self.stats;
        for (name, total) in [
            ("slices_asked_total", asked),
            ("slices_refused_total", refused),
            ("slice_passes_total", passes),
            ("slice_hits_total.taken", taken_hits),
            ("slice_hits_total.returned", returned_hits),
            ("slice_hits_total.expired", expired_hits),
        ] {
            list.counter(format!("tollgate.{name}"), total.load(Relaxed));
        }
        let free = |worker: &Arc<WorkerSlices>| -> u64 {
            lock(&worker.slices)
                .values()
                .map(|held| held.slice.free())
                .sum()
        };
        let free = lock(&self.all).iter().map(free).sum();
        list.gauge("tollgate.slice_free_hits", free);
    }
}

impl<S: Store + Clone> Slices<S> {
    pub(crate) fn new(store: S, all: Arc<SliceTables>, returns: Returns) -> Self {
        let own: Arc<WorkerSlices> = Arc::default();
        lock(&all.all).push(own.clone());
        Self {
            store,
            own,
            all,
            returns,
        }
    }

    pub(crate) fn tables(&self) -> &Arc<SliceTables> {
        &self.all
    }

    /// The store that answers a request, unless all of its hits can come from slices.
    #[inline]
    pub(super) fn beside(&self, batch: &Batch) -> Option<&S> {
        let is_sliced = |spec: &IncrementSpec| {
            spec.is_sliced && spec.hits > 0 && spec.operation == Operation::Add(Charge::Admitted)
        };
        (!batch.all_specs().all(is_sliced)).then_some(&self.store)
    }

    /// A task that gives back what is not used. It never ends.
    pub(crate) fn sweeping(
        &self,
        now: impl Fn() -> Timestamp + Send + 'static,
    ) -> impl Future<Output = Infallible> + Send + 'static {
        let (store, own, all) = (self.store.clone(), self.own.clone(), self.all.clone());
        async move {
            loop {
                tokio::time::sleep(SlicePolicy::SWEEP).await;
                for surplus in own.sweep(Instant::now().into()) {
                    give_back(&store, &all, surplus, now()).await;
                }
            }
        }
    }

    /// Gives back all free hits, and asks for none any more.
    pub(crate) fn drain(
        &self,
        now: impl Fn() -> Timestamp + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (store, own, all) = (self.store.clone(), self.own.clone(), self.all.clone());
        async move {
            own.is_draining.store(true, Relaxed);
            let mut left = Batch::default();
            for (_, mut held) in lock(&own.slices).drain() {
                let free = held.slice.end();
                if free > 0 {
                    left.append(&held.back(free));
                }
            }
            if !left.is_empty() {
                give_back(&store, &all, left, now()).await;
            }
        }
    }

    /// Admits a request from slices. Returns whether it did, and puts the counts into `counts`.
    fn admit(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        steady: SteadyTime,
    ) -> bool {
        let mut slices = lock(&self.own.slices);
        let mut groups = SmallVec::<[Range<usize>; 4]>::new();
        for group in descriptors(batch) {
            let name = descriptor_name(batch, &group);
            let Some(held) = slices.get(name) else {
                return false;
            };
            let is_twice = groups
                .iter()
                .any(|other| descriptor_name(batch, other) == name);
            let is_enough = held.slice.free() >= batch.spec(group.start).hits;
            if is_twice || !is_enough || !held.has(batch, group.clone()) {
                return false;
            }
            groups.push(group);
        }
        for group in &groups {
            let Some(held) = slices.get_mut(descriptor_name(batch, group)) else {
                return false;
            };
            let hits = batch.spec(group.start).hits;
            held.slice.demand(hits, &held.policy, steady);
            held.slice.admit(hits);
            let free = held.slice.free();
            let counters = held.counters.iter();
            let known = counters.map(|counter| counter.held.saturating_sub(free));
            counts.extend(known.map(CounterState::from));
            self.renew(held, now, steady);
        }
        self.all.stats.passes.fetch_add(1, Relaxed);
        true
    }

    /// Takes a reply of the store into account.
    fn learn(&self, counts: &[CounterState], batch: &Batch, now: Timestamp, steady: SteadyTime) {
        if self.own.is_draining.load(Relaxed) {
            return;
        }
        let mut slices = lock(&self.own.slices);
        for group in descriptors(batch) {
            let (name, spec) = (descriptor_name(batch, &group), batch.spec(group.start));
            let counts = &counts[group.clone()];
            let is_of_store = |count: &CounterState| !count.is_cached && !count.is_degraded;
            if !counts.iter().all(is_of_store) {
                continue;
            }
            if !slices.contains_key(name) {
                if self.all.bytes.load(Relaxed) >= MAX_BYTES {
                    continue;
                }
                slices.insert(name.into(), HeldSlice::new(&self.all, steady));
            }
            let Some(held) = slices.get_mut(name) else {
                continue;
            };
            if !held.has(batch, group.clone()) {
                // A window has ended, or the rule has changed.
                let free = held.slice.turn();
                if free > 0 {
                    self.return_hits(held.back(free), now);
                }
                let increments = batch.range(group.clone()).zip(counts);
                let counters = increments.map(|(Increment { key, spec }, count)| SlicedCounter {
                    key: key.into(),
                    spec,
                    held: count.after,
                });
                held.set_counters(counters.collect(), name.len(), &self.all);
            }
            held.slice.demand(spec.hits, &held.policy, steady);
            let is_charged = counts.iter().all(|count| count.is_charged);
            held.see(counts, if is_charged { spec.hits } else { 0 });
            self.renew(held, now, steady);
        }
    }

    /// Asks for more hits if it is time to, and gives back what is too much.
    fn renew(&self, held: &mut HeldSlice, now: Timestamp, steady: SteadyTime) {
        if let Some(surplus) = held.slice.surplus(&held.policy, steady) {
            self.return_hits(held.back(surplus), now);
        }
        if self.own.is_draining.load(Relaxed) {
            return;
        }
        let Some(hits) = held.slice.ask(&held.policy) else {
            return;
        };
        self.all.stats.asked.fetch_add(1, Relaxed);
        let asked = increments(held.increments(), Operation::Add(Charge::Admitted), hits);
        let (store, own, all) = (self.store.clone(), self.own.clone(), self.all.clone());
        let resets = own.resets.load(Relaxed);
        let is_taken = self.returns.take(async move {
            let mut counts = CounterStates::new();
            let deadline = Deadline::of_store();
            let result = store.add_into(&mut counts, &asked, now, &deadline).await;
            // Without an answer they may be charged, and are not used.
            let is_charged = result.is_ok()
                && counts
                    .iter()
                    .zip(asked.all_specs())
                    .all(|(count, spec)| count.was_counted(spec));
            if !is_charged {
                all.stats.refused.fetch_add(1, Relaxed);
            }
            let left = own.answered(&asked, &counts, result.is_ok(), is_charged.then_some(hits));
            if is_charged {
                all.stats.taken_hits.fetch_add(hits, Relaxed);
            }
            // Of a counter that was reset nothing is given back that was charged before.
            if let Some(left) = left.filter(|_| own.resets.load(Relaxed) == resets) {
                give_back(&store, &all, left, now).await;
            }
        });
        if !is_taken {
            held.slice.answered(0);
        }
    }

    fn return_hits(&self, hits: Batch, now: Timestamp) {
        let (store, all) = (self.store.clone(), self.all.clone());
        self.returns
            .take(async move { give_back(&store, &all, hits, now).await });
    }
}

impl WorkerSlices {
    /// Takes the answer to an ask over: `hits` if they are charged. Returns what has to be given back, because the
    /// slice has ended meanwhile.
    fn answered(
        &self,
        asked: &Batch,
        counts: &[CounterState],
        is_known: bool,
        hits: Option<u64>,
    ) -> Option<Batch> {
        let mut slices = lock(&self.slices);
        let range = 0..asked.len();
        let held = slices.get_mut(descriptor_name(asked, &range));
        let is_draining = self.is_draining.load(Relaxed);
        let Some(held) = held.filter(|held| !is_draining && held.has(asked, range)) else {
            drop(slices);
            return hits.map(|hits| increments(asked.iter(), Operation::GiveBack, hits));
        };
        held.slice.answered(hits.unwrap_or(0));
        if is_known {
            held.see(counts, hits.unwrap_or(0));
        }
        None
    }

    /// Takes out what is not needed, and forgets slices that are not used.
    fn sweep(&self, steady: SteadyTime) -> Vec<Batch> {
        let mut slices = lock(&self.slices);
        let mut surplus = Vec::new();
        slices.retain(|_, held| {
            if let Some(hits) = held.slice.surplus(&held.policy, steady) {
                surplus.push(held.back(hits));
            }
            !held.slice.is_idle()
        });
        surplus
    }
}

/// Gives back hits to windows that have not ended at `now`.
async fn give_back<S: Store>(store: &S, all: &SliceTables, hits: Batch, now: Timestamp) {
    let mut live = Batch::default();
    let mut expired = 0;
    for increment in hits.iter() {
        if increment.expires_at > now {
            live.append_one(increment);
        } else {
            expired += increment.hits;
        }
    }
    all.stats.expired_hits.fetch_add(expired, Relaxed);
    if live.is_empty() {
        return;
    }
    let returned: u64 = live.all_specs().map(|spec| spec.hits).sum();
    // Otherwise they stay charged until their window ends.
    match store.add(&live, now).await {
        Ok(_) => all.stats.returned_hits.fetch_add(returned, Relaxed),
        Err(_) => all.stats.expired_hits.fetch_add(returned, Relaxed),
    };
}

/// The increments of each descriptor of a request.
fn descriptors(batch: &Batch) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let descriptor = batch.all_specs().nth(start)?.descriptor;
        let own = batch.all_specs().skip(start);
        let count = own.take_while(|spec| spec.descriptor == descriptor).count();
        let group = start..start + count;
        start = group.end;
        Some(group)
    })
}

/// The part of the keys that names the descriptor of these increments.
fn descriptor_name<'b>(batch: &'b Batch, group: &Range<usize>) -> &'b [u8] {
    let key = batch.key(group.start);
    let length = batch.spec(group.start).descriptor_bytes as usize;
    key.get(..length).unwrap_or(key)
}

impl<S: Store + Clone> Store for Slices<S> {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        if let Some(store) = self.beside(batch) {
            return store.add_into(counts, batch, now, deadline).await;
        }
        let steady = deadline.steady();
        if self.admit(counts, batch, now, steady) {
            return Ok(());
        }
        self.store.add_into(counts, batch, now, deadline).await?;
        self.learn(counts, batch, now, steady);
        Ok(())
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }
}
