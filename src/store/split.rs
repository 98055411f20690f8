//! One request over several stores.
//!
//! Where limits are judged together, all places are first asked which counts the request would lead to,
//! and nothing is charged. Then each place is charged its part of the joint decision. Hits that another
//! caller took in between show in the reply to the charge: a rule with `count: admitted` that was
//! charged although the request is then refused, or fails, gets its hits back at once. Until then other
//! callers can find that counter fuller than it should be, never emptier. So such a refusal may have
//! come from hits that were given back too, and the request is judged again a few times before it is final.

use std::{collections::HashSet, future::Future, ops::Range};

use smallvec::SmallVec;

use super::contract::{Deadline, StoreError};
use crate::core::{
    charging::Charging,
    counter::{
        Batch, Charge, CounterState, CounterStates, Enforcement, Increment, IncrementSpec,
        Operation,
    },
};

/// The places that count the parts of a batch.
pub(super) trait PartStores: Sync {
    /// Adds each part at its place, all at the same time, and waits for all of them. A place with an
    /// empty part is not asked. Returns an error for all parts if it is known in advance that one place
    /// cannot answer.
    fn add(
        &self,
        parts: &[Batch],
        deadline: &Deadline,
    ) -> impl Future<Output = Vec<Result<CounterStates, StoreError>>> + Send;
}

/// The place of each increment of a batch.
#[derive(Debug)]
pub(crate) struct Split {
    stores: Vec<usize>,
    /// One more than the highest place.
    parts: usize,
}

/// How often a request is judged again if a look found room and the charge did not.
const REPEATS: usize = 4;

/// The end of one judgement on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitEnd {
    /// The look found nothing to charge.
    Full,
    /// The look found room, but other requests took it, and nothing is charged.
    Overtaken,
    /// Something is charged, or could not be given back.
    Final,
}

/// The parameters of each increment of a batch; `None` if its place is not asked.
pub(super) type Chosen = SmallVec<[Option<IncrementSpec>; 8]>;

impl Split {
    /// `stores` should be small numbers, because there is a part for each number up to the highest.
    pub(super) fn new(stores: Vec<usize>) -> Self {
        let parts = stores.iter().max().map_or(0, |highest| highest + 1);
        Self { stores, parts }
    }

    /// The place of each increment, in order.
    #[cfg(test)]
    pub(super) fn stores(&self) -> &[usize] {
        &self.stores
    }

    /// The place of all increments, if they have only one.
    pub(super) fn only(&self) -> Option<usize> {
        let (first, others) = self.stores.split_first()?;
        others.iter().all(|store| store == first).then_some(*first)
    }

    /// Adds `batch`, which has more than one place.
    ///
    /// # Errors
    ///
    /// If a place does not answer. Increments that are judged together are then charged nowhere but at
    /// that place; other hits may have counted.
    pub(super) async fn add(
        &self,
        batch: &Batch,
        stores: &impl PartStores,
        deadline: &Deadline,
    ) -> Result<CounterStates, StoreError> {
        let unknown = CounterState {
            is_charged: false,
            ..CounterState::from(0)
        };
        let mut counts = CounterStates::from_elem(unknown, batch.len());
        if batch.all_specs().all(IncrementSpec::needs_no_look) {
            let all = batch.all_specs().map(|spec| Some(*spec)).collect();
            let sent = self.send(batch, &all, stores, &mut counts, deadline).await;
            if sent.is_err() {
                self.take_back(batch, stores, &mut counts, true).await;
            }
            return sent.map(|()| counts);
        }
        let all_at_once = 0..self.parts;
        let judged = self.judge(batch, stores, &mut counts, deadline, [all_at_once]);
        if judged.await? != SplitEnd::Overtaken {
            return Ok(counts);
        }
        for _ in 0..REPEATS {
            let mut again = counts.clone();
            // One place after the other, in one order for all requests: those that the first place refuses take no
            // room from the others at the next one.
            let one_by_one = (0..self.parts).map(|place| place..place + 1);
            let judged = self.judge(batch, stores, &mut again, deadline, one_by_one);
            // Without an answer the refusal stands.
            let Ok(end) = judged.await else { break };
            counts = again;
            if end == SplitEnd::Final {
                break;
            }
        }
        Ok(counts)
    }

