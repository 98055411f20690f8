//! Finds out how many replicas share the limits of a domain, by counting in their store.
//!
//! A replica uses a domain if it was asked for it in the last minute. For each domain that it uses, and once for all,
//! it adds one hit to a counter of ten seconds in each window, and looks at the window before. The counters belong to
//! no domain, so no request can use them:
//!
//! ```text
//! {0:}10@179523000               all replicas
//! {0:8:4c1f0a2b0:}10@179523000   those that use the domain of this number
//! {0:4:many0:}10@179523000       those that use more domains than they count: each may use any
//! ```

use std::{
    collections::BTreeMap,
    convert::Infallible,
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    contract::{Deadline, Store, StoreError},
    loss::stats::LossStats,
};
use crate::{
    core::{
        counter::{Batch, CounterStates, Identity, Increment, IncrementSpec},
        limit::Limit,
        request::{Entry, Hits},
        window::{Period, SteadyTime, Timestamp, Unit, Window},
    },
    foundation::lock::lock,
};

/// The length of a window: a replica that left is counted for up to two of them.
const WINDOW_SECS: NonZeroU32 = NonZeroU32::new(10).expect("10 is not 0");
const WINDOW: Duration = Duration::from_secs(10);

/// How often the counters are looked at, so that a new replica is seen as soon.
const LOOK: Duration = Duration::from_secs(1);

/// A replica uses a domain for this long after it was asked for it.
const IN_USE: Duration = Duration::from_secs(60);

/// The most domains whose replicas are counted, each with two reads a second.
const MAX_DOMAINS: usize = 64;

/// How many replicas share the limits, as far as that is known.
#[derive(Debug)]
pub(crate) struct ReplicaCount {
    /// The number that the settings give.
    given: Option<NonZeroU32>,
    began: SteadyTime,
    /// The domain that was asked for last, and in which second since then: more often it need not be recorded.
    asked: AtomicU64,
    counted: Mutex<CountedReplicas>,
}

#[derive(Debug, Default)]
struct CountedReplicas {
    /// All that use this store; 0 until they were counted.
    all: u32,
    /// Those of them that use more than [`MAX_DOMAINS`].
    many: u32,
    /// The domains in use, by number.
    domains: BTreeMap<u32, DomainUse>,
    /// When there was last no room for a domain.
    overflowed: Option<SteadyTime>,
}

#[derive(Debug)]
struct DomainUse {
    /// Since when this replica uses it.
    since: SteadyTime,
    /// When it was asked for it last.
    asked: SteadyTime,
    /// 0 until they were counted.
    replicas: u32,
}

/// The replicas that one counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReplicaGroup {
    All,
    Many,
    Domain(u32),
}

impl ReplicaCount {
    /// The number that the settings give, or one that is to be counted.
    pub(crate) fn new(given: Option<NonZeroU32>) -> Self {
        Self {
            given,
            began: Instant::now().into(),
            asked: AtomicU64::new(u64::MAX),
            counted: Mutex::default(),
        }
    }

    /// The number of all replicas; 0 if it is not known.
    pub(crate) fn all(&self) -> u32 {
        self.given
            .map_or_else(|| lock(&self.counted).all, NonZeroU32::get)
    }

    /// The number of those that use a domain, if it is known; of all if they were not counted by domain.
    pub(in crate::store) fn of(&self, domain: u32) -> Option<NonZeroU32> {
        self.given.or_else(|| {
            let counted = lock(&self.counted);
            let own = counted.domains.get(&domain).map_or(0, |own| own.replicas);
            NonZeroU32::new(match own {
                0 => counted.all,
                own => own.saturating_add(counted.many),
            })
        })
    }

    /// Records that this replica was asked for a domain.
    pub(in crate::store) fn ask(&self, domain: u32, at: SteadyTime) {
        let asked = at.since(self.began).as_secs() << 32 | u64::from(domain);
        if self.given.is_some() || self.asked.load(Relaxed) == asked {
            return;
        }
        self.asked.store(asked, Relaxed);
        let mut counted = lock(&self.counted);
        let has_room = counted.domains.len() < MAX_DOMAINS;
        if let Some(own) = counted.domains.get_mut(&domain) {
            own.asked = own.asked.max(at);
        } else if has_room {
            let new = DomainUse {
                since: at,
                asked: at,
                replicas: 0,
            };
            counted.domains.insert(domain, new);
        } else {
            counted.overflowed = Some(at);
        }
    }

