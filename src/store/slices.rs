//! Admits requests of hot counters from slices: hits that this worker charged in the store in advance. The limits of
//! such a rule stay exact (`accuracy: exact-leased`).
//!
//! Either every descriptor of a request is admitted from slices, or the store is asked for all of them. Where their
//! counters have ample room, it adds the hits before they are judged, as those of a rule without slices: one increment
//! for all calls of a pipeline. The worker judges the counts that come back, and gives back hits that are refused.
//! Elsewhere the store looks first, so that the last hits of a limit are counted exactly.
//!
//! Slices are asked for and given back by the worker's [`Returns`], never by a request. A slice is of all counters of
//! its descriptor together: it ends with the first window of its limits, and with a reload that changes a key or a
//! limit of its descriptor. What it has left goes back to the windows that go on.

use std::{
    collections::HashMap,
    convert::Infallible,
    hash::BuildHasher,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use super::{
    contract::{Deadline, Store, StoreError, StoreState},
    returns::{self, Returns},
    split::overcharged,
};
use crate::{
    core::{
        counter::{
            Batch, Charge, CounterState, CounterStates, Enforcement, Increment, IncrementSpec,
            Operation,
        },
        lease::slice::{Slice, SlicePolicy, may_add_first_unknown},
        limit::OnStoreLoss,
        window::{SteadyTime, Timestamp},
    },
    foundation::{lock::lock, object_pool::Pooled, sample::SampleWriter},
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
    calls: RecentCalls,
}

/// The calls of about the last half second, in places that descriptors share: most come too rarely for a slice, and
/// need nothing else.
#[derive(Debug)]
struct RecentCalls {
    hasher: RandomState,
    places: Box<[AtomicU8]>,
    sweeps: AtomicU64,
}

impl Default for RecentCalls {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            places: std::iter::repeat_with(AtomicU8::default)
                .take(Self::PLACES)
                .collect(),
            sweeps: AtomicU64::new(0),
        }
    }
}

impl RecentCalls {
    const PLACES: usize = 4096;
    const HALVED_AFTER: u64 = 5;