    /// Looks at all places, then charges each its part of the joint decision: the places of one range at the same
    /// time, and one range after the other.
    async fn judge(
        &self,
        batch: &Batch,
        stores: &impl PartStores,
        counts: &mut CounterStates,
        deadline: &Deadline,
        order: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<SplitEnd, StoreError> {
        let looks = batch.all_specs().map(|spec| Some(spec.look())).collect();
        self.send(batch, &looks, stores, counts, deadline).await?;
        let mut has_room = false;
        let mut sent = Ok(());
        for places in order {
            let mut charged = charged(batch, counts);
            for (spec, store) in charged.iter_mut().zip(&self.stores) {
                spec.take_if(|_| !places.contains(store));
            }
            if charged.iter().flatten().all(|spec| spec.hits == 0) {
                continue;
            }
            has_room = true;
            sent = self.send(batch, &charged, stores, counts, deadline).await;
            if sent.is_err() {
                break;
            }
        }
        if !has_room {
            return Ok(SplitEnd::Full);
        }
        let is_undone = self.take_back(batch, stores, counts, sent.is_err()).await;
        match sent {
            Ok(()) if is_undone && counts.iter().all(|count| !count.is_charged) => {
                Ok(SplitEnd::Overtaken)
            }
            Ok(()) => Ok(SplitEnd::Final),
            // Other places were charged, so the request is not tried in another way.
            Err(StoreError::Moving) => Err(StoreError::Refused),
            Err(error) => Err(error.of_part()),
        }
    }

    /// Takes back the hits that are charged too much. Returns whether the places did: the decision stands in any case.
    async fn take_back(
        &self,
        batch: &Batch,
        stores: &impl PartStores,
        counts: &mut CounterStates,
        has_failed: bool,
    ) -> bool {
        let back = overcharged(batch, counts, has_failed);
        if back.iter().all(Option::is_none) {
            return true;
        }
        let mut ignored = counts.clone();
        let deadline = Deadline::of_store();
        let taken = self.send(batch, &back, stores, &mut ignored, &deadline);
        taken.await.is_ok()
    }

    /// Asks the places of the `chosen` increments, and puts their answers into `counts`. If one place
    /// fails, the answers of the others are kept.
    async fn send(
        &self,
        batch: &Batch,
        chosen: &Chosen,
        stores: &impl PartStores,
        counts: &mut CounterStates,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let mut parts: Vec<Batch> = (0..self.parts).map(|_| Batch::default()).collect();
        for ((increment, spec), &store) in batch.iter().zip(chosen).zip(&self.stores) {
            if let Some(spec) = *spec {
                parts[store].append_one(Increment { spec, ..increment });
            }
        }
        let answered = stores.add(&parts, deadline).await;
        let mut asked = answered
            .iter()
            .zip(&parts)
            .filter(|(_, part)| !part.is_empty());
        let is_unsent = |(answer, _): (&Result<CounterStates, StoreError>, _)| {
            answer.as_ref().is_err_and(|error| error.is_unsent())
        };
        // Then this is as certain of the whole.
        let is_all_unsent = asked.all(is_unsent);
        let mut error = None;
        let mut answered: Vec<_> = answered
            .into_iter()
            .map(|answered| answered.inspect_err(|why| error = error.or(Some(*why))))
            .map(|answered| answered.ok().map(CounterStates::into_iter))
            .collect();
        for ((count, spec), &store) in counts.iter_mut().zip(chosen).zip(&self.stores) {
            let Some(Some(answered)) = answered.get_mut(store) else {
                continue;
            };
            if spec.is_some() {
                match answered.next() {
                    Some(answered) => *count = answered,
                    None => error = error.or(Some(StoreError::Refused)),
                }
            }
        }
        match error {
            None => Ok(()),
            Some(error) if is_all_unsent => Err(error),
            // Another place may have counted. A full queue is no loss of its store.
            Some(StoreError::Overloaded) => Err(StoreError::Timeout),
            Some(error) => Err(error.of_part()),
        }
    }
}

/// Whether the counter is over the limit of `spec` after its hits, which `count` may already include.
fn is_over(spec: &IncrementSpec, count: &CounterState) -> bool {
    let leaves = if count.is_charged {
        0
    } else {
        spec.taken_off()
    };
    let after = count.after.saturating_sub(leaves);
    CounterState { after, ..*count }.is_over(spec.limit, spec.added())
}

fn charging(batch: &Batch, counts: &[CounterState]) -> Charging {
    let judged = batch.all_specs().zip(counts);
    Charging::new(judged.map(|(spec, count)| (spec, is_over(spec, count))))
}

/// The increments to charge, after a look at all places has led to `counts`. Others on the same counters look again,
/// because they answer for what these charge.
fn charged(batch: &Batch, counts: &[CounterState]) -> Chosen {
    let charging = charging(batch, counts);
    let charged = |(spec, count): (&IncrementSpec, &CounterState)| {
        charging
            .charges(spec, is_over(spec, count))
            .then_some(IncrementSpec {
                operation: match spec.operation {
                    // Only all places together can decide to leave it out.
                    Operation::Add(Charge::Stopping) => Operation::Add(Charge::Always),
                    own => own,
                },
                adds_first: false,
                enforcement: match spec.enforcement {
                    // One place does not know all quotas.
                    Enforcement::Quota => Enforcement::Silent,
                    own => own,
                },
                ..*spec
            })
    };
    let mut chosen: Chosen = batch.all_specs().zip(counts).map(charged).collect();
    let moves = |chosen: &Option<IncrementSpec>| chosen.is_some_and(|spec| spec.hits > 0);
    let moved: HashSet<&[u8]> = batch
        .iter()
        .zip(&chosen)
        .filter(|(_, chosen)| moves(chosen))
        .map(|(increment, _)| increment.key)
        .collect();
    for (increment, chosen) in batch.iter().zip(&mut chosen) {
        if chosen.is_none() && moved.contains(increment.key) {
            *chosen = Some(IncrementSpec {
                // The request is judged.
                enforcement: Enforcement::Silent,
                ..increment.look()
            });
        }
    }
    chosen
}

/// The hits to give back: those that were charged although the request as a whole is refused, or
/// `has_failed`. Their `counts` then no longer include them.
pub(super) fn overcharged(batch: &Batch, counts: &mut [CounterState], has_failed: bool) -> Chosen {
    let charging = charging(batch, counts);
    let back = |(spec, count): (&IncrementSpec, &mut CounterState)| {
        let hits = spec.hits;
        if spec.operation != Operation::Add(Charge::Admitted)
            || hits == 0
            || !count.was_counted(spec)
            || !has_failed && charging.charges(spec, false)
        {
            return None;
        }
        *count = CounterState {
            is_charged: false,
            after: count.after.saturating_sub(hits),
            ..*count
        };
        Some(spec.undone(count.place))
    };
    batch.all_specs().zip(counts).map(back).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        time::Duration,
    };

