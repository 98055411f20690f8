//! One request over several stores.
//!
//! Each part is judged where it lives. What a rule with `count: admitted` was charged in one place
//! although another refused the request is given back at once; until it is, others can find that
//! counter fuller than it should be, never emptier.

use crate::{
    counter::{Batch, Charge, Count, CountList, Increment},
    request::Hits,
    verdict::Verdict,
};

/// The parts of a batch, and where each increment went.
#[derive(Debug)]
pub(super) struct Split {
    parts: Vec<Batch>,
    places: Vec<usize>,
}

impl Split {
    /// `place` says where an increment lives: a small number, for there is a part for each up to
    /// the highest.
    pub(super) fn new(batch: &Batch, place: impl Fn(&Increment<'_>) -> usize) -> Self {
        let places: Vec<usize> = batch.iter().map(|increment| place(&increment)).collect();
        let mut parts = Vec::new();
        for (increment, &place) in batch.iter().zip(&places) {
            if parts.len() <= place {
                parts.resize_with(place + 1, Batch::default);
            }
            parts[place].append_one(increment);
        }
        Self { parts, places }
    }

    /// The parts, some of them empty.
    pub(super) fn parts(&self) -> &[Batch] {
        &self.parts
    }

    /// The one place where all increments live, if it is one.
    pub(super) fn only(&self) -> Option<usize> {
        let (first, others) = self.places.split_first()?;
        others.iter().all(|place| place == first).then_some(*first)
    }

    /// The counts of all parts in the order of the request, those of each part being in order.
    pub(super) fn merge(&self, counts: Vec<CountList>) -> Option<CountList> {
        let mut counts: Vec<_> = counts.into_iter().map(CountList::into_iter).collect();
        let places = self.places.iter();
        places.map(|&place| counts.get_mut(place)?.next()).collect()
    }

    /// What was charged although the request as a whole is refused, to be given back to each part;
    /// nothing if that is nothing. `counts` then no longer say that it is charged.
    pub(super) fn overcharged(&self, batch: &Batch, counts: &mut [Count]) -> Option<Vec<Batch>> {
        overcharged_at(batch, counts, &self.places, self.parts.len())
    }
}

/// The same, where each increment lives at its place of `places`, of which there are `parts`.
pub(super) fn overcharged_at(
    batch: &Batch,
    counts: &mut [Count],
    places: &[usize],
    parts: usize,
) -> Option<Vec<Batch>> {
    let increments: Vec<_> = batch.iter().collect();
    let judged = increments.iter().zip(counts.iter());
    let verdict = Verdict::new(judged.map(|(increment, count)| {
        (
            &increment.terms,
            count.is_over(increment.limit, increment.hits),
        )
    }));
    let mut back: Option<Vec<Batch>> = None;
    for ((increment, count), &place) in increments.iter().zip(counts).zip(places) {
        let hits = increment.hits.added();
        if increment.charge != Charge::Admitted
            || hits == 0
            || !count.is_charged
            || verdict.charges(&increment.terms, false)
        {
            continue;
        }
        let mut terms = increment.terms;
        terms.hits = Hits::give_back(hits);
        terms.charge = Charge::Always;
        let empty = || (0..parts).map(|_| Batch::default()).collect();
        back.get_or_insert_with(empty)[place].append_one(Increment {
            terms,
            ..*increment
        });
        count.is_charged = false;
        count.after = count.after.saturating_sub(hits);
    }
    back
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        counter::{Counting, Identity, Voice},
        limit::{Algorithm, Limit},
        request::Entry,
        store::{Store as _, memory::MemoryStore, per_second::PerSecond},
        window::{Timestamp, Unit},
    };

    const NOW: Timestamp = Timestamp::from_secs(1_795_230_000);

    /// One limit of a request: that of seconds lives apart from all others.
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
        let mut identity = Identity::default();
        for one in limits {
            let value = one.descriptor.to_be_bytes();
            let entry = Entry {
                key: b"k",
                value: &value,
            };
            identity.set(b"d", &[entry], &[]);
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
            batch.push(&identity, &limit, NOW, counting);
        }
        batch
    }

    /// Sends `before`, then `limits`, and wants the counts of the latter and what is then stored, by
    /// what is told of it now and what a look says afterwards.
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
