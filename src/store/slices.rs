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
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use super::{
    contract::{Deadline, Store, StoreError, StoreState},
    returns::{Returns, send_until_ended},
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
    foundation::{lock::lock, sample::SampleWriter},
};

/// The most bytes of all slices, and about what one takes without its keys.
pub(crate) const MAX_BYTES: usize = 4 << 20;
const SLICE_BYTES: usize = size_of::<HeldSlice>() + 2 * size_of::<Box<[u8]>>();

/// A store around a store, one for each worker.
#[derive(Clone, Debug)]
pub(crate) struct Slices<S> {
    store: S,
    own: Arc<Mutex<WorkerSlices>>,
    pub(crate) all: Arc<SliceTables>,
    returns: Returns,
    /// This worker's part of [`MAX_BYTES`].
    max_bytes: usize,
}

/// The slices of all workers.
#[derive(Debug, Default)]
pub(crate) struct SliceTables {
    all: Mutex<Vec<Arc<Mutex<WorkerSlices>>>>,
    /// How many workers of all replicas can hold slices, as far as known.
    holders: AtomicU64,
    /// How often slices were forgotten because counters were reset.
    resets: AtomicU64,
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
    held: HashMap<Box<[u8]>, HeldSlice, RandomState>,
    /// About the bytes of all slices.
    bytes: usize,
    /// Whether the process ends: there are no slices from then on.
    is_draining: bool,
    /// The calls of about the last half second, in places that descriptors share: most come too rarely for a slice, and
    /// need nothing else.
    calls: Box<[u8]>,
    sweeps: u64,
}

impl WorkerSlices {
    const PLACES: usize = 4096;
    const CALLS_HALVED_AFTER: u64 = 5;

    /// Counts a call of a descriptor. Returns whether a slice could pay.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "any part of a hash will do"
    )]
    fn call(&mut self, name: &[u8], policy: &SlicePolicy) -> bool {
        let place = self.held.hasher().hash_one(name) as usize % Self::PLACES;
        self.calls[place] = self.calls[place].saturating_add(1);
        policy.may_pay(self.calls[place])
    }

    /// Takes out what is not needed, and forgets slices that are not used; or takes out all hits if the process ends.
    /// Returns them in few batches: a worker can give back only so many at a time.
    fn sweep(&mut self, steady: SteadyTime) -> Vec<Batch> {
        /// The most increments of one, about half a pipeline.
        const MOST: usize = 500;
        self.sweeps += 1;
        if self.sweeps.is_multiple_of(Self::CALLS_HALVED_AFTER) {
            self.calls.iter_mut().for_each(|calls| *calls /= 2);
        }
        let mut back: Vec<Batch> = Vec::new();
        self.bytes = 0;
        self.held.retain(|name, held| {
            let hits = match self.is_draining {
                true => Some(held.slice.end()),
                false => held.slice.surplus(&held.policy, steady),
            };
            let hits = hits.filter(|hits| *hits > 0).map(|hits| held.back(hits));
            match (hits, back.last_mut()) {
                (None, _) => {}
                (Some(hits), Some(last)) if last.len() < MOST => last.append(&hits),
                (Some(hits), _) => back.push(hits),
            }
            let is_kept = !self.is_draining && !held.slice.is_idle(&held.policy, steady);
            self.bytes += if is_kept { held.bytes(name) } else { 0 };
            is_kept
        });
        back
    }

    /// Takes the answer to an ask over: the counts if there are any, and the hits that are charged. Returns what has to
    /// be given back, because the slice has ended meanwhile.
    fn answered(
        &mut self,
        asked: &Batch,
        counts: Option<&[CounterState]>,
        charged: u64,
    ) -> Option<Batch> {
        let held = self.held.get_mut(asked.increment(0).identity());
        let Some(held) = held.filter(|held| held.has(asked.iter())) else {
            return (charged > 0).then(|| increments(asked.iter(), Operation::GiveBack, charged));
        };
        held.slice.answered(counts.map(|_| charged));
        if let Some(counts) = counts {
            held.see(counts, charged);
        }
        None
    }
}

/// The slice of a descriptor.
#[derive(Debug)]
struct HeldSlice {
    slice: Slice,
    policy: SlicePolicy,
    counters: Box<[SlicedCounter]>,
}