    /// The groups whose number is of use, each with whether this replica belongs to it.
    fn groups(&self, at: SteadyTime) -> Vec<(ReplicaGroup, bool)> {
        let counted = &mut *lock(&self.counted);
        let is_over = |asked: SteadyTime| asked.plus(IN_USE) <= at;
        counted.domains.retain(|_, own| !is_over(own.asked));
        counted.overflowed.take_if(|asked| is_over(*asked));
        let mut groups = vec![
            (ReplicaGroup::All, true),
            (ReplicaGroup::Many, counted.overflowed.is_some()),
        ];
        for (domain, own) in &mut counted.domains {
            match counted.overflowed {
                // The others do not know for which domains they have to count it.
                Some(_) => own.replicas = 0,
                None => groups.push((ReplicaGroup::Domain(*domain), true)),
            }
        }
        groups
    }

    /// Takes over a count: of a whole window, or of one of which a part may be missing. The replicas of a domain are
    /// counted for a window before their number is taken: they may be asked for it one after the other.
    fn count(&self, group: ReplicaGroup, seen: u32, is_whole: bool, at: SteadyTime) {
        let counted = &mut *lock(&self.counted);
        let known = match group {
            ReplicaGroup::All => &mut counted.all,
            ReplicaGroup::Many => &mut counted.many,
            ReplicaGroup::Domain(domain) => match counted.domains.get_mut(&domain) {
                Some(own) if own.since.plus(WINDOW) <= at => &mut own.replicas,
                _ => return,
            },
        };
        *known = if is_whole { seen } else { seen.max(*known) };
    }
}

/// Counts the replicas, once for the process.
#[derive(Debug)]
pub(crate) struct Replicas<S> {
    store: S,
    number: Arc<ReplicaCount>,
    stats: Arc<LossStats>,
    limit: Limit,
    /// The last window in which this replica has tried to count itself in each group.
    own: BTreeMap<ReplicaGroup, Window>,
    /// The count of all in the present window at the last look.
    held: u64,
    /// Since when every look succeeded and found no less than before.
    well_since: Option<SteadyTime>,
}

impl<S: Store> Replicas<S> {
    /// Keeps the replicas that it counts in `store` in `number` and shows them in `stats`.
    pub(crate) fn new(store: S, number: Arc<ReplicaCount>, stats: Arc<LossStats>) -> Self {
        let period = Period::new(Unit::Second, WINDOW_SECS).expect("ten seconds are within bounds");
        Self {
            store,
            number,
            stats,
            limit: Limit::fixed(u32::MAX.into(), period),
            own: BTreeMap::new(),
            held: 0,
            well_since: None,
        }
    }