    use proptest::prelude::*;
    use tokio::runtime::Builder;

    use super::*;
    use crate::{
        core::{
            counter::{Enforcement, IncrementSpec},
            kind::Algorithm,
            limit::Limit,
            request::Hits,
            window::{Timestamp, Unit},
        },
        store::{contract::Store as _, memory::MemoryStore, per_second::PerSecond},
    };

    const NOW: Timestamp = Timestamp::from_secs(1_795_230_000);

    /// One limit of a request; limits per second have a place of their own.
    #[derive(Clone, Copy, Debug)]
    struct One {
        descriptor: u32,
        unit: Unit,
        requests_per_unit: u64,
        charge: Charge,
        enforcement: Enforcement,
        hits: Hits,
    }

    /// One hit of descriptor 0, under `count: admitted`.
    fn one(unit: Unit, requests_per_unit: u64) -> One {
        One {
            descriptor: 0,
            unit,
            requests_per_unit,
            charge: Charge::Admitted,
            enforcement: Enforcement::Refuses,
            hits: Hits::ONE,
        }
    }

    impl One {
        fn of(self, descriptor: u32) -> Self {
            Self { descriptor, ..self }
        }

        fn speaks(self, enforcement: Enforcement) -> Self {
            Self {
                enforcement,
                ..self
            }
        }
    }

