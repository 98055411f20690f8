//! A fleet of replicas and the shards of a Redis, event by event.
//!
//! A worker takes all calls that wait for it as one batch, and sends the decisions of a batch to each shard on one
//! connection, where one pipeline is under way at a time: what comes meanwhile is the next one. A shard runs one
//! pipeline after the other. A batch of n takes the measured time of n calls that are there together.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet, VecDeque},
};

use fastrand::Rng;

/// Most calls in a batch: no more were measured.
const MOST: usize = 64;
/// Processor time of a call in microseconds, alone and with 63 others: the table in docs/run/sizing.md.
const MEMORY: Measured = Measured(24.47, 5.16);
const REDIS: Measured = Measured(48.47, 6.84);
/// That of Redis itself.
const REDIS_SERVER: Measured = Measured(16.41, 2.23);
/// From a replica to a shard or back, in microseconds. An assumption: two machines in one zone.
const HOP: f64 = 50.0;
/// A decision waits this long for Redis by default, and a shard counts as lost after twice that time.
const TIMEOUT: f64 = 100_000.0;
const LOST_AFTER: f64 = 200_000.0;
/// A hot key stands for itself; all others are numbers below this.
const KEYS: u64 = 1_000_000;
const HOT: u64 = KEYS;

/// The fleet and its load. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) replicas: usize,
    pub(crate) shards: usize,
    /// Of the whole fleet.
    pub(crate) decisions_per_second: f64,
    /// The share of decisions that ask for one key.
    pub(crate) hot: f64,
    /// The first shard is away from a third of the time on, for this long.
    pub(crate) away: f64,
    /// The share of replicas that have just been replaced, and know no key in Redis yet.
    pub(crate) new: f64,
    pub(crate) duration: f64,
}

/// Waiting times, and how busy each part was.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) waits: Vec<f64>,
    pub(crate) without_store: usize,
    /// The share of the time that workers are busy on average, and the busiest one.
    pub(crate) worker: f64,
    pub(crate) busiest_worker: f64,
    pub(crate) shard: f64,
    pub(crate) busiest_shard: f64,
    /// Decisions in a pipeline, on average.
    pub(crate) pipeline: f64,
}

/// The time of a batch is a fixed part and a part for each call.
#[derive(Clone, Copy)]
struct Price {
    batch: f64,
    each: f64,
}

/// The time of a call that is alone, and of one among [`MOST`].
#[derive(Clone, Copy)]
struct Measured(f64, f64);

impl Measured {
    fn price(self) -> Price {
        let (Self(alone, together), most) = (self, MOST as f64);
        let each = (most * together - alone) / (most - 1.0);
        Price {
            batch: alone - each,
            each,
        }
    }
}

impl Price {
    fn of(self, calls: f64) -> f64 {
        self.batch + self.each * calls
    }
}

#[derive(Clone, Copy)]
struct Call {
    began: f64,
    key: u64,
}

#[derive(Default)]
struct Worker {
    waiting: VecDeque<Call>,
    /// Empty if it has nothing to do.
    batch: Vec<Call>,
    used: f64,
    /// A new replica learns which keys are there; `None` if it knows all.
    known: Option<HashSet<u64>>,
}

/// A connection of a worker to a shard.
#[derive(Default)]
struct Link {
    waiting: Vec<Call>,
    under_way: Vec<Call>,
}

#[derive(Default)]
struct Shard {
    free_at: f64,
    used: f64,
}

/// In the order of a tie: nothing depends on it but the repeatability.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    WorkerDone(usize),
    PipelineDone(usize),
    GivesUp(usize),
}

/// A time that can be compared.
#[derive(Clone, Copy, PartialEq)]
struct At(f64);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

struct Fleet {
    scene: Scene,
    call: Price,
    trip: Price,
    shard_price: Price,
    rng: Rng,
    events: BinaryHeap<Reverse<(At, u64, Event)>>,
    number: u64,
    workers: Vec<Worker>,
    /// By worker, then by shard.
    links: Vec<Link>,
    shards: Vec<Shard>,
    pipelines: usize,
    sent: usize,
    outcome: Outcome,
}

/// Simulates a scene. Equal seeds give equal outcomes.
pub(crate) fn simulate(scene: Scene, seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let mut workers: Vec<Worker> = (0..scene.replicas).map(|_| Worker::default()).collect();
    for worker in &mut workers {
        worker.known = (rng.f64() < scene.new).then(HashSet::new);
    }
    let mut fleet = Fleet {
        call: MEMORY.price(),
        trip: Measured(REDIS.0 - MEMORY.0, REDIS.1 - MEMORY.1).price(),
        shard_price: REDIS_SERVER.price(),
        rng,
        events: BinaryHeap::new(),
        number: 0,
        workers,
        links: (0..scene.replicas * scene.shards)
            .map(|_| Link::default())
            .collect(),
        shards: (0..scene.shards).map(|_| Shard::default()).collect(),
        pipelines: 0,
        sent: 0,
        outcome: Outcome::default(),
        scene,
    };
    fleet.at(0.0, Event::Arrival);
    while let Some(Reverse((At(now), _, event))) = fleet.events.pop() {
        match event {
            Event::Arrival => fleet.arrive(now),
            Event::WorkerDone(worker) => fleet.worker_done(worker, now),
            Event::PipelineDone(link) => fleet.pipeline_done(link, now, true),
            Event::GivesUp(link) => fleet.pipeline_done(link, now, false),
        }
    }
    fleet.finish()
}