    /// Runs as long as the process. `now` reads the clock for windows. It counts nothing while
    /// `is_needed` returns `false`.
    pub(crate) async fn run(
        mut self,
        now: impl Fn() -> Timestamp,
        mut is_needed: impl FnMut() -> bool,
    ) -> Infallible {
        loop {
            if is_needed() {
                // A lost store is reported elsewhere; the last numbers hold meanwhile.
                let _ = self.look(now(), &Deadline::of_store()).await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&mut self, now: Timestamp, deadline: &Deadline) -> Result<(), StoreError> {
        let steady = deadline.steady();
        let window = self.limit.window(now);
        let before = now.minus(WINDOW);
        let is_new = self.own.get(&ReplicaGroup::All) != Some(&window);
        let groups = self.number.groups(steady);
        let mut batch = Batch::default();
        self.own.retain(|_, own| *own == window);
        for &(group, is_member) in &groups {
            // Set before sending: a hit without an answer may have counted, and is not sent again.
            let adds = is_member && self.own.insert(group, window).is_none();
            let hits = if adds { Hits::ONE } else { Hits::add(0) };
            self.push(&mut batch, group, now, hits);
            self.push(&mut batch, group, before, Hits::add(0));
        }
        let mut counts = CounterStates::new();
        let added = self
            .store
            .add_into(&mut counts, &batch, now, deadline)
            .await;
        added.inspect_err(|_| self.well_since = None)?;
        let (counts, _) = counts.as_chunks::<2>();
        let Some([all, _]) = counts.first() else {
            return Err(StoreError::Refused);
        };
        if !is_new && all.after < self.held {
            // The store came back empty.
            self.well_since = None;
        }
        self.held = all.after;
        let well_since = *self.well_since.get_or_insert(steady);
        // In a window during which the store was away, some replicas are missing.
        let start = self.limit.window(before).start;
        let age = Duration::from_millis(now.millis().saturating_sub(start.millis()));
        let is_whole = steady.since(well_since) >= age;
        for ((group, is_member), [present, previous]) in groups.into_iter().zip(counts) {
            let seen = present.after.max(previous.after).max(is_member.into());
            let seen = u32::try_from(seen).unwrap_or(u32::MAX);
            self.number.count(group, seen, is_whole, steady);
        }
        self.stats.replicas.store(self.number.all().into(), Relaxed);
        Ok(())
    }

    fn push(&self, batch: &mut Batch, group: ReplicaGroup, at: Timestamp, hits: Hits) {
        let name = match group {
            ReplicaGroup::All => None,
            ReplicaGroup::Many => Some("many".to_owned()),
            ReplicaGroup::Domain(domain) => Some(format!("{domain:08x}")),
        };
        let entry = name.as_ref().map(|name| Entry {
            key: name.as_bytes(),
            value: b"",
        });
        let mut identity = Identity::default();
        identity.set(b"", entry.as_slice(), &[]);
        let mut one = Batch::default();
        one.push(&identity, &self.limit, at, hits);
        for increment in one.iter() {
            // The counter is still read in the next window.
            let spec = IncrementSpec {
                expires_at: increment.expires_at.plus(WINDOW),
                ..increment.spec
            };
            batch.append_one(Increment { spec, ..increment });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;
    use crate::store::memory::MemoryStore;

    const START: u64 = 1_795_230_000;

    /// Replicas of one store, and the numbers they see when all look this many seconds after a window
    /// began. A replica that is not in the list does not run.
    struct Course {
        store: Arc<MemoryStore>,
        all: Vec<Replicas<Arc<MemoryStore>>>,
        /// The clock that cannot be set, when the window began.
        began: Instant,
    }

    impl Course {
        fn new() -> Self {
            Self {
                store: Arc::new(MemoryStore::new(1_000)),
                all: Vec::new(),
                began: Instant::now(),
            }
        }

        fn join(&mut self) {
            let replica = Replicas::new(
                self.store.clone(),
                ReplicaCount::new(None).into(),
                Arc::default(),
            );
            self.all.push(replica);
        }

        /// Looks with each replica.
        fn look(&mut self, secs: u64) {
            let runtime = Builder::new_current_thread().build().unwrap();
            let now = Timestamp::from_secs(START + secs);
            self.store.sweep(now);
            let deadline = Deadline::of_call(self.began + Duration::from_secs(secs), None);
            for replica in &mut self.all {
                runtime.block_on(replica.look(now, &deadline)).unwrap();
            }
        }

        #[track_caller]
        fn check(&mut self, secs: u64, expected: &[u32]) {
            self.look(secs);
            let seen = self.all.iter().map(|one| one.number.all());
            assert_eq!(seen.collect::<Vec<_>>(), expected);
        }

        /// Asks a replica for domains so many seconds after the window began.
        fn ask(&self, replica: usize, domains: impl IntoIterator<Item = u32>, secs: u64) {
            let at = SteadyTime::from(self.began + Duration::from_secs(secs));
            for domain in domains {
                self.all[replica].number.ask(domain, at);
            }
        }

        /// The number of replicas of a domain that each sees.
        fn of(&self, domain: u32) -> Vec<u32> {
            let of = |one: &Replicas<_>| one.number.of(domain).map_or(0, NonZeroU32::get);
            self.all.iter().map(of).collect()
        }
    }

    #[test]
    fn replicas_of_a_domain_are_those_that_were_asked_for_it_in_the_last_minute() {
        let mut course = Course::new();
        (0..4).for_each(|_| course.join());
        // Two deployments of two replicas each.
        for second in 1..100 {
            course.ask(0, [10], second);
            course.ask(1, [10].into_iter().filter(|_| second < 20), second);
            course.ask(2, [20, 30], second);
            course.ask(3, [20], second);
            course.look(second);
            if (25..79).contains(&second) {
                assert_eq!(course.of(10)[..2], [2, 2]);
            }
        }
        assert_eq!(course.all[0].number.all(), 4);
        // One has left, and takes the common number.
        assert_eq!(course.of(10)[..2], [1, 4]);
        assert_eq!(course.of(20)[2..], [2, 2]);
        assert_eq!(course.of(30)[2..], [1, 4]);
        assert_eq!(course.of(40), [4; 4]);
    }

    #[test]
    fn a_replica_of_too_many_domains_belongs_to_each() {
        let mut course = Course::new();
        (0..3).for_each(|_| course.join());
        for second in 1..30 {
            course.ask(0, [10], second);
            course.ask(1, [20], second);
            course.ask(2, 0..70, second);
            course.look(second);
        }
        assert_eq!(course.of(10), [2, 3, 3]);
        assert_eq!(course.of(69), [3; 3]);
        // It is asked for one only, and is known for it after a minute and two windows.
        for second in 30..120 {
            course.ask(0, [10], second);
            course.ask(2, [10], second);
            course.look(second);
        }
        assert_eq!(course.of(10), [2, 3, 2]);
    }

    #[test]
    fn a_number_that_is_given_is_that_of_every_domain() {
        let number = ReplicaCount::new(NonZeroU32::new(7));
        number.ask(1, Instant::now().into());
        assert_eq!((number.all(), number.of(1)), (7, NonZeroU32::new(7)));
        assert_eq!(ReplicaCount::new(None).of(1), None);
    }

    #[test]
    fn who_comes_is_seen_at_once_and_who_leaves_is_forgotten_in_two_windows() {
        let mut course = Course::new();
        course.join();
        course.check(3, &[1]);
        course.join();
        course.check(4, &[1, 2]);
        course.check(5, &[2, 2]);
        course.check(10, &[2, 2]);
        course.check(20, &[2, 2]);
        course.check(29, &[2, 2]);
        course.all.pop();
        course.check(30, &[2]);
        course.check(39, &[2]);
        course.check(40, &[1]);
    }

    #[test]
    fn a_store_that_comes_back_empty_makes_nobody_forget() {
        let mut course = Course::new();
        for _ in 0..3 {
            course.join();
        }
        course.check(1, &[1, 2, 3]);
        course.check(2, &[3, 3, 3]);
        course.check(15, &[3, 3, 3]);
        course.check(25, &[3, 3, 3]);
        course.store = Arc::new(MemoryStore::new(1_000));
        for replica in &mut course.all {
            replica.store = course.store.clone();
        }
        course.check(26, &[3, 3, 3]);
        course.all.truncate(2);
        course.check(30, &[3, 3]);
        course.check(39, &[3, 3]);
        course.check(40, &[2, 2]);
    }

    #[test]
    fn no_request_can_have_its_counters() {
        let replicas = Replicas::new(
            MemoryStore::new(1),
            ReplicaCount::new(None).into(),
            Arc::default(),
        );
        let at = Timestamp::from_secs(START);
        for (group, expected) in [
            (ReplicaGroup::All, "{0:}10@179523000"),
            (ReplicaGroup::Many, "{0:4:many0:}10@179523000"),
            (ReplicaGroup::Domain(10), "{0:8:0000000a0:}10@179523000"),
        ] {
            let mut batch = Batch::default();
            replicas.push(&mut batch, group, at, Hits::ONE);
            assert_eq!(batch.key(0), expected.as_bytes());
        }
    }
}
