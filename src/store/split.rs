//! One request over several stores.
//!
//! Where limits are judged together, all places are first asked which counts the request would lead to,
//! and nothing is charged. Then each place is charged its part of the joint decision. Hits that another
//! caller took in between show in the reply to the charge: a rule with `count: admitted` that was
//! charged although the request is then refused, or fails, gets its hits back at once. Until then other
//! callers can find that counter fuller than it should be, never emptier.

use std::future::Future;

use smallvec::SmallVec;

use super::{Deadline, StoreError};
use crate::{
    counter::{Batch, Charge, Count, CountList, Increment, Terms, Voice},
    limit::OnStoreLoss,
    request::Hits,
    verdict::Verdict,
};

/// The places that count the parts of a batch.
pub(super) trait Places: Sync {
    /// Adds each part at its place, all at the same time, and waits for all of them. A place with an
    /// empty part is not asked. Returns an error for all parts if it is known in advance that one place
    /// cannot answer.
    fn add(
        &self,
        parts: &[Batch],
        deadline: &Deadline,
    ) -> impl Future<Output = Vec<Result<CountList, StoreError>>> + Send;
}

/// The place of each increment of a batch.
#[derive(Debug)]
pub(super) struct Split {
    places: Vec<usize>,
    /// One more than the highest place.
    parts: usize,
}

/// The parameters of each increment of a batch; `None` if its place is not asked.
type Chosen = SmallVec<[Option<Terms>; 8]>;

impl Split {
    /// `places` should be small numbers, because there is a part for each number up to the highest.
    pub(super) fn new(places: Vec<usize>) -> Self {
        let parts = places.iter().max().map_or(0, |highest| highest + 1);
        Self { places, parts }
    }

    /// The place of each increment, in order.
    #[cfg(test)]
    pub(super) fn places(&self) -> &[usize] {
        &self.places
    }

    /// The place of all increments, if they have only one.
    pub(super) fn only(&self) -> Option<usize> {
        let (first, others) = self.places.split_first()?;
        others.iter().all(|place| place == first).then_some(*first)
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
        places: &impl Places,
        deadline: &Deadline,
    ) -> Result<CountList, StoreError> {
        let mut counts = CountList::from_elem(Count::from(0), batch.len());
        if batch.all_terms().all(Terms::stands_alone) {
            let all = batch.all_terms().map(|terms| Some(*terms)).collect();
            self.send(batch, &all, places, &mut counts, deadline)
                .await?;
            return Ok(counts);
        }
        let looks = batch.all_terms().map(looked_at).collect();
        self.send(batch, &looks, places, &mut counts, deadline)
            .await?;
        let charged = charged(batch, &counts);
        if charged.iter().flatten().all(|terms| terms.hits.is_peek()) {
            return Ok(counts);
        }
        let sent = self
            .send(batch, &charged, places, &mut counts, deadline)
            .await;
        let back = overcharged(batch, &mut counts, sent.is_err());
        if back.iter().any(Option::is_some) {
            let mut ignored = counts.clone();
            // The decision stands, whether the places take it back or not.
            let _ = self
                .send(batch, &back, places, &mut ignored, &Deadline::of_store())
                .await;
        }
        match sent {
            Ok(()) => Ok(counts),
            // Other places were charged, so the request is not tried in another way.
            Err(StoreError::Moving) => Err(StoreError::Refused),
            Err(error) => Err(error),
        }
    }

    /// Asks the places of the `chosen` increments, and puts their answers into `counts`. If one place
    /// fails, the answers of the others are kept.
    async fn send(
        &self,
        batch: &Batch,
        chosen: &Chosen,
        places: &impl Places,
        counts: &mut CountList,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let mut parts: Vec<Batch> = (0..self.parts).map(|_| Batch::default()).collect();
        for ((increment, terms), &place) in batch.iter().zip(chosen).zip(&self.places) {
            if let Some(terms) = *terms {
                parts[place].append_one(Increment { terms, ..increment });
            }
        }
        let told = places.add(&parts, deadline).await;
        let mut error = None;
        let mut told: Vec<_> = told
            .into_iter()
            .map(|told| told.inspect_err(|why| error = error.or(Some(*why))))
            .map(|told| told.ok().map(CountList::into_iter))
            .collect();
        for ((count, terms), &place) in counts.iter_mut().zip(chosen).zip(&self.places) {
            let Some(Some(told)) = told.get_mut(place) else {
                continue;
            };
            if terms.is_some() {
                match told.next() {
                    Some(told) => *count = told,
                    None => error = error.or(Some(StoreError::Refused)),
                }
            }
        }
        error.map_or(Ok(()), Err)
    }
}

fn looked_at(terms: &Terms) -> Option<Terms> {
    Some(Terms {
        charge: Charge::Never,
        ..*terms
    })
}