impl Fleet {
    fn at(&mut self, time: f64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((At(time), self.number, event)));
    }

    /// Sends one call to a random replica, and plans the next one.
    fn arrive(&mut self, now: f64) {
        let key = if self.rng.f64() < self.scene.hot {
            HOT
        } else {
            self.rng.u64(..KEYS)
        };
        let worker = self.rng.usize(..self.workers.len());
        self.workers[worker]
            .waiting
            .push_back(Call { began: now, key });
        self.work(worker, now);
        let next = now - (1.0 - self.rng.f64()).ln() * 1e6 / self.scene.decisions_per_second;
        if next < self.scene.duration {
            self.at(next, Event::Arrival);
        }
    }

    /// Lets a worker begin with all that waits, unless it is busy.
    fn work(&mut self, number: usize, now: f64) {
        let has_redis = !self.shards.is_empty();
        let worker = &mut self.workers[number];
        if !worker.batch.is_empty() || worker.waiting.is_empty() {
            return;
        }
        let most = worker.waiting.len().min(MOST);
        worker.batch = worker.waiting.drain(..most).collect();
        let calls = most as f64;
        let mut time = self.call.of(calls);
        if has_redis {
            // Reading the replies is work, too: it is charged here.
            time += self.trip.of(calls);
        }
        worker.used += time;
        self.at(now + time, Event::WorkerDone(number));
    }

    fn worker_done(&mut self, number: usize, now: f64) {
        for call in std::mem::take(&mut self.workers[number].batch) {
            if self.shards.is_empty() {
                self.outcome.waits.push(now - call.began);
                continue;
            }
            // Slots are spread evenly, and so are numbers. The hot key is on the first shard.
            let spread = usize::try_from(call.key % self.shards.len() as u64);
            let shard = match call.key {
                HOT => 0,
                _ => spread.expect("a remainder is below the number of shards"),
            };
            let link = number * self.shards.len() + shard;
            self.links[link].waiting.push(call);
            self.send(link, now);
        }
        self.work(number, now);
    }

    /// The time in which the first shard does not answer.
    fn is_away(&self, shard: usize, now: f64) -> bool {
        let begins = self.scene.duration / 3.0;
        shard == 0 && (begins..begins + self.scene.away).contains(&now)
    }

    fn is_lost(&self, shard: usize, now: f64) -> bool {
        self.is_away(shard, now) && now > self.scene.duration / 3.0 + LOST_AFTER
    }

    /// Sends all that waits for a connection, unless a pipeline is under way there.
    fn send(&mut self, number: usize, now: f64) {
        let shard = number % self.scene.shards;
        let is_away = self.is_away(shard, now);
        let is_lost = self.is_lost(shard, now);
        let link = &mut self.links[number];
        if is_lost {
            for call in std::mem::take(&mut link.waiting) {
                self.outcome.without_store += 1;
                self.outcome.waits.push((now - call.began).min(TIMEOUT));
            }
            return;
        }
        if !link.under_way.is_empty() || link.waiting.is_empty() {
            return;
        }
        link.under_way = std::mem::take(&mut link.waiting);
        self.pipelines += 1;
        self.sent += link.under_way.len();
        if is_away {
            self.at(now + TIMEOUT, Event::GivesUp(number));
            return;
        }
        // All hits on one key in a pipeline are one command.
        let hot = link.under_way.iter().filter(|call| call.key == HOT).count();
        let mut commands = (link.under_way.len() - hot.saturating_sub(1)) as f64;
        if let Some(known) = &mut self.workers[number / self.scene.shards].known {
            // EXPIRE goes with the first hit on a key that the worker does not know.
            let first = link.under_way.iter();
            commands += first.filter(|call| known.insert(call.key)).count() as f64;
        }
        let shard = &mut self.shards[shard];
        let time = self.shard_price.of(commands);
        shard.free_at = shard.free_at.max(now + HOP) + time;
        shard.used += time;
        let answered = shard.free_at + HOP;
        self.at(answered, Event::PipelineDone(number));
    }

    fn pipeline_done(&mut self, number: usize, now: f64, is_answered: bool) {
        for call in std::mem::take(&mut self.links[number].under_way) {
            let wait = now - call.began;
            // Each decision waits for its own deadline at most.
            if !is_answered || wait > TIMEOUT {
                self.outcome.without_store += 1;
            }
            self.outcome.waits.push(wait.min(TIMEOUT));
        }
        self.send(number, now);
    }

    fn finish(mut self) -> Outcome {
        let duration = self.scene.duration;
        let share = |used: Vec<f64>| {
            let most = used.iter().copied().fold(0.0, f64::max);
            (
                used.iter().sum::<f64>() / duration / used.len().max(1) as f64,
                most / duration,
            )
        };
        let workers = self.workers.iter().map(|worker| worker.used).collect();
        let shards = self.shards.iter().map(|shard| shard.used).collect();
        (self.outcome.worker, self.outcome.busiest_worker) = share(workers);
        (self.outcome.shard, self.outcome.busiest_shard) = share(shards);
        self.outcome.pipeline = self.sent as f64 / self.pipelines.max(1) as f64;
        self.outcome.waits.sort_by(f64::total_cmp);
        self.outcome
    }
}