    fn batch(limits: &[One], algorithm: &Algorithm) -> Batch {
        batch_at(limits, algorithm, NOW)
    }

    fn batch_at(limits: &[One], algorithm: &Algorithm, now: Timestamp) -> Batch {
        let mut batch = Batch::default();
        for one in limits {
            let value = one.descriptor.to_be_bytes();
            let limit = Limit {
                algorithm: algorithm.clone(),
                ..Limit::fixed(one.requests_per_unit, one.unit)
            };
            let counting = IncrementSpec {
                enforcement: one.enforcement,
                descriptor: one.descriptor,
                ..IncrementSpec::charged(one.hits, one.charge)
            };
            batch.push_value(&value, &limit, now, counting);
        }
        batch
    }

    /// Sends `before` and then `limits`. `expected` holds the count of each limit and whether it was
    /// charged; a look afterwards has to find the same counts.
    async fn check(before: &[One], limits: &[One], expected: &[(u64, bool)]) {
        for algorithm in [
            Algorithm::FixedWindow,
            Algorithm::FirstHit,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
        ] {
            let stores = [(); 2].map(|()| Arc::new(MemoryStore::new(100)));
            let store = PerSecond {
                store: stores[0].clone(),
                per_second: Some(stores[1].clone()),
            };
            store.add(&batch(before, &algorithm), NOW).await.unwrap();
            let counts = store.add(&batch(limits, &algorithm), NOW).await.unwrap();
            let answered: Vec<_> = counts
                .iter()
                .map(|count| (count.after, count.is_charged))
                .collect();
            assert_eq!(answered, expected, "{algorithm:?}");
            let looks: Vec<One> = limits
                .iter()
                .map(|one| One {
                    hits: Hits::add(0),
                    ..*one
                })
                .collect();
            let stored = store.add(&batch(&looks, &algorithm), NOW).await.unwrap();
            for (stored, (answered, _)) in stored.iter().zip(expected) {
                assert_eq!(stored.after, *answered, "{algorithm:?}");
            }
        }
    }

    use Unit::{Minute, Second};

    #[tokio::test]
    async fn what_is_charged_in_one_place_and_refused_in_another_is_given_back() {
        let both = [one(Second, 1), one(Minute, 5)];
        check(&[], &both, &[(1, true), (1, true)]).await;
        check(&both, &both, &[(1, false), (1, false)]).await;
        let other_way = [one(Second, 5), one(Minute, 1)];
        check(&other_way, &other_way, &[(1, false), (1, false)]).await;
    }

    #[tokio::test]
    async fn so_it_is_over_several_descriptors() {
        let both = [one(Second, 1), one(Minute, 5).of(1)];
        check(&both, &both, &[(1, false), (1, false)]).await;
    }

    #[tokio::test]
    async fn a_rule_in_shadow_mode_takes_back_its_own_and_no_other() {
        let both = [
            one(Second, 1).speaks(Enforcement::Silent),
            one(Minute, 5).speaks(Enforcement::Silent),
            one(Minute, 5).of(1),
        ];
        let expected = [(1, false), (1, false), (2, true)];
        check(&both, &both, &expected).await;
    }

