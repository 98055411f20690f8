//! The laws of every store. Each runs on memory, on real servers of four versions and on clusters of them, through
//! handles like those of the workers.

use std::{
    cell::Cell, collections::HashMap, convert::Infallible, num::NonZeroU32, sync::Arc,
    time::Duration,
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tokio::task::JoinSet;
use tollgate::{
    Address, Batch, Charge, ClientTls, CounterState, Entry, Hits, Identity, IncrementSpec,
    KnownTables, Limit, MemoryStore, Period, RedisOptions, RedisStore, Secret, Servers, Store as _,
    TimeSource, Timestamp, TopologyWatcher, Unit,
};

use crate::support::{cluster::Cluster, redis::Redis};

/// The store of the counters.
pub(crate) enum Backend {
    Memory(Arc<MemoryStore>),
    Redis(Redis),
    Cluster(Cluster),
}

/// A worker's handle for the store.
#[derive(Clone)]
pub(crate) enum Handle {
    Memory(Arc<MemoryStore>),
    Redis(RedisStore),
}

impl Handle {
    pub(crate) async fn counts(&self, batch: &Batch, now: Timestamp) -> Vec<CounterState> {
        let counts = match self {
            Self::Memory(store) => store.add(batch, now).await,
            Self::Redis(store) => store.add(batch, now).await,
        };
        counts.expect("the store answers").into_vec()
    }

    async fn add(&self, batch: &Batch, now: Timestamp) -> Vec<u64> {
        let counts = self.counts(batch, now).await;
        counts.iter().map(|count| count.after).collect()
    }
}

impl Backend {
    pub(crate) fn memory() -> Self {
        Self::Memory(Arc::new(MemoryStore::new(100_000)))
    }

    pub(crate) fn redis(program: &'static str) -> Self {
        Self::Redis(Redis::of(program))
    }

    /// Runs `work` with a handle of its own, like a worker: on one thread, with the store's tasks running alongside.
    pub(crate) fn open<T>(&self, work: impl AsyncFnOnce(Handle) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut beside = JoinSet::new();
            let handle = match self {
                Self::Memory(store) => Handle::Memory(store.clone()),
                Self::Redis(redis) => connect(redis.url(), &mut beside).await,
                Self::Cluster(cluster) => connect(cluster.url(), &mut beside).await,
            };
            work(handle).await
        })
    }

    /// The servers; none for a store in memory.
    fn nodes(&self) -> &[Redis] {
        match self {
            Self::Memory(_) => &[],
            Self::Redis(redis) => std::slice::from_ref(redis),
            Self::Cluster(cluster) => &cluster.nodes,
        }
    }

    /// Removes all counters of servers.
    pub(crate) fn clear(&self) {
        for node in self.nodes() {
            node.cli(&["FLUSHALL"]);
        }
    }

    /// Sets all counts of servers to -100, as earlier versions could leave them. Returns whether there are servers.
    pub(crate) fn set_below_zero(&self) -> bool {
        const SET: &str = "for _, key in ipairs(redis.call('KEYS', '*')) do \
             local below = string.gsub(redis.call('GET', key), '-?%d+$', '-100') \
             redis.call('SET', key, below, 'KEEPTTL') end";
        for node in self.nodes() {
            node.cli(&["EVAL", SET, "0"]);
        }
        !self.nodes().is_empty()
    }

    /// The number of counters.
    fn counters(&self) -> usize {
        match self {
            Self::Memory(store) => store.live_counters(),
            Self::Redis(redis) => redis.keys().len(),
            Self::Cluster(cluster) => cluster.key_count(),
        }
    }
}

/// A handle for the Redis at `url`; its tasks run in `beside`.
async fn connect(url: String, beside: &mut JoinSet<Infallible>) -> Handle {
    let patience = Duration::from_secs(10);
    let options = RedisOptions {
        key_prefix: String::new(),
        deadline: patience,
        lose_after: patience,
        jitter_secs: 0,
        clock: TimeSource::Local,
    };
    let address = Address {
        url: Secret::Text(url),
        kind: None,
        auth: None,
        sentinel_auth: None,
        timeout: patience,
        is_tls: false,
        sentinels_tls: None,
        tls: ClientTls::default(),
    };
    let servers = Servers::new(&address, Arc::default(), tollgate::now).unwrap();
    let (store, batchers) =
        RedisStore::new(&servers, &options, &KnownTables::default().new_worker(0));
    beside.spawn(TopologyWatcher::new(servers.clone(), &options).run());
    beside.spawn(batchers.run());
    let mut health = servers.health();
    // A cluster must be asked for its slots first.
    let well = health.wait_for(|is_well| *is_well);
    tokio::time::timeout(patience, well).await.unwrap().unwrap();
    Handle::Redis(store)
}