/// One of the counters that a slice is of.
#[derive(Debug)]
struct SlicedCounter {
    key: Box<[u8]>,
    spec: IncrementSpec,
    /// The hits that it held when the store answered last, with those that are free.
    held: u64,
}

impl HeldSlice {
    /// Without counters, which a reply of the store brings.
    fn new(policy: SlicePolicy, now: SteadyTime) -> Self {
        Self {
            slice: Slice::new(now),
            policy,
            counters: Box::default(),
        }
    }

    /// About its bytes.
    fn bytes(&self, name: &[u8]) -> usize {
        let of_counter = |own: &SlicedCounter| size_of::<SlicedCounter>() + own.key.len();
        SLICE_BYTES + name.len() + self.counters.iter().map(of_counter).sum::<usize>()
    }

    /// Whether these are increments of its counters, under the limits for which it was charged.
    fn has<'b>(&self, increments: impl Iterator<Item = Increment<'b>>) -> bool {
        let own = self.counters.iter();
        let own = own.map(|own| (own.spec.limit, &*own.key));
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

    /// The policy for a descriptor with these increments.
    fn policy<'b>(&self, increments: impl Iterator<Item = Increment<'b>>) -> SlicePolicy {
        let least = |(period, limit): (u64, u64), one: Increment<'_>| {
            (period.min(one.period_millis), limit.min(one.limit))
        };
        let (period_millis, limit) = increments.fold((u64::MAX, u64::MAX), least);
        let holders = u32::try_from(self.holders.load(Relaxed)).unwrap_or(u32::MAX);
        SlicePolicy::new(period_millis, limit, holders)
    }

    /// The hits of a counter that the workers of this process hold and have not used.
    pub(crate) fn free(&self, key: &[u8], descriptor_bytes: u32) -> u64 {
        let name = key.get(..descriptor_bytes as usize).unwrap_or(key);
        let of_worker = |worker: &Arc<Mutex<WorkerSlices>>| {
            let slices = lock(worker);
            let held = slices.held.get(name);
            let held = held.filter(|held| held.counters.iter().any(|own| &*own.key == key));
            held.map_or(0, |held| held.slice.free())
        };
        lock(&self.all).iter().map(of_worker).sum()
    }

    /// Forgets the slices of a counter that is reset: their hits are not given back to it.
    pub(crate) fn forget(&self, key: &[u8], descriptor_bytes: u32) {
        let name = key.get(..descriptor_bytes as usize).unwrap_or(key);
        self.resets.fetch_add(1, Relaxed);
        for worker in lock(&self.all).iter() {
            lock(worker).held.remove(name);
        }
    }

    pub(crate) fn samples(&self, list: &mut SampleWriter<'_>) {
        let stats = &self.stats;
        list.total("tollgate.slices_asked_total", &stats.asked);
        list.total("tollgate.slices_refused_total", &stats.refused);
        list.total("tollgate.slice_passes_total", &stats.passes);
        for (event, total) in [
            ("taken", &stats.taken_hits),
            ("returned", &stats.returned_hits),
            ("expired", &stats.expired_hits),
        ] {
            let name = "tollgate.slice_hits_total";
            list.counter(name, &[("event", event)], total.load(Relaxed));
        }
        let free = |worker: &Arc<Mutex<WorkerSlices>>| -> u64 {
            let slices = lock(worker);
            slices.held.values().map(|held| held.slice.free()).sum()
        };
        let free = lock(&self.all).iter().map(free).sum();
        list.gauge("tollgate.slice_free_hits", &[], free);
    }
}

/// Whether a rule with slices charges these hits if the request passes.
fn is_sliced(spec: &IncrementSpec) -> bool {
    spec.is_sliced && spec.hits > 0 && spec.operation == Operation::Add(Charge::Admitted)
}

impl<S: Store + Clone> Slices<S> {
    /// The slices of one of so many `workers`.
    pub(crate) fn new(store: S, all: Arc<SliceTables>, returns: Returns, workers: usize) -> Self {
        let own = WorkerSlices {
            calls: vec![0; WorkerSlices::PLACES].into(),
            ..WorkerSlices::default()
        };
        let own = Arc::new(Mutex::new(own));
        lock(&all.all).push(own.clone());
        Self {
            store,
            own,
            all,
            returns,
            max_bytes: MAX_BYTES / workers.max(1),
        }
    }