    /// Counts a call of a descriptor. Returns whether a slice could pay.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "any part of a hash will do"
    )]
    fn add(&self, name: &[u8], policy: &SlicePolicy) -> bool {
        let place = &self.places[self.hasher.hash_one(name) as usize % Self::PLACES];
        // Only the worker's own thread counts calls.
        let calls = place.load(Relaxed).saturating_add(1);
        place.store(calls, Relaxed);
        policy.may_pay(calls)
    }

    /// Is called every [`SlicePolicy::SWEEP`].
    fn sweep(&self) {
        if (self.sweeps.fetch_add(1, Relaxed) + 1).is_multiple_of(Self::HALVED_AFTER) {
            for place in &self.places {
                place.store(place.load(Relaxed) / 2, Relaxed);
            }
        }
    }
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
            policy: tables.policy(0, 0),
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
        let limits = counters.iter().map(|counter| counter.spec.limit);
        self.policy = tables.policy(periods.min().unwrap_or(0), limits.min().unwrap_or(0));
        self.counters = counters;
    }

    /// Whether these are increments of its counters, under the limits for which it was charged.
    fn has(&self, batch: &Batch, range: Range<usize>) -> bool {
        let own = self.counters.iter();
        let own = own.map(|own| (own.spec.limit, &*own.key));
        let increments = batch.range(range);
        own.eq(increments.map(|increment| (increment.limit, increment.key)))
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

    fn policy(&self, window_millis: u64, limit: u64) -> SlicePolicy {
        let holders = u32::try_from(self.holders.load(Relaxed)).unwrap_or(u32::MAX);
        SlicePolicy::new(window_millis, limit, holders)
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

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From slices.
    Slices,
    /// By a store that adds the hits before they are judged.
    AddFirst,
    /// By a store that looks first.
    Look,
}

/// Whether a rule with slices charges these hits if the request passes.
fn is_sliced(spec: &IncrementSpec) -> bool {
    spec.is_sliced && spec.hits > 0 && spec.operation == Operation::Add(Charge::Admitted)
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

    /// The store that answers a request in which no hits are sliced.
    #[inline]
    pub(super) fn beside(&self, batch: &Batch) -> Option<&S> {
        (!batch.all_specs().any(is_sliced)).then_some(&self.store)
    }

    /// A task that gives back what is not used. It never ends.
    pub(crate) fn sweeping(
        &self,
        now: impl Fn() -> Timestamp + Send + 'static,
    ) -> impl Future<Output = Infallible> + Send + 'static {
        let (store, own, all) = (self.store.clone(), self.own.clone(), self.all.clone());
        let returns = self.returns.clone();
        async move {
            loop {
                tokio::time::sleep(SlicePolicy::SWEEP).await;
                for surplus in own.sweep(Instant::now().into()) {
                    let (store, all, now) = (store.clone(), all.clone(), now());
                    returns.take(async move { all.give_back(&store, surplus, now).await });
                }
            }
        }
    }

    /// Gives back all free hits, and asks for none any more. Answers that are still on their way are returned by work
    /// of [`Returns`].
    pub(crate) fn drain(
        &self,
        now: impl Fn() -> Timestamp + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (store, own, all) = (self.store.clone(), self.own.clone(), self.all.clone());
        async move {
            own.is_draining.store(true, Relaxed);
            let held = std::mem::take(&mut *lock(&own.slices)).into_values();
            let free = held.filter_map(|mut held| {
                let free = held.slice.end();
                (free > 0).then(|| held.back(free))
            });
            for left in gathered(free) {
                all.give_back(&store, left, now()).await;
            }
        }
    }

    /// Admits a request from slices if it can, and puts the counts into `counts`. `is_whole` is whether all of its hits
    /// are sliced.
    fn admit(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        is_whole: bool,
        now: Timestamp,
        steady: SteadyTime,
    ) -> Way {
        let mut slices = lock(&self.own.slices);
        let mut groups = SmallVec::<[Range<usize>; 4]>::new();
        let (mut is_enough, mut may_add_first) = (is_whole, true);
        for group in descriptors(batch) {
            let spec = batch.spec(group.start);
            if !is_sliced(spec) {
                may_add_first &= batch.range(group).all(|increment| increment.is_plain());
                continue;
            }
            let name = descriptor_name(batch, &group);
            let is_same = |other: &Range<usize>| descriptor_name(batch, other) == name;
            if groups.iter().any(is_same) {
                return Way::Look;
            }
            let held = slices.get(name);
            match held.filter(|held| held.has(batch, group.clone())) {
                Some(held) => {
                    is_enough &= held.slice.free() >= spec.hits;
                    may_add_first &= held.slice.may_add_first(spec.hits, &held.policy);
                }
                None => {
                    is_enough = false;
                    let limits = batch.range(group.clone()).map(|increment| increment.limit);
                    let limit = limits.min().unwrap_or(0);
                    may_add_first &= may_add_first_unknown(spec.hits, limit);
                }
            }
            groups.push(group);
        }
        if !is_enough {
            return match may_add_first {
                true => Way::AddFirst,
                false => Way::Look,
            };
        }
        for group in &groups {
            let Some(held) = slices.get_mut(descriptor_name(batch, group)) else {
                return Way::Look;
            };
            let hits = batch.spec(group.start).hits;
            held.slice.call(true, &held.policy, steady);
            held.slice.admit(hits);
            let free = held.slice.free();
            let counters = held.counters.iter();
            let known = counters.map(|counter| counter.held.saturating_sub(free));
            counts.extend(known.map(CounterState::from));
            self.serve(held, hits, now, steady);
        }
        self.all.stats.passes.fetch_add(1, Relaxed);
        Way::Slices
    }

    /// Judges a request whose hits were added first, by the counts after them, and gives back those that are refused.
    fn judge(&self, counts: &mut CounterStates, batch: &Batch, now: Timestamp) {
        let is_over = |(spec, count): (&IncrementSpec, &CounterState)| {
            count.is_over(spec.limit, spec.added())
        };
        if !batch.all_specs().zip(&*counts).any(is_over) {
            return;
        }
        let mut refused = Batch::default();
        let back = overcharged(batch, counts, false);
        for ((increment, spec), count) in batch.iter().zip(back).zip(&*counts) {
            let Some(mut spec) = spec else { continue };
            if !count.is_degraded {
                // The store has them, and nothing else can give them back.
                spec.on_loss = OnStoreLoss::Error;
            }
            refused.append_one(Increment { spec, ..increment });
        }
        if !refused.is_empty() {
            let store = self.store.clone();
            self.returns.take(async move {
                give_back(&store, refused, now).await;
            });
        }
    }

    /// Takes a reply of the store into account.
    fn learn(
        &self,
        counts: &[CounterState],
        batch: &Batch,
        is_whole: bool,
        now: Timestamp,
        steady: SteadyTime,
    ) {
        let is_of_store = |count: &CounterState| !count.is_cached && !count.is_degraded;
        if self.own.is_draining.load(Relaxed) || !counts.iter().all(is_of_store) {
            return;
        }
        let mut slices = lock(&self.own.slices);
        // The descriptors whose hits were charged, each with whether it is hot.
        let mut charged = SmallVec::<[(Range<usize>, bool); 4]>::new();
        let mut may_serve = is_whole;
        for group in descriptors(batch) {
            let (name, spec) = (descriptor_name(batch, &group), batch.spec(group.start));
            if !is_sliced(spec) {
                continue;
            }
            let counts = &counts[group.clone()];
            let held = match slices.get_mut(name) {
                Some(held) => held,
                None if self.needs_no_slice(name, batch.range(group.clone()), counts)
                    || self.all.bytes.load(Relaxed) >= MAX_BYTES =>
                {
                    may_serve = false;
                    continue;
                }
                None => {
                    let new = || HeldSlice::new(&self.all, steady);
                    slices.entry(name.into()).or_insert_with(new)
                }
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
            let is_charged = counts.iter().all(|count| count.is_charged);
            held.slice.call(is_charged, &held.policy, steady);
            held.see(counts, if is_charged { spec.hits } else { 0 });
            if !is_charged {
                may_serve = false;
            } else if group.len() == batch.len() {
                // The only descriptor needs no other look-up.
                return self.serve(held, spec.hits, now, steady);
            } else {
                charged.push((group, held.slice.is_hot(&held.policy)));
            }
        }
        if !may_serve {
            return;
        }
        for (index, (group, _)) in charged.iter().enumerate() {
            // Otherwise such a request asks the store anyway, whatever slice this descriptor has.
            let mut others = charged.iter().enumerate().filter(|(at, _)| *at != index);
            if others.all(|(_, (_, is_hot))| *is_hot)
                && let Some(held) = slices.get_mut(descriptor_name(batch, group))
            {
                self.serve(held, batch.spec(group.start).hits, now, steady);
            }
        }
    }

    /// Counts a call of a descriptor. Returns whether it needs no slice: it is called rarely, and its hits can be added
    /// before they are judged, as its counters are at most half full.
    fn needs_no_slice<'b>(
        &self,
        name: &[u8],
        increments: impl Iterator<Item = Increment<'b>>,
        counts: &[CounterState],
    ) -> bool {
        let (mut period_millis, mut is_empty) = (u64::MAX, true);
        for (increment, count) in increments.zip(counts) {
            period_millis = period_millis.min(increment.period_millis);
            is_empty &= count.is_charged && count.after <= increment.limit / 2;
        }
        !self.own.calls.add(name, &self.all.policy(period_millis, 0)) && is_empty
    }

    /// Takes charged hits into account that a slice can serve, gives back what is too much, and asks for more if it is
    /// time to.
    fn serve(&self, held: &mut HeldSlice, hits: u64, now: Timestamp, steady: SteadyTime) {
        held.slice.demand(hits, &held.policy, steady);
        self.return_surplus(held, now, steady);
        self.ask(held, now);
    }

    /// Gives back what is too much.
    fn return_surplus(&self, held: &mut HeldSlice, now: Timestamp, steady: SteadyTime) {
        if let Some(surplus) = held.slice.surplus(&held.policy, steady) {
            self.return_hits(held.back(surplus), now);
        }
    }

    /// Asks for more hits if it is time to. The answer is used or returned, however late it comes.
    fn ask(&self, held: &mut HeldSlice, now: Timestamp) {
        if self.own.is_draining.load(Relaxed) {
            return;
        }
        let Some(hits) = held.slice.ask(&held.policy) else {
            return;
        };
        self.all.stats.asked.fetch_add(1, Relaxed);
        let asked = increments(held.increments(), Operation::Add(Charge::Admitted), hits);
        let store = self.store.clone();
        let (own, all) = (self.own.clone(), self.all.clone());
        let resets = own.resets.load(Relaxed);
        let is_taken = self.returns.take(async move {
            // However late its answer comes, it is followed.
            let deadline = Deadline {
                is_for_lease: true,
                ..Deadline::of_store_itself()
            };
            let mut counts = CounterStates::new();
            let answer = store.add_into(&mut counts, &asked, now, &deadline).await;
            let answer = answer.map(|()| counts);
            let is_charged = answer.as_ref().is_ok_and(|counts| {
                let mut counts = counts.iter().zip(asked.all_specs());
                counts.all(|(count, spec)| count.was_counted(spec))
            });
            let charged = if is_charged { hits } else { 0 };
            let stats = &all.stats;
            stats.refused.fetch_add(u64::from(!is_charged), Relaxed);
            stats.taken_hits.fetch_add(charged, Relaxed);
            let left = own.answered(&asked, answer.ok().as_deref(), charged);
            // Of a counter that was reset nothing is given back that was charged before.
            if let Some(left) = left.filter(|_| own.resets.load(Relaxed) == resets) {
                all.give_back(&store, left, now).await;
            }
        });
        if !is_taken {
            held.slice.answered(Some(0));
        }
    }

    fn return_hits(&self, hits: Batch, now: Timestamp) {
        let (store, all) = (self.store.clone(), self.all.clone());
        self.returns
            .take(async move { all.give_back(&store, hits, now).await });
    }
}