    #[tokio::test]
    async fn quotas_take_back_what_they_refuse_together() {
        let quotas = |limit| {
            [
                one(Second, 1).speaks(Enforcement::Quota),
                one(Minute, limit).of(1).speaks(Enforcement::Quota),
                one(Minute, 9).of(2),
            ]
        };
        // One of them still has room, so the request passes.
        check(&quotas(5), &quotas(5), &[(1, false), (2, true), (2, true)]).await;
        check(
            &quotas(1),
            &quotas(1),
            &[(1, false), (1, false), (1, false)],
        )
        .await;
    }

    #[tokio::test]
    async fn what_counts_every_hit_keeps_it() {
        let all = One {
            charge: Charge::Always,
            ..one(Minute, 5).of(1)
        };
        let both = [one(Second, 1), all];
        check(&both, &both, &[(1, false), (2, true)]).await;
    }

    #[tokio::test]
    async fn what_was_given_back_by_the_request_itself_stays_given_back() {
        let two = One {
            hits: Hits::add(2),
            ..one(Minute, 5).of(1)
        };
        let back = One {
            hits: Hits::give_back(1),
            ..two
        };
        let before = [one(Second, 1), two];
        check(&before, &[one(Second, 1), back], &[(1, false), (1, true)]).await;
    }

    /// Two places. Every other request reaches the second one first, and all wait between the two.
    struct OppositeOrders {
        stores: [MemoryStore; 2],
        requests: AtomicUsize,
    }

    impl PartStores for OppositeOrders {
        async fn add(
            &self,
            parts: &[Batch],
            _: &Deadline,
        ) -> Vec<Result<CounterStates, StoreError>> {
            let first = self.requests.fetch_add(1, Relaxed) % 2;
            let mut answers = vec![Ok(CounterStates::new()), Ok(CounterStates::new())];
            for place in [first, 1 - first] {
                if !parts[place].is_empty() {
                    answers[place] = self.stores[place].add(&parts[place], NOW).await;
                }
                tokio::task::yield_now().await;
            }
            answers
        }
    }

    /// Places that answer like this, whatever they are asked.
    struct Answering([Result<u64, StoreError>; 2]);

    impl PartStores for Answering {
        async fn add(&self, _: &[Batch], _: &Deadline) -> Vec<Result<CounterStates, StoreError>> {
            let state = |count| CounterStates::from_elem(CounterState::from(count), 1);
            self.0.map(|answer| answer.map(state)).into()
        }
    }

    /// Otherwise a cost that could be sent again would be lost, or one that is counted would be sent again.
    #[tokio::test]
    async fn hits_are_unsent_if_no_place_was_sent_any() {
        let alone = |unit| One {
            charge: Charge::Always,
            enforcement: Enforcement::Silent,
            ..one(unit, 5)
        };
        let both = batch(&[alone(Minute), alone(Second)], &Algorithm::FixedWindow);
        let unsent = Err(StoreError::Unsent);
        for (answers, expected) in [
            ([unsent, unsent], StoreError::Unsent),
            ([unsent, Ok(1)], StoreError::Unreachable),
            ([Ok(1), unsent], StoreError::Unreachable),
            ([unsent, Err(StoreError::Timeout)], StoreError::Unreachable),
            ([Ok(1), Err(StoreError::Overloaded)], StoreError::Timeout),
        ] {
            let split = Split::new(vec![0, 1]);
            let (places, deadline) = (Answering(answers), Deadline::of_store());
            let added = split.add(&both, &places, &deadline).await;
            assert_eq!(added.unwrap_err(), expected);
        }
    }

    fn any_hits() -> impl Strategy<Value = Hits> {
        prop_oneof![
            5 => (1_u64..4).prop_map(Hits::add),
            1 => (4_u64..30).prop_map(Hits::add),
            1 => Just(Hits::add(0)),
            2 => (1_u64..5).prop_map(Hits::give_back),
        ]
    }

    /// How the hits of a rule are charged, and what its limits do.
    fn any_rule() -> impl Strategy<Value = (Charge, Enforcement)> {
        let charge = prop_oneof![
            3 => Just(Charge::Admitted),
            1 => Just(Charge::Always),
        ];
        let enforcement = prop_oneof![
            4 => Just(Enforcement::Refuses),
            1 => Just(Enforcement::Silent),
            1 => Just(Enforcement::Quota),
        ];
        (charge, enforcement)
    }