    /// Gives back what is not used. It never ends.
    pub(crate) async fn keep_sweeping(self, now: impl Fn() -> Timestamp) -> Infallible {
        loop {
            tokio::time::sleep(SlicePolicy::SWEEP).await;
            let surplus = lock(&self.own).sweep(Instant::now().into());
            for hits in surplus {
                self.return_hits(hits, now());
            }
        }
    }

    /// Gives back all free hits, and asks for none any more. Answers that are still on their way are returned by work
    /// of [`Returns`].
    pub(crate) async fn drain(self, now: impl Fn() -> Timestamp) {
        lock(&self.own).is_draining = true;
        let free = lock(&self.own).sweep(Instant::now().into());
        for hits in free {
            self.give_back(hits, now()).await;
        }
    }

    /// Admits a request from slices and puts the counts into `counts`, if it can. `is_whole` is whether all of its hits
    /// are sliced. Otherwise the store is to be asked; returns whether it may add the hits before they are judged.
    fn admit(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        is_whole: bool,
        now: Timestamp,
        steady: SteadyTime,
    ) -> Option<bool> {
        let held_slices = &mut lock(&self.own).held;
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
                return Some(false);
            }
            let held = held_slices.get(name);
            match held.filter(|held| held.has(batch.range(group.clone()))) {
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
            return Some(may_add_first);
        }
        for group in &groups {
            let Some(held) = held_slices.get_mut(descriptor_name(batch, group)) else {
                return Some(false);
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
        None
    }

    /// Judges a request whose hits were added first, by the counts after them, and gives back those that are refused.
    fn judge(&self, counts: &mut CounterStates, batch: &Batch, now: Timestamp) {
        let mut judged = batch.all_specs().zip(&*counts);
        if !judged.any(|(spec, count)| count.is_over(spec.limit, spec.added())) {
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
                send_until_ended(&store, &refused, now, StoreError::is_unsent).await;
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
        let slices = &mut *lock(&self.own);
        let is_of_store = |count: &CounterState| !count.is_cached && !count.is_degraded;
        if slices.is_draining || !counts.iter().all(is_of_store) {
            return;
        }
        // The descriptors whose hits were charged, each with whether it is hot.
        let mut charged = SmallVec::<[(Range<usize>, bool); 4]>::new();
        let mut may_serve = is_whole;
        for group in descriptors(batch) {
            let (name, spec) = (descriptor_name(batch, &group), batch.spec(group.start));
            if !is_sliced(spec) {
                continue;
            }
            let (increments, counts) = (batch.range(group.clone()), &counts[group.clone()]);
            let held = match slices.held.get_mut(name) {
                Some(held) => held,
                None => {
                    let policy = self.all.policy(increments.clone());
                    let mut each = increments.clone().zip(counts);
                    let is_roomy = each.all(|(increment, count)| {
                        count.is_charged && count.after <= increment.limit / 2
                    });
                    // One that is called seldom, and whose hits can be added before they are judged, needs no slice.
                    let is_needed = slices.call(name, &policy) || !is_roomy;
                    if !is_needed || slices.bytes >= self.max_bytes {
                        may_serve = false;
                        continue;
                    }
                    let held = slices.held.entry(name.into());
                    held.or_insert_with(|| HeldSlice::new(policy, steady))
                }
            };
            if !held.has(increments.clone()) {
                // A window has ended, or the rule has changed.
                let free = held.slice.turn();
                if free > 0 {
                    self.return_hits(held.back(free), now);
                }
                held.policy = self.all.policy(increments.clone());
                let counters = increments
                    .zip(counts)
                    .map(|(increment, count)| SlicedCounter {
                        key: increment.key.into(),
                        spec: increment.spec,
                        held: count.after,
                    });
                held.counters = counters.collect();
                slices.bytes += held.bytes(name);
            }
            let is_charged = counts.iter().all(|count| count.is_charged);
            held.slice.call(is_charged, &held.policy, steady);
            held.see(counts, if is_charged { spec.hits } else { 0 });
            may_serve &= is_charged;
            charged.push((group, held.slice.is_hot(&held.policy)));
        }
        for (index, (group, _)) in charged.iter().enumerate().filter(|_| may_serve) {
            // Otherwise such a request asks the store anyway, whatever slice this descriptor has.
            let mut others = charged.iter().enumerate().filter(|(at, _)| *at != index);
            if others.all(|(_, (_, is_hot))| *is_hot)
                && let Some(held) = slices.held.get_mut(descriptor_name(batch, group))
            {
                self.serve(held, batch.spec(group.start).hits, now, steady);
            }
        }
    }

    /// Takes charged hits into account that a slice can serve, gives back what is too much, and asks for more if it is
    /// time to. The answer is used or returned, however late it comes.
    fn serve(&self, held: &mut HeldSlice, hits: u64, now: Timestamp, steady: SteadyTime) {
        held.slice.demand(hits, &held.policy, steady);
        if let Some(surplus) = held.slice.surplus(&held.policy, steady) {
            self.return_hits(held.back(surplus), now);
        }
        let Some(hits) = held.slice.ask(&held.policy) else {
            return;
        };
        self.all.stats.asked.fetch_add(1, Relaxed);
        let asked = increments(held.increments(), Operation::Add(Charge::Admitted), hits);
        let (slices, resets) = (self.clone(), self.all.resets.load(Relaxed));
        let work = async move { slices.ask(asked, hits, resets, now).await };
        let is_taken = self.returns.take(work);
        if !is_taken {
            held.slice.answered(Some(0));
        }
    }

    /// Asks for more hits, after so many `resets`.
    async fn ask(&self, asked: Batch, hits: u64, resets: u64, now: Timestamp) {
        // However late its answer comes, it is followed.
        let deadline = Deadline {
            is_for_lease: true,
            ..Deadline::of_store_itself()
        };
        let mut counts = CounterStates::new();
        let answer = self.store.add_into(&mut counts, &asked, now, &deadline);
        let counts = answer.await.ok().map(|()| counts);
        let is_charged = counts.as_ref().is_some_and(|counts| {
            let mut counts = counts.iter().zip(asked.all_specs());
            counts.all(|(count, spec)| count.was_counted(spec))
        });
        let charged = if is_charged { hits } else { 0 };
        let stats = &self.all.stats;
        stats.refused.fetch_add(u64::from(!is_charged), Relaxed);
        stats.taken_hits.fetch_add(charged, Relaxed);
        let left = lock(&self.own).answered(&asked, counts.as_deref(), charged);
        // Of a counter that was reset nothing is given back that was charged before.
        if let Some(left) = left.filter(|_| self.all.resets.load(Relaxed) == resets) {
            self.give_back(left, now).await;
        }
    }

    fn return_hits(&self, hits: Batch, now: Timestamp) {
        let slices = self.clone();
        self.returns
            .take(async move { slices.give_back(hits, now).await });
    }

    /// Gives back hits of slices to the windows that have not ended.
    async fn give_back(&self, hits: Batch, now: Timestamp) {
        let sum = |batch: &Batch| batch.all_specs().map(|spec| spec.hits).sum::<u64>();
        let mut live = Batch::default();
        for increment in hits.iter().filter(|one| one.expires_at > now) {
            live.append_one(increment);
        }
        let is_taken = send_until_ended(&self.store, &live, now, StoreError::is_unsent).await;
        let returned = if is_taken { sum(&live) } else { 0 };
        let stats = &self.all.stats;
        stats.returned_hits.fetch_add(returned, Relaxed);
        stats.expired_hits.fetch_add(sum(&hits) - returned, Relaxed);
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
    batch.increment(group.start).identity()
}

impl<S: Store + Clone> Store for Slices<S> {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        if !batch.all_specs().any(is_sliced) {
            // Boxed, or the future of every call would reserve room for the way to Redis.
            return Box::pin(self.store.add_into(counts, batch, now, deadline)).await;
        }
        let steady = deadline.steady();
        let is_whole = batch.all_specs().all(is_sliced);
        let Some(may_add_first) = self.admit(counts, batch, is_whole, now, steady) else {
            return Ok(());
        };
        Box::pin(async {
            if may_add_first {
                let mut first = Box::<Batch>::default();
                first.append(batch);
                first.add_first();
                self.store.add_into(counts, &first, now, deadline).await?;
                self.judge(counts, batch, now);
            } else {
                self.store.add_into(counts, batch, now, deadline).await?;
            }
            self.learn(counts, batch, is_whole, now, steady);
            Ok(())
        })
        .await
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }
}