impl WorkerSlices {
    /// Takes the answer to an ask over: the counts if there are any, and the hits that are charged. Returns what has to
    /// be given back, because the slice has ended meanwhile.
    fn answered(
        &self,
        asked: &Batch,
        counts: Option<&[CounterState]>,
        charged: u64,
    ) -> Option<Batch> {
        let mut slices = lock(&self.slices);
        let range = 0..asked.len();
        let held = slices.get_mut(descriptor_name(asked, &range));
        let is_draining = self.is_draining.load(Relaxed);
        let Some(held) = held.filter(|held| !is_draining && held.has(asked, range)) else {
            drop(slices);
            return (charged > 0).then(|| increments(asked.iter(), Operation::GiveBack, charged));
        };
        held.slice.answered(counts.map(|_| charged));
        if let Some(counts) = counts {
            held.see(counts, charged);
        }
        None
    }

    /// Takes out what is not needed, and forgets slices that are not used.
    fn sweep(&self, steady: SteadyTime) -> Vec<Batch> {
        self.calls.sweep();
        let mut slices = lock(&self.slices);
        let mut surplus = Vec::new();
        slices.retain(|_, held| {
            if let Some(hits) = held.slice.surplus(&held.policy, steady) {
                surplus.push(held.back(hits));
            }
            !held.slice.is_idle(&held.policy, steady)
        });
        gathered(surplus.into_iter())
    }
}