/// Whether the counter is over the limit of `terms` after its hits, which `count` may already include.
fn is_over(terms: &Terms, count: &Count) -> bool {
    let leaves = if count.is_charged {
        0
    } else {
        terms.hits.given_back()
    };
    let after = count.after.saturating_sub(leaves);
    Count { after, ..*count }.is_over(terms.limit, terms.hits)
}

fn verdict(batch: &Batch, counts: &[Count]) -> Verdict {
    let judged = batch.all_terms().zip(counts);
    Verdict::new(judged.map(|(terms, count)| (terms, is_over(terms, count))))
}

/// The increments to charge, after a look at all places has led to `counts`.
fn charged(batch: &Batch, counts: &[Count]) -> Chosen {
    let verdict = verdict(batch, counts);
    let charged = |(terms, count): (&Terms, &Count)| {
        verdict
            .charges(terms, is_over(terms, count))
            .then_some(Terms {
                charge: match terms.charge {
                    // Only all places together can decide to leave it out.
                    Charge::Stopping => Charge::Always,
                    own => own,
                },
                voice: match terms.voice {
                    // One place does not know all quotas.
                    Voice::Quota => Voice::Silent,
                    own => own,
                },
                ..*terms
            })
    };
    batch.all_terms().zip(counts).map(charged).collect()
}

/// The hits to give back: those that were charged although the request as a whole is refused, or
/// `has_failed`. Their `counts` then no longer include them.
fn overcharged(batch: &Batch, counts: &mut [Count], has_failed: bool) -> Chosen {
    let verdict = verdict(batch, counts);
    let back = |(terms, count): (&Terms, &mut Count)| {
        let hits = terms.hits.added();
        let was_let_pass = count.is_degraded && terms.on_loss == OnStoreLoss::Allow;
        if terms.charge != Charge::Admitted
            || hits == 0
            || !count.is_charged
            || was_let_pass
            || !has_failed && verdict.charges(terms, false)
        {
            return None;
        }
        count.is_charged = false;
        count.after = count.after.saturating_sub(hits);
        Some(Terms {
            hits: Hits::give_back(hits),
            charge: Charge::Always,
            ..*terms
        })
    };
    batch.all_terms().zip(counts).map(back).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        counter::{Counting, Voice},
        limit::{Algorithm, Limit},
        store::{Store as _, memory::MemoryStore, per_second::PerSecond},
        window::{Timestamp, Unit},
    };

    const NOW: Timestamp = Timestamp::from_secs(1_795_230_000);

    /// One limit of a request; limits per second have a place of their own.
    #[derive(Clone, Copy)]
    struct One {
        descriptor: u32,
        unit: Unit,
        requests_per_unit: u32,
        charge: Charge,
        voice: Voice,
        hits: Hits,
    }

    /// One hit of descriptor 0, under `count: admitted`.
    fn one(unit: Unit, requests_per_unit: u32) -> One {
        One {
            descriptor: 0,
            unit,
            requests_per_unit,
            charge: Charge::Admitted,
            voice: Voice::Refuses,
            hits: Hits::ONE,
        }
    }

    impl One {
        fn of(self, descriptor: u32) -> Self {
            Self { descriptor, ..self }
        }

        fn speaks(self, voice: Voice) -> Self {
            Self { voice, ..self }
        }
    }

    fn batch(limits: &[One], algorithm: &Algorithm) -> Batch {
        let mut batch = Batch::default();
        for one in limits {
            let value = one.descriptor.to_be_bytes();
            let limit = Limit {
                algorithm: algorithm.clone(),
                ..Limit::fixed(one.requests_per_unit, one.unit)
            };
            let counting = Counting {
                charge: one.charge,
                voice: one.voice,
                descriptor: one.descriptor,
                ..Counting::from(one.hits)
            };
            batch.push_value(&value, &limit, NOW, counting);
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
            let told: Vec<_> = counts
                .iter()
                .map(|count| (count.after, count.is_charged))
                .collect();
            assert_eq!(told, expected, "{algorithm:?}");
            let looks: Vec<One> = limits
                .iter()
                .map(|one| One {
                    hits: Hits::add(0),
                    ..*one
                })
                .collect();
            let stored = store.add(&batch(&looks, &algorithm), NOW).await.unwrap();
            for (stored, (told, _)) in stored.iter().zip(expected) {
                assert_eq!(stored.after, *told, "{algorithm:?}");
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
            one(Second, 1).speaks(Voice::Silent),
            one(Minute, 5).speaks(Voice::Silent),
            one(Minute, 5).of(1),
        ];
        let expected = [(1, false), (1, false), (2, true)];
        check(&both, &both, &expected).await;
    }

    #[tokio::test]
    async fn quotas_take_back_what_they_refuse_together() {
        let quotas = |limit| {
            [
                one(Second, 1).speaks(Voice::Quota),
                one(Minute, limit).of(1).speaks(Voice::Quota),
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
}