    /// Which algorithm, rule and unit, and the hits.
    fn any_request() -> impl Strategy<Value = Vec<(usize, usize, Unit, Hits)>> {
        let unit = prop_oneof![Just(Unit::Second), Just(Unit::Minute)];
        let one = (0..2_usize, 0..3_usize, unit, any_hits());
        prop::collection::vec(one, 1..5)
    }

    proptest! {
        #[test]
        fn two_places_answer_as_one_does(
            which in 0..4_usize,
            rules in prop::collection::vec(any_rule(), 3),
            requests in prop::collection::vec((0..700_u64, any_request()), 1..12),
        ) {
            let algorithms = [
                [Algorithm::FixedWindow, Algorithm::FirstHit],
                [Algorithm::FirstHit, Algorithm::SlidingWindow],
                [Algorithm::SlidingLog, Algorithm::TokenBucket { burst: 5 }],
                [Algorithm::TokenBucket { burst: 9 }, Algorithm::FixedWindow],
            ];
            let one_place = MemoryStore::new(100);
            let stores = [(); 2].map(|()| Arc::new(MemoryStore::new(100)));
            let two_places = PerSecond {
                store: stores[0].clone(),
                per_second: Some(stores[1].clone()),
            };
            let runtime = Builder::new_current_thread().build().unwrap();
            let mut now = NOW;
            for (pause, request) in requests {
                now = now.plus(Duration::from_millis(pause));
                let mut batch = Batch::default();
                for (algorithm, rule, unit, hits) in request {
                    let algorithm = &algorithms[which][algorithm];
                    let (charge, enforcement) = rules[rule];
                    let one = One {
                        descriptor: rule.try_into().unwrap(),
                        unit,
                        requests_per_unit: 5,
                        charge: match charge {
                            Charge::Always if algorithm.looks_first() => Charge::Within,
                            own => own,
                        },
                        enforcement,
                        hits,
                    };
                    batch.append(&self::batch_at(&[one], algorithm, now));
                }
                let mut expected = one_place.apply_all(&batch, now);
                let mut counts = runtime.block_on(two_places.add(&batch, now)).unwrap();
                for (index, spec) in batch.all_specs().enumerate() {
                    // No hit is charged, or every one is.
                    if spec.hits == 0 {
                        expected[index].is_charged = true;
                        counts[index].is_charged = true;
                    }
                }
                prop_assert_eq!(counts, expected, "{:?}", batch.all_specs().collect::<Vec<_>>());
            }
        }
    }

    #[tokio::test]
    async fn requests_at_once_do_not_refuse_each_other_by_hits_that_they_give_back() {
        let limits = [one(Second, 29), one(Minute, 30).of(1)];
        let batch = Arc::new(batch(&limits, &Algorithm::FixedWindow));
        let stores = Arc::new(OppositeOrders {
            stores: [(); 2].map(|()| MemoryStore::new(100)),
            requests: AtomicUsize::new(0),
        });
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let (batch, stores) = (batch.clone(), stores.clone());
            requests.spawn(async move {
                let split = Split::new(vec![1, 0]);
                let counts = split.add(&batch, &*stores, &Deadline::of_store()).await;
                counts.unwrap().iter().all(|count| count.is_charged)
            });
        }
        let admitted = requests.join_all().await;
        assert_eq!(admitted.iter().filter(|admitted| **admitted).count(), 29);
        let looks = [one(Second, 29), one(Minute, 30).of(1)].map(|one| One {
            hits: Hits::add(0),
            ..one
        });
        let looks = self::batch(&looks, &Algorithm::FixedWindow);
        let split = Split::new(vec![1, 0]);
        let held = split.add(&looks, &*stores, &Deadline::of_store()).await;
        assert!(held.unwrap().iter().all(|count| count.after == 29));
    }
}