/// All increments of `batches`, in few batches: a worker can give back only so many at a time.
fn gathered(batches: impl Iterator<Item = Batch>) -> Vec<Batch> {
    /// The most increments of one, about half a pipeline.
    const MOST: usize = 500;
    let mut all: Vec<Batch> = Vec::new();
    for batch in batches {
        match all.last_mut() {
            Some(last) if last.len() < MOST => last.append(&batch),
            _ => all.push(batch),
        }
    }
    all
}

impl SliceTables {
    /// Gives back hits of slices.
    async fn give_back<S: Store>(&self, store: &S, hits: Batch, now: Timestamp) {
        let all: u64 = hits.all_specs().map(|spec| spec.hits).sum();
        let returned = give_back(store, hits, now).await;
        self.stats.returned_hits.fetch_add(returned, Relaxed);
        self.stats.expired_hits.fetch_add(all - returned, Relaxed);
    }
}

/// Gives back hits to windows that have not ended at `now`. A store that is away is asked again until they have: what
/// was not sent is not lost. Returns how many hits the store took.
async fn give_back<S: Store>(store: &S, hits: Batch, now: Timestamp) -> u64 {
    let began = Instant::now();
    loop {
        let now = now.plus(began.elapsed());
        let mut live = Batch::default();
        for increment in hits.iter().filter(|one| one.expires_at > now) {
            live.append_one(increment);
        }
        if live.is_empty() {
            return 0;
        }
        match store.add(&live, now).await {
            Ok(_) => return live.all_specs().map(|spec| spec.hits).sum(),
            Err(error) if error.is_unsent() => returns::pause().await,
            // The store may have taken them. Otherwise they stay charged until their window ends.
            Err(_) => return 0,
        }
    }
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
        let is_whole = batch.all_specs().all(is_sliced);
        match self.admit(counts, batch, is_whole, now, steady) {
            Way::Slices => return Ok(()),
            Way::Look => self.store.add_into(counts, batch, now, deadline).await?,
            Way::AddFirst => {
                let mut first = Pooled::<Batch>::default();
                first.append(batch);
                first.add_first();
                self.store.add_into(counts, &first, now, deadline).await?;
                self.judge(counts, batch, now);
            }
        }
        self.learn(counts, batch, is_whole, now, steady);
        Ok(())
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }
}