/// An operation on one counter.
#[derive(Clone, Debug)]
struct Step {
    value: Vec<u8>,
    hits: Hits,
    period: Period,
    limit: u64,
    now: Timestamp,
}

const NOW: Timestamp = Timestamp::from_secs(1_795_230_000);

fn step(value: impl AsRef<[u8]>, hits: Hits) -> Step {
    Step {
        value: value.as_ref().to_vec(),
        hits,
        period: Unit::Year.into(),
        limit: u32::MAX.into(),
        now: NOW,
    }
}

fn add(value: impl AsRef<[u8]>, hits: u64) -> Step {
    step(value, Hits::add(hits))
}

fn look(value: impl AsRef<[u8]>) -> Step {
    step(value, Hits::add(0))
}

fn give_back(value: impl AsRef<[u8]>, hits: u64) -> Step {
    step(value, Hits::give_back(hits))
}

impl Step {
    fn per(self, unit: Unit, multiplier: u32) -> Self {
        let period = Period::new(unit, NonZeroU32::new(multiplier).unwrap()).unwrap();
        Self { period, ..self }
    }

    fn within(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    fn at(self, now: Timestamp) -> Self {
        Self { now, ..self }
    }
}

/// Sends `steps` as one batch and returns the counts. If it `stops`, one increment above its limit stops those within
/// theirs.
async fn send_batch(handle: &Handle, steps: &[Step], stops: bool) -> Vec<u64> {
    let charge = if stops {
        Charge::Stopping
    } else {
        Charge::Always
    };
    let mut batch = Batch::default();
    let mut identity = Identity::default();
    for step in steps {
        let (key, value) = (&b"key"[..], &step.value[..]);
        identity.set(b"domain", &[Entry { key, value }], &[]);
        let limit = Limit::fixed(step.limit, step.period);
        let counting = IncrementSpec::charged(step.hits, charge);
        batch.push(&identity, &limit, step.now, counting);
    }
    let now = steps.first().map_or(NOW, |step| step.now);
    handle.add(&batch, now).await
}

async fn send(handle: &Handle, steps: &[Step]) -> Vec<u64> {
    send_batch(handle, steps, false).await
}

/// A batch, and the counts after it.
type Expected<'a> = (&'a [Step], &'a [u64]);

/// Sends batches one after the other and compares the counts after each.
#[track_caller]
fn check_batches(backend: &Backend, stop: bool, batches: &[Expected<'_>]) {
    let (sent, expected): (Vec<_>, Vec<_>) = batches.iter().copied().unzip();
    let counts = backend.open(async |handle| {
        let mut counts = Vec::new();
        for steps in sent {
            counts.push(send_batch(&handle, steps, stop).await);
        }
        counts
    });
    assert_eq!(counts, expected);
}

#[track_caller]
fn check<const N: usize>(backend: &Backend, batches: [Expected<'_>; N]) {
    check_batches(backend, false, &batches);
}

/// Makes a test of each law for each store. Starting a cluster takes long, so all laws share one; those in
/// `within_a_slot` are about several counters at once, which a cluster cannot guarantee.
macro_rules! on_all_stores {
    (everywhere: [$($law:ident)*] within_a_slot: [$($more:ident)*]) => {
        on_all_stores! { memory: $crate::store::Backend::memory(), $($law)* $($more)* }
        on_all_stores! { redis: $crate::store::Backend::redis("redis-server"), $($law)* $($more)* }
        on_all_stores! { redis_6_2: $crate::store::Backend::redis("redis-server-6.2"), $($law)* $($more)* }
        on_all_stores! { redis_8: $crate::store::Backend::redis("redis-server-8"), $($law)* $($more)* }
        on_all_stores! { valkey_9: $crate::store::Backend::redis("valkey-server-9"), $($law)* $($more)* }
        mod cluster {
            #[test] fn every_law_but_those_of_several_slots() { super::check_cluster("redis-server"); }
            #[test] fn every_law_on_redis_6_2() { super::check_cluster("redis-server-6.2"); }
            #[test] fn every_law_on_redis_8() { super::check_cluster("redis-server-8"); }
            #[test] fn every_law_on_valkey_9() { super::check_cluster("valkey-server-9"); }
        }
        fn check_cluster(program: &'static str) {
            let backend = $crate::store::Backend::Cluster(Cluster::of(program, 0));
            $(
                $law(&backend);
                backend.clear();
            )*
        }
    };
    ($store:ident: $backend:expr, $($law:ident)*) => {
        mod $store {
            $(#[test] fn $law() { super::$law(&$backend); })*
        }
    };
}
pub(crate) use on_all_stores;

on_all_stores! {
    everywhere: [
    a_batch_is_applied_in_order
    a_look_and_giving_back_make_no_counter
    a_count_below_zero_is_read_as_0_and_the_next_hit_counts_from_there
    the_most_hits_twice_stay_above_every_limit
    periods_have_counters_of_their_own
    windows_have_counters_of_their_own
    any_bytes_of_any_length_are_a_value
    a_hundred_counters_in_one_batch
    sixty_four_adders_get_every_count_once
    ]
    within_a_slot: [
    one_above_its_limit_stops_the_others
    the_most_hits_twice_leave_the_counters_beside_them_alone
    sixty_four_adders_that_stop_leave_the_limit_full
    any_history_is_that_of_a_naive_model
    ]
}

fn a_batch_is_applied_in_order(backend: &Backend) {
    let ordered = [add("a", 2), give_back("a", 1), look("a"), add("a", 3)];
    let several = [give_back("b", 5), add("b", 3), add("c", 1), look("b")];
    let most = [give_back("a", Hits::MAX), give_back("c", 1), add("c", 5)];
    let batches: [Expected<'_>; 5] = [
        (&ordered, &[2, 1, 1, 4]),
        (&several, &[0, 3, 1, 3]),
        (&[look("b"), add("c", 2), add("a", 1)], &[3, 3, 5]),
        (&most, &[0, 2, 7]),
        (&[add("a", 1), add("b", 1)], &[1, 4]),
    ];
    check(backend, batches);
    assert_eq!(backend.counters(), 3);
}

fn a_look_and_giving_back_make_no_counter(backend: &Backend) {
    check(backend, [(&[], &[])]);
    check(backend, [(&[look("a"), look("b")], &[0, 0])]);
    check(backend, [(&[give_back("a", 3)], &[0])]);
    assert_eq!(backend.counters(), 0);
    let looks = [look("a"), look("a")];
    check(backend, [(&[add("a", 3)], &[3]), (&looks, &[3, 3])]);
    assert_eq!(backend.counters(), 1);
}

/// Earlier versions could leave such counts. A look comes last each time, as counts are mended after the answer.
fn a_count_below_zero_is_read_as_0_and_the_next_hit_counts_from_there(backend: &Backend) {
    backend.open(async |handle| {
        send(&handle, &[add("a", 1)]).await;
        for (steps, expected) in [
            (&[add("a", 1), look("a")][..], &[1, 1][..]),
            (&[add("a", 3)], &[3]),
            (&[add("a", 2), add("a", 4)], &[2, 6]),
            (&[give_back("a", 7)], &[0]),
            (&[give_back("a", 7), add("a", 5)], &[0, 5]),
        ] {
            if !backend.set_below_zero() {
                return;
            }
            assert_eq!(send(&handle, &[look("a")]).await, [0]);
            assert_eq!(send(&handle, steps).await, expected);
            let last = expected[expected.len() - 1];
            assert_eq!(send(&handle, &[look("a")]).await, [last]);
            let both = send(&handle, &[add("a", 2), look("a")]).await;
            assert_eq!(both, [last + 2; 2]);
            assert_eq!(send(&handle, &[look("a")]).await, [last + 2]);
        }
        backend.set_below_zero();
        assert_eq!(send_batch(&handle, &[add("a", 2)], true).await, [2]);
        assert_eq!(send(&handle, &[add("a", 1)]).await, [3]);
    });
    for node in backend.nodes() {
        assert_eq!(node.keys_without_end(), 0);
    }
}

fn the_most_hits_twice_stay_above_every_limit(backend: &Backend) {
    let counts = backend.open(async |handle| {
        let mut counts = Vec::new();
        for batch in [
            &[add("a", Hits::MAX)][..],
            &[add("a", Hits::MAX)],
            &[add("a", 1), look("a")],
            &[add("b", Hits::MAX), add("b", u64::MAX), add("b", 1)],
            &[add("b", 1), look("b")],
            &[add("b", Hits::MAX), add("b", Hits::MAX)],
            &[look("a"), look("b")],
        ] {
            counts.extend(send(&handle, batch).await);
        }
        counts
    });
    let most = u64::from(u32::MAX);
    assert!(counts.iter().all(|&count| count > most), "{counts:?}");
}

fn periods_have_counters_of_their_own(backend: &Backend) {
    // At the epoch all windows begin together.
    let at = Timestamp::from_secs(0);
    let on = |unit, multiplier, hits| add("a", hits).per(unit, multiplier).at(at);
    let several = [
        on(Unit::Hour, 1, 1),
        on(Unit::Day, 1, 2),
        on(Unit::Hour, 2, 3),
        on(Unit::Year, 1000, 4),
    ];
    // Equal spans of time share a counter, in any unit.
    let equal = [on(Unit::Minute, 60, 1), on(Unit::Hour, 24, 1)];
    check(backend, [(&several, &[1, 2, 3, 4]), (&equal, &[2, 3])]);
}

/// A request may be on its way when a window ends, and clocks differ.
fn windows_have_counters_of_their_own(backend: &Backend) {
    const HOUR: u64 = 3600;
    let first = 60 * Unit::Year.secs();
    let on = |secs| {
        let at = Timestamp::from_secs(first + secs - 1);
        add("a", 1).per(Unit::Hour, 1).at(at)
    };
    let batches: [Expected<'_>; 5] = [
        (&[on(1)], &[1]),
        (&[on(0)], &[1]),
        (&[on(1), on(0)], &[2, 2]),
        (&[on(HOUR)], &[3]),
        (&[on(HOUR + 1)], &[1]),
    ];
    check(backend, batches);
}

fn any_bytes_of_any_length_are_a_value(backend: &Backend) {
    let long = |last: &str| "x".repeat(64 << 10) + last;
    let (long_a, long_b) = (long("a"), long("b"));
    let texts = ["", "\0", "\r\n", "}", "{x}", "1@2", "é", &long_a, &long_b];
    let others = [&b"\xff"[..], b"\xfe"];
    let values = texts.iter().map(|text| text.as_bytes()).chain(others);
    let steps: Vec<_> = values.map(|value| add(value, 1)).collect();
    let counts = [1, 2, 3].map(|count| [count; 11]);
    let batches = counts.each_ref().map(|counts| (&steps[..], &counts[..]));
    check(backend, batches);
}

fn a_hundred_counters_in_one_batch(backend: &Backend) {
    let steps: Vec<_> = (0..100).map(|n| add(n.to_string(), n + 1)).collect();
    let counts: Vec<u64> = (1..=100).collect();
    let twice: Vec<u64> = counts.iter().map(|count| 2 * count).collect();
    check(backend, [(&steps, &counts), (&steps, &twice)]);
    assert_eq!(backend.counters(), 100);
}

fn one_above_its_limit_stops_the_others(backend: &Backend) {
    let both = &[add("a", 1).within(2), add("b", 1).within(10)];
    let look_too = &[look("a").within(2), add("b", 1).within(10)];
    let new = &[add("c", 1).within(0), add("d", 1).within(1)];
    let batches: [Expected<'_>; 7] = [
        (both, &[1, 1]),
        (both, &[2, 2]),
        (both, &[3, 2]),
        (both, &[4, 2]),
        (&[add("b", 1).within(10)], &[3]),
        (look_too, &[4, 3]),
        (new, &[1, 0]),
    ];
    check_batches(backend, true, &batches);
    // Stopped increments created no counter.
    assert_eq!(backend.counters(), 3);
}

fn the_most_hits_twice_leave_the_counters_beside_them_alone(backend: &Backend) {
    let counts = backend.open(async |handle| {
        let mut counts = Vec::new();
        for hits in [Hits::MAX - 1, Hits::MAX, Hits::MAX, 1] {
            let both = [add("a", hits).within(5), add("b", 1).within(100)];
            counts.push(send_batch(&handle, &both, true).await);
        }
        counts
    });
    for counts in counts {
        assert!(counts[0] > u64::from(u32::MAX), "{counts:?}");
        assert_eq!(counts[1], 0);
    }
}

/// The results of 64 adders that send `steps` at once through four handles.
fn sixty_four(backend: &Backend, steps: &[Step], stops_when_over: bool) -> Vec<Vec<u64>> {
    const HANDLES: usize = 4;
    const ADDERS: usize = 16;
    let at_one_handle = || {
        backend.open(async |handle| {
            let mut adders = JoinSet::new();
            for _ in 0..ADDERS {
                let (handle, steps) = (handle.clone(), steps.to_vec());
                adders.spawn(async move { send_batch(&handle, &steps, stops_when_over).await });
            }
            adders.join_all().await
        })
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..HANDLES).map(|_| scope.spawn(at_one_handle)).collect();
        handles
            .into_iter()
            .flat_map(|handle| handle.join().unwrap())
            .collect()
    })
}

fn sixty_four_adders_get_every_count_once(backend: &Backend) {
    let mut counts = sixty_four(backend, &[add("a", 1)], false).concat();
    counts.sort_unstable();
    assert_eq!(counts, (1..=64).collect::<Vec<_>>());
}

fn sixty_four_adders_that_stop_leave_the_limit_full(backend: &Backend) {
    let both = [add("a", 1).within(40), add("b", 1).within(50)];
    let mut counts = sixty_four(backend, &both, true);
    counts.sort_unstable();
    let expected: Vec<_> = (1..=64).map(|n| vec![n, n.min(40)]).collect();
    assert_eq!(counts, expected);
}

/// Batches over a few counters: three values in two windows of two periods.
fn any_history() -> impl Strategy<Value = Vec<(Vec<Step>, bool)>> {
    let hits = prop_oneof![
        3 => (1_u64..6).prop_map(Hits::add),
        1 => Just(Hits::add(0)),
        2 => (1_u64..9).prop_map(Hits::give_back),
    ];
    let step = (0..3_u8, hits, 1..=2_u32, 0..20_u64);
    let step = step.prop_map(|(value, hits, multiplier, limit)| {
        let step = self::step([value, 0xff], hits).per(Unit::Year, multiplier);
        step.within(limit)
    });
    // A batch is sent at one time.
    let steps = (prop::collection::vec(step, 0..6), 0..2_u64).prop_map(|(mut steps, windows)| {
        for step in &mut steps {
            step.now = Timestamp::from_secs(NOW.secs() + windows * 2 * Unit::Year.secs());
        }
        steps
    });
    let batch = (steps, any::<bool>());
    prop::collection::vec(batch, 1..12)
}

/// Applies one step after the other.
#[derive(Default)]
struct Model(HashMap<(Vec<u8>, u64, u64), u64>);

impl Model {
    fn send(&mut self, steps: &[Step], stops_when_over: bool) -> Vec<u64> {
        let would_pass: Vec<_> = steps
            .iter()
            .map(|step| {
                let count = *self.count(step) + step.hits.added();
                step.hits.given_back() == 0 && count > step.limit
            })
            .collect();
        let stops = stops_when_over && would_pass.contains(&true);
        let apply = |(step, would_pass): (&Step, bool)| {
            let count = self.count(step);
            if would_pass || !stops {
                *count += step.hits.added();
            }
            *count = count.saturating_sub(step.hits.given_back());
            *count
        };
        steps.iter().zip(would_pass).map(apply).collect()
    }

    fn count(&mut self, step: &Step) -> &mut u64 {
        let period = step.period.secs();
        let name = (step.value.clone(), period, step.now.secs() / period);
        self.0.entry(name).or_default()
    }
}

fn any_history_is_that_of_a_naive_model(backend: &Backend) {
    let config = Config {
        source_file: Some(file!()),
        ..Config::default()
    };
    // Each history has its own values.
    let histories = Cell::new(0_u32);
    TestRunner::new(config)
        .run(&any_history(), |mut history| {
            histories.set(histories.get() + 1);
            for step in history.iter_mut().flat_map(|(steps, _)| steps) {
                step.value.extend(histories.get().to_be_bytes());
            }
            let mut model = Model::default();
            let batches = history.iter();
            let expected: Vec<_> = batches
                .map(|(steps, stops)| model.send(steps, *stops))
                .collect();
            let counts = backend.open(async |handle| {
                let mut counts = Vec::new();
                for (steps, stops) in &history {
                    counts.push(send_batch(&handle, steps, *stops).await);
                }
                counts
            });
            prop_assert_eq!(counts, expected);
            Ok(())
        })
        .unwrap();
}
